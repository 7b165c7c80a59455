// The second view: the collection as a whole.

import { get } from "/page/api.js";
import { $, bytes, fill, h, notice, number } from "/page/dom.js";
import { drawMap } from "/page/map.js";
import { EMPTY, go } from "/page/state.js";

const CLOUD = 120; // labels
let drawn = -1; // commit
let current = new AbortController(); // ends the map that is drawn

export async function showCollection() {
  try {
    const { commit } = await get("/api/collection");
    if (commit === drawn) return;
    const [stats, together, map] = await Promise.all([get("/api/stats"), get("/api/cooccurrence", { top: 20 }), get("/api/map")]);
    drawn = commit;
    current.abort();
    current = new AbortController();
    fill($("view-collection"), figures(stats),
      panel("Labels", "larger: carried by more photos", cloud(stats.labels)),
      panel("Map", "photos that are alike lie near each other; drag, pinch or scroll to wander, click to open", drawMap(map, current.signal)),
      panel("Labels that go together", "how many photos carry both", matrix(together)),
      panel("Balance of the bits", "the share of photos in which each bit is 1; one half tells most", balance(stats.balance), "expert"));
  } catch (error) {
    notice(error.message, "collection");
  }
}

const panel = (title, caption, content, kind = "") =>
  h("section", { className: `panel ${kind}` }, h("h2", {}, title), h("p", { className: "small" }, caption), content);

const search = (label) => go({ ...EMPTY, view: "search", label: [].concat(label) });

function figures(stats) {
  const figure = (value, name, kind = "") => h("div", { className: `figure ${kind}` }, h("b", {}, value), h("span", {}, name));
  return h("div", { className: "figures" },
    figure(number(stats.photos), "photos"), figure(number(Object.keys(stats.labels).length), "labels"),
    figure(number(stats.untagged), "without labels"), figure(bytes(stats.bytes), "on disk"),
    figure(number(stats.bits), "bits in a code", "expert"), figure(number(stats.distinct), "different codes", "expert"));
}

function cloud(labels) {
  const entries = Object.entries(labels).slice(0, CLOUD);
  if (!entries.length) return h("p", {}, "No photo carries a label yet.");
  const [most, least] = [entries[0][1], entries[entries.length - 1][1]];
  const size = (count) => 0.8 + (1.6 * (Math.log(count) - Math.log(least))) / (Math.log(most) - Math.log(least) || 1);
  const words = entries.map(([label, count]) => {
    const word = h("button", { className: "word", title: `${number(count)} photos`, onclick: () => search(label) }, label);
    word.style.fontSize = `${size(count)}rem`;
    return word;
  });
  return h("div", { className: "cloud" }, ...words.sort((a, b) => a.textContent.localeCompare(b.textContent)));
}

function matrix({ labels, counts }) {
  const most = Math.max(1, ...counts.flatMap((row, i) => row.filter((_, j) => i !== j)));
  const head = h("tr", {}, h("td", {}), ...labels.map((label) => h("th", { scope: "col" }, h("span", {}, label))));
  const rows = labels.map((label, i) => h("tr", {}, h("th", { scope: "row" }, label), ...labels.map((other, j) => {
    const count = counts[i][j];
    const cell = h("td", { className: i === j ? "own" : "", title: `${label}, ${other}: ${number(count)}` },
      count > 0 && h("button", { "aria-label": `${label}, ${other}: ${number(count)}`, onclick: () => search(i === j ? label : [label, other]) }, number(count)));
    if (i !== j) cell.style.setProperty("--share", count / most);
    return cell;
  })));
  return h("div", { className: "scroll" }, h("table", { className: "matrix" }, h("thead", {}, head), h("tbody", {}, ...rows)));
}

function balance(shares) {
  const bars = shares.map((share, i) => {
    const bar = h("span", { className: "bar", title: `bit ${i + 1}: ${(100 * share).toFixed(1)} %` });
    bar.style.setProperty("--share", share);
    return bar;
  });
  return h("div", { className: "balance", role: "img", "aria-label": "Share of ones for each bit" }, ...bars);
}
