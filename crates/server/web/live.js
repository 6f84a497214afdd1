// The live panel: where the layers run and where the milliseconds of the last step went, from GET /live.

import { events, request } from "./api.js";
import { Columns, Meter, Sparkline, Stack, deviceName, lanes, share, shortName } from "./charts.js";
import { bytes, count, duration, el, percent, rate, setText } from "./dom.js";

const DEVICES_MAX = 8;
const LAYERS_MAX = 1024;
/** Events come once a second while something runs; after this silence the server is idle. */
const IDLE_MS = 2500;
const RETRY_MAX_MS = 15_000;

const number = (value) => (typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : 0);

export class Live {
  #node;
  #onGlance;
  #connection = null;
  #view = null;
  #placement = "";
  #idle = 0;

  /** `onGlance` is called with one line for where the panel itself is not shown. */
  constructor(node, onGlance) {
    this.#node = node;
    this.#onGlance = onGlance;
    // A hidden tab holds no connection, because a browser allows six to a server over all its tabs.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  /** Connects, again if it was connected. */
  start() {
    this.stop();
    this.#connection = new AbortController();
    if (!this.#view) this.#say("Connecting.");
    this.#listen(this.#connection.signal);
  }

  stop() {
    this.#connection?.abort();
    this.#connection = null;
  }

  async #listen(signal) {
    for (let wait = 1000; ; wait = Math.min(wait * 2, RETRY_MAX_MS)) {
      try {
        const response = await request("live", { signal });
        if (!this.#view) this.#say("Nothing has run yet. Numbers appear with the first request.");
        for await (const data of events(response)) {
          wait = 1000;
          this.#show(JSON.parse(data));
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401 || error.status === 403) return this.#say("Not available: live data needs an API key.");
        if (error.status >= 400 && error.status < 500) return this.#say("Not available: this server sends no live data.");
      }
      if (signal.aborted) return;
      if (this.#view) this.#setState("Disconnected", false);
      else this.#say("The server cannot be reached; trying again.");
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (signal.aborted) return;
    }
  }

  #say(text) {
    this.#view = null;
    this.#placement = "";
    this.#node.replaceChildren(el("p", { class: "empty", text }));
    this.#onGlance("");
  }

  /** Numbers of a server that is not running are the last ones, and are dimmed. */
  #setState(text, isRunning) {
    const { state } = this.#view;
    setText(state, text);
    state.classList.toggle("on", isRunning);
    this.#node.classList.toggle("idle", !isRunning);
  }

  #show(data) {
    const devices = named(Array.isArray(data.devices) ? data.devices.slice(0, DEVICES_MAX) : []);
    const layers = Array.isArray(data.layers) ? data.layers.slice(0, LAYERS_MAX) : [];
    const placement = { embedding: data.embedding, layers, output: data.output };
    const key = JSON.stringify([devices.map((device) => device.name), placement]);
    if (!this.#view || key !== this.#placement) {
      this.#view = new View(this.#node, devices, placement);
      this.#placement = key;
    }
    this.#view.show(data, devices);
    const isRunning = number(data.running) > 0;
    this.#setState(isRunning ? "Running" : "Idle", isRunning);
    const busy = devices.map((device) => `${device.short} ${percent(number(device.busy))}`);
    this.#onGlance(isRunning ? [`${rate(number(data.decode_tps))} tok/s`, ...busy].join(" · ") : "Idle");
    clearTimeout(this.#idle);
    // A server with nothing to do may send no event that says so.
    const rest = { ...data, running: 0, waiting: 0, decode_tps: 0, prefill_tps: 0 };
    if (isRunning) this.#idle = setTimeout(() => this.#show(rest), IDLE_MS);
  }
}

/** Devices with a short name each, numbered where several have the same. */
function named(devices) {
  const words = devices.map((device) => shortName(device?.name));
  return devices.map((device, at) => {
    const isAlone = words.filter((word) => word === words[at]).length === 1;
    const place = words.slice(0, at).filter((word) => word === words[at]).length;
    const busy = Math.min(number(device?.busy), 1);
    return { ...device, busy, name: deviceName(device?.name), short: isAlone ? words[at] : `${words[at]} ${place}` };
  });
}

/** The panel's elements, made once for a placement and then updated in place. */
class View {
  #model = el("h2");
  #decode = tile("Decode", "decode");
  #prefill = tile("Prefill", "prefill");
  #step = new StepView();
  #devices;
  #queue = new QueueView();
  state = el("span", { class: "state" });

