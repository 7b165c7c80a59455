// The first view: what is asked for, and the photos that answer it.

import { get, picture, upload } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, later, notice, number, plural } from "/page/dom.js";
import { showFilters, startFilters } from "/page/filters.js";
import { appendToGrid, clearGrid, focused, gridKey, headingLine, moreLike, onScreen, relabelled, startGrid } from "/page/grid.js";
import { drawMarking, marked, showMarking, startMarking, SURE, tickSure, toggle } from "/page/marking.js";
import { anyChosen, choose, clearSelection, startSelection } from "/page/selection.js";
import { asksForSomething, EMPTY, filtersByFacts, filtersOn, go, searchParameters, state } from "/page/state.js";
import { hideMonths, monthHeading, stillReading, timelinePage, undatedTold } from "/page/timeline.js";
import { onUndo } from "/page/verdicts.js";

const PAGE = 40;
const RENEWED = 3000; // ms after which a timeline is asked for again whose dates were not there yet
const KEPT = 8; // uploaded photos that the browser still shows, for those who go back
const examples = new Map(); // place of an uploaded photo → address of what the browser shows of it

let facts = null;
let total = 0;
let loading = null; // an AbortController
let last = "";
const fields = {};
let loaded = () => {}; // called when photos have come

export function startSearch(collection, onLoaded) {
  facts = collection;
  loaded = onLoaded;
  fields.labels = labelField($("labels"), {
    caption: "Labels to search with", placeholder: "dog, sea, -car …", minus: true, least: true,
    change: (chips) => {
      const wanted = chips.filter((chip) => !chip.unwanted);
      go({
        label: [], any_of: [], [$("every").value]: wanted.map((chip) => chip.label),
        unwanted: chips.filter((chip) => chip.unwanted).map((chip) => chip.label),
        at_least: wanted.filter((chip) => chip.least).map((chip) => `${chip.label}=${chip.least}`), missing: "", wrong: "", tick: "",
      });
    },
  });
  $("every").addEventListener("change", (event) => go({ label: [], any_of: [], [event.target.value]: [...state.label, ...state.any_of] }));
  fields.carrying = labelField($("carrying"), {
    caption: "Only photos that carry", placeholder: "any label",
    change: (chips) => go({ carrying: chips.map((chip) => chip.label) }),
  });
  const radius = $("radius");
  radius.max = facts.bits;
  radius.disabled = !facts.by_radius;
  const slide = later(150, (value) => go({ radius: value < facts.bits ? value : null }, { replace: true }));
  radius.addEventListener("input", () => { showRadius(Number(radius.value)); slide(Number(radius.value)); });
  startFilters();
  $("rank").addEventListener("change", (event) => go({ rank: event.target.value }));
  $("clear").addEventListener("click", () => go(EMPTY));
  $("file").addEventListener("change", (event) => { searchWith(event.target.files[0]); event.target.value = ""; });
  new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && more(), { rootMargin: "600px" }).observe($("more"));
  listenForPhotos();
  startGrid(facts, more);
  startSelection(facts, relabelled);
  startMarking(facts, again, onScreen);
  onUndo(searchAgain);
}

// The collection has changed.
export function searchAgain() {
  last = "";
  if (["search", "timeline"].includes(state.view)) showSearch();
}

