// Photos that are selected, by a tick, by shift or by dragging a frame over them, and what is done with all of them.

import { token } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, notice, plural } from "/page/dom.js";
import { markAll, marked } from "/page/marking.js";
import { judge, tokenField } from "/page/verdicts.js";

const MOVED = 6; // pixels, from which on a press is a drag
const EDGE = 40; // pixels from the rim of the window where dragging scrolls

const chosen = new Set();
let anchor = 0; // where a range begins
let allowed = false;
let changed = () => {}; // called with photos that got other labels

export const isChosen = (id) => chosen.has(id);
export const anyChosen = () => chosen.size > 0;

export function startSelection(collection, onChanged) {
  [allowed, changed] = [!collection.read_only, onChanged];
  if (!allowed) return;
  $("grid").addEventListener("click", (event) => { // before the photo opens
    const id = Number(event.target.closest(".open")?.dataset.id);
    if (!id || !(event.shiftKey || event.ctrlKey || event.metaKey || document.body.dataset.selecting)) return;
    event.stopPropagation();
    choose(id, event.shiftKey);
  }, { capture: true });
  $("grid").addEventListener("contextmenu", (event) => { // a long press of a finger
    const id = Number(event.target.closest(".open")?.dataset.id);
    if (id && event.pointerType === "touch") { event.preventDefault(); choose(id); }
  });
  startDragging($("view-search"));
}

export const chooseButton = (match) => allowed && h("button", {
  className: "tick", title: "Select (x); with shift, all up to here", "aria-label": `Select ${match.name}`,
  "aria-pressed": String(chosen.has(match.id)), onclick: (event) => choose(match.id, event.shiftKey),
}, "✓");

// One photo more or less; with `range`, all from the last one to this.
export function choose(id, range = false) {
  if (!allowed) return;
  const ids = [...$("grid").querySelectorAll(".card")].map((card) => Number(card.dataset.id));
  const [from, to] = [ids.indexOf(anchor), ids.indexOf(id)].sort((a, b) => a - b);
  if (range && from >= 0) for (const one of ids.slice(from, to + 1)) chosen.add(one);
  else if (!chosen.delete(id)) chosen.add(id);
  anchor = id;
  showSelection();
}

export function clearSelection() {
  chosen.clear();
  showSelection();
}

// Photos as they are on the screen, and the bar of what can be done.
export function showSelection() {
  for (const card of $("grid").querySelectorAll(".card")) {
    const on = chosen.has(Number(card.dataset.id));
    card.classList.toggle("chosen-photo", on);
    card.querySelector(".tick")?.setAttribute("aria-pressed", String(on));
  }
  if (chosen.size) document.body.dataset.selecting = "true";
  else delete document.body.dataset.selecting;
  const bar = $("selection");
  if (!chosen.size) bar.hidden = true;
  else if (bar.hidden || !bar.querySelector("#selected")) drawBar(bar);
  else $("selected").textContent = `${plural(chosen.size, "photo")} selected`;
}

function drawBar(bar) {
  bar.hidden = false;
  if (!token.get()) {
    fill(bar, tokenField(() => drawBar(bar)));
    return;
  }
  const label = marked();
  const mark = (said, text) => h("button", { className: "quiet", onclick: () => { markAll([...chosen], said); clearSelection(); } }, text);
  const place = h("div", { className: "field" });
  const said = h("select", { "aria-label": "What to do with the label" }, h("option", { value: "accept" }, "Add"), h("option", { value: "refuse" }, "Take away"));
  if (!label) labelField(place, { caption: "Label for the selected photos", placeholder: "label", fresh: true, change: ([chip]) => decide(chip.label, said.value) });
  fill(bar, h("span", { id: "selected", role: "status" }, `${plural(chosen.size, "photo")} selected`),
    label ? h("span", { className: "actions" }, mark("accept", `✓ ${label}`), mark("refuse", `✗ not ${label}`)) : h("span", { className: "actions wide" }, said, place),
    h("button", { className: "quiet", title: "Select none (Esc)", onclick: clearSelection }, "None"));
}

async function decide(label, said) {
  const ids = [...chosen];
  try {
    const photos = await judge(ids.map((id) => ({ id, label, said })), `${label} ${said === "accept" ? "added to" : "taken from"} ${plural(ids.length, "photo")}`);
    clearSelection();
    photos.forEach(changed);
  } catch (error) {
    notice(error.message, "selection");
    drawBar($("selection"));
  }
}

// ── a frame drawn with the mouse ─────────────────────────────────────────────────────────────────────────────

function startDragging(area) {
  const frame = h("div", { className: "lasso", hidden: true });
  document.body.append(frame);
  let from = null; // where the press began, on the page
  let before = new Set();
  let dragged = false;

  const across = (event) => {
    const [x, y] = [event.pageX, event.pageY];
    return { left: Math.min(x, from.x), right: Math.max(x, from.x), top: Math.min(y, from.y), bottom: Math.max(y, from.y) };
  };

  function draw(event) {
    const box = across(event);
    Object.assign(frame.style, { left: `${box.left}px`, top: `${box.top}px`, width: `${box.right - box.left}px`, height: `${box.bottom - box.top}px` });
    frame.hidden = false;
    chosen.clear();
    for (const id of before) chosen.add(id);
    for (const card of $("grid").querySelectorAll(".card")) {
      const { left, right, top, bottom } = card.getBoundingClientRect();
      const apart = right + scrollX < box.left || left + scrollX > box.right || bottom + scrollY < box.top || top + scrollY > box.bottom;
      if (!apart) chosen.add(Number(card.dataset.id));
    }
    showSelection();
    if (event.clientY > innerHeight - EDGE) scrollBy(0, 16);
    else if (event.clientY < EDGE) scrollBy(0, -16);
  }

  area.addEventListener("pointerdown", (event) => {
    dragged = false;
    const free = event.target.closest(".open") || (event.target.closest("#grid") && !event.target.closest("button"));
    if (event.pointerType !== "mouse" || event.button || !free) return;
    from = { x: event.pageX, y: event.pageY };
    before = event.ctrlKey || event.metaKey || event.shiftKey ? new Set(chosen) : new Set();
  });
  window.addEventListener("pointermove", (event) => {
    if (!from || (!dragged && Math.hypot(event.pageX - from.x, event.pageY - from.y) < MOVED)) return;
    dragged = true;
    event.preventDefault();
    getSelection().removeAllRanges();
    draw(event);
  });
  window.addEventListener("pointerup", () => { from = null; frame.hidden = true; });
  window.addEventListener("click", (event) => { // the end of a drag opens nothing
    if (dragged) { event.stopPropagation(); event.preventDefault(); dragged = false; }
  }, { capture: true });
}
