// The sheet of a score: text that is checked as it is typed, and cues that are moved by mouse and keyboard. The server
// checks, draws and edits: each change is a form that goes to the page's own address, and the parts of the answer take
// the places of those that are here. Without this script the same forms are sent by buttons.

const PAUSE_MS = 250;
const GRIP = 10;

const form = document.getElementById("score-form");
const area = document.getElementById("score");
const key = form.querySelector("input");
const submit = document.getElementById("submit-job");
const before = [];
let sending = Promise.resolve();
let waiting = 0;
let typed = 0;
let current = null;

// The parser of the answer is the request's own: no text of this script becomes markup.
function ask(fields) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.responseType = "document";
    request.setRequestHeader("Content-Type", "application/x-www-form-urlencoded");
    request.setRequestHeader("X-Scripted", "1");
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(request.status));
    request.onerror = () => reject(0);
    request.send(fields.toString());
  });
}

// Changes go one after the other, each on the text that the one before has left.
function send(extra, keeps = true) {
  waiting += 1;
  sending = sending.then(async () => {
    const text = area.value;
    const fields = new URLSearchParams({ [key.name]: key.value, score: text, ...extra });
    try {
      take(await ask(fields), text, keeps);
    } catch (status) {
      say(status === 401 ? "This browser has to enter again." : "The server does not answer; the text is kept here.");
    } finally {
      waiting -= 1;
    }
  });
  return sending;
}

function take(fresh, sent, keeps) {
  const text = fresh.getElementById("score").value;
  const isGood = fresh.getElementById("sheet").hasAttribute("data-good");
  if (area.value === sent && text !== sent) {
    if (keeps) before.push(sent);
    area.value = text;
  }
  area.setAttribute("aria-invalid", String(!isGood));
  fill(document.getElementById("verdict"), fresh.getElementById("verdict"));
  document.getElementById("sheet").classList.toggle("stale", !isGood);
  document.getElementById("cues").classList.toggle("stale", !isGood);
  if (isGood) {
    const focused = document.activeElement;
    const place = focused?.name ? { name: focused.name, value: focused.value, isField: focused.matches("input") } : null;
    const wasCue = focused?.closest?.(".cue") !== null && focused !== document.body;
    const said = document.getElementById("said");
    replace(fresh, "sheet");
    document.getElementById("said").replaceWith(said);
    fill(said, fresh.getElementById("said"));
    replace(fresh, "cues");
    wire();
    if (wasCue) cueNamed(current)?.focus();
    else if (place && !focused.isConnected) restore(place);
  } else {
    say(fresh.getElementById("said").textContent || "The sheet shows the last good text.");
  }
  if (submit) {
    submit.elements.score.value = isGood ? text : "";
    submit.querySelector("button").disabled = !isGood;
  }
}

function replace(fresh, id) {
  document.getElementById(id).replaceWith(document.importNode(fresh.getElementById(id), true));
}

// A part that is read aloud when it changes stays, and gets the content of the other.
function fill(part, other) {
  if (part.isEqualNode(other)) return;
  part.className = other.className;
  part.replaceChildren(...document.importNode(other, true).childNodes);
}

function restore({ name, value, isField }) {
  const found = [...form.elements].find((each) => each.name === name && (isField || each.value === value));
  found?.focus();
}

function say(text) {
  document.getElementById("said").textContent = text;
}

// Of the phrases, the first can be changed; the others follow from it.
function cues() {
  return [...(document.querySelector(".phrase")?.querySelectorAll(".cue") ?? [])];
}

function cueNamed(name) {
  return cues().find((each) => each.dataset.cue === name);
}

function wire() {
  const found = cues();
  if (!found.some((each) => each.dataset.cue === current)) current = found[0]?.dataset.cue;
  for (const cue of found) {
    cue.setAttribute("role", "button");
    cue.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight Shift+ArrowLeft Shift+ArrowRight Enter");
    // One stop for Tab; the arrows go from cue to cue.
    cue.setAttribute("tabindex", cue.dataset.cue === current ? "0" : "-1");
    cue.classList.toggle("current", cue.dataset.cue === current);
  }
  for (const each of document.querySelectorAll(".with-script")) each.hidden = false;
}

