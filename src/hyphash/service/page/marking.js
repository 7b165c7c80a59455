// Marks on the photos of the grid: which carry a label and which do not, saved together.

import { token } from "/page/api.js";
import { $, fill, h, notice, plural } from "/page/dom.js";
import { EMPTY, go, state } from "/page/state.js";
import { judge, tokenField } from "/page/verdicts.js";

export const SURE = 0.95; // from here on photos are marked at once
const ENOUGH = 5; // photos that a new label is taught by
const SAVED = 1000; // at once
const marks = new Map(); // number of a photo → "accept" or "refuse"
let about = ""; // what the marks are of
let saved = () => {};
let shown = () => []; // matches on the screen
let allowed = false; // whether the service takes changes
let busy = false;

export function startMarking(collection, onSaved, onScreen) {
  [allowed, saved, shown] = [!collection.read_only, onSaved, onScreen];
}

// The label that photos are marked for; empty: none.
export const marked = () => allowed && (state.missing || state.wrong || state.teach);

// Before photos of another label are drawn.
export function showMarking() {
  const now = JSON.stringify([state.missing, state.wrong, state.teach]);
  if (now !== about) marks.clear();
  about = now;
  drawMarking();
}

export function tickSure(matches) {
  for (const match of matches) if (match.probability >= SURE && !marks.has(match.id)) marks.set(match.id, "accept");
  drawMarking();
}

const classOf = (id) => ({ accept: "yes-marked", refuse: "no-marked" })[marks.get(id)] ?? "";

// The buttons on a card.
export function markButtons(match) {
  const button = (said, sign, title) => h("button", {
    className: said === "accept" ? "yes" : "no", title: `${title} (${said === "accept" ? "y" : "n"})`,
    "aria-label": `${title}: ${match.name}`, "aria-pressed": String(marks.get(match.id) === said), onclick: () => toggle(match.id, said),
  }, sign);
  return h("div", { className: "marks" },
    !state.wrong && button("accept", "✓", `It carries ${marked()}`),
    button("refuse", "✗", `It does not carry ${marked()}`));
}

export const markClass = (match) => (marked() ? classOf(match.id) : "");

export function markAll(ids, said) {
  if (said === "accept" && state.wrong) return;
  for (const id of ids) marks.set(id, said);
  redraw(ids);
}

export function toggle(id, said) {
  if (said === "accept" && state.wrong) return;
  if (marks.get(id) === said) marks.delete(id);
  else marks.set(id, said);
  redraw([id]);
}

function redraw(ids) {
  for (const id of ids) {
    const card = $("grid").querySelector(`.card[data-id="${Number(id)}"]`);
    if (!card) continue;
    card.classList.remove("yes-marked", "no-marked");
    if (classOf(id)) card.classList.add(classOf(id));
    for (const [button, said] of [[".yes", "accept"], [".no", "refuse"]]) {
      card.querySelector(`.marks ${button}`)?.setAttribute("aria-pressed", String(marks.get(id) === said));
    }
  }
  drawMarking();
}

const count = (said) => [...marks.values()].filter((mark) => mark === said).length;

export function drawMarking() {
  const label = marked();
  $("marking").hidden = !label;
  if (!label) return;
  if (!token.get()) {
    fill($("marking"), tokenField(drawMarking));
    return;
  }
  const [yes, no] = [count("accept"), count("refuse")];
  const ready = state.teach ? yes >= ENOUGH : yes + no > 0;
  const told = state.teach && !ready
    ? `Teach “${label}”: mark ${ENOUGH} photos that show it (✓), and some that do not (✗); search to find them.`
    : [yes && `${plural(yes, "photo")} with ${label}`, no && (yes ? `${no} without` : `${plural(no, "photo")} without ${label}`)].filter(Boolean).join(" · ") || `Mark photos that ${state.wrong ? "do not carry" : "carry"} ${label}.`;
  fill($("marking"), h("span", { id: "marked", role: "status" }, told, state.teach && !ready && h("b", {}, ` ${yes} of ${ENOUGH}`)),
    h("span", { className: "actions" },
      state.missing && shown().some((match) => match.probability >= SURE) && h("button", { className: "quiet", onclick: () => { tickSure(shown()); redraw([...marks.keys()]); } }, "Mark all from 95 %"),
      marks.size > 0 && h("button", { className: "quiet", onclick: () => { const ids = [...marks.keys()]; marks.clear(); redraw(ids); } }, "None"),
      h("button", { className: "button", id: "save", disabled: !ready, onclick: save }, state.teach ? `Teach ${label}` : "Save")));
}

async function save() {
  if (busy) return;
  busy = true;
  const label = marked();
  const verdicts = [...marks].slice(0, SAVED).map(([id, said]) => ({ id, label, said }));
  const [yes, no] = [count("accept"), count("refuse")];
  try {
    await judge(verdicts, `${label}: ${[yes && `accepted for ${plural(yes, "photo")}`, no && `refused for ${plural(no, "photo")}`].filter(Boolean).join(", ")}`);
    for (const { id } of verdicts) marks.delete(id);
    if (state.teach) go({ ...EMPTY, missing: label });
    else saved();
    scrollTo({ top: 0 });
  } catch (error) {
    notice(error.message, "marking");
  } finally {
    busy = false;
    drawMarking();
  }
}
