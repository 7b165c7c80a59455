// The first view: what is asked for, and the photos that answer it.

import { get, picture, upload } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, later, notice, number, plural } from "/page/dom.js";
import { asksForSomething, EMPTY, go, searchParameters, state } from "/page/state.js";

const PAGE = 40;
const GREEN = 0.75; // of the query's labels
const RED = 0.25;
const KEPT = 8; // uploaded photos that the browser still shows, for those who go back
const examples = new Map(); // place of an uploaded photo → address of what the browser shows of it

let facts = null;
let shown = []; // matches on the screen, nearest first
let total = 0;
let asked = [];
let loading = null; // an AbortController
let last = "";
const fields = {};
let loaded = () => {}; // called when photos have come

export function startSearch(collection, onLoaded) {
  facts = collection;
  loaded = onLoaded;
  fields.labels = labelField($("labels"), {
    caption: "Labels to search with", placeholder: "dog, sea, -car …", minus: true,
    change: (chips) => go({
      label: chips.filter((chip) => !chip.unwanted).map((chip) => chip.label),
      unwanted: chips.filter((chip) => chip.unwanted).map((chip) => chip.label),
    }),
  });
  fields.carrying = labelField($("carrying"), {
    caption: "Only photos that carry", placeholder: "any label",
    change: (chips) => go({ carrying: chips.map((chip) => chip.label) }),
  });
  const radius = $("radius");
  radius.max = facts.bits;
  radius.disabled = !facts.by_radius;
  const slide = later(150, (value) => go({ radius: value < facts.bits ? value : null }, { replace: true }));
  radius.addEventListener("input", () => { showRadius(Number(radius.value)); slide(Number(radius.value)); });
  $("rank").addEventListener("change", (event) => go({ rank: event.target.value }));
  $("clear").addEventListener("click", () => go(EMPTY));
  $("file").addEventListener("change", (event) => { searchWith(event.target.files[0]); event.target.value = ""; });
  new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && more(), { rootMargin: "600px" }).observe($("more"));
  listenForPhotos();
}

// ── photos that come in ──────────────────────────────────────────────────────────────────────────────────────

function listenForPhotos() {
  const photo = (data) => [...(data?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? data?.files?.[0];
  let depth = 0;
  const veil = (on) => { $("drop").hidden = !on; };
  window.addEventListener("dragenter", (event) => { event.preventDefault(); depth += 1; veil(true); });
  window.addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) veil(false); });
  window.addEventListener("dragover", (event) => event.preventDefault());
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    veil(false);
    searchWith(photo(event.dataTransfer));
  });
  window.addEventListener("paste", (event) => {
    const file = photo(event.clipboardData);
    if (file) { event.preventDefault(); searchWith(file); }
  });
}

async function searchWith(file) {
  if (!file) return;
  if (file.size > facts.max_upload) {
    notice(`This photo has ${number(file.size)} bytes; the service takes ${number(facts.max_upload)}.`);
    return;
  }
  notice("");
  $("count").textContent = "Looking at the photo …";
  try {
    const answer = await upload(file, { k: 1 });
    keepExample(answer.place, file);
    go({ view: "search", place: answer.place, like: null, photo: null });
  } catch (error) {
    $("count").textContent = "";
    notice(`This photo cannot be searched with: ${error.message}`);
  }
}

// The browser holds a whole file for each address until that is given back.
function keepExample(place, file) {
  const forget = (known) => { URL.revokeObjectURL(examples.get(known)); examples.delete(known); };
  if (examples.has(place)) forget(place);
  examples.set(place, URL.createObjectURL(file));
  if (examples.size > KEPT) forget(examples.keys().next().value);
}

// ── the query ────────────────────────────────────────────────────────────────────────────────────────────────

function showRadius(value) {
  $("radius-shown").textContent = value < facts.bits ? plural(value, "bit") : "any distance";
}

function drawQuery() {
  fields.labels.show([
    ...state.label.map((label) => ({ label, unwanted: false })),
    ...state.unwanted.map((label) => ({ label, unwanted: true })),
  ]);
  fields.carrying.show(state.carrying.map((label) => ({ label, unwanted: false })));
  const radius = state.radius === null ? facts.bits : Math.min(state.radius, facts.bits);
  $("radius").value = radius;
  showRadius(radius);
  $("rank").value = state.rank || "hamming";
  const example = (image, caption, without) => h("figure", { className: "example" }, image,
    h("figcaption", {}, caption),
    h("button", { className: "remove", "aria-label": `Remove ${caption}`, title: "Remove", onclick: () => go(without) }, "×"));
  const own = examples.get(state.place);
  fill($("examples"),
    state.like !== null && example(h("img", { src: picture(state.like), alt: "" }), `photo ${state.like}`, { like: null }),
    state.place && example(own ? h("img", { src: own, alt: "" }) : h("span", { className: "blank" }, "▣"), "your photo", { place: "" }));
  $("clear").hidden = !asksForSomething(state) && !state.carrying.length && state.radius === null;
}

// ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────

export function showSearch() {
  drawQuery();
  const key = JSON.stringify(searchParameters(state));
  if (key === last) return;
  last = key;
  again();
}

