// Starts the page: tabs, theme, keys.

import { showActivity, watchWork } from "/page/activity.js";
import { get } from "/page/api.js";
import { showCollection } from "/page/collection.js";
import { $, notice, plural } from "/page/dom.js";
import { showDuplicates, startDuplicates } from "/page/duplicates.js";
import { photosHaveCome, searchAgain, searchKey, showSearch, startSearch } from "/page/search.js";
import { expertIn, go, onChange, state, VIEWS } from "/page/state.js";
import { showTagging, startTagging, taggingKey } from "/page/tagging.js";
import { undo } from "/page/verdicts.js";
import { refreshViewer, showViewer, startViewer } from "/page/viewer.js";

const SHOW = {
  search: showSearch, timeline: showSearch, duplicates: showDuplicates, tag: showTagging, collection: showCollection, activity: showActivity,
};
const THEMES = ["auto", "dark", "light"];

function showTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  $("theme").textContent = { auto: "◐", dark: "●", light: "○" }[theme];
  $("theme").setAttribute("aria-label", `Theme: ${theme}`);
  localStorage.setItem("hyphash-theme", theme);
}

function startTheme() {
  const known = localStorage.getItem("hyphash-theme");
  showTheme(THEMES.includes(known) ? known : "auto");
  $("theme").addEventListener("click", () => {
    showTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length]);
  });
}

// What the workshop talks of is shown to those who ask for it, or whose address does.
function showExpert() {
  const wanted = localStorage.getItem("hyphash-expert") === "true";
  $("expert").checked = wanted;
  document.body.classList.toggle("is-expert", wanted || expertIn(state));
}

function startMenu() {
  $("expert").addEventListener("change", (event) => { localStorage.setItem("hyphash-expert", event.target.checked); showExpert(); });
  document.addEventListener("click", (event) => { if (!event.target.closest("#menu")) $("menu").open = false; });
  $("menu").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { $("menu").open = false; $("menu").querySelector("summary").focus(); }
  });
}

function startTabs() {
  for (const [i, view] of VIEWS.entries()) {
    const tab = $(`tab-${view}`);
    tab.addEventListener("click", () => go({ view, photo: null }));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: VIEWS.length - 1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const other = VIEWS[(i + step) % VIEWS.length];
      go({ view: other, photo: null });
      $(`tab-${other}`).focus();
      event.preventDefault();
      event.stopPropagation();
    });
  }
}

// The timeline is the search by month: both show what is asked for.
const panelOf = (view) => $(`view-${view === "timeline" ? "search" : view}`);

function show(_, before = null) {
  for (const view of VIEWS) panelOf(view).hidden = panelOf(view) !== panelOf(state.view);
  panelOf(state.view).setAttribute("aria-labelledby", `tab-${state.view}`);
  for (const view of VIEWS) {
    const here = view === state.view;
    $(`tab-${view}`).setAttribute("aria-selected", String(here));
    $(`tab-${view}`).tabIndex = here ? 0 : -1;
  }
  document.body.dataset.view = state.view;
  showExpert();
  if (before?.view !== state.view || panelOf(state.view) === panelOf("search")) SHOW[state.view]();
  showViewer();
}

function keys(event) {
  const typing = event.target.closest?.("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("viewer").open) return;
  if (event.key === "u") undo();
  const used = state.view === "tag" ? taggingKey(event) : panelOf(state.view) === panelOf("search") && searchKey(event);
  if (used) event.preventDefault();
}

async function start() {
  startTheme();
  startMenu();
  startTabs();
  try {
    const collection = await get("/api/collection");
    $("title").textContent = collection.name;
    document.title = `${collection.name} · ${plural(collection.photos, "photo")}`;
    startSearch(collection, refreshViewer);
    startViewer(collection);
    startTagging(collection);
    startDuplicates(collection);
  } catch (error) {
    notice(error.message);
    return;
  }
  onChange(show);
  document.addEventListener("keydown", keys);
  show();
  watchWork(photosHaveCome, searchAgain);
  document.body.dataset.ready = "true";
}

start();
