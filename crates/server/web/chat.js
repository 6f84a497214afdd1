// The open conversation: sends messages, streams answers into the transcript, and keeps what was said.

import { byId, el, toast } from "./dom.js";
import { Run, emptyAnswer, wire } from "./run.js";
import { conversation, shown } from "./store.js";
import { AnswerView, systemMessage, userMessage, welcome } from "./transcript.js";

/** While an answer streams it is saved this often. */
const SAVE_MS = 2000;
/** From this distance on, the reader has scrolled away from the end. */
const END_PX = 40;

export class Chat {
  #options;
  #scroll = byId("scroll");
  #log = byId("log");
  #announce = byId("announce");
  /** Running answers by conversation; several conversations may have one each. */
  #runs = new Map();
  #views = [];
  #following = true;
  #top = 0;
  #frame = 0;
  current = null;
  title = "";

  /**
   * `options` has `store`, `request()` with the fields of a request, `onChange()` after what is kept or running
   * changed, `onSystem()` to edit the system prompt, and `onKey()`, which resolves to true with a new API key.
   */
  constructor(options) {
    this.#options = options;
    this.#scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    byId("latest").addEventListener("click", () => this.#follow());
    new ResizeObserver(() => this.#toEnd()).observe(this.#scroll);
    addEventListener("pagehide", () => {
      for (const id of this.#runs.keys()) this.#options.store.put(this.#runs.get(id).conversation);
    });
  }

  get isRunning() {
    return this.current !== null && this.#runs.has(this.current.id);
  }

  /** The tokens of the last answer's request and of the answer. */
  get usedTokens() {
    const last = this.current?.messages.findLast((message) => message.role === "assistant");
    return last ? (shown(last).stats?.usage?.total_tokens ?? null) : null;
  }

  isRunningIn(id) {
    return this.#runs.has(id);
  }

  /** The conversation itself while it is running, since a stored copy lacks the latest text. */
  running(id) {
    return this.#runs.get(id)?.conversation;
  }

  open(next) {
    this.current = next;
    this.render();
    this.#follow();
    this.#options.onChange();
  }

  start(system) {
    this.open(conversation(system));
  }

  /** Shows the whole transcript again. */
  render() {
    const { messages, system } = this.current;
    this.#announce.replaceChildren();
    this.#views = messages.map((_, at) => this.#view(at));
    const nodes = this.#views.map((view) => view.node ?? view);
    if (system) nodes.unshift(systemMessage(system, this.#options.onSystem));
    if (messages.length === 0) nodes.unshift(welcome(this.title));
    this.#log.replaceChildren(...nodes);
    this.#toEnd();
  }

  #isBusy() {
    if (this.isRunning) toast("An answer is still being written.", { label: "Stop it", click: () => this.stop() });
    return this.isRunning;
  }

  #view(at) {
    const message = this.current.messages[at];
    if (message.role === "user") {
      return userMessage(message, { isBusy: () => this.#isBusy(), edit: (text) => this.#edit(at, text) });
    }
    const actions = { regenerate: () => this.#regenerate(at), show: (answer) => this.#show(at, answer) };
    const isRunning = this.isRunning && at === this.current.messages.length - 1;
    const view = new AnswerView(message, actions, isRunning ? (text) => this.#say(text) : undefined);
    view.update(isRunning);
    return view;
  }

  /** Sends a message; false if an answer is still running. */
  send(text) {
    if (this.isRunning || text.trim() === "") return false;
    const { current } = this;
    current.messages.push({ role: "user", content: text });
    if (!current.title) current.title = titleOf(text);
    this.#answer();
    return true;
  }

  stop() {
    this.#runs.get(this.current?.id)?.run.stop();
  }

  /** Changes a message; all after it is dropped, and it is answered again. */
  #edit(at, text) {
    const { messages } = this.current;
    messages.length = at;
    messages.push({ role: "user", content: text });
    this.#answer();
  }

  /** Answers again beside the earlier answers; messages after it are dropped. */
  #regenerate(at) {
    if (this.#isBusy()) return;
    this.current.messages.length = at + 1;
    this.#answer(this.current.messages[at]);
  }

  #show(at, answer) {
    if (this.#isBusy()) return;
    this.current.messages[at].shown = answer;
    this.#options.store.put(this.current);
    this.render();
    this.#views[at].node?.querySelector(".tools button:not(:disabled)")?.focus();
  }

  #answer(message = null) {
    const answered = this.current;
    const { model, fields } = this.#options.request();
    if (!message) {
      message = { role: "assistant", answers: [], shown: 0 };
      answered.messages.push(message);
    }
    // An answer that failed before its first token is replaced.
    message.answers = message.answers.filter((answer) => answer.content || answer.tools.length > 0);
    const answer = emptyAnswer(model);
    message.shown = message.answers.push(answer) - 1;
    answered.updated = Date.now();
    this.#stream(answered, answer, { ...fields, ...(model ? { model } : {}), messages: wire(answered, answered.messages.length - 1) });
  }

  async #stream(answered, answer, body) {
    const { store, onChange, onKey } = this.#options;
    let saved = performance.now();
    const run = new Run(answer, () => {
      if (this.current === answered) this.#schedule();
      if (performance.now() - saved < SAVE_MS) return;
      saved = performance.now();
      store.put(answered);
    });
    this.#runs.set(answered.id, { run, conversation: answered });
    await store.put(answered);
    this.render();
    this.#follow();
    onChange();
    await run.run(body);
    this.#runs.delete(answered.id);
    if (this.#isGone(answered)) return;
    await store.put(answered);
    if (this.current === answered) this.#finish();
    onChange();
    if (answer.error?.status === 401 && (await onKey()) && this.current === answered) this.#regenerate(answered.messages.length - 1);
  }

  /** Forgets a conversation that was deleted, and ends its answer. */
  forget(id) {
    const running = this.#runs.get(id);
    if (!running) return;
    running.conversation.isDeleted = true;
    running.run.stop();
  }

  #isGone(answered) {
    return answered.isDeleted === true;
  }

  #finish() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#views.at(-1)?.update(false);
    this.#toEnd();
  }

  /** At most one update a frame, however many tokens arrive. */
  #schedule() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (!this.isRunning) return;
      this.#views.at(-1)?.update(true);
      this.#toEnd();
    });
  }

  /** Reads finished blocks aloud; a region that held the growing text would repeat it. */
  #say(text) {
    this.#announce.append(el("p", { text }));
    while (this.#announce.childElementCount > 20) this.#announce.firstChild.remove();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    // Text that arrives moves the end away too; only a reader moves up.
    if (isAtEnd) this.#following = true;
    else if (scrollTop < this.#top) this.#following = false;
    this.#top = scrollTop;
    byId("latest").hidden = isAtEnd || this.#following;
  }

  #toEnd() {
    if (this.#following) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  #follow() {
    this.#following = true;
    byId("latest").hidden = true;
    this.#toEnd();
  }
}

/** The first line of a text, short enough for the list. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  const letters = Array.from(line);
  return letters.length > 60 ? `${letters.slice(0, 59).join("").trimEnd()}…` : line;
}