function select(name) {
  current = name;
  wire();
  cueNamed(name)?.focus();
}

function fieldOf(name) {
  return [...form.elements].find((each) => each.name === `field phases.${name}` || each.name === `field wait_budget.${name}`);
}

function takeBack() {
  const text = before.pop();
  if (text === undefined) {
    say("There is no change to take back.");
    return;
  }
  area.value = text;
  send({ do: "check" }, false);
}

form.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const cue = event.target.closest(".cue");
  if (!cue) {
    if (event.target.matches("input")) leaveField(event);
    return;
  }
  const name = cue.dataset.cue;
  current = name;
  const found = cues();
  const place = found.indexOf(cue);
  const how = event.shiftKey ? "grow" : "move";
  const keys = {
    ArrowLeft: () => send({ edit: `${how}:${name}:-1` }),
    ArrowRight: () => send({ edit: `${how}:${name}:+1` }),
    ArrowUp: () => select(found[Math.max(0, place - 1)].dataset.cue),
    ArrowDown: () => select(found[Math.min(found.length - 1, place + 1)].dataset.cue),
    Enter: () => fieldOf(name)?.select(),
    z: takeBack,
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

async function leaveField(event) {
  const input = event.target;
  if (event.key === "Escape") {
    input.value = form.elements[input.name.replace("field ", "was ")].value;
  } else if (event.key === "Enter") {
    event.preventDefault();
    await changeField(input);
  } else {
    return;
  }
  const name = input.name.split(".").pop();
  if (cueNamed(name)) select(name);
}

function changeField(input) {
  const was = form.elements[input.name.replace("field ", "was ")];
  if (!was || was.value === input.value.trim()) return sending;
  return send({ do: "apply", [input.name]: input.value, [was.name]: was.value });
}

form.addEventListener("change", (event) => {
  if (event.target.matches("input")) changeField(event.target);
});

form.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button?.value === "download") return;
  event.preventDefault();
  if (button?.name === "edit") {
    current = button.value.split(":")[1];
    send({ edit: button.value });
  } else {
    clearTimeout(typed);
    send({ do: "check" });
  }
});

area.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => send({ do: "check" }), PAUSE_MS);
  // What is drawn is older than the text until the answer is here.
  if (submit) submit.querySelector("button").disabled = true;
});

// A drag shows whole beats, and is sent when it ends: near the right end of a cue it changes the length, else the place.
form.addEventListener("pointerdown", (event) => {
  const cue = event.target.closest(".cue");
  if (!cue || cue.getAttribute("role") !== "button" || event.button !== 0) return;
  event.preventDefault();
  select(cue.dataset.cue);
  const body = cueNamed(current).querySelector(".body");
  const drawing = body.ownerSVGElement;
  const shown = body.getBoundingClientRect();
  const beat = (Number(drawing.dataset.beat) * drawing.getBoundingClientRect().width) / drawing.viewBox.baseVal.width;
  const how = body.classList.contains("wait") || shown.right - event.clientX <= GRIP ? "grow" : "move";
  const attribute = how === "grow" ? "width" : "x";
  const first = Number(body.getAttribute(attribute));
  let beats = 0;
  const ending = new AbortController();
  const move = (moved) => {
    beats = Math.round((moved.clientX - event.clientX) / beat);
    body.setAttribute(attribute, String(Math.max(6, first + beats * Number(drawing.dataset.beat))));
  };
  const end = (isDone) => {
    ending.abort();
    body.setAttribute(attribute, String(first));
    if (isDone && beats) send({ edit: `${how}:${cue.dataset.cue}:${beats > 0 ? "+" : ""}${beats}` });
  };
  const options = { signal: ending.signal };
  addEventListener("pointermove", move, options);
  addEventListener("pointerup", () => end(true), options);
  addEventListener("pointercancel", () => end(false), options);
  addEventListener("keydown", (key) => key.key === "Escape" && end(false), options);
});

wire();