export function again() {
  loading?.abort();
  loading = null;
  shown = [];
  total = Infinity;
  asked = [];
  fill($("grid"));
  $("more").hidden = false;
  $("count").textContent = "Searching …";
  more();
}

// The next page at the end of the grid.
async function more() {
  if (loading || shown.length >= total) return;
  const mine = (loading = new AbortController());
  const offset = shown.length;
  try {
    const searching = asksForSomething(state);
    const answer = searching
      ? await get("/api/search", { ...searchParameters(state), k: PAGE, offset }, mine.signal)
      : await get("/api/photos", { carrying: state.carrying, limit: PAGE, offset }, mine.signal);
    if (loading !== mine) return;
    const found = answer.matches ?? answer.photos;
    total = found.length ? answer.total : offset; // photos may have gone since
    asked = answer.asked ?? [];
    shown.push(...found);
    $("grid").append(...found.map((photo) => card(photo)));
    tell(searching);
    notice("");
    loaded();
  } catch (error) {
    if (error.name === "AbortError") return;
    total = shown.length;
    $("count").textContent = "";
    notice(error.message);
  } finally {
    if (loading === mine) loading = null;
    $("more").hidden = shown.length >= total;
  }
  // tall screens: the end may still be in sight, of which no observer tells again
  if (!loading && shown.length < total && $("more").getBoundingClientRect().top < innerHeight + 600) more();
}

// How far a match is: codes of a product quantiser differ in pieces, not in bits.
export const far = (match) => plural(match.distance, facts.by_radius ? "bit" : "piece");

function tell(searching) {
  const what = plural(total, "photo");
  if (!total) $("count").textContent = "No photo fits; ask for less.";
  else if (!searching) $("count").textContent = `${what}. Type labels, or drop, paste or pick a photo.`;
  else $("count").textContent = state.radius === null ? `${what}, nearest first` : `${what} within ${plural(state.radius, "bit")}`;
}

// Which colour a match gets: by its share of the query's labels. Of a photo without labels nobody knows.
export function verdict(match, labels) {
  if (!labels.length || !match.shared || !match.labels.length) return "";
  const share = match.shared.length / labels.length;
  return share >= GREEN ? "good" : share <= RED ? "bad" : "";
}

function card(match) {
  const shared = new Set(match.shared ?? []);
  const colour = verdict(match, asked);
  const open = h("button", {
    className: "open", "aria-label": `${match.name}: ${match.labels.join(", ") || "no labels"}`,
    data: { id: match.id }, onclick: () => go({ photo: match.id }),
  }, h("img", { src: picture(match.id), alt: "", loading: "lazy", decoding: "async" }));
  return h("li", { className: `card ${colour}`, data: { id: match.id } }, open,
    h("div", { className: "facts" },
      match.distance !== undefined && h("span", { className: "distance", title: "what differs from the query" }, far(match)),
      !match.labels.length ? h("span", { className: "share" }, "no labels")
        : asked.length > 0 && h("span", { className: "share", title: "labels of the query that it carries" }, `${shared.size} of ${plural(asked.length, "label")}`)),
    h("button", { className: "like", title: "More like this (m)", onclick: () => moreLike(match.id) }, "more like this"),
    h("div", { className: "words" }, ...match.labels.map((label) => h("button", {
      className: shared.has(label) ? "word shared" : "word", title: `Search for ${label}`,
      onclick: () => go({ ...EMPTY, label: [label] }),
    }, label))));
}

export function moreLike(id) {
  go({ ...EMPTY, view: "search", like: id });
  scrollTo({ top: 0 });
}

export const neighbours = (id) => {
  const i = shown.findIndex((match) => match.id === id);
  if (i >= 0 && i + 5 > shown.length) more();
  return { match: shown[i], asked, before: shown[i - 1]?.id, after: i >= 0 ? shown[i + 1]?.id : undefined };
};

// New labels of a photo, wherever it is on the screen.
export function relabelled(photo) {
  const i = shown.findIndex((match) => match.id === photo.id);
  if (i < 0) return;
  const shared = shown[i].shared && photo.labels.filter((label) => asked.includes(label));
  shown[i] = { ...shown[i], labels: photo.labels, ...(shared ? { shared } : {}) };
  $("grid").children[i].replaceWith(card(shown[i]));
}

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

export function searchKey(event) {
  if (event.key === "/") {
    fields.labels.input.focus();
    return true;
  }
  const cards = [...$("grid").children];
  const here = cards.findIndex((item) => item.contains(document.activeElement));
  if (event.key === "m" && here >= 0) {
    moreLike(Number(cards[here].dataset.id));
    return true;
  }
  const columns = cards.findIndex((item) => item.offsetTop > cards[0].offsetTop);
  const row = columns < 0 ? cards.length : columns;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row }[event.key];
  if (!step || (here < 0 && step < 0) || !cards.length) return false;
  const next = cards[here < 0 ? 0 : here + step];
  if (here < 0 && event.key === "ArrowDown") return false; // that scrolls
  next?.querySelector(".open").focus();
  return Boolean(next);
}
