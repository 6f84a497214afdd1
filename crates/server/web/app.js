// Starts the page: joins the conversation, the list and the panels, and handles keys, theme and layout.

import { key, json } from "./api.js";
import { baseName, showCard } from "./card.js";
import { Chat } from "./chat.js";
import { byId, count, el, fillIcons, icon, recall, remember } from "./dom.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";
import { grow, isSend } from "./transcript.js";

const RETRY_MS = 2000;
const THEMES = ["system", "light", "dark"];
/** Wide enough for both side panels beside the conversation. */
const wide = matchMedia("(min-width: 1100px)");
/** Focusing a text box there opens a keyboard over half the screen. */
const touch = matchMedia("(hover: none)");

const state = { model: "", contextMax: null, isDescribed: true, wasRunning: false };
const store = new Store();
const message = byId("message");

const settings = new Settings(byId("settings"), {
  onSystem(text) {
    chat.current.system = text;
    chat.render();
    if (chat.current.messages.length > 0) store.put(chat.current);
  },
  onForget() {
    key.set(null);
    restart();
  },
});

const chat = new Chat({
  store,
  request: () => ({ model: state.model, fields: settings.fields }),
  onChange: changed,
  onSystem: () => openPanel("settings", byId("system")),
  onKey: askKey,
});

const list = new List(store, chat, () => {
  closeDrawers();
  focusMessage();
});

const live = new Live(byId("live"), (text) => {
  byId("glance").textContent = text;
  byId("glance").hidden = text === "";
});

function focusMessage() {
  if (!touch.matches) message.focus();
}

/** After the open conversation, what is kept, or what runs changed. */
function changed() {
  const isRunning = chat.isRunning;
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  settings.system = chat.current.system;
  document.title = chat.current.title ? `${chat.current.title} · Bilayer` : "Bilayer";
  showContext();
  list.refresh();
  // An answer has loaded a model that was not described before.
  if (state.wasRunning && !isRunning && !state.isDescribed) useModel(byId("model-pick").length);
  state.wasRunning = isRunning;
}

function showContext() {
  const used = chat.usedTokens;
  const text = used === null ? "" : `${count(used)}${state.contextMax ? ` of ${count(state.contextMax)}` : ""} tokens`;
  byId("context").textContent = text;
}

function submit() {
  if (!chat.send(message.value)) return;
  message.value = "";
  grow(message);
}

// ---- the model and the server

