// A picture to look into: wheel, pinch, double click or + and − zoom, dragging moves.

const MOST = 8;

// The picture inside of its frame; `sharper` is called once when it is enlarged, `swipe` with −1 or 1 when it is not.
export function zoomable(frame, image, { sharper, swipe }) {
  const view = { x: 0, y: 0, zoom: 1 };
  const pointers = new Map();
  let begun = null;

  function draw() {
    const [w, t] = [frame.clientWidth * (view.zoom - 1) / 2, frame.clientHeight * (view.zoom - 1) / 2];
    view.x = Math.min(Math.max(view.x, -w), w);
    view.y = Math.min(Math.max(view.y, -t), t);
    image.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.zoom})`;
    frame.classList.toggle("zoomed", view.zoom > 1);
    frame.dataset.zoom = view.zoom.toFixed(2);
  }

  function zoom(factor, event = null) {
    const box = frame.getBoundingClientRect();
    const [px, py] = event ? [event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2] : [0, 0];
    const next = Math.min(Math.max(view.zoom * factor, 1), MOST);
    view.x = px - (px - view.x) * next / view.zoom;
    view.y = py - (py - view.y) * next / view.zoom;
    view.zoom = next;
    if (next > 1) { sharper?.(); sharper = null; }
    draw();
  }

  const move = (dx, dy) => { view.x += dx; view.y += dy; draw(); };

  frame.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY / 400), event); }, { passive: false });
  frame.addEventListener("dblclick", (event) => { if (!event.target.closest("button")) zoom(view.zoom > 1 ? 1 / MOST : 2.5, event); });
  frame.addEventListener("pointerdown", (event) => {
    if (event.target.closest("button")) return;
    frame.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
    begun = event;
  });
  frame.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
    const apart = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY) || 1;
    if (other) { begun = null; zoom(apart(event) / apart(before), event); }
    else if (view.zoom > 1) move(event.clientX - before.clientX, event.clientY - before.clientY);
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) frame.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    const dx = begun ? event.clientX - begun.clientX : 0;
    if (event.pointerType === "touch" && view.zoom === 1 && Math.abs(dx) > 50 && Math.abs(dx) > 2 * Math.abs(event.clientY - begun.clientY)) swipe(dx > 0 ? -1 : 1);
  });

  draw();
  return {
    zoom,
    // Whether the key was about the picture.
    key(event) {
      const step = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] }[event.key];
      if (event.key === "+" || event.key === "=") zoom(1.5);
      else if (event.key === "-") zoom(1 / 1.5);
      else if (event.key === "0") zoom(1 / MOST);
      else if (step && view.zoom > 1) move(...step);
      else return false;
      return true;
    },
  };
}
