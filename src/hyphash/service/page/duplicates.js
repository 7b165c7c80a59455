// Photos that are copies of each other or all but the same, side by side: one stays, the others go into the trash.

import { change, get, picture, token } from "/page/api.js";
import { $, bytes, fill, h, notice, number, plural, when } from "/page/dom.js";
import { go } from "/page/state.js";
import { didWhatCanBeUndone, onUndo, takeBack, tell, tokenField } from "/page/verdicts.js";

const AT_ONCE = 8; // groups that are compared when the end of the list comes into sight
const AT_MOST = 1000; // photos of the trash that are shown, and brought back in one go
const SHARPER = 1.1; // times as sharp, from which on it is worth telling

let facts = null;
let groups = []; // numbers of photos, of groups that are not on the screen yet
let busy = false;
let unfolded = false; // whether what is in the trash is shown

export function startDuplicates(collection) {
  facts = collection;
  onUndo(() => { if (!$("view-duplicates").hidden) showDuplicates(); });
}

export async function showDuplicates() {
  const view = $("view-duplicates");
  const list = h("div", { id: "groups" });
  const end = h("div", { className: "more" }, "…");
  const summary = h("p", { id: "duplicates-told", role: "status" }, "Comparing photos …");
  fill(view, h("div", { className: "told" }, summary, h("span", { id: "in-trash" })), h("section", { className: "panel", id: "trash", hidden: true, "aria-label": "Trash" }), list, end);
  try {
    ({ groups } = await get("/api/duplicates"));
    const photos = groups.reduce((sum, group) => sum + group.length, 0);
    summary.textContent = groups.length ? `${plural(groups.length, "group")} of photos that are the same or all but the same, ${plural(photos, "photo")} in all` : "No photo is here twice.";
    drawTrash();
  } catch (error) {
    notice(error.message, "duplicates");
  }
  const more = () => nextGroups(list, end);
  new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && more(), { rootMargin: "600px" }).observe(end);
}

async function nextGroups(list, end) {
  if (busy) return;
  busy = true;
  const some = groups.splice(0, AT_ONCE);
  try {
    const compared = await Promise.all(some.map((ids) => get("/api/duplicates/compare", { id: ids })));
    list.append(...compared.filter((photos) => photos.length > 1).map(group));
  } catch (error) {
    notice(error.message, "duplicates");
  } finally {
    busy = false;
    end.hidden = !groups.length;
  }
}

// What differs between the photos of a group: [term, what it says of one].
const FACTS = [
  ["Pixels", (photo) => `${photo.width} × ${photo.height}`],
  ["File", (photo) => bytes(photo.size)],
  ["Format", (photo) => /\.(\w+)$/.exec(photo.name)?.[1].toUpperCase().replace("JPG", "JPEG") ?? "?"],
  ["Taken", (photo) => (photo.taken ? when(photo.taken) : "not known")],
  ["Sharpness", (photo, sharpest) => (photo.sharpness * SHARPER < sharpest ? "less sharp" : "sharp")],
  ["Labels", (photo) => photo.labels.join(", ") || "none"],
];

function group(photos) {
  const [best] = photos;
  let keep = best.id;
  const sharpest = Math.max(...photos.map((photo) => photo.sharpness));
  const differ = FACTS.map(([, of]) => new Set(photos.map((photo) => of(photo, sharpest))).size > 1);
  const name = `keep-${best.id}`;
  const exact = photos.every((photo) => photo.exact);
  const choice = (photo) => h("li", { className: "twin", data: { id: photo.id } },
    h("button", { className: "open", "aria-label": `Open ${photo.name}`, onclick: () => go({ photo: photo.id }) }, h("img", { src: picture(photo.id), alt: "", loading: "lazy" })),
    h("label", { className: "keep" }, !facts.read_only && h("input", { type: "radio", name, checked: photo.id === keep, onchange: () => { keep = photo.id; } }),
      h("b", {}, photo.name), photo === best && !exact && h("span", { className: "badge" }, "best")),
    h("dl", { className: "known" }, ...FACTS.flatMap(([term, of], i) => [h("dt", {}, term), h("dd", { className: differ[i] ? "differs" : "" }, of(photo, sharpest))])));
  const box = h("section", { className: "panel twins" },
    h("h2", {}, exact ? `${photos.length} exact copies` : `${photos.length} photos that are all but the same`),
    h("ul", {}, ...photos.map(choice)),
    !facts.read_only && h("div", { className: "actions" },
      h("button", { className: "button", onclick: () => resolve(box, photos, keep) }, `Keep one, move ${photos.length === 2 ? "the other" : `${photos.length - 1}`} to the trash`),
      h("button", { className: "quiet", onclick: () => keepAll(box, photos) }, "Keep all"),
      h("span", { className: "small" }, "The one that stays gets the labels of all.")));
  return box;
}

