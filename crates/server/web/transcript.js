// Shows the messages of a conversation and their actions.

import { shortName } from "./charts.js";
import { copyButton, count, duration, el, iconButton, rate } from "./dom.js";
import { Stream } from "./markdown.js";
import { shown } from "./store.js";

/** A user's message, which can be edited in place; `actions.edit` is called with the new text. */
export function userMessage(message, actions) {
  const text = el("div", { class: "text", text: message.content });
  const foot = el("div", { class: "tools" }, copyButton("Copy the message", () => message.content));
  const node = el("article", { class: "user", "aria-label": "You" }, text, foot);
  foot.append(iconButton("edit", "Edit the message", () => startEdit(node, message, actions)));
  return node;
}

function startEdit(node, message, actions) {
  if (actions.isBusy()) return;
  const before = [...node.childNodes];
  const area = el("textarea", { "aria-label": "Edit the message", rows: 1 });
  const cancel = () => {
    node.classList.remove("editing");
    node.replaceChildren(...before);
    node.querySelector(".tools button:last-child").focus();
  };
  const save = () => (area.value.trim() === "" ? cancel() : actions.edit(area.value));
  area.value = message.content;
  area.addEventListener("input", () => grow(area));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (isSend(event)) {
      event.preventDefault();
      save();
    }
  });
  const buttons = el(
    "div",
    { class: "actions" },
    el("span", { class: "hint", text: "Later messages are dropped." }),
    el("button", { type: "button", class: "plain", text: "Cancel", click: cancel }),
    el("button", { type: "button", class: "primary", text: "Save and answer", click: save }),
  );
  node.classList.add("editing");
  node.replaceChildren(area, buttons);
  grow(area);
  area.focus();
}

/** Whether a key sends: Enter alone, and not the one that ends an input method's composition. */
export function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

/** Makes a text area as high as its text. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

/** The system prompt at the top of a conversation. */
export function systemMessage(text, open) {
  return el("button", { type: "button", class: "system", click: open, title: "Edit the system prompt" }, el("b", { text: "System" }), el("span", { text }));
}

/** An assistant's message; `update` shows what has arrived. */
export class AnswerView {
  #message;
  #actions;
  #reasoning = null;
  #thought;
  #body = el("div", { class: "prose" });
  #stream;
  #calls = el("div", { class: "calls" });
  #notice = el("div");
  #foot = el("div", { class: "tools" });
  #stats = el("p", { class: "stats" });
  node;