/** Asks which models there are; while the server loads or is away, says so and asks again. */
async function findModels() {
  for (;;) {
    try {
      const { data } = await json("v1/models");
      showBanner("");
      return showModels(Array.isArray(data) ? data.map((each) => String(each.id)) : []);
    } catch (error) {
      if (error.status === 401) {
        if (!(await askKey())) return showBanner("This server needs an API key.", { label: "Enter a key", click: restart });
        continue;
      }
      if (error.status !== 503 && error.type !== "connection") return showBanner(error.message, { label: "Try again", click: restart });
      showBanner(error.status === 503 ? "The model is being loaded." : "The server cannot be reached; trying again.");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

function showModels(names) {
  const pick = byId("model-pick");
  const chosen = recall("model");
  state.model = names.includes(chosen) ? chosen : (names[0] ?? "");
  pick.replaceChildren(...names.map((name) => el("option", { value: name, text: baseName(name), selected: name === state.model })));
  pick.hidden = names.length < 2;
  byId("model-name").hidden = names.length >= 2;
  useModel(names.length);
}

async function useModel(models) {
  const name = baseName(state.model);
  byId("model-name").textContent = name;
  message.placeholder = name ? `Message ${name}` : "Message";
  chat.title = name;
  if (chat.current?.messages.length === 0) chat.render();
  const props = await showCard(byId("card"), models > 1 ? state.model : "");
  state.isDescribed = props !== null;
  const defaults = props?.default_generation_settings;
  state.contextMax = typeof defaults?.n_ctx === "number" ? defaults.n_ctx : null;
  settings.showDefaults(defaults?.params ?? defaults);
  showContext();
}

/** Connects again, as after a new API key. */
function restart() {
  settings.refresh();
  live.start();
  return findModels();
}

function showBanner(text, action = null) {
  const banner = byId("banner");
  banner.replaceChildren(el("span", { text }));
  if (action) banner.append(el("button", { type: "button", class: "plain", text: action.label, click: action.click }));
  banner.hidden = text === "";
}

// ---- the API key

let asked = null;

/** Asks for an API key; resolves to whether one was given. Asked twice at once, it is one question. */
function askKey() {
  asked ??= new Promise((resolve) => {
    const dialog = byId("key");
    const value = byId("key-value");
    byId("key-why").textContent = key.get()
      ? "The server does not accept this API key. Another one is kept until this tab is closed."
      : "This server asks for an API key. It is kept until this tab is closed.";
    value.value = "";
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        asked = null;
        const isGiven = dialog.returnValue === "given";
        if (isGiven) key.set(value.value.trim());
        settings.refresh();
        if (isGiven) live.start();
        resolve(isGiven);
      },
      { once: true },
    );
    dialog.showModal();
    value.focus();
  });
  return asked;
}

// ---- the layout

/** In a wide window a panel is shown or not, and that is remembered; in a narrow one it is a drawer. */
function layOut() {
  for (const name of ["side", "panel"]) show(name, wide.matches && recall(name) !== "closed");
}

function show(name, isShown) {
  document.body.classList.toggle(`${name}-shown`, isShown);
  byId(`open-${name}`).setAttribute("aria-expanded", String(isShown));
  const isDrawer = !wide.matches && isShown;
  const isAnyDrawer = !wide.matches && document.body.matches(".side-shown, .panel-shown");
  byId("scrim").hidden = !isAnyDrawer;
  byId("main").inert = isAnyDrawer;
  if (isDrawer) byId(name).querySelector("button").focus();
}

function toggle(name) {
  const isShown = !document.body.classList.contains(`${name}-shown`);
  if (wide.matches) remember(name, isShown ? null : "closed");
  show(name, isShown);
}

/** True if a drawer was open. */
function closeDrawers() {
  if (wide.matches) return false;
  const open = ["side", "panel"].filter((name) => document.body.classList.contains(`${name}-shown`));
  for (const name of open) show(name, false);
  for (const name of open) byId(`open-${name}`).focus();
  return open.length > 0;
}

function openPanel(tab, focus = null) {
  selectTab(tab);
  if (wide.matches) remember("panel", null);
  show("panel", true);
  focus?.focus();
}

const tabs = [...document.querySelectorAll("[role=tab]")];

function selectTab(name) {
  for (const tab of tabs) {
    const isSelected = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", String(isSelected));
    tab.tabIndex = isSelected ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !isSelected;
  }
  remember("tab", name);
}

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "system";
  const button = byId("theme");
  button.replaceChildren(icon(theme));
  const label = `Theme: ${theme}`;
  button.setAttribute("aria-label", label);
  button.title = label;
}

function nextTheme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  remember("theme", next === "system" ? null : next);
  showTheme();
}

// ---- events

function listen() {
  byId("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
  message.addEventListener("input", () => grow(message));
  message.addEventListener("keydown", (event) => {
    if (!isSend(event)) return;
    event.preventDefault();
    submit();
  });
  byId("stop").addEventListener("click", () => (chat.stop(), message.focus()));
  byId("new").addEventListener("click", () => (chat.start(recall("system") ?? ""), closeDrawers(), focusMessage()));
  byId("theme").addEventListener("click", nextTheme);
  byId("model-pick").addEventListener("change", (event) => {
    state.model = event.target.value;
    remember("model", state.model);
    useModel(event.target.length);
  });
  for (const name of ["side", "panel"]) byId(`open-${name}`).addEventListener("click", () => toggle(name));
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", closeDrawers);
  byId("scrim").addEventListener("click", closeDrawers);
  byId("glance").addEventListener("click", () => openPanel("live"));
  byId("key-cancel").addEventListener("click", () => byId("key").close(""));
  byId("key").querySelector("form").addEventListener("submit", (event) => (event.preventDefault(), byId("key").close("given")));
  wide.addEventListener("change", layOut);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !byId("key").open && !closeDrawers()) chat.stop();
  });
  for (const [at, tab] of tabs.entries()) {
    tab.addEventListener("click", () => selectTab(tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      selectTab(next.getAttribute("aria-controls"));
      next.focus();
    });
  }
}

async function start() {
  fillIcons();
  showTheme();
  const tab = recall("tab");
  selectTab(tabs.some((each) => each.getAttribute("aria-controls") === tab) ? tab : "live");
  layOut();
  listen();
  await store.open(() => list.refresh());
  chat.start(recall("system") ?? "");
  live.start();
  focusMessage();
  await findModels();
}

start();
