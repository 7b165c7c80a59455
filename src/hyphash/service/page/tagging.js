// The third view: photos without labels, one after the other, with labels to accept or refuse.

import { change, get, picture, token } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, number, plural } from "/page/dom.js";
import { tokenField } from "/page/viewer.js";

const AHEAD = 100;
const OFFERED = 9; // as many as there are number keys

let facts = null;
let queue = []; // photos still to be looked at
let offset = 0; // photos passed over, which stay without labels
let left = 0;
let current = null;
let tags = [];
let busy = false;

export function startTagging(collection) {
  facts = collection;
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
  [queue, offset, current] = [[], 0, null];
  await next();
});

async function next() {
  let [photo, offered, problem] = [null, [], ""];
  try {
    if (!queue.length) {
      const page = await get("/api/photos", { untagged: true, limit: AHEAD, offset });
      queue = page.photos;
      left = page.total - offset;
    }
    photo = queue.shift() ?? null;
    if (photo) offered = await get(`/api/photos/${photo.id}/suggestions`, { k: OFFERED });
  } catch (error) {
    problem = error.message;
  }
  [current, tags] = [photo, offered];
  draw(problem);
}

// Go on to the next photo; one that got no label stays among those without.
const done = () => alone(async () => {
  if (!current.labels.length) offset += 1;
  left -= 1;
  await next();
});

const decide = (label, verb) => alone(async () => {
  try {
    current = await change("POST", `/api/photos/${current.id}/${verb}`, { label });
    tags = tags.filter((tag) => tag.label !== label);
    draw();
  } catch (error) {
    if (error.status === 401) await showTagging();
    draw(error.message);
  }
});

function draw(problem = "") {
  if (!token.get()) return;
  if (!current) {
    fill($("view-tag"), h("div", { className: "panel" }, h("h2", {}, problem ? "Tag photos" : offset ? "No more photos" : "All photos have labels"),
      problem && h("p", { role: "alert" }, problem),
      offset > 0 && h("p", {}, `${plural(offset, "photo")} passed over.`),
      h("button", { className: "button", onclick: start }, "Look again")));
    return;
  }
  const own = h("div", { className: "field" });
  const field = labelField(own, { caption: "Another label", placeholder: "another label", change: (chips) => decide(chips[0].label, "accept") });
  field.show([]);
  fill($("view-tag"), h("div", { className: "tagging" },
    h("img", { className: "subject", src: picture(current.id, "picture"), alt: current.name }),
    h("div", { className: "panel" },
      h("h2", {}, current.name),
      h("p", { className: "small", id: "left" }, `${number(left)} to go`),
      h("div", { className: "words", id: "carried" }, ...current.labels.map((label) => h("span", { className: "chip" }, label))),
      problem && h("p", { role: "alert" }, problem),
      h("ol", { className: "offered" }, ...tags.map((tag, i) => suggestion(tag, i))),
      own,
      h("div", { className: "actions" },
        h("button", { className: "button", id: "next", onclick: done }, current.labels.length ? "Next photo" : "Pass over"),
        h("span", { className: "small" }, "1–9 accept · Shift + 1–9 refuse · → next")))));
}

function suggestion(tag, i) {
  const bar = h("span", { className: "score", title: tag.score.toFixed(2) });
  bar.style.setProperty("--share", Math.min(Math.max(tag.score, 0), 1));
  return h("li", { data: { label: tag.label } }, h("kbd", {}, String(i + 1)), h("span", { className: "offer" }, tag.label), bar,
    h("button", { className: "yes", title: "Accept", "aria-label": `Accept ${tag.label}`, onclick: () => decide(tag.label, "accept") }, "✓"),
    h("button", { className: "no", title: "Refuse", "aria-label": `Refuse ${tag.label}`, onclick: () => decide(tag.label, "refuse") }, "✗"));
}

export function taggingKey(event) {
  if (!current || facts.read_only || !token.get()) return false;
  const digit = /^Digit([1-9])$/.exec(event.code);
  if (digit && tags[digit[1] - 1]) decide(tags[digit[1] - 1].label, event.shiftKey ? "refuse" : "accept");
  else if (event.key === "ArrowRight") done();
  else return false;
  return true;
}
