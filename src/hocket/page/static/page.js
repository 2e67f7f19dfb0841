// Keeps an open page current. Everything works without it: it loads the page's own address again when the server says
// that something has changed, and takes over what differs. Rows that are new are announced and not put under the
// reader's eyes; those that are there change in place.

const GAP_MS = 1500;
const CLOCK_MS = 10_000;

const live = document.getElementById("live");
const pause = document.getElementById("pause");
const news = document.getElementById("news");
let isPaused = false;
let isDue = false;
let isLoading = false;
let loadedAt = performance.now();
let ending = 0;
let source = null;
let retrying = 0;

function say(text) {
  if (live.textContent !== text) live.textContent = text;
}

// A parsed document without a sink for HTML: no text of this script ever becomes markup.
function load(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.setRequestHeader("Accept", "text/html");
    request.setRequestHeader("X-Scripted", "1");
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(request.status));
    request.onerror = () => reject(0);
    request.send();
  });
}

async function refresh() {
  if (isPaused || isLoading || document.hidden || !isDue) return;
  const rest = GAP_MS - (performance.now() - loadedAt);
  if (rest > 0) {
    setTimeout(refresh, rest);
    return;
  }
  isLoading = true;
  isDue = false;
  try {
    merge(await load(location.href));
    awaitEnd();
    say("live");
  } catch (status) {
    if (status === 401) {
      say("this browser has to enter again");
      isPaused = true;
    } else {
      say("the server does not answer; trying again");
      isDue = true;
    }
  } finally {
    isLoading = false;
    loadedAt = performance.now();
    if (isDue) setTimeout(refresh, GAP_MS);
  }
}

// A part of the page that lasts for a time only is loaded again after it.
function awaitEnd() {
  const lasts = [...document.querySelectorAll("[data-lasts-ms]")].map((part) => Number(part.dataset.lastsMs));
  clearTimeout(ending);
  if (!lasts.length) return;
  ending = setTimeout(() => {
    isDue = true;
    refresh();
  }, Math.max(GAP_MS, Math.min(...lasts)));
}

function merge(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other) continue;
    keepOpen(part, other);
    if (part.isEqualNode(other)) continue;
    if (part.contains(document.activeElement) && part.matches("form, :has(form)")) continue;
    replace(part, document.importNode(other, true));
  }
  for (const other of fresh.querySelectorAll("[data-live]")) {
    if (!document.getElementById(other.id)) insert(other);
  }
  for (const table of document.querySelectorAll("[data-rows]")) {
    const other = fresh.getElementById(table.id);
    if (other) mergeRows(table, other);
  }
}

// What the reader has opened stays open.
function keepOpen(part, other) {
  const details = other.querySelectorAll("details");
  part.querySelectorAll("details").forEach((each, place) => details[place]?.toggleAttribute("open", each.open));
}

// Texts stay where the reader has scrolled them; one that grows, and that the reader has not moved, shows its end.
function replace(part, other) {
  const places = new Map();
  for (const text of part.querySelectorAll("pre[id]")) {
    const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 2;
    places.set(text.id, isAtEnd && text.matches("[data-tail]") ? Infinity : text.scrollTop);
  }
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceWith(other);
  for (const [id, top] of places) {
    const text = document.getElementById(id);
    if (text) text.scrollTop = top === Infinity ? text.scrollHeight : top;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

// A part of the page that was not there before comes after the same neighbour as on the server.
function insert(other) {
  let before = other.previousElementSibling;
  while (before && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
  if (before) document.getElementById(before.id).after(document.importNode(other, true));
}

function mergeRows(table, other) {
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((row) => [row.id, row]));
  let added = 0;
  for (const row of other.tBodies[0].rows) {
    const ours = known.get(row.id);
    if (!ours) {
      added += 1;
      continue;
    }
    known.delete(row.id);
    ours.classList.remove("gone");
    [...row.cells].forEach((cell, place) => {
      const mine = ours.cells[place];
      if (mine && !mine.isEqualNode(cell)) mine.replaceWith(document.importNode(cell, true));
    });
  }
  for (const row of known.values()) row.classList.add("gone");
  announce(table, other, added, known.size);
}

function announce(table, other, added, gone) {
  const place = table.closest(".scroll") ?? table;
  let button = place.previousElementSibling?.matches(".fresh") ? place.previousElementSibling : null;
  if (!added && !gone) {
    button?.remove();
    return;
  }
  if (!button) {
    button = document.createElement("button");
    button.className = "fresh";
    place.before(button);
  }
  const words = [];
  if (added) words.push(`${added} new`);
  if (gone) words.push(`${gone} no longer here`);
  button.textContent = `${words.join(", ")}: show`;
  button.onclick = () => {
    const body = document.importNode(other.tBodies[0], true);
    table.tBodies[0].replaceWith(body);
    button.remove();
    table.querySelector("a")?.focus();
  };
}

// A page that nobody sees hears of nothing, and catches up when it is seen.
function listen() {
  clearTimeout(retrying);
  source?.close();
  if (document.hidden) return;
  source = new EventSource(document.body.dataset.changes);
  source.onopen = () => {
    say(isPaused ? "paused" : "live");
    isDue = true;
    refresh();
  };
  source.onmessage = () => {
    isDue = true;
    refresh();
  };
  source.onerror = () => {
    say("the connection is lost; trying again");
    if (source.readyState !== EventSource.CLOSED) return;
    isDue = true;
    refresh();
    retrying = setTimeout(listen, 5000);
  };
}

// Times that are shown as "3 min ago" go on without the server, in its words.
function ago(ms) {
  const away = Math.abs(Date.now() - ms);
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000]];
  const [unit, size] = units.find(([, each]) => away >= 2 * each) ?? ["s", 1000];
  const text = `${Math.floor(away / size)} ${unit}`;
  return ms > Date.now() ? `in ${text}` : `${text} ago`;
}

setInterval(() => {
  if (isPaused || document.hidden) return;
  for (const time of document.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms);
    if (Math.abs(Date.now() - ms) > 60_000) time.textContent = ago(ms);
  }
}, CLOCK_MS);

function setPaused(value) {
  isPaused = value;
  pause.setAttribute("aria-pressed", String(value));
  pause.textContent = value ? "Go on" : "Pause";
  say(value ? "paused" : "live");
  refresh();
}

// The clipboard of a page without TLS is out of reach; a selection is not.
async function copy(element) {
  const text = element.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(element);
    document.execCommand("copy");
  }
  news.textContent = "Copied.";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(document.getElementById(button.dataset.copy));
});

let current = -1;

function step(by) {
  const rows = [...document.querySelectorAll("tbody tr:has(a)")];
  if (!rows.length) return;
  rows[current]?.classList.remove("current");
  current = Math.min(rows.length - 1, Math.max(0, current + by));
  rows[current].classList.add("current");
  rows[current].querySelector("a").focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const keys = {
    "/": () => document.getElementById("search").focus(),
    j: () => step(1),
    k: () => step(-1),
    p: () => setPaused(!isPaused),
    "?": () => document.getElementById("keys").classList.toggle("open"),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

for (const text of document.querySelectorAll("[data-tail]")) text.scrollTop = text.scrollHeight;
pause.hidden = false;
pause.onclick = () => setPaused(!isPaused);
for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;
document.addEventListener("visibilitychange", listen);
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => event.persisted && listen());
awaitEnd();
listen();
