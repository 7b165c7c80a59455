// Elements from names, properties and children. Text is always text: nothing here can make markup of it.

export const $ = (id) => document.getElementById(id);

const there = (children) => children.filter((child) => child !== null && child !== undefined && child !== false && child !== "");

export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-") || key === "role" || key === "list") element.setAttribute(key, value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "css") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else element[key] = value;
  }
  element.append(...there(children));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...there(children));
  return element;
}

export const number = (value) => value.toLocaleString("en");

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// A probability for people: never 0 or 100 %.
export const percent = (p) => (p < 0.005 ? "< 1 %" : p > 0.995 ? "> 99 %" : `${Math.round(100 * p)} %`);

export const bytes = (size) => (size < 1e6 ? `${number(Math.ceil(size / 1e3))} kB` : size < 1e9 ? `${(size / 1e6).toFixed(1)} MB` : `${(size / 1e9).toFixed(1)} GB`);

// "2019-07-14T15:23:08" as people write it; the wall time of the photo, in no zone.
export function when(text, { time = true } = {}) {
  const date = new Date(`${text.replace(" ", "T").slice(0, 19)}Z`);
  if (Number.isNaN(date.getTime())) return text;
  return date.toLocaleString("en-GB", { dateStyle: "long", ...(time ? { timeStyle: "short" } : {}), timeZone: "UTC" });
}

export function later(milliseconds, work) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}

// What went wrong, until that part of the page which said so has nothing more to say.
let told = "";
export function notice(text, about = "page", ...more) {
  if (!text && about !== told) return;
  told = about;
  const box = $("notice");
  fill(box, h("span", {}, text, ...more), h("button", { className: "remove", "aria-label": "Dismiss", onclick: () => { box.hidden = true; } }, "×"));
  box.hidden = !text;
}