// Photos are being taken in: where all are shown, those that have come by now follow at the end.
export async function photosHaveCome() {
  const all = () => state.view === "search" && showsAll() && !loading;
  const now = all() && (await get("/api/photos", { limit: 1 }).catch(() => null));
  if (!now || !all() || now.total <= total) return;
  total = now.total;
  tell(false, { offset: 1 });
  $("more").hidden = false; // which asks for them where it is in sight
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
    notice(`This photo has ${number(file.size)} bytes; the service takes ${number(facts.max_upload)}.`, "upload");
    return;
  }
  notice("", "upload");
  $("count").textContent = "Looking at the photo …";
  try {
    const answer = await upload(file, { k: 1 });
    keepExample(answer.place, file);
    go({ view: "search", month: "", place: answer.place, like: null, photo: null, missing: "", wrong: "", tick: "" });
  } catch (error) {
    $("count").textContent = "";
    notice(`This photo cannot be searched with: ${error.message.replace(/^photo: /, "")}`, "upload");
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
  const least = Object.fromEntries(state.at_least.map((pair) => [pair.slice(0, pair.lastIndexOf("=")), pair.slice(pair.lastIndexOf("=") + 1)]));
  const wanted = [...state.label, ...state.any_of];
  if (wanted.length) $("every").value = state.any_of.length ? "any_of" : "label";
  $("every-of").hidden = wanted.length < 2;
  fields.labels.show([
    ...wanted.map((label) => ({ label, unwanted: false, least: least[label] ?? "" })),
    ...state.unwanted.map((label) => ({ label, unwanted: true })),
  ]);
  fields.carrying.show(state.carrying.map((label) => ({ label, unwanted: false })));
  const radius = state.radius === null ? facts.bits : Math.min(state.radius, facts.bits);
  $("radius").value = radius;
  showRadius(radius);
  $("rank").value = state.rank;
  const example = (image, caption, without) => h("figure", { className: "example" }, image,
    h("figcaption", {}, caption),
    h("button", { className: "remove", "aria-label": `Remove ${caption}`, title: "Remove", onclick: () => go(without) }, "×"));
  const own = examples.get(state.place);
  const [asked, sign] = state.missing ? [`should carry ${state.missing} and do not`, "?"] : [`carry ${state.wrong} and should not`, "!"];
  fill($("examples"),
    (state.missing || state.wrong) && example(h("span", { className: "blank" }, sign), asked, { missing: "", wrong: "", tick: "" }),
    state.like !== null && example(h("img", { src: picture(state.like), alt: "" }), `photo ${state.like}`, { like: null }),
    state.place && example(own ? h("img", { src: own, alt: "" }) : h("span", { className: "blank" }, "▣"), "your photo", { place: "" }));
  showFilters(!last); // unfolded in an address that somebody opens
  $("clear").hidden = showsAll() && !state.teach;
}

// ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────

export function showSearch() {
  drawQuery();
  showMarking();
  if (state.view !== "timeline") hideMonths();
  const key = JSON.stringify([searchParameters(state), state.teach, state.tick, state.view, state.view === "timeline" && state.month]);
  if (key === last) return;
  if (last) notice("", "upload");
  last = key;
  again();
}

export function again() {
  loading?.abort();
  loading = null;
  total = Infinity;
  clearGrid();
  clearSelection();
  fill($("also"));
  $("unlike").hidden = true;
  $("more").hidden = false;
  $("count").textContent = "Searching …";
  more();
}

// The next page at the end of the grid.
async function more() {
  if (loading || onScreen().length >= total) return;
  const mine = (loading = new AbortController());
  const offset = onScreen().length;
  try {
    const [searching, timeline] = [asksForSomething(state), state.view === "timeline"];
    const answer = timeline
      ? await timelinePage(searchParameters(state), offset, PAGE, mine.signal)
      : searching || filtersByFacts(state) ? await get("/api/search", { ...searchParameters(state), k: PAGE, offset }, mine.signal)
      : await get("/api/photos", { carrying: state.carrying, limit: PAGE, offset }, mine.signal);
    if (loading !== mine) return;
    const every = answer.matches ?? answer.photos;
    const found = state.tick ? every.filter((match) => match.probability >= SURE) : every;
    total = found.length < every.length || !found.length ? offset + found.length : answer.total; // photos may have gone since
    if (state.tick) tickSure(found);
    appendToGrid(found, state.missing || state.wrong ? [] : answer.asked ?? [], timeline ? (place, photo) => monthHeading(photo, onScreen()[place - 1]) : (place) => border(answer, place));
    drawMarking();
    tell(searching, answer);
    notice("", "search");
    loaded();
  } catch (error) {
    if (error.name === "AbortError") return;
    total = onScreen().length;
    $("count").textContent = "";
    notice(error.message, "search", ...meant(error.message));
  } finally {
    if (loading === mine) loading = null;
    $("more").hidden = onScreen().length >= total;
  }
  // tall screens: the end may still be in sight, of which no observer tells again
  if (!loading && onScreen().length < total && $("more").getBoundingClientRect().top < innerHeight + 600) more();
}

// Buttons for the labels that a message asks about: "the label 'dgo' …; did you mean 'dog'?"
function meant(message) {
  const quoted = (text) => [...text.matchAll(/'([^']*)'|"([^"]*)"/g)].map((found) => found[1] ?? found[2]);
  const [said, asks] = message.split("did you mean ");
  const wrong = quoted(said)[0];
  const other = (value, right) => (Array.isArray(value) ? value.map((label) => other(label, right)) : value === wrong ? right : value);
  const put = (right) => Object.fromEntries(["label", "any_of", "unwanted", "missing", "wrong"].map((key) => [key, other(state[key], right)]));
  return asks ? quoted(asks).map((right) => h("button", { className: "link", onclick: () => go(put(right)) }, right)) : [];
}

