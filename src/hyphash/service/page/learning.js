// Learning from what people said: whether it is worth the time, how far it is, and what it gained.

import { change, get } from "/page/api.js";
import { progress } from "/page/activity.js";
import { fill, h, number, plural, when } from "/page/dom.js";

const EVERY = 2000; // ms

// The panel, as an element that keeps itself up to date while it is on the page; empty where a service cannot learn.
export function learningPanel() {
  const panel = h("section", { className: "panel", id: "learning", hidden: true });
  draw(panel, () => get("/api/refine"));
  return panel;
}

async function draw(panel, ask) {
  let now;
  try {
    now = await ask();
  } catch (error) {
    panel.hidden = error.status === 404;
    fill(panel, h("h2", {}, "Learn from your labels"), h("p", { role: "alert" }, error.message));
    return;
  }
  const again = () => draw(panel, () => change("POST", "/api/refine"));
  const fresh = !now.said ? "No photo carries a label yet" : now.since === now.said ? plural(now.said, "label") : `${now.since ? plural(now.since, "new label") : "No new labels"} since it last learned, ${number(now.said)} in all`;
  panel.hidden = false;
  const busy = now.running && now.what !== "dates"; // of which nothing has to be waited for
  fill(panel, h("h2", {}, "Learn from your labels"),
    busy ? progress(now) : h("p", {}, now.enough ? `${fresh}: enough to learn from. It runs beside your work, and is used only if it finds more.` : `${fresh}. Learning ${now.last ? "again " : ""}is worth it when there are more.`),
    now.error && h("p", { role: "alert" }, now.error),
    !busy && now.said > 0 && h("button", { className: now.enough ? "button" : "quiet", id: "refine", onclick: again }, "Learn now"),
    now.last && h("p", { className: "small", id: "gained" }, gained(now.last)));
  if (now.running) setTimeout(() => panel.isConnected && draw(panel, () => get("/api/refine")), EVERY);
}

const points = (value) => `${(100 * value).toFixed(1)} %`;

function gained(last) {
  const change = ({ before, after }) => `${points(before)} → ${points(after)}`;
  return `${when(last.when, { time: false })}: learned from ${plural(last.photos, "photo")}; searches ${change(last.search)} right, suggestions ${change(last.suggestions)}. `
    + (last.moved ? "The collection uses it." : "That is no better, so the collection stayed as it was.");
}
