// What a person says of photos and labels: of many at once, and taken back again.

import { change, token } from "/page/api.js";
import { $, fill, h } from "/page/dom.js";

const SHOWN = 12_000; // ms that what was done can be read
const AT_ONCE = 250; // verdicts in one request
const done = []; // [what people read of it, what takes it back], the last at the end
const listeners = [];
let timer = 0;

export const canUndo = () => done.length > 0;
export const onUndo = (listener) => listeners.push(listener);

async function send(verdicts) {
  const whole = { photos: [], undo: [] };
  for (let i = 0; i < verdicts.length; i += AT_ONCE) {
    const { photos, undo } = await change("POST", "/api/photos/verdicts", { verdicts: verdicts.slice(i, i + AT_ONCE) });
    whole.photos.push(...photos);
    whole.undo.push(...undo);
  }
  return whole;
}

// verdicts: [{id, label, said}]; `told` is what people read of it. The photos as they are then.
export async function judge(verdicts, told) {
  const { photos, undo } = await send(verdicts);
  didWhatCanBeUndone(told, () => takeBack(undo));
  return photos;
}

export const takeBack = async (verdicts) => (await send(verdicts)).photos;

// `back` takes it back, and gives the photos as they are then.
export function didWhatCanBeUndone(told, back) {
  done.push([told, back]);
  tell(told);
}

export async function undo() {
  const last = done.pop();
  if (!last) return;
  const [told, back] = last;
  try {
    const photos = await back();
    tell(`Taken back: ${told}`);
    for (const listener of listeners) listener(photos);
  } catch (error) {
    done.push(last);
    tell(error.message);
  }
}

// `undoable`: whether Undo takes back what is told.
export function tell(text, undoable = canUndo()) {
  const box = $("toast");
  fill(box, h("span", {}, text), undoable && h("button", { className: "quiet", id: "undo", title: "Undo (u)", onclick: undo }, "Undo"));
  box.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => { box.hidden = true; }, SHOWN);
}

// Asks for the token that allows changes; it is forgotten when the tab is closed.
export function tokenField(ready) {
  const input = h("input", { type: "password", placeholder: "token", autocomplete: "off", "aria-label": "Token of the service" });
  const wrong = h("span", { className: "wrong", role: "alert" });
  return h("form", { className: "token", onsubmit: async (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    token.set(input.value.trim());
    try {
      await change("GET", "/api/token");
      ready();
    } catch (error) {
      wrong.textContent = error.status === 401 ? "This is not the token of this service." : error.message;
      input.select();
    }
  } }, h("span", { className: "small" }, "Changes need the token that the service was started with."), input,
  h("button", { className: "button" }, "Use token"), wrong);
}
