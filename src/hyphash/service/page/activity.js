// What happened to the collection, the newest first, and what is going on now.

import { get } from "/page/api.js";
import { $, fill, h, notice, number, plural } from "/page/dom.js";
import { state } from "/page/state.js";

const EVERY = 3000; // ms
const IDLE = 6000; // while nothing goes on, as before `hyphash start` comes to the first photo
const WORK = { photos: "Looking at photos", epochs: "Learning, rounds", codes: "Putting to use what was learned", dates: "Still reading dates" };
const SIGNS = { added: "+", updated: "↻", moved: "→", removed: "−", forgotten: "−", trashed: "−", restored: "↩", emptied: "×", "left out": "!", refined: "★" };

const TOLD = { trashed: "moved to the trash", restored: "brought back", emptied: "deleted for good", forgotten: "gone from the disk", refined: "learned from" };

let timer = 0;

export async function showActivity() {
  clearTimeout(timer);
  try {
    const [lines, now] = await Promise.all([get("/api/activity"), get("/api/refine").catch(() => null)]);
    fill($("view-activity"),
      now?.running && h("div", { className: "panel", role: "status" }, progress(now)),
      lines.length ? h("ul", { className: "lines" }, ...days(lines)) : h("p", { className: "panel" }, "Nothing has happened yet."));
    notice("", "activity");
  } catch (error) {
    notice(error.message, "activity");
  }
  if (state.view === "activity") timer = setTimeout(() => state.view === "activity" && !document.hidden && showActivity(), EVERY);
}

// What goes on in the background, above every view but this one; `going` is called while it does, `done` when it has ended.
export async function watchWork(going, done) {
  const box = $("work");
  const now = document.hidden ? null : await get("/api/refine").catch(() => null);
  if (now) {
    if (now.running) { fill(box, progress(now)); going(); }
    else if (!box.hidden) done();
    box.hidden = !now.running;
  }
  setTimeout(() => watchWork(going, done), box.hidden ? IDLE : EVERY);
}

export function progress(now) {
  const learned = now.what === "epochs" && now.done === now.total; // what follows is not counted
  const what = learned ? "Learned; comparing it with what was there" : WORK[now.what] ?? "Getting ready";
  const counted = now.total > 0 && !learned;
  return h("div", { className: "progress" }, h("span", {}, counted ? `${what}: ${number(now.done)} of ${number(now.total)}` : `${what} …`),
    h("progress", { max: now.total || 1, ...(counted ? { value: now.done } : {}), "aria-label": what }));
}

function days(lines) {
  let day = "";
  return lines.flatMap((line) => {
    const head = new Date(line.time).toLocaleDateString("en-GB", { dateStyle: "long" });
    const first = head !== day && h("li", { className: "day" }, h("h2", {}, head));
    day = head;
    return [first, entry(line)].filter(Boolean);
  });
}

function entry(line) {
  const named = line.names.join(", ") + (line.photos > line.names.length ? " …" : "");
  return h("li", { className: line.reason ? "line problem" : "line" },
    h("span", { className: "sign", "aria-hidden": "true" }, SIGNS[line.what] ?? "·"),
    h("time", { dateTime: line.time }, new Date(line.time).toLocaleTimeString("en-GB", { timeStyle: "short" })),
    h("span", {}, h("b", {}, line.photos ? `${plural(line.photos, "photo")} ${TOLD[line.what] ?? line.what}` : line.what), named && ` ${named}`),
    line.reason && h("span", { className: "small" }, line.reason));
}
