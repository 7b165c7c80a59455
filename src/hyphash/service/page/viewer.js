// The full view of one photo, with its labels to search by or to change.

import { change, get, picture, token } from "/page/api.js";
import { labelField } from "/page/chips.js";
import { $, fill, h, notice, percent } from "/page/dom.js";
import { far, moreLike, neighbours, relabelled, verdict } from "/page/search.js";
import { EMPTY, go, state } from "/page/state.js";
import { tokenField } from "/page/verdicts.js";

let facts = null;
let open = null; // number of the photo
let shown = null; // what the service said of it
let editing = false;

export function startViewer(collection) {
  facts = collection;
  const dialog = $("viewer");
  dialog.addEventListener("close", () => { editing = false; if (state.photo !== null) go({ photo: null }); });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("input")) return;
    const { before, after } = neighbours(state.photo);
    if (event.key === "ArrowLeft" && before) go({ photo: before }, { replace: true });
    else if (event.key === "ArrowRight" && after) go({ photo: after }, { replace: true });
    else if (event.key === "m") moreLike(state.photo);
    else return;
    event.preventDefault();
  });
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
    if (open === id) draw(photo);
    if (!dialog.open) dialog.showModal();
  } catch (error) {
    notice(error.message);
    go({ photo: null }, { replace: true });
  }
}

// More photos have come to the grid: this one may have neighbours now.
export function refreshViewer() {
  if (open !== null && shown?.id === open && !editing) draw(shown);
}

function draw(photo) {
  shown = photo;
  const { match, asked, before, after } = neighbours(photo.id);
  const shared = new Set(match?.shared ?? []);
  const step = (id, text, title) => h("button", {
    className: "step", title, "aria-label": title, disabled: !id, onclick: () => go({ photo: id }, { replace: true }),
  }, text);
  fill($("viewer"),
    h("div", { className: `stage ${match ? verdict(match, asked) : ""}` },
      step(before, "‹", "Previous photo"),
      h("img", { src: picture(photo.id, "picture"), alt: photo.name }),
      step(after, "›", "Next photo")),
    h("div", { className: "about" },
      h("h2", {}, photo.name),
      h("p", { className: "small" },
        `photo ${photo.id} · ${photo.width} × ${photo.height}`,
        match?.distance !== undefined ? ` · ${far(match)} away` : "",
        match?.probability !== null && match?.probability !== undefined && !match.known ? ` · ${percent(match.probability)} probable` : "",
        photo.path ? h("span", { className: "path" }, photo.path) : null),
      h("div", { className: "words" }, ...(photo.labels.length
        ? photo.labels.map((label) => h("button", {
            className: shared.has(label) ? "word shared" : "word", onclick: () => go({ ...EMPTY, view: "search", label: [label] }),
          }, label))
        : [h("span", { className: "small" }, "no labels")])),
      h("div", { className: "actions" },
        h("button", { className: "button", autofocus: true, onclick: () => moreLike(photo.id) }, "More like this"),
        h("a", { className: "button quiet", href: picture(photo.id, "original"), download: "" }, "Original"),
        !facts.read_only && h("button", { className: "quiet", onclick: () => edit(photo) }, "Edit labels"),
        h("button", { className: "quiet close", title: "Close (Esc)", onclick: () => $("viewer").close() }, "Close")),
      h("div", { id: "edit" })));
}

function edit(photo) {
  if (editing) return;
  editing = true;
  let labels = photo.labels.map((label) => ({ label, unwanted: false }));
  const place = h("div", { className: "field" });
  const field = labelField(place, {
    caption: "Labels of this photo", placeholder: "add a label", change: (chips) => { labels = chips; field.show(labels); },
  });
  field.show(labels);
  const said = h("p", { className: "small", role: "status" });
  const save = h("button", { className: "button", onclick: async () => {
    try {
      const saved = await change("PUT", `/api/photos/${photo.id}/labels`, { labels: labels.map((chip) => chip.label) });
      relabelled(saved);
      editing = false;
      draw({ ...photo, ...saved, path: photo.path });
    } catch (error) {
      said.textContent = error.message;
      if (error.status === 401) fill(keys, tokenField(() => { said.textContent = ""; fill(keys); }));
    }
  } }, "Save");
  const keys = h("div", {});
  if (!token.get()) fill(keys, tokenField(() => fill(keys)));
  fill($("edit"), place, keys, h("div", { className: "actions" }, save), said);
  field.input.focus();
}
