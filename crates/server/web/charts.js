// Small SVG charts of the live panel; colours come from the style sheet, by class.

import { el, svg } from "./dom.js";

/** Measurements that a history shows, one a second. */
export const HISTORY = 60;

/** A line over the last minute. */
export class Sparkline {
  #values = [];
  #area = svg("path", { class: "area" });
  #line = svg("path", { class: "line" });

  constructor(name) {
    const attributes = { class: `spark ${name}`, viewBox: `0 0 ${HISTORY - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.node = svg("svg", attributes, this.#area, this.#line);
  }

  push(value) {
    this.#values.push(value);
    if (this.#values.length > HISTORY) this.#values.shift();
    const top = Math.max(...this.#values, 1e-9);
    const left = HISTORY - this.#values.length;
    const points = this.#values.map((each, at) => `${left + at} ${(28.5 - (each / top) * 26).toFixed(2)}`);
    this.#line.setAttribute("d", `M${points.join("L")}`);
    this.#area.setAttribute("d", `M${left} 30L${points.join("L")}L${HISTORY - 1} 30Z`);
  }
}

/** Stacked columns over the last minute; each measurement is a list of `{ kind, ms }`. */
export class Columns {
  #steps = [];
  node = svg("svg", { class: "columns", viewBox: `0 0 ${HISTORY} 40`, preserveAspectRatio: "none", "aria-hidden": "true" });

  /** Adds one and returns the greatest sum shown. */
  push(parts) {
    this.#steps.push(parts);
    if (this.#steps.length > HISTORY) this.#steps.shift();
    const sums = this.#steps.map((step) => step.reduce((sum, part) => sum + part.ms, 0));
    const top = Math.max(...sums, 1e-9);
    const left = HISTORY - this.#steps.length;
    const bars = this.#steps.flatMap((step, at) => {
      let y = 40;
      return step.map(({ kind, ms }) => {
        const height = (ms / top) * 40;
        y -= height;
        return svg("rect", { class: kind, x: left + at + 0.1, y: y.toFixed(2), width: 0.8, height: height.toFixed(2) });
      });
    });
    this.node.replaceChildren(...bars);
    return top;
  }
}

/** One bar cut into parts, `{ kind, ms }`, that fill `whole` milliseconds. */
export class Stack {
  node = el("div", { class: "stack", role: "img" });

  show(parts, label) {
    const whole = parts.reduce((sum, part) => sum + part.ms, 0);
    while (this.node.children.length > parts.length) this.node.lastChild.remove();
    while (this.node.children.length < parts.length) this.node.append(el("span"));
    parts.forEach(({ kind, ms }, at) => {
      const part = this.node.children[at];
      part.className = kind;
      part.style.flexGrow = ms;
      // Less than half a pixel of the bar.
      part.hidden = ms <= whole / 600;
    });
    this.node.setAttribute("aria-label", label);
  }
}

/** How full something is, from 0 to 1. */
export class Meter {
  #fill = el("span");
  node;

  constructor(label, kind = "") {
    this.#fill.className = kind;
    this.node = el("div", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, this.#fill);
  }

  show(fraction) {
    const share = Math.min(Math.max(fraction, 0), 1) * 100;
    this.#fill.style.width = `${share.toFixed(1)}%`;
    this.node.setAttribute("aria-valuenow", Math.round(share));
  }
}

/**
 * The placement of a model: one lane per device, one cell per layer, with the embedding before and the output
 * head after them. A cell is filled in the lane of the device that runs it.
 */
export function lanes(devices, { embedding, layers, output }) {
  const cells = [embedding, ...layers, output];
  const place = (at) => at * 12 + (at > 0 ? 5 : 0) + (at === cells.length - 1 ? 5 : 0);
  const width = place(cells.length - 1) + 10;
  const name = (at) => (at === 0 ? "Embedding" : at === cells.length - 1 ? "Output head" : `Layer ${at - 1}`);
  const node = el("div", { class: "lanes" });
  devices.forEach((device, index) => {
    const lane = svg("svg", { viewBox: `0 0 ${width} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
    cells.forEach((owner, at) => {
      const rect = svg("rect", { class: owner === index ? `device-${index}` : "track", x: place(at), y: 0, width: 10, height: 10 });
      if (owner === index) rect.append(svg("title", { text: `${name(at)}: ${device.name}` }));
      lane.append(rect);
    });
    node.append(el("span", { class: "lane", text: device.short }), lane);
  });
  const axis = ["embedding", layers.length > 0 ? `layers 0–${layers.length - 1}` : "", "output head"];
  node.append(el("div", { class: "axis" }, ...axis.map((text) => el("span", { text }))));
  return node;
}

/** A device's name, with its kind as people write it: "cpu" is "CPU", "gpu0" is "GPU0". */
export function deviceName(name) {
  return String(name || "Device").replace(/^[cg]pu/i, (kind) => kind.toUpperCase());
}

/** The first word of a device's name. */
export function shortName(name) {
  return deviceName(name).split(/[\s:,(]/)[0].slice(0, 8) || "Device";
}

/** What a device runs, in words: "embedding, layers 0–15 and 20". */
export function share(index, { embedding, layers, output }) {
  const ranges = [];
  layers.forEach((owner, layer) => {
    if (owner !== index) return;
    if (ranges.at(-1)?.[1] === layer - 1) ranges.at(-1)[1] = layer;
    else ranges.push([layer, layer]);
  });
  const count = ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  const named = ranges.slice(0, 4).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
  const words = [];
  if (embedding === index) words.push("embedding");
  if (count > 0) words.push(`${count === 1 ? "layer" : "layers"} ${ranges.length > 4 ? `${named}, … (${count})` : named}`);
  if (output === index) words.push("output head");
  return words.join(", ") || "no layers";
}
