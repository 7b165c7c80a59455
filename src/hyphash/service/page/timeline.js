// Photos by month, of the collection or of what was found: a strip of months to jump by, and headings in the grid.

import { get } from "/page/api.js";
import { $, fill, h, number, plural } from "/page/dom.js";
import { clipped } from "/page/filters.js";
import { headingLine } from "/page/grid.js";
import { go, state } from "/page/state.js";

let months = []; // {month, photos}, the newest first
let undated = 0;
let unread = 0; // photos whose dates the service still gathers

const sum = (some) => some.reduce((all, { photos }) => all + photos, 0);

const monthName = (month) => new Date(`${month}-15T00:00Z`).toLocaleString("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });

// A page of photos, the newest month first, from the one on that people jumped to; each knows its month.
export async function timelinePage(parameters, offset, limit, signal) {
  if (!offset) {
    const answer = await get("/api/timeline", parameters, signal);
    [months, undated, unread] = [answer.months.reverse(), answer.undated, answer.unread];
    drawMonths();
  }
  const wanted = months.filter(({ month }) => !state.month || month <= state.month);
  const parts = [];
  let [skip, need] = [offset, limit];
  for (const { month, photos } of wanted) {
    const k = Math.min(photos - skip, need);
    if (k > 0) parts.push({ month, k, offset: skip });
    skip = Math.max(skip - photos, 0);
    need -= Math.max(k, 0);
    if (need <= 0) break;
  }
  const answers = await Promise.all(parts.map(({ month, ...page }) => get("/api/search", { ...parameters, ...page, taken: clipped(month) }, signal)));
  const matches = answers.flatMap((answer, i) => answer.matches.map((match) => ({ ...match, month: parts[i].month })));
  return { matches, asked: answers[0]?.asked ?? [], offset, total: sum(wanted) };
}

export const undatedTold = () => (undated ? ` · ${plural(undated, "photo")} without a date` : "");

export const stillReading = () => unread > 0;

export function hideMonths() {
  $("months").hidden = true;
}

function drawMonths() {
  const most = Math.max(1, ...months.map(({ photos }) => photos));
  const counts = Object.fromEntries(months.map(({ month, photos }) => [month, photos]));
  const bar = (month) => {
    const text = `${monthName(month)}: ${plural(counts[month] ?? 0, "photo")}`;
    return h("button", {
      className: "month", title: text, "aria-label": text, "aria-pressed": String(month === state.month), disabled: !counts[month],
      css: { "--share": (counts[month] ?? 0) / most }, onclick: () => { go({ month: month === state.month ? "" : month }); scrollTo({ top: 0 }); },
    });
  };
  const years = [...new Set(months.map(({ month }) => month.slice(0, 4)))].reverse();
  fill($("months"), ...years.map((year) => h("div", { className: "year" },
    h("div", { className: "bars" }, ...Array.from({ length: 12 }, (_, i) => bar(`${year}-${String(i + 1).padStart(2, "0")}`))),
    h("span", {}, year))));
  $("months").hidden = !months.length;
  $("months").scrollLeft = $("months").scrollWidth; // the newest
}

// What stands before a photo that is the first of its month.
export function monthHeading({ month }, previous) {
  const all = months.find((one) => one.month === month);
  return previous?.month === month ? null : headingLine(monthName(month), h("span", { className: "many" }, number(all.photos)));
}