  /** `announce` is called with each finished block's text, for screen readers. */
  constructor(message, actions, announce = () => {}) {
    this.#message = message;
    this.#actions = actions;
    this.#stream = new Stream(this.#body, (node) => announce(node.textContent));
    this.node = el("article", { class: "assistant", "aria-label": "Answer" }, this.#body, this.#calls, this.#notice, this.#stats, this.#foot);
  }

  update(isRunning) {
    const answer = shown(this.#message);
    this.node.setAttribute("aria-busy", String(isRunning));
    if (answer.reasoning) this.#showReasoning(answer, isRunning);
    this.#stream.update(answer.content, !isRunning);
    this.node.classList.toggle("pending", isRunning && !answer.content && answer.tools.length === 0 && !answer.reasoning);
    if (answer.tools.length > 0) this.#calls.replaceChildren(...answer.tools.map(toolCall));
    if (isRunning) return;
    this.#showNotice(answer);
    this.#stats.replaceChildren(...statistics(answer).map((text) => el("span", { text })));
    this.#showTools(answer);
  }

  #showReasoning(answer, isRunning) {
    if (!this.#reasoning) {
      this.#reasoning = el("div", { class: "thought" });
      this.#thought = el("span");
      this.node.prepend(el("details", { class: "reasoning" }, el("summary", {}, this.#thought), this.#reasoning));
    }
    const shownText = this.#reasoning.textContent;
    if (answer.reasoning.length > shownText.length) this.#reasoning.append(answer.reasoning.slice(shownText.length));
    const isThinking = isRunning && !answer.content && answer.tools.length === 0;
    this.#thought.textContent = isThinking ? "Thinking" : `Thought for ${duration(answer.stats?.reasoning_ms)}`;
    this.#thought.classList.toggle("moving", isThinking);
  }

  #showNotice({ error, finish, content }) {
    const notices = [];
    if (error) notices.push(this.#errorBlock(error));
    else if (finish === "stopped") notices.push(el("p", { class: "note", text: content ? "Stopped." : "Stopped before the first token." }));
    else if (finish === "length") notices.push(el("p", { class: "note", text: "The answer ends here because it reached the limit of tokens." }));
    this.#notice.replaceChildren(...notices);
  }

  #errorBlock({ message, status, type, code, retryAfter }) {
    const about = [status || null, type, code && code !== String(status) ? code : null].filter(Boolean).join(" · ");
    const later = retryAfter ? ` Try again in ${retryAfter} s.` : "";
    return el(
      "div",
      { class: "error", role: "alert" },
      el("p", { text: message + later }),
      el("div", { class: "actions" }, el("span", { class: "hint", text: about }), el("button", { type: "button", class: "plain", text: "Try again", click: this.#actions.regenerate })),
    );
  }

  #showTools(answer) {
    const { answers, shown: at } = this.#message;
    const nodes = [];
    if (answers.length > 1) {
      nodes.push(
        iconButton("previous", "Earlier answer", () => this.#actions.show(at - 1), { disabled: at === 0 }),
        el("span", { class: "which", text: `${at + 1} of ${answers.length}` }),
        iconButton("next", "Later answer", () => this.#actions.show(at + 1), { disabled: at === answers.length - 1 }),
      );
    }
    if (answer.content) nodes.push(copyButton("Copy the answer", () => answer.content));
    // An error has a button of its own.
    if (!answer.error) nodes.push(iconButton("redo", "Answer again", this.#actions.regenerate));
    this.#foot.replaceChildren(...nodes);
  }
}

function toolCall({ name, args }) {
  let text = args;
  try {
    text = JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    // Not complete yet, or not JSON: shown as it is.
  }
  const head = el("div", { class: "code-head" }, el("span", { text: `Tool call: ${name}` }), copyButton("Copy the arguments", () => text));
  return el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, el("code", { text })));
}

/** The parts of the line of statistics below an answer. */
export function statistics({ stats }) {
  if (!stats) return [];
  const { usage, timings, devices } = stats;
  const parts = [];
  const made = timings?.predicted_n ?? usage?.completion_tokens;
  const read = timings?.prompt_n ?? usage?.prompt_tokens;
  const cached = timings?.cache_n ?? usage?.prompt_tokens_details?.cached_tokens;
  if (typeof timings?.predicted_per_second === "number") parts.push(`${rate(timings.predicted_per_second)} tok/s`);
  if (typeof made === "number") parts.push(`${count(made)} tokens${typeof timings?.predicted_ms === "number" ? ` in ${duration(timings.predicted_ms)}` : ""}`);
  if (typeof read === "number") {
    const speed = read > 0 && typeof timings?.prompt_per_second === "number" ? ` at ${rate(timings.prompt_per_second)} tok/s` : "";
    parts.push(`prefill ${count(read)}${speed}${cached > 0 ? `, ${count(cached)} cached` : ""}`);
  }
  if (typeof stats.first_ms === "number") parts.push(`first token ${duration(stats.first_ms)}`);
  // Less than these is noise in a line that is to be read at a glance.
  if (timings?.queue_ms >= 1) parts.push(`queue ${duration(timings.queue_ms)}`);
  if (timings?.crossing_ms >= 0.1) parts.push(`crossing ${duration(timings.crossing_ms)}`);
  for (const { name, layers, busy_ms: busy } of Array.isArray(devices) ? devices.slice(0, 8) : []) {
    const time = typeof busy === "number" ? ` ${duration(busy)}` : "";
    parts.push(`${shortName(name)}${time}${typeof layers === "number" ? `, ${layers} layers` : ""}`);
  }
  return parts;
}

/** What an empty conversation shows. */
export function welcome(name) {
  return el(
    "div",
    { class: "welcome" },
    el("h2", { text: name || "Bilayer" }),
    el("p", { text: "Answers are computed on the server that sent this page. Conversations are kept in this browser." }),
  );
}
