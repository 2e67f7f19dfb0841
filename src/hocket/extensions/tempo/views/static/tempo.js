// The beat goes on between two answers of the server: it follows from the time alone. The server is asked again at the
// end of the window, since the tempo may change there.

let shown = null;
let shownAt = 0;

function tick() {
  const beat = document.getElementById("beat");
  if (beat !== shown) {
    shown = beat;
    shownAt = performance.now();
  }
  const beatMs = Number(beat.dataset.beatMs);
  const since = performance.now() - shownAt - Number(beat.dataset.nextMs);
  const later = Math.floor(since / beatMs) + 1;
  const isPaused = document.getElementById("pause").getAttribute("aria-pressed") === "true";
  if (later > 0 && !isPaused && !document.hidden) show(beat, later);
  setTimeout(tick, Math.min(1000, Math.max(50, later * beatMs - since)));
}

function show(beat, later) {
  const marks = [...beat.querySelectorAll(".marks > span")];
  const place = (Number(beat.dataset.number) - 1 + later) % marks.length;
  marks.forEach((mark, each) => {
    mark.className = each === place ? "now" : "then";
    mark.textContent = each === place ? "●" : "○";
  });
  document.getElementById("beat-number").textContent = String(place + 1);
  document.getElementById("beat-phase").textContent = marks[place].closest("li").querySelector(".phase-name").textContent;
}

tick();
