// A field of labels with completion; a minus in front makes a label unwanted.

import { get } from "/page/api.js";
import { fill, h, later, number } from "/page/dom.js";

const OFFERED = 8;
let made = 0;

const LEAST = ["", "0.5", "0.8", "0.95"]; // probabilities that a label may have to have

// `show` takes [{label, unwanted, least}], `change` is called with the new ones; `least` lets people choose that one,
// `fresh` lets them take a label that nobody has used yet.
export function labelField(place, { caption, placeholder, minus = false, least = false, fresh = false, change }) {
  const list = `offers-${(made += 1)}`;
  const input = h("input", {
    type: "text", placeholder, autocomplete: "off", spellcheck: false, role: "combobox", maxLength: 200,
    "aria-label": caption, "aria-expanded": "false", "aria-controls": list, "aria-autocomplete": "list",
  });
  const offers = h("ul", { id: list, className: "offers", role: "listbox", hidden: true });
  const chips = h("span", { className: "chips" });
  fill(place, chips, input, offers);
  let labels = [];
  let offered = [];
  let offeredFor = null; // the text that they complete; null: none were asked for, or they were turned down
  let chosen = -1;
  let refused = ""; // a text whose completions were closed: it is meant as it stands

  const typed = () => {
    const text = input.value.trim();
    return minus && text.startsWith("-") ? { label: text.slice(1).trim(), unwanted: true } : { label: text, unwanted: false };
  };

  function close() {
    offered = [];
    offeredFor = null;
    chosen = -1;
    offers.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function add(label, unwanted) {
    input.value = "";
    close();
    if (label) put(label, unwanted);
  }

  const put = (label, unwanted) => change([...labels.filter((chip) => chip.label !== label), { label, unwanted }]);

  function draw() {
    fill(offers, ...offered.map((offer, i) => h("li", {
      id: `${list}-${i}`, role: "option", "aria-selected": String(i === chosen), className: i === chosen ? "chosen" : "",
      onmousedown: (event) => { event.preventDefault(); add(offer.label, typed().unwanted); },
    }, h("span", {}, (typed().unwanted ? "−" : "") + offer.label), h("span", { className: "many" }, offer.photos === null ? "new label" : offer.guessed && !offer.photos ? "guess" : number(offer.photos)))));
    offers.hidden = offered.length === 0;
    input.setAttribute("aria-expanded", String(offered.length > 0));
    if (chosen >= 0) input.setAttribute("aria-activedescendant", `${list}-${chosen}`);
  }

  function leastButton(chip) {
    const shown = chip.least ? `≥ ${Math.round(100 * chip.least)} %` : "any %";
    const next = LEAST[(LEAST.indexOf(chip.least ?? "") + 1) % LEAST.length];
    return h("button", {
      className: "least", title: "At least how probable; click to change", "aria-label": `${chip.label} at least: ${shown}`, data: { shown },
      onclick: () => change(labels.map((other) => (other === chip ? { ...chip, least: next } : other))),
    });
  }

  async function completions(label) {
    const answer = await get("/api/labels", { having: label, k: OFFERED + labels.length }).catch(() => []);
    const taken = new Set(labels.map((chip) => chip.label));
    const found = answer.filter((offer) => !taken.has(offer.label)).slice(0, OFFERED);
    const known = !fresh || !label || answer.some((offer) => offer.label === label);
    return known ? found : [...found, { label, photos: null }];
  }

  async function offer() {
    const { label } = typed();
    const found = await completions(label);
    if (document.activeElement !== input || typed().label !== label) return;
    [offered, offeredFor, chosen] = [found, label, label && found.length ? 0 : -1];
    draw();
  }

  // Enter takes the completion, also where it was pressed before that has come.
  async function take() {
    const { label, unwanted } = typed();
    if (offeredFor === label || !label || refused === input.value) {
      add(chosen >= 0 ? offered[chosen].label : label, unwanted);
      return;
    }
    input.value = "";
    close();
    const [best] = await completions(label);
    put(best?.label ?? label, unwanted);
  }

  const complete = later(120, () => (typed().label ? offer() : close())); // nothing typed, nothing in the way
  input.addEventListener("input", complete);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!offered.length) { offer(); return; }
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : offered.length - 1)) % offered.length;
      draw();
    } else if (event.key === "Enter" || (event.key === "," && input.value.trim())) {
      take();
    } else if (event.key === "Backspace" && !input.value && labels.length) {
      change(labels.slice(0, -1));
    } else if (event.key === "Escape") {
      refused = input.value;
      if (offers.hidden) input.blur();
      else close();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  place.addEventListener("click", (event) => event.target === place && input.focus());

  return {
    input,
    show(wanted) {
      labels = wanted;
      fill(chips, ...labels.map((chip) => h("span", { className: chip.unwanted ? "chip unwanted" : "chip" },
        h("span", {}, (chip.unwanted ? "−" : "") + chip.label),
        least && !chip.unwanted && leastButton(chip),
        h("button", {
          className: "remove", title: "Remove", "aria-label": `Remove ${chip.label}`,
          onclick: () => change(labels.filter((other) => other !== chip)),
        }, "×"))));
    },
  };
}
