// The third view: photos without labels, one after the other, with labels to accept or refuse; and ways to tag many.

import { get, picture, token } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, number, percent, plural } from "/page/dom.js";
import { learningPanel } from "/page/learning.js";
import { EMPTY, go } from "/page/state.js";
import { canUndo, judge, onUndo, tokenField, undo } from "/page/verdicts.js";

const AHEAD = 100;
const PASSED = 400; // photos passed over that the service is told of
const OFFERED = 9; // as many as there are number keys
const LABELS = 16; // to tag many photos with

let facts = null;
let queue = []; // photos still to be looked at, those that teach most first
let passed = []; // numbers of photos passed over, which stay without labels
let seen = []; // photos looked at before this one, the last at the end
let left = 0;
let current = null;
let tags = [];
let known = null; // labels to tag many photos with, and how many; null: they are being looked for
let busy = false;
let learning = null; // a panel that lives longer than the photo beside it

export function startTagging(collection) {
  facts = collection;
  onUndo((photos) => photos.length === 1 && current && alone(() => back(photos[0])));
}

export async function showTagging() {
  if (facts.read_only) {
    fill($("view-tag"), h("p", { className: "panel" },
      "This service is read-only. Start it with a token (hyphash serve … --token …) to tag photos here."));
    return;
  }
  if (!token.get()) {
    fill($("view-tag"), h("div", { className: "panel" }, h("h2", {}, "Tag photos"), tokenField(() => { current = null; showTagging(); })));
    return;
  }
  if (!current) fill($("view-tag"), h("p", { className: "panel", role: "status" }, "Looking for the photos that teach most …"));
  get("/api/labels/lacking", { k: LABELS }).catch(() => []).then((found) => { known = found; fillMany($("many")); });
  learning = learningPanel();
  if (current) draw();
  else await start();
}

// One thing at a time: what is pressed before the last press has had its effect is about a photo nobody has seen.
async function alone(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
  } finally {
    busy = false;
  }
}

const start = () => alone(async () => {
  [queue, passed, seen, current] = [[], [], [], null];
  await next();
});

async function next() {
  let [photo, problem] = [null, ""];
  try {
    if (!queue.length) {
      const page = await get("/api/photos", { telling: true, limit: AHEAD, passed: passed.slice(-PASSED) });
      queue = page.photos.filter((one) => !passed.includes(one.id));
      left = page.total - passed.length;
    }
    photo = queue.shift() ?? null;
  } catch (error) {
    problem = error.message;
  }
  await look(photo, problem);
}

// Show a photo with what is suggested for it.
async function look(photo, problem = "") {
  let offered = [];
  try {
    if (photo) offered = await get(`/api/photos/${photo.id}/suggestions`, { k: OFFERED });
  } catch (error) {
    problem = error.message;
  }
  [current, tags] = [photo, offered];
  draw(problem);
}

// Back to a photo that was looked at, such as one of which something was taken back.
async function back(photo) {
  if (photo.id !== current?.id) {
    queue = [...(current ? [current] : []), ...queue.filter((one) => one.id !== photo.id)];
    left += 1;
  }
  passed = passed.filter((id) => id !== photo.id);
  seen = seen.filter((id) => id !== photo.id);
  await look(photo);
}

async function onward() {
  if (!current.labels.length) passed.push(current.id);
  seen.push(current.id);
  left -= 1;
  await next();
}

// To the photo before this one, as it is now.
const previous = () => alone(async () => {
  if (!seen.length) return;
  try {
    await back(await get(`/api/photos/${seen.at(-1)}`));
  } catch (error) {
    seen.pop(); // it is gone
    draw(error.message);
  }
});

// Go on to the next photo; one that got no label stays among those without.
const done = () => alone(onward);

const decide = (labels, said, { go_on = false } = {}) => alone(async () => {
  try {
    const verdicts = labels.map((label) => ({ id: current.id, label, said }));
    [current] = await judge(verdicts, `${labels.join(", ")} ${said === "accept" ? "accepted" : "refused"} for ${current.name}`);
    tags = tags.filter((tag) => !labels.includes(tag.label));
    if (go_on) await onward();
    else draw();
  } catch (error) {
    if (error.status === 401) await showTagging();
    draw(error.message);
  }
});

const likely = () => tags.filter((tag) => tag.likely).map((tag) => tag.label);
const acceptLikely = () => decide(likely(), "accept", { go_on: true });

