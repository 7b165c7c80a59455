// Elements from names, properties and children. Text is always text: nothing here can make markup of it.

export const $ = (id) => document.getElementById(id);

export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-") || key === "role" || key === "list") element.setAttribute(key, value);
    else if (key === "data") Object.assign(element.dataset, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const number = (value) => value.toLocaleString("en");

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// A probability for people: never 0 or 100 %.
export const percent = (p) => (p < 0.005 ? "< 1 %" : p > 0.995 ? "> 99 %" : `${Math.round(100 * p)} %`);

export function later(milliseconds, work) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}

export function notice(text, ...more) {
  const box = $("notice");
  fill(box, text, ...more);
  box.hidden = !text;
}
