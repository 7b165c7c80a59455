// What is shown lives in the address: it can be bookmarked, sent, and gone back to.

const LISTS = ["label", "unwanted", "carrying"];
const NUMBERS = ["like", "radius", "photo"];
const WORDS = ["place", "rank"];
export const VIEWS = ["search", "collection", "tag"];

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
  for (const key of WORDS) if (wanted[key] && wanted[key] !== "hamming") query.set(key, wanted[key]);
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

export const EMPTY = { label: [], unwanted: [], carrying: [], like: null, radius: null, place: "", rank: "", photo: null };

export const asksForSomething = (s) => s.label.length + s.unwanted.length > 0 || s.like !== null || s.place !== "";

// Parameters of /api/search.
export const searchParameters = (s) => ({
  label: s.label, unwanted: s.unwanted, carrying: s.carrying, like: s.like, place: s.place, radius: s.radius, rank: s.rank,
});