const verb = (count, many, one) => `${number(count)} ${count === 1 ? one : many}`;

// What the photos carry that a search by labels is about.
function what() {
  const wanted = [...state.label, ...state.any_of];
  const which = wanted.length === 1 ? wanted[0] : state.any_of.length ? "one of them" : wanted.length === 2 ? "both" : `all ${wanted.length}`;
  return state.unwanted.length ? `${which}, not ${state.unwanted.join(" or ")}` : which;
}

// Of a search by one label: who should carry it and does not, and the other way round.
function drawAlso() {
  const only = searchesByOneLabel() && total ? [...state.label, ...state.any_of][0] : "";
  const other = (text, changes) => h("button", { className: "link", onclick: () => go({ ...EMPTY, ...changes }) }, text);
  fill($("also"), only && other(`should carry ${only} and do not`, { missing: only }), only && other(`carry ${only} and should not`, { wrong: only }));
}

const showsAll = () => !asksForSomething(state) && !filtersOn(state);

const searchesByOneLabel = () =>
  state.label.length + state.any_of.length === 1 && !state.unwanted.length && state.like === null && !state.place && !state.teach;

function tell(searching, answer) {
  const photos = plural(total, "photo");
  const timeline = state.view === "timeline";
  let text = state.radius === null ? `${photos}, nearest first` : `${photos} within ${plural(state.radius, "bit")}`;
  if (timeline) text = `${photos}, newest first${undatedTold()}`;
  else if (answer.rank === "taken") text = `${photos}, newest first`;
  else if (!searching) text = `${photos}. Type labels, or drop, paste or pick a photo.`;
  else if (state.tick) text = `${plural(onScreen().length, "photo")} without ${state.missing} that all but surely ${onScreen().length === 1 ? "shows" : "show"} it: unmark what is wrong, and save`;
  else if (state.missing) text = `${verb(answer.probable, "photos probably lack", "photo probably lacks")} ${state.missing}, likeliest first`;
  else if (state.wrong) text = `${number(answer.probable)} of ${plural(total, "photo")} with ${state.wrong} probably should not carry it, likeliest first`;
  else if (answer.rank === "labels") {
    const known = state.label.length + state.any_of.length ? `${verb(answer.known, "carry", "carries")} ${what()} · ` : "";
    text = `${known}${number(answer.probable)} probably${known ? "" : ` without ${state.unwanted.join(" or ")}`}${answer.bordered ? "" : `, of ${photos}`}`;
  }
  if (!total && showsAll()) text = timeline && undatedTold() ? "No photo here says when it was taken." : "No photos here yet.";
  else if (!total) text = state.tick ? `No photo without ${state.missing} reaches ${100 * SURE} %.` : "No photo fits; ask for less.";
  if (timeline && stillReading()) {
    text = "Still reading when your photos were taken …";
    setTimeout(() => state.view === "timeline" && stillReading() && again(), RENEWED);
  }
  $("count").textContent = text;
  if (!answer.offset) {
    if (!timeline) drawAlso();
    fill($("unlike"), answer.unlike ?? "", ...meant(answer.unlike ?? ""));
    $("unlike").hidden = !answer.unlike;
  }
}

// The line before the photo at this place of the ranking, where known, probable and other photos meet.
function border({ bordered, known, probable }, place) {
  if (!bordered || state.missing || state.wrong) return null;
  if (place === known + probable) return headingLine(known + probable ? "less likely" : "not likely");
  if (place === known) return headingLine("probably");
  return place === 0 ? headingLine(`known to carry ${what()}`) : null;
}

// ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

export function searchKey(event) {
  const here = focused();
  if (event.key === "/") fields.labels.input.focus();
  else if (event.key === "Escape" && anyChosen()) clearSelection();
  else if (event.key.toLowerCase() === "x" && here) choose(here, event.shiftKey);
  else if (event.key === "m" && here) moreLike(here);
  else if (marked() && here && "yn".includes(event.key)) toggle(here, event.key === "y" ? "accept" : "refuse");
  else return gridKey(event);
  return true;
}
