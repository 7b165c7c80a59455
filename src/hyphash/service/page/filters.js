// What narrows photos down by facts of their files: when, with what, where they were taken, where they lie.

import { $, later } from "/page/dom.js";
import { FILTERS, filtersOn, go, state } from "/page/state.js";

const TYPED = 500; // ms after the last letter
const PLAIN = FILTERS.filter((name) => name !== "taken");

export function startFilters() {
  $("filters").addEventListener("click", () => unfold($("controls").hidden));
  const taken = () => {
    const [from, to] = [$("taken-from").value, $("taken-to").value];
    go({ taken: from || to ? `${from}..${to}` : "", month: "" });
  };
  for (const id of ["taken-from", "taken-to"]) $(id).addEventListener("change", taken);
  for (const name of PLAIN) {
    const set = () => go({ [name]: $(name).value.trim(), month: "" });
    $(name).addEventListener("change", set);
    if ($(name).tagName === "INPUT") $(name).addEventListener("input", later(TYPED, set));
  }
}

function unfold(open) {
  $("controls").hidden = !open;
  $("filters").setAttribute("aria-expanded", String(open));
}

// The first or last day of 2019, 2019-05 or 2019-05-03.
function day(text, last) {
  const [year, month, date] = text.slice(0, 10).split("-").map(Number);
  if (!year) return "";
  const at = last && !date ? Date.UTC(year, month || 12, 0) : Date.UTC(year, (month || 1) - 1, date || 1);
  return Number.isNaN(at) ? "" : new Date(at).toISOString().slice(0, 10);
}

// Of a month the days that the filter by date leaves, as that filter is written.
export function clipped(month) {
  const [from, to = from] = state.taken.split("..");
  const [first, last] = [day(month, false), day(month, true)];
  return `${[first, day(from, false)].sort().at(-1)}..${day(to, true) && day(to, true) < last ? day(to, true) : last}`;
}

// The controls as the address has them; `unfolded`: open where any of them is set.
export function showFilters(unfolded) {
  const [from, to = from] = state.taken.split("..");
  $("taken-from").value = day(from, false);
  $("taken-to").value = day(to, true);
  for (const name of PLAIN) {
    const control = $(name);
    if (control === document.activeElement) continue;
    control.value = state[name];
    if (control.value !== state[name]) { // of an address that somebody wrote
      control.add(new Option(state[name], state[name]));
      control.value = state[name];
    }
  }
  const on = filtersOn(state);
  $("filters-on").textContent = on;
  $("filters-on").hidden = !on;
  if (on && unfolded) unfold(true);
}