function draw(problem = "") {
  if (!token.get()) return;
  if (!current) {
    fill($("view-tag"), h("div", { className: "panel" }, h("h2", {}, problem ? "Tag photos" : passed.length ? "No more photos" : "All photos have labels"),
      problem && h("p", { role: "alert" }, problem),
      passed.length > 0 && h("p", {}, `${plural(passed.length, "photo")} passed over.`),
      h("div", { className: "actions" }, h("button", { className: "button", onclick: start }, "Look again"),
        seen.length > 0 && h("button", { className: "quiet", id: "previous", onclick: previous }, "← Back"))), many(), teach(), learning);
    return;
  }
  const own = h("div", { className: "field" });
  const field = labelField(own, { caption: "Another label", placeholder: "another label", fresh: true, change: (chips) => decide([chips[0].label], "accept") });
  field.show([]);
  const sure = likely().length;
  fill($("view-tag"), h("div", { className: "tagging" },
    h("img", { className: "subject", src: picture(current.id, "picture"), alt: current.name }),
    h("div", { className: "panel" },
      h("h2", {}, current.name),
      h("p", { className: "small", id: "left", title: "those first that teach most" }, `${number(left)} to go`),
      h("div", { className: "words", id: "carried" }, ...current.labels.map((label) => h("span", { className: "chip" }, label))),
      problem && h("p", { role: "alert" }, problem),
      h("ol", { className: "offered" }, ...tags.map((tag, i) => suggestion(tag, i))),
      own,
      h("div", { className: "actions" },
        sure > 0 && h("button", { className: "button", id: "accept-likely", onclick: acceptLikely }, `Accept ${sure === 1 ? "it" : sure} and go on`),
        seen.length > 0 && h("button", { className: "quiet", id: "previous", title: "The photo before (←)", onclick: previous }, "← Back"),
        h("button", { className: sure ? "quiet" : "button", id: "next", onclick: done }, current.labels.length ? "Next photo" : "Pass over"),
        canUndo() && h("button", { className: "quiet", title: "Take the last action back (u)", onclick: undo }, "Undo")),
      h("p", { className: "small keys-told" }, sure > 0 && "Enter accepts those marked · ", "1–9 accept · Shift + 1–9 refuse · ← back · → next · u undo"))),
  many(), teach(), learning);
}

function suggestion(tag, i) {
  const bar = h("span", { className: "score" });
  bar.style.setProperty("--share", Math.min(Math.max(tag.score, 0), 1));
  return h("li", { data: { label: tag.label }, className: tag.likely ? "likely" : "" }, h("kbd", {}, String(i + 1)), h("span", { className: "offer" }, tag.label, tag.guessed && h("span", { className: "many", title: "Nobody taught it: a guess by what the network knew before" }, " guess")), bar,
    h("span", { className: "percent" }, percent(tag.score)),
    h("button", { className: "yes", title: "Accept", "aria-label": `Accept ${tag.label}`, onclick: () => decide([tag.label], "accept") }, "✓"),
    h("button", { className: "no", title: "Refuse", "aria-label": `Refuse ${tag.label}`, onclick: () => decide([tag.label], "refuse") }, "✗"));
}

function many() {
  const words = h("div", { className: "words", id: "many" });
  fillMany(words);
  return h("section", { className: "panel" }, h("h2", {}, "Many at once"),
    h("p", { className: "small" }, "All photos that lack a label and have it with 95 % or more; unmark those that are wrong."),
    words);
}

function fillMany(words) {
  if (!words || !known) return;
  fill(words, !known.length && h("p", { className: "small" }, "None yet: no photo reaches 95 % for a label that it lacks."), ...known.map(({ label, photos }) => h("button", {
    className: "word", onclick: () => go({ ...EMPTY, view: "search", missing: label, tick: "1" }),
  }, label, " ", h("span", { className: "many" }, number(photos)))));
}

function teach() {
  const input = h("input", { type: "text", id: "taught", placeholder: "name of the label", autocomplete: "off", maxLength: 200, "aria-label": "Name of the new label" });
  return h("section", { className: "panel" }, h("h2", {}, "Teach a new label"),
    h("p", { className: "small" }, "Mark five photos that show it, and some that do not. A second later it can be searched and is suggested like any other."),
    h("form", { className: "token", onsubmit: (event) => {
      event.preventDefault();
      if (input.value.trim()) go({ ...EMPTY, view: "search", teach: input.value.trim() });
    } }, input, h("button", { className: "button" }, "Find examples")));
}

export function taggingKey(event) {
  if (facts.read_only || !token.get()) return false;
  if (event.key === "ArrowLeft") { previous(); return true; }
  if (!current) return false;
  const digit = /^Digit([1-9])$/.exec(event.code);
  if (digit && tags[digit[1] - 1]) decide([tags[digit[1] - 1].label], event.shiftKey ? "refuse" : "accept");
  else if (event.key === "Enter" && likely().length && event.target.tagName !== "BUTTON") acceptLikely();
  else if (event.key === "ArrowRight") done();
  else return false;
  return true;
}
