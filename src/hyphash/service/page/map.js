// A flat map of the codes to wander in: dots from afar, photos from near.

import { picture } from "/page/api.js";
import { fill, h } from "/page/dom.js";
import { go } from "/page/state.js";

const NEAR = 80; // photos in sight that are drawn as pictures
const KEPT = 400; // pictures kept in memory
const REACH = 14; // pixels around the pointer

export const colour = (group, dark) => group < 0 ? (dark ? "#777" : "#aaa") : `hsl(${(group * 137.5) % 360} 65% ${dark ? 62 : 45}%)`;

// The map as an element, alive until the signal says that another takes its place.
export function drawMap(map, signal) {
  const canvas = h("canvas", { tabIndex: 0, className: "map", role: "application", "aria-label": "Map of the photos: arrows move, plus and minus zoom" });
  const tip = h("div", { className: "tip", hidden: true });
  const legend = h("div", { className: "legend" });
  const view = { x: 0, y: 0, zoom: 0.92, only: null, near: -1 };
  const pictures = new Map();
  const pointers = new Map();
  let waiting = false;
  let moved = 0;

  const side = () => Math.min(canvas.clientWidth, canvas.clientHeight) / 2;
  const toScreen = (i) => [
    canvas.clientWidth / 2 + (map.x[i] - view.x) * side() * view.zoom,
    canvas.clientHeight / 2 - (map.y[i] - view.y) * side() * view.zoom,
  ];
  const inSight = () => map.ids.map((_, i) => i).filter((i) => {
    const [x, y] = toScreen(i);
    return x > -40 && y > -40 && x < canvas.clientWidth + 40 && y < canvas.clientHeight + 40;
  });

  function image(i) {
    const id = map.ids[i];
    if (!pictures.has(id)) {
      if (pictures.size > KEPT) pictures.delete(pictures.keys().next().value);
      const loaded = new Image();
      loaded.onload = redraw;
      loaded.src = picture(id);
      pictures.set(id, loaded);
    }
    const found = pictures.get(id);
    return found.complete && found.naturalWidth ? found : null;
  }

  function paint() {
    waiting = false;
    if (signal.aborted) return; // between the asking for this frame and now
    const scale = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const dark = getComputedStyle(canvas).colorScheme.startsWith("dark");
    const seen = inSight();
    const close = seen.length <= NEAR;
    for (const i of seen) {
      const [x, y] = toScreen(i);
      const faded = view.only !== null && map.group[i] !== view.only;
      pen.globalAlpha = faded ? 0.12 : close ? 1 : 0.75;
      pen.fillStyle = colour(map.group[i], dark);
      const small = close && !faded ? image(i) : null;
      if (small) {
        const size = 52 / Math.max(small.naturalWidth, small.naturalHeight);
        const [w, t] = [small.naturalWidth * size, small.naturalHeight * size];
        pen.fillRect(x - w / 2 - 2, y - t / 2 - 2, w + 4, t + 4);
        pen.drawImage(small, x - w / 2, y - t / 2, w, t);
      } else {
        pen.beginPath();
        pen.arc(x, y, i === view.near ? 6 : 3.2, 0, 7);
        pen.fill();
      }
    }
    canvas.dataset.seen = seen.length;
    canvas.dataset.close = close;
  }

  function redraw() {
    if (!waiting && !signal.aborted) { waiting = true; requestAnimationFrame(paint); }
  }

  function zoomAt(factor, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) {
    const zoom = Math.min(Math.max(view.zoom * factor, 0.5), 400);
    const dx = (px - canvas.clientWidth / 2) / side();
    const dy = (canvas.clientHeight / 2 - py) / side();
    view.x += dx / view.zoom - dx / zoom;
    view.y += dy / view.zoom - dy / zoom;
    view.zoom = zoom;
    redraw();
  }

  function pan(dx, dy) {
    view.x -= dx / side() / view.zoom;
    view.y += dy / side() / view.zoom;
    redraw();
  }

  function nearest(px, py) {
    let best = -1;
    let least = REACH ** 2;
    for (const i of inSight()) {
      if (view.only !== null && map.group[i] !== view.only) continue;
      const [x, y] = toScreen(i);
      const far = (x - px) ** 2 + (y - py) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }

  function point(event) {
    const near = nearest(event.offsetX, event.offsetY);
    canvas.classList.toggle("over", near >= 0);
    if (near === view.near) return;
    view.near = near;
    tip.hidden = near < 0;
    if (near >= 0) {
      const [x, y] = toScreen(near);
      fill(tip, h("img", { src: picture(map.ids[near]), alt: "" }));
      tip.style.left = `${Math.min(x + 12, canvas.clientWidth - 150)}px`;
      tip.style.top = `${Math.min(y + 12, canvas.clientHeight - 130)}px`;
    }
    redraw();
  }

  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoomAt(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, event); moved = 0; });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) { point(event); return; }
    const others = [...pointers.values()].filter((other) => other.pointerId !== event.pointerId);
    if (others.length) {
      const [o] = others;
      const apart = (p) => Math.hypot(p.offsetX - o.offsetX, p.offsetY - o.offsetY) || 1;
      zoomAt(apart(event) / apart(before), (event.offsetX + o.offsetX) / 2, (event.offsetY + o.offsetY) / 2);
    } else pan(event.offsetX - before.offsetX, event.offsetY - before.offsetY);
    moved += Math.abs(event.offsetX - before.offsetX) + Math.abs(event.offsetY - before.offsetY);
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; view.near = -1; });
  canvas.addEventListener("click", (event) => {
    const near = moved > 6 ? -1 : nearest(event.offsetX, event.offsetY);
    if (near >= 0) go({ photo: map.ids[near] });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (step) pan(...step);
    else if (event.key === "+" || event.key === "=") zoomAt(1.4);
    else if (event.key === "-") zoomAt(1 / 1.4);
    else if (event.key === "0") { Object.assign(view, { x: 0, y: 0, zoom: 0.92 }); redraw(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const resized = new ResizeObserver(redraw);
  resized.observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  signal.addEventListener("abort", () => { resized.disconnect(); pictures.clear(); });

  function drawLegend() {
    fill(legend, ...map.groups.map((label, group) => {
      const swatch = h("span", { className: "swatch" });
      swatch.style.background = colour(group, getComputedStyle(document.documentElement).colorScheme.startsWith("dark"));
      return h("button", {
        className: view.only === group ? "word shared" : "word", "aria-pressed": String(view.only === group),
        onclick: () => { view.only = view.only === group ? null : group; drawLegend(); redraw(); },
      }, swatch, label);
    }));
  }
  drawLegend();
  const zooms = h("div", { className: "zooms" },
    h("button", { title: "Nearer", "aria-label": "Nearer", onclick: () => zoomAt(1.6) }, "+"),
    h("button", { title: "Farther", "aria-label": "Farther", onclick: () => zoomAt(1 / 1.6) }, "−"));
  return h("div", {}, h("div", { className: "mapframe" }, canvas, tip, zooms), legend);
}
