// The model card: what GET /props says about the model and the server, as far as it says it.

import { json } from "./api.js";
import { bytes, copyButton, count, el } from "./dom.js";

/** Fetches and shows the card; returns the properties, or null if there are none. */
export async function showCard(node, model) {
  let props;
  try {
    props = await json(model ? `props?model=${encodeURIComponent(model)}` : "props");
  } catch (error) {
    const texts = { 401: "The model card needs an API key.", 409: "The first message loads this model." };
    const text = texts[error.status] ?? "This server does not describe its model.";
    node.replaceChildren(el("p", { class: "empty", text }));
    return null;
  }
  node.replaceChildren(...card(props));
  return props;
}

export function baseName(path) {
  return String(path ?? "").split(/[\\/]/).pop();
}

function card(props) {
  const own = props.bilayer ?? {};
  const file = baseName(props.model_path);
  const rows = [
    ["Architecture", described(own.architecture)],
    ["Parameters", parameters(own.parameters)],
    ["Quantization", described(own.quantization)],
    ["Size", own.bytes > 0 ? bytes(own.bytes) : null],
    ["Context", tokens(props.default_generation_settings?.n_ctx)],
    ["Parallel requests", typeof props.total_slots === "number" ? count(props.total_slots) : null],
    ["Server", props.build_info],
  ].filter(([, value]) => value);
  const nodes = [el("h2", { text: props.model_alias || file || "Model" })];
  if (file) nodes.push(el("p", { class: "path", text: props.model_path }));
  if (rows.length > 0) nodes.push(el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])));
  if (own.sha256) {
    const head = el("div", { class: "head" }, el("h3", { text: "SHA-256" }), copyButton("Copy the hash", () => own.sha256));
    nodes.push(head, el("p", { class: "hash", text: own.sha256 }));
  }
  if (own.placement_map) nodes.push(el("h3", { text: "Placement" }), block(described(own.placement_map, 2)));
  if (props.chat_template) {
    nodes.push(el("details", {}, el("summary", { text: "Chat template" }), block(props.chat_template)));
  }
  return nodes;
}

function block(text) {
  return el("pre", { tabindex: "0", text });
}

/** Text as it is, anything else as JSON. */
function described(value, indent = 0) {
  if (value === undefined || value === null) return null;
  return typeof value === "string" ? value : JSON.stringify(value, null, indent);
}

function parameters(value) {
  if (typeof value !== "number") return value ? String(value) : null;
  for (const [unit, size] of [["billion", 1e9], ["million", 1e6]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return count(value);
}

function tokens(value) {
  return typeof value === "number" ? `${count(value)} tokens` : null;
}
