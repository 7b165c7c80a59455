// Photos by month, of the collection or of what was found: a strip of months to jump by, and headings in the grid.

import { get } from "/page/api.js";
import { $, fill, h, number, plural } from "/page/dom.js";
import { headingLine } from "/page/grid.js";
import { go, state } from "/page/state.js";

let months = []; // [month, photos], the newest first
let drawn = ""; // the question that they answer

const monthName = (month) => new Date(`${month}-15T00:00Z`).toLocaleString("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });

// Where the month that people jumped to begins among all photos, the newest first.
const before = (month) => months.filter(([one]) => one > month).reduce((sum, [, photos]) => sum + photos, 0);

// A page of photos, the newest first, from the month on that people jumped to.
export async function timelinePage(parameters, offset, limit, signal) {
  const question = JSON.stringify(parameters);
  if (question !== drawn || !offset) {
    const answer = await get("/api/timeline", { ...parameters, limit: 1 }, signal);
    [months, drawn] = [Object.entries(answer.months).sort().reverse(), question];
  }
  drawMonths();
  const skipped = state.month ? before(state.month) : 0;
  const answer = await get("/api/timeline", { ...parameters, offset: offset + skipped, limit }, signal);
  return { ...answer, offset, total: answer.total - skipped };
}

export function hideMonths() {
  $("months").hidden = true;
}

function drawMonths() {
  const most = Math.max(1, ...months.map(([, photos]) => photos));
  const years = [...new Set(months.map(([month]) => month.slice(0, 4)))];
  const counts = Object.fromEntries(months);
  const bar = (month) => h("button", {
    className: "month", title: `${monthName(month)}: ${plural(counts[month] ?? 0, "photo")}`, "aria-label": `${monthName(month)}: ${plural(counts[month] ?? 0, "photo")}`,
    "aria-pressed": String(month === state.month), disabled: !counts[month], css: { "--share": (counts[month] ?? 0) / most },
    onclick: () => { go({ month: month === state.month ? "" : month }); scrollTo({ top: 0 }); },
  });
  const all = (year) => months.filter(([month]) => month.startsWith(year)).reduce((sum, [, photos]) => sum + photos, 0);
  fill($("months"), ...years.reverse().map((year) => h("div", { className: "year", title: plural(all(year), "photo") },
    h("div", { className: "bars" }, ...Array.from({ length: 12 }, (_, i) => bar(`${year}-${String(i + 1).padStart(2, "0")}`))),
    h("span", {}, year))));
  $("months").hidden = !months.length;
}

// What stands before a photo that is the first of its month.
export function monthHeading(photo, previous) {
  const month = photo.taken?.slice(0, 7) ?? "";
  if (previous && (previous.taken?.slice(0, 7) ?? "") === month) return null;
  const photos = months.find(([one]) => one === month)?.[1];
  return headingLine(month ? monthName(month) : "Nobody knows when", photos && h("span", { className: "many" }, number(photos)));
}
