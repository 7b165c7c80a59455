// What is shown lives in the address: it can be bookmarked, sent, and gone back to.

const LISTS = ["label", "any_of", "unwanted", "at_least", "carrying"];
const NUMBERS = ["like", "radius", "photo"];
export const FILTERS = ["taken", "added", "camera", "folder", "type", "size", "near"]; // facts of photos, as /api/search takes them
const WORDS = ["place", "rank", "missing", "wrong", "teach", "tick", "month", ...FILTERS]; // tick: photos above .95 are marked already
export const VIEWS = ["search", "timeline", "duplicates", "tag", "collection", "activity"];

const listeners = [];
export let state = read();

export function read(search = location.search) {
  const query = new URLSearchParams(search);
  const found = { view: VIEWS.includes(query.get("view")) ? query.get("view") : "search" };
  for (const key of LISTS) found[key] = query.getAll(key).filter(Boolean);
  for (const key of NUMBERS) found[key] = /^\d{1,15}$/.test(query.get(key) ?? "") ? Number(query.get(key)) : null;
  for (const key of WORDS) found[key] = query.get(key) ?? "";
  return found;
}

export function addressOf(wanted) {
  const query = new URLSearchParams();
  if (wanted.view !== "search") query.set("view", wanted.view);
  for (const key of LISTS) for (const value of wanted[key]) query.append(key, value);
  for (const key of NUMBERS) if (wanted[key] !== null) query.set(key, wanted[key]);
  for (const key of WORDS) if (wanted[key]) query.set(key, wanted[key]);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

// Change some of the state. `replace` leaves no step to go back to, as for every notch of a slider.
export function go(changes, { replace = false } = {}) {
  const before = state;
  state = { ...state, ...changes };
  const address = addressOf(state);
  if (address !== addressOf(before)) history[replace ? "replaceState" : "pushState"](null, "", address);
  for (const listener of listeners) listener(state, before);
}

export function onChange(listener) {
  listeners.push(listener);
}

window.addEventListener("popstate", () => {
  const before = state;
  state = read();
  for (const listener of listeners) listener(state, before);
});

// Nothing asked for, and no photo open.
export const EMPTY = (() => {
  const { view, ...rest } = read("");
  return rest;
})();

export const expertIn = (s) => s.radius !== null || Boolean(s.rank);

// How many of the controls that fold away narrow what is shown.
export const filtersOn = (s) => s.carrying.length + (s.radius !== null) + Boolean(s.rank) + FILTERS.filter((key) => s[key]).length;

export const asksForSomething = (s) =>
  s.label.length + s.any_of.length + s.unwanted.length > 0 || s.like !== null || [s.place, s.missing, s.wrong].some(Boolean);

const pick = (s, keys) => Object.fromEntries(keys.map((key) => [key, s[key]]));

export const filtersByFacts = (s) => FILTERS.some((key) => s[key]);

// Parameters of /api/search.
export const searchParameters = (s) => pick(s, [
  "label", "any_of", "unwanted", "at_least", "missing", "wrong", "carrying", "like", "place", "radius", "rank", ...FILTERS,
]);
