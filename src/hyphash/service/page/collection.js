// The second view: the collection as a whole.

import { change, get, token } from "/page/api.js";
import { $, bytes, fill, h, notice, number } from "/page/dom.js";
import { drawMap } from "/page/map.js";
import { EMPTY, go } from "/page/state.js";
import { tokenField } from "/page/verdicts.js";

const CLOUD = 120; // labels
const AT_ONCE = 100; // photos whose files are compared in one request
let drawn = -1; // commit
let current = new AbortController(); // ends the map that is drawn

export async function showCollection() {
  try {
    const facts = await get("/api/collection");
    const { commit } = facts;
    if (commit === drawn) return;
    const [stats, together, map] = await Promise.all([get("/api/stats"), get("/api/cooccurrence", { top: 20 }), get("/api/map")]);
    drawn = commit;
    current.abort();
    current = new AbortController();
    fill($("view-collection"), figures(stats),
      panel("Labels", "larger: carried by more photos", cloud(stats.labels)),
      panel("Map", "photos that are alike lie near each other; drag, pinch or scroll to wander, click to open", drawMap(map, current.signal)),
      together.labels.length > 1 && panel("Labels that go together", "how many photos carry both", matrix(together)),
      !facts.read_only && panel("Labels in your files", "keywords in photos and sidecars that differ from the labels here; nothing is written by looking", conflicts(stats.photos)),
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

// Photos whose files say otherwise, looked for when somebody asks.
function conflicts(photos) {
  const list = h("ul", { className: "conflicts" });
  const told = h("p", { className: "small", role: "status" });
  const line = ({ id, path, unknown, dropped }) => h("li", {},
    h("button", { className: "link", onclick: () => go({ photo: id }) }, path.split("/").at(-1)),
    unknown.length > 0 && ` says ${unknown.join(", ")} as well`, dropped.length > 0 && ` no longer says ${dropped.join(", ")}`);
  const look = async () => {
    fill(list);
    try {
      for (let offset = 0; offset < photos && list.isConnected; offset += AT_ONCE) {
        told.textContent = `${number(Math.min(offset + AT_ONCE, photos))} of ${number(photos)} photos looked at`;
        const found = await change("GET", `/api/tags?offset=${offset}&limit=${AT_ONCE}`);
        list.append(...found.filter((tags) => tags.status === "conflict").map(line));
      }
      told.textContent = list.children.length ? `${number(list.children.length)} photos: the files and the collection differ` : "The files say nothing else.";
    } catch (error) {
      told.textContent = error.message;
      if (error.status === 401) start();
    }
  };
  const place = h("div", {});
  const start = () => fill(place, token.get() ? h("button", { className: "quiet", onclick: look }, "Compare") : tokenField(start));
  start();
  return h("div", {}, place, told, list);
}

function balance(shares) {
  const bars = shares.map((share, i) => {
    const bar = h("span", { className: "bar", title: `bit ${i + 1}: ${(100 * share).toFixed(1)} %` });
    bar.style.setProperty("--share", share);
    return bar;
  });
  return h("div", { className: "balance", role: "img", "aria-label": "Share of ones for each bit" }, ...bars);
}
