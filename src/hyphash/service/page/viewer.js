// The full view of one photo: what is known of it, to zoom into, with its labels to search by or to change.

import { change, get, picture, token } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, bytes, fill, h, notice, percent, when } from "/page/dom.js";
import { far, moreLike, neighbours, relabelled, verdict } from "/page/grid.js";
import { EMPTY, go, state } from "/page/state.js";
import { tokenField } from "/page/verdicts.js";
import { zoomable } from "/page/zoom.js";

const NEAR = "5km"; // what is near a photo
const SHARP = 2048; // pixels, of a picture that is zoomed into

let facts = null;
let open = null; // number of the photo
let shown = null; // what the service said of it
let editing = false;
let zoomed = null;

export function startViewer(collection) {
  facts = collection;
  const dialog = $("viewer");
  dialog.addEventListener("close", () => { editing = false; if (state.photo !== null) go({ photo: null }); });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (zoomed?.key(event)) event.preventDefault();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(event.key === "ArrowLeft" ? -1 : 1);
    else if (event.key === "m") moreLike(state.photo);
    else return;
    event.preventDefault();
  });
}

function step(by) {
  const { before, after } = neighbours(state.photo);
  const other = by < 0 ? before : after;
  if (other) go({ photo: other }, { replace: true });
}

export async function showViewer() {
  const dialog = $("viewer");
  const id = state.photo;
  if (id === null) {
    open = null;
    if (dialog.open) dialog.close();
    return;
  }
  if (id === open) return;
  open = id;
  editing = false;
  try {
    const photo = await get(`/api/photos/${id}`);
    if (open !== id) return;
    draw(photo);
    notice("", "viewer");
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    go({ photo: null }, { replace: true });
    notice(error.status === 404 ? `Photo ${id} is not in this collection; it may have been removed.` : error.message, "viewer");
  }
}

// More photos have come to the grid: this one may have neighbours now.
export function refreshViewer() {
  if (open === null || shown?.id !== open || editing) return;
  const { before, after } = neighbours(open);
  for (const [name, id] of [["before", before], ["after", after]]) $("viewer").querySelector(`.step.${name}`).disabled = !id;
}

function draw(photo) {
  shown = photo;
  const { match, asked, before, after } = neighbours(photo.id);
  const shared = new Set(match?.shared ?? []);
  const side = (name, id, by, text, title) => h("button", { className: `step ${name}`, title, "aria-label": title, disabled: !id, onclick: () => step(by) }, text);
  const image = h("img", { src: picture(photo.id, "picture"), alt: photo.name, draggable: false });
  const stage = h("div", { className: `stage ${match ? verdict(match, asked) : ""}` }, image,
    side("before", before, -1, "‹", "Previous photo"), side("after", after, 1, "›", "Next photo"),
    h("div", { className: "zooms" },
      h("button", { title: "Larger (+)", "aria-label": "Larger", onclick: () => zoomed.zoom(1.5) }, "+"),
      h("button", { title: "Smaller (−)", "aria-label": "Smaller", onclick: () => zoomed.zoom(1 / 1.5) }, "−")));
  fill($("viewer"), stage,
    h("div", { className: "about" },
      h("button", { className: "quiet close", title: "Close (Esc)", "aria-label": "Close", onclick: () => $("viewer").close() }, "×"),
      h("h2", {}, photo.name),
      known(photo, match),
      h("div", { className: "words" }, ...(photo.labels.length
        ? photo.labels.map((label) => h("button", {
            className: shared.has(label) ? "word shared" : "word", onclick: () => go({ ...EMPTY, view: "search", label: [label] }),
          }, label))
        : [h("span", { className: "small" }, "no labels")])),
      h("div", { className: "actions" },
        h("button", { className: "button", autofocus: true, onclick: () => moreLike(photo.id) }, "More like this"),
        !facts.read_only && h("button", { className: "quiet", onclick: () => edit(photo) }, "Edit labels"),
        h("a", { className: "quiet", href: picture(photo.id, "original"), download: "" }, "Original")),
      h("div", { id: "edit" })));
  zoomed = zoomable(stage, image, { sharper: () => { image.src = `${picture(photo.id, "picture")}?size=${SHARP}`; }, swipe: step });
}

// What is known of a photo, as terms and what they say; what is not known is left out.
function known(photo, match) {
  const folder = photo.path?.startsWith("/") ? photo.path.replace(/[/][^/]*$/, "") : photo.folder;
  const place = typeof photo.latitude === "number" && `${degrees(photo.latitude, "N", "S")}, ${degrees(photo.longitude, "E", "W")}`;
  const others = (text, title, filter) => text && h("button", { className: "link", title, onclick: () => go({ ...EMPTY, view: "search", ...filter }) }, text);
  const rows = [
    ["Taken", photo.taken && others(when(photo.taken), "Photos of that day", { taken: photo.taken.slice(0, 10) })],
    ["Camera", others(photo.camera, "Photos with this camera", { camera: photo.camera })],
    ["Place", others(place, `Photos within ${NEAR}`, { near: `${photo.latitude},${photo.longitude},${NEAR}` })],
    ["Size", `${photo.width} × ${photo.height} · ${bytes(photo.size)}`],
    ["Folder", others(folder, "Photos in this folder", { folder: folder?.split("/").slice(-2).join("/") })],
    ["Added", photo.added && when(photo.added, { time: false })],
    ["Fits", typeof match?.probability === "number" && (match.known ? "yes, people said so" : `${percent(match.probability)} probable`)],
    ["Number", `photo ${photo.id} in this collection`, "expert"],
    ["Distance", match?.distance !== undefined && `${far(match)} away`, "expert"],
  ];
  return h("dl", { className: "known" }, ...rows.filter(([, value]) => value).flatMap(([term, value, kind = ""]) => [
    h("dt", { className: kind }, term), h("dd", { className: kind, data: { term } }, value)]));
}

const degrees = (value, plus, minus) => `${Math.abs(value).toFixed(4)}° ${value < 0 ? minus : plus}`;

function edit(photo) {
  if (editing) return;
  editing = true;
  let labels = photo.labels.map((label) => ({ label, unwanted: false }));
  const place = h("div", { className: "field" });
  const field = labelField(place, {
    caption: "Labels of this photo", placeholder: "add a label", fresh: true, change: (chips) => { labels = chips; field.show(labels); },
  });
  field.show(labels);
  const said = h("p", { className: "small", role: "status" });
  const keys = h("div", {});
  const ask = () => fill(keys, tokenField(() => { said.textContent = ""; fill(keys); }));
  const save = h("button", { className: "button", onclick: async () => {
    try {
      const saved = await change("PUT", `/api/photos/${photo.id}/labels`, { labels: labels.map((chip) => chip.label) });
      relabelled(saved);
      editing = false;
      draw({ ...photo, ...saved, path: photo.path });
    } catch (error) {
      said.textContent = error.message;
      if (error.status === 401) ask();
    }
  } }, "Save");
  if (!token.get()) ask();
  fill($("edit"), place, keys, h("div", { className: "actions" }, save), said);
  field.input.focus();
}
