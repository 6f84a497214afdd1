// The settings panel: the conversation's system prompt, the samplers, and the API key.

import { key } from "./api.js";
import { el, recall, remember } from "./dom.js";

/** Samplers by their names in the API; an empty field leaves the choice to the server. */
const SAMPLERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, slider: true, hint: "0 is greedy" },
  { name: "top_p", label: "Top P", min: 0, max: 1, step: 0.01, slider: true },
  { name: "min_p", label: "Min P", min: 0, max: 1, step: 0.01, slider: true },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0.5, max: 2, step: 0.05, slider: true, hint: "1 is none" },
  { name: "top_k", label: "Top K", min: 0, max: 1_000_000, step: 1, hint: "0 is no limit" },
  { name: "max_tokens", label: "Max tokens", min: 1, max: 10_000_000, step: 1, hint: "of one answer" },
  { name: "seed", label: "Seed", min: 0, max: 4_294_967_295, step: 1, hint: "repeats an answer" },
];

export class Settings {
  #values = {};
  #rows = new Map();
  #system;
  #forget;

  /** `onSystem` is called with a changed system prompt, `onForget` when the API key is given up. */
  constructor(node, { onSystem, onForget }) {
    this.#values = stored();
    this.#system = el("textarea", {
      id: "system",
      rows: 5,
      placeholder: "None",
      input: () => (onSystem(this.#system.value), remember("system", this.#system.value || null)),
    });
    const reset = el("button", { type: "button", class: "plain", text: "Use the server's defaults", click: () => this.#reset() });
    this.#forget = el("button", { type: "button", class: "plain", text: "Forget the API key", click: () => (onForget(), this.refresh()) });
    node.append(
      el("label", { class: "title", for: "system", text: "System prompt" }),
      this.#system,
      el("p", { class: "hint", text: "Of this conversation. New ones begin with the last one written." }),
      el("h3", { text: "Sampling" }),
      ...SAMPLERS.map((sampler) => this.#row(sampler)),
      el("div", { class: "actions" }, reset, this.#forget),
    );
    this.refresh();
  }

  /** The fields of a request; only those that are set. */
  get fields() {
    return { ...this.#values };
  }

  set system(text) {
    // Setting an equal text would still move the caret of someone who is writing.
    if (this.#system.value !== text) this.#system.value = text;
  }

  refresh() {
    this.#forget.hidden = !key.get();
  }

  /** Shows the server's own values where nothing is set; a seed is its own for each request. */
  showDefaults(defaults) {
    for (const [name, row] of this.#rows) {
      const value = defaults?.[name] ?? (name === "max_tokens" ? defaults?.n_predict : undefined);
      if (typeof value !== "number" || value < 0 || name === "seed") continue;
      row.fallback = Number(value.toFixed(4));
      this.#show(row);
    }
  }

  #row(sampler) {
    const { name, label, min, max, step, hint } = sampler;
    const number = el("input", { type: "number", id: `set-${name}`, min, max, step: step === 1 ? 1 : "any", inputmode: step === 1 ? "numeric" : "decimal", placeholder: "default" });
    const note = el("span", { class: "hint", id: `note-${name}`, text: hint ?? "" });
    number.setAttribute("aria-describedby", note.id);
    const row = { sampler, number, note, slider: null, fallback: null };
    number.addEventListener("input", () => this.#set(row, number.value));
    const node = el("div", { class: "sampler" }, el("label", { for: number.id, text: label }), number, note);
    if (sampler.slider) {
      row.slider = el("input", { type: "range", min, max, step, "aria-label": label });
      row.slider.addEventListener("input", () => ((number.value = row.slider.value), this.#set(row, number.value)));
      node.append(row.slider);
    }
    this.#rows.set(name, row);
    if (name in this.#values) number.value = this.#values[name];
    this.#show(row);
    return node;
  }

  /** A value out of range is not sent; the field says which values are right. */
  #set(row, text) {
    const { name, min, max, hint } = row.sampler;
    const isRight = row.number.validity.valid && (text === "" || isValid(row.sampler, Number(text)));
    row.number.setAttribute("aria-invalid", String(!isRight));
    row.note.textContent = isRight ? (hint ?? "") : `from ${min} to ${max.toLocaleString("en")}${row.sampler.step === 1 ? ", a whole number" : ""}`;
    if (!isRight || text === "") delete this.#values[name];
    else this.#values[name] = Number(text);
    remember("samplers", JSON.stringify(this.#values));
    this.#show(row);
  }

  #show(row) {
    const value = this.#values[row.sampler.name];
    row.number.placeholder = row.fallback === null ? "default" : String(row.fallback);
    if (!row.slider) return;
    row.slider.classList.toggle("unset", value === undefined);
    row.slider.value = value ?? row.fallback ?? (row.sampler.min + row.sampler.max) / 2;
  }

  #reset() {
    for (const row of this.#rows.values()) {
      row.number.value = "";
      this.#set(row, "");
    }
  }
}

function isValid(sampler, value) {
  return Number.isFinite(value) && value >= sampler.min && value <= sampler.max && (sampler.step !== 1 || Number.isInteger(value));
}

function stored() {
  const values = {};
  try {
    const kept = JSON.parse(recall("samplers") ?? "{}");
    for (const sampler of SAMPLERS) {
      if (typeof kept[sampler.name] === "number" && isValid(sampler, kept[sampler.name])) values[sampler.name] = kept[sampler.name];
    }
  } catch {
    // Written by something else.
  }
  return values;
}
