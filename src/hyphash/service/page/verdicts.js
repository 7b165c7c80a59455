// What a person says of photos and labels: of many at once, and taken back again.

import { change, token } from "/page/api.js";
import { $, fill, h } from "/page/dom.js";

const SHOWN = 12_000; // ms that what was done can be read
const done = []; // what takes back each action, the last at the end
const listeners = [];
let timer = 0;

export const onUndo = (listener) => listeners.push(listener);

// verdicts: [{id, label, said}]; `told` is what people read of it. The photos as they are then.
export async function judge(verdicts, told) {
  const answer = await change("POST", "/api/photos/verdicts", { verdicts });
  done.push({ verdicts: answer.undo, told });
  tell(told);
  return answer.photos;
}

export async function undo() {
  const last = done.pop();
  if (!last?.verdicts.length) return;
  try {
    const answer = await change("POST", "/api/photos/verdicts", { verdicts: last.verdicts });
    tell(`Taken back: ${last.told}`);
    for (const listener of listeners) listener(answer.photos);
  } catch (error) {
    done.push(last);
    tell(error.message);
  }
}

function tell(text) {
  const box = $("toast");
  fill(box, h("span", {}, text), done.length > 0 && h("button", { className: "quiet", id: "undo", title: "Undo (u)", onclick: undo }, "Undo"));
  box.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => { box.hidden = true; }, SHOWN);
}

// Asks for the token that allows changes; it is forgotten when the tab is closed.
export function tokenField(ready) {
  const input = h("input", { type: "password", placeholder: "token", autocomplete: "off", "aria-label": "Token of the service" });
  return h("form", { className: "token", onsubmit: (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    token.set(input.value.trim());
    ready();
  } }, h("span", { className: "small" }, "Changes need the token that the service was started with."), input,
  h("button", { className: "button" }, "Use token"));
}