  constructor(node, devices, placement) {
    this.#devices = devices.map((device, index) => new DeviceView(device, index, share(index, placement)));
    node.replaceChildren(
      el("div", { class: "head" }, this.#model, this.state),
      el("div", { class: "tiles" }, this.#decode.node, this.#prefill.node),
      section("Layers", lanes(devices, placement)),
      this.#step.node,
      section("Devices", el("ul", { class: "devices" }, ...this.#devices.map((device) => device.node))),
      section("Requests", this.#queue.node),
    );
  }

  show(data, devices) {
    setText(this.#model, String(data.model ?? ""));
    const isRunning = number(data.running) > 0;
    this.#decode.show(number(data.decode_tps), isRunning);
    this.#prefill.show(number(data.prefill_tps), isRunning);
    if (data.step) this.#step.show(data.step, devices);
    // The server's share is that of the last second with work.
    this.#devices.forEach((device, index) => device.show(isRunning ? devices[index] : { ...devices[index], busy: 0 }));
    this.#queue.show(data);
  }
}

function section(title, ...children) {
  return el("section", {}, el("h3", { text: title }), ...children);
}

function tile(title, name) {
  const value = el("strong", { text: "0" });
  const spark = new Sparkline(name);
  const node = el("div", { class: "tile" }, el("h3", { text: title }), el("p", {}, value, " tok/s"), spark.node);
  let last = 0;
  return {
    node,
    /** While there is none of this kind of work the last speed stays, dimmed. */
    show(tps, isRunning) {
      last = tps || last;
      setText(value, rate(last));
      value.classList.toggle("past", tps === 0);
      if (isRunning || tps > 0) spark.push(tps);
    },
  };
}

/** Where the milliseconds of the last step went. */
class StepView {
  #total = el("strong");
  #rows = el("span", { class: "dim" });
  #stack = new Stack();
  #columns = new Columns();
  #top = el("span");
  #legend = el("ul", { class: "legend" });
  #last = "";
  node;

  constructor() {
    this.node = el(
      "section",
      {},
      el("div", { class: "head" }, el("h3", { text: "Last step" }), this.#rows, this.#total),
      this.#stack.node,
      this.#legend,
      el("div", { class: "history" }, this.#columns.node, el("div", { class: "axis" }, el("span", { text: "last 60 samples" }), this.#top)),
    );
  }

  show(step, devices) {
    const key = JSON.stringify(step);
    // A server that has just started has had no step.
    if (key === this.#last || number(step.ms) === 0) return;
    this.#last = key;
    const whole = number(step.ms);
    const parts = devices.map((device, at) => ({ kind: `device-${at}`, name: device.short, ms: number(step.devices_ms?.[at]) }));
    parts.push({ kind: "crossing", name: "Crossing", ms: number(step.crossing_ms) }, { kind: "wait", name: "Wait", ms: number(step.wait_ms) });
    const sum = parts.reduce((total, part) => total + part.ms, 0);
    // Devices that work at the same time sum to more than the step.
    if (whole > sum * 1.01 + 0.05) parts.push({ kind: "other", name: "Other", ms: whole - sum });
    setText(this.#total, duration(whole));
    setText(this.#rows, rowsText(number(step.decode_rows), number(step.prefill_rows)));
    this.#stack.show(parts, parts.map((part) => `${part.name} ${duration(part.ms)}`).join(", "));
    setText(this.#top, `highest ${duration(this.#columns.push(parts))}`);
    this.#legend.replaceChildren(
      ...parts.map(({ kind, name, ms }) => el("li", {}, el("i", { class: kind }), el("span", { text: name }), el("b", { text: duration(ms) }))),
    );
  }
}

/** "3 decode + 512 prefill rows", without what there is none of. */
function rowsText(decode, prefill) {
  const parts = [decode > 0 ? `${count(decode)} decode` : "", prefill > 0 ? `${count(prefill)} prefill` : ""];
  const all = decode + prefill;
  return all > 0 ? `${parts.filter(Boolean).join(" + ")} ${all === 1 ? "row" : "rows"}` : "";
}

class DeviceView {
  #busy;
  #used;
  #busyText = el("b");
  #usedText = el("b");
  node;

  constructor(device, index, layers) {
    this.#busy = new Meter(`${device.name} busy`, `device-${index}`);
    this.#used = new Meter(`${device.name} memory`, `device-${index}`);
    this.node = el(
      "li",
      {},
      el("p", { class: "name" }, el("i", { class: `device-${index}` }), el("span", { text: device.name })),
      el("p", { class: "dim", text: layers }),
      el("div", { class: "measure" }, el("span", { text: "Busy" }), this.#busy.node, this.#busyText),
      el("div", { class: "measure" }, el("span", { text: "Memory" }), this.#used.node, this.#usedText),
    );
  }

  show({ busy, memory_used_bytes: used, memory_bytes: all }) {
    this.#busy.show(number(busy));
    setText(this.#busyText, percent(number(busy)));
    this.#used.show(number(all) > 0 ? number(used) / all : 0);
    setText(this.#usedText, number(all) > 0 ? `${bytes(number(used))} of ${bytes(all)}` : bytes(number(used)));
  }
}

class QueueView {
  #cache = new Meter("KV cache used", "neutral");
  #cacheText = el("b");
  #values = new Map();
  node;

  constructor() {
    const cell = (name, label) => {
      const value = el("b", { text: "0" });
      this.#values.set(name, value);
      return el("div", { hidden: true }, value, el("span", { text: label }));
    };
    this.node = el(
      "div",
      {},
      el("div", { class: "counts" }, cell("running", "running"), cell("waiting", "waiting"), cell("steps", "steps"), cell("requests_total", "requests"), cell("tokens_total", "tokens")),
      el("div", { class: "measure" }, el("span", { text: "KV cache" }), this.#cache.node, this.#cacheText),
    );
  }

  show(data) {
    for (const [name, node] of this.#values) {
      node.parentElement.hidden = typeof data[name] !== "number";
      setText(node, count(number(data[name])));
    }
    this.#cache.show(number(data.kv_used));
    setText(this.#cacheText, percent(number(data.kv_used)));
  }
}
