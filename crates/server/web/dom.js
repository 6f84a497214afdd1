// Builds DOM nodes, icons and formatted numbers; nothing in this page makes markup from strings.

const SVG = "http://www.w3.org/2000/svg";

/** Outlines on a 24 x 24 grid, drawn with a stroke. */
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  panel: "M4 5h16v14H4zM14.5 5v14",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  copy: "M9 9h10v10H9zM6 15H5V5h10v1",
  check: "M5 12.5l4.5 4.5L19 7",
  edit: "M5 19l1-4.5L15.5 5 19 8.5 9.5 18zM13 7.5l3.5 3.5",
  redo: "M18.5 9.5A7 7 0 1 0 19 13M19 5v4.5h-4.5",
  trash: "M5 7h14M9.5 7V4.5h5V7M7 7l.8 12.5h8.4L17 7",
  download: "M12 4v11M7 10.5l5 5 5-5M5 19.5h14",
  close: "M6 6l12 12M18 6L6 18",
  previous: "M14 7l-5 5 5 5",
  next: "M10 7l5 5-5 5",
  down: "M12 5v14M6 13l6 6 6-6",
  light: "M12 8.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6l1.4 1.4M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4",
  dark: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
};

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
}

/** An HTML element: `text` is its text, functions are event listeners, the rest are attributes. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  assign(node, attributes);
  node.append(...children);
  return node;
}

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** A button that shows an icon; its label is read aloud and shown as a tooltip. */
export function iconButton(name, label, click, attributes = {}) {
  return el("button", { type: "button", class: "icon", "aria-label": label, title: label, click, ...attributes }, icon(name));
}

/** Fills the elements of the static page that name an icon. */
export function fillIcons() {
  for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
}

export const byId = (id) => document.getElementById(id);

/** Sets the text only when it differs, so that an unchanged number costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : "–";
}

/** Three significant digits, as far as a reader of a changing number can use. */
export function rate(value) {
  if (!isNumber(value)) return "–";
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 10 || value === 0 ? 1 : 2);
}

export function duration(ms) {
  if (!isNumber(ms)) return "–";
  if (ms < 1000) return `${ms < 100 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit === 0 ? value : value.toFixed(value >= 100 ? 0 : 1)} ${units[unit]}`;
}

export function percent(fraction) {
  return isNumber(fraction) ? `${Math.round(fraction * 100)} %` : "–";
}

/** Copies text; pages from plain HTTP have no clipboard interface, so a selection is the fallback. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    const focused = document.activeElement;
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus?.();
    return copied;
  }
}

/** A copy button that confirms with a check mark; `text` is asked for at the click. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    if (!(await copy(text()))) return;
    button.replaceChildren(icon("check"));
    button.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

let toastTimer = 0;

/** A short notice at the bottom, with at most one action. */
export function toast(text, action = null) {
  const node = byId("toast");
  const hide = () => (node.hidden = true);
  clearTimeout(toastTimer);
  node.replaceChildren(el("span", { text }));
  if (action) {
    const click = () => (hide(), action.click());
    node.append(el("button", { type: "button", class: "plain", text: action.label, click }));
  }
  node.hidden = false;
  toastTimer = setTimeout(hide, 7000);
}

/** Offers data as a file. */
export function download(name, data) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** What was kept under a name, or null; storage may be blocked. */
export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // Not remembered then.
  }
}