// Whether there is a token; if not it is asked for, and then `act` goes on.
function mayWrite(box, act) {
  if (token.get()) return true;
  const form = tokenField(() => { form.remove(); act(); });
  box.querySelector(".token")?.remove();
  box.append(form);
  return false;
}

async function keepAll(box, photos) {
  if (!mayWrite(box, () => keepAll(box, photos))) return;
  try {
    await change("POST", "/api/duplicates/keep", { ids: photos.map((photo) => photo.id) });
    box.remove();
  } catch (error) {
    notice(error.message, "duplicates");
  }
}

async function resolve(box, photos, keep) {
  const others = photos.map((photo) => photo.id).filter((id) => id !== keep);
  if (!mayWrite(box, () => resolve(box, photos, keep))) return;
  try {
    const { undo } = await change("POST", "/api/duplicates/resolve", { keep, others });
    box.remove();
    didWhatCanBeUndone(`${plural(others.length, "photo")} moved to the trash`, async () => {
      const back = await change("POST", "/api/trash/restore", { ids: others });
      return [...(undo.length ? await takeBack(undo) : []), ...back];
    });
    drawTrash();
  } catch (error) {
    notice(error.message, "duplicates");
  }
}

// ── the trash ────────────────────────────────────────────────────────────────────────────────────────────────

async function drawTrash() {
  const photos = await get("/api/trash").catch(() => []);
  const place = $("in-trash");
  if (!place) return;
  const act = (path, content, told) => async () => {
    try {
      await change("POST", path, content);
      tell(told, false);
      showDuplicates();
    } catch (error) {
      notice(error.message, "duplicates");
    }
  };
  const all = plural(photos.length, "photo");
  const sure = h("dialog", { className: "ask", "aria-label": "Empty the trash" },
    h("p", {}, `${all} in the trash will be deleted for good, their files with them. There is no way back.`),
    h("form", { method: "dialog", className: "actions" },
      h("button", { className: "button danger", onclick: act("/api/trash/empty", undefined, `${all} deleted`) }, "Delete for good"),
      h("button", { className: "quiet", autofocus: true }, "Keep them")));
  const mayChange = !facts.read_only && token.get() !== "";
  const back = (some, text, told, kind) => h("button", { className: kind, onclick: act("/api/trash/restore", { ids: some.map((photo) => photo.id).slice(0, AT_MOST) }, told) }, text);
  const shown = h("button", { className: "link", "aria-expanded": String(unfolded), "aria-controls": "trash", onclick: () => { unfolded = !unfolded; drawTrash(); } }, unfolded ? "hide" : "show");
  fill(place, ...(photos.length ? [`${number(photos.length)} in the trash`, shown] : []), ...(photos.length && mayChange ? [
    back(photos, "bring all back", `${all} brought back`, "link"),
    h("button", { className: "link", onclick: () => sure.showModal() }, "empty the trash"), sure] : []));
  const inTrash = (photo) => h("li", { data: { id: photo.id } },
    h("img", { src: `/api/trash/${photo.id}/thumbnail`, alt: "", loading: "lazy" }),
    h("b", { title: photo.name }, photo.name), h("span", { className: "small" }, when(photo.time, { time: false })),
    mayChange && back([photo], "Bring back", `${photo.name} brought back`, "quiet"));
  $("trash").hidden = !photos.length || !unfolded;
  fill($("trash"), h("h2", {}, "Trash"), h("p", { className: "small" }, "Photos wait here, with all that was said of them, until you bring them back or empty the trash."),
    h("ul", { className: "trashed" }, ...photos.slice(0, AT_MOST).map(inTrash)));
}
