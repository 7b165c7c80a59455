// Photos in rows of equal height, none of them cropped; which of them is next, above or below; and which are selected.

import { picture } from "/page/api.js";
import { $, h, percent, plural } from "/page/dom.js";
import { markButtons, markClass, marked } from "/page/marking.js";
import { chooseButton, isChosen } from "/page/selection.js";
import { EMPTY, go, state } from "/page/state.js";

const GREEN = 0.75; // of the query's labels
const RED = 0.25;
const [NARROW, WIDE] = [0.5, 3.2]; // width by height; what is beyond gets a margin

let facts = null;
let shown = []; // photos on the screen, in order
let asked = []; // labels of the query
let more = () => {}; // asks for further photos

export function startGrid(collection, onMore) {
  [facts, more] = [collection, onMore];
}

export function clearGrid() {
  [shown, asked] = [[], []];
  $("grid").replaceChildren();
}

// `heading` is what stands before the photo at a place, or null.
export function appendToGrid(photos, labels, heading = () => null) {
  asked = labels;
  const first = shown.length;
  shown.push(...photos);
  $("grid").append(...photos.flatMap((photo, i) => [heading(first + i, photo), card(photo)].filter(Boolean)));
}

export const onScreen = () => shown;

export const headingLine = (text, more = null) => h("li", { className: "border" }, h("h2", {}, text), more);

// How far a match is: codes of a product quantiser differ in pieces, not in bits.
export const far = (match) => plural(match.distance, facts.by_radius ? "bit" : "piece");

// Which colour a match gets: by its share of the query's labels. Of a photo without labels nobody knows, and one that
// probably is as asked for is not wrong because nobody has said so.
export function verdict(match, labels) {
  if (!labels.length || !match.shared || !match.labels.length) return "";
  const share = match.shared.length / labels.length;
  return share >= GREEN ? "good" : share <= RED && !(match.probability >= 0.5) ? "bad" : "";
}

function card(match) {
  const classes = ["card", verdict(match, asked), markClass(match), isChosen(match.id) && "chosen-photo"];
  const ratio = match.width && match.height ? match.width / match.height : 1;
  const open = h("button", {
    className: "open", "aria-label": `${match.name}: ${match.labels.join(", ") || "no labels"}`,
    data: { id: match.id }, onclick: () => go({ photo: match.id }),
  }, h("img", { src: picture(match.id), alt: "", loading: "lazy", decoding: "async", draggable: false }));
  return h("li", {
    className: classes.filter(Boolean).join(" "), data: { id: match.id }, css: { "--ratio": Math.min(Math.max(ratio, NARROW), WIDE) },
  }, h("div", { className: "frame" }, open,
      chooseButton(match),
      h("button", { className: "like", title: "More like this (m)", onclick: () => moreLike(match.id) }, "more like this")),
    marked() && markButtons(match), captionOf(match));
}

function captionOf(match) {
  const shared = new Set(match.shared ?? []);
  const probable = typeof match.probability === "number";
  const alone = probable && state.like === null && !state.place; // nothing but labels is asked for
  return h("div", { className: "caption-line" },
    probable && h("span", { className: "probability", title: "that it is as the labels ask for" }, match.known ? "✓ known" : percent(match.probability)),
    match.distance !== undefined && !alone && h("span", { className: "distance expert", title: "what differs from the query" }, far(match)),
    !match.labels.length ? h("span", { className: "share" }, "no labels")
      : asked.length > (probable ? 1 : 0) && !(match.known && shared.size === asked.length) && h("span", { className: "share", title: "labels of the query that it carries" }, `${shared.size} of ${plural(asked.length, "label")}`),
    h("span", { className: "words" }, ...[...match.labels].sort((a, b) => shared.has(b) - shared.has(a)).map((label) => h("button", {
      className: shared.has(label) ? "word shared" : "word", title: `Search for ${label}`,
      onclick: () => go({ ...EMPTY, label: [label], teach: state.teach }),
    }, label))));
}

export function moreLike(id) {
  go({ ...EMPTY, view: "search", like: id, teach: state.teach });
  scrollTo({ top: 0 });
}

// What the viewer steps through.
export const neighbours = (id) => {
  const i = shown.findIndex((match) => match.id === id);
  if (i >= 0 && i + 5 > shown.length) more();
  return { match: shown[i], asked, before: shown[i - 1]?.id, after: i >= 0 ? shown[i + 1]?.id : undefined };
};

// New labels of a photo, wherever it is on the screen.
export function relabelled(photo) {
  const i = shown.findIndex((match) => match.id === photo.id);
  if (i < 0) return;
  const old = $("grid").querySelectorAll(".card")[i];
  const shared = shown[i].shared && photo.labels.filter((label) => asked.includes(label));
  shown[i] = { ...shown[i], labels: photo.labels, ...(shared ? { shared } : {}) };
  old.replaceWith(card(shown[i]));
}

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

export const focused = () => Number(document.activeElement?.closest?.("#grid .card")?.dataset.id ?? 0);

// Arrows from photo to photo.
export function gridKey(event) {
  const cards = [...$("grid").querySelectorAll(".card")];
  const here = cards.findIndex((item) => item.contains(document.activeElement));
  const [along, across] = [{ ArrowLeft: -1, ArrowRight: 1 }[event.key], { ArrowUp: -1, ArrowDown: 1 }[event.key]];
  if (here < 0 && along !== 1) return false; // up and down scroll
  const next = across ? beyond(cards, cards[here], across) : along && cards[here + along];
  next?.querySelector(".open").focus();
  return Boolean(next);
}

// The card above or below: the one whose middle is nearest.
function beyond(cards, from, step) {
  const others = cards.filter((card) => Math.sign(card.offsetTop - from.offsetTop) === step);
  const rows = others.map((card) => card.offsetTop);
  const row = step > 0 ? Math.min(...rows) : Math.max(...rows);
  const middle = (card) => card.offsetLeft + card.offsetWidth / 2;
  const aside = (card) => Math.abs(middle(card) - middle(from));
  return others.filter((card) => card.offsetTop === row).sort((a, b) => aside(a) - aside(b))[0];
}
