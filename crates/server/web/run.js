// One answer as it arrives: the request, its chunks, and what ends it.

import { ApiError, events, request } from "./api.js";
import { shown } from "./store.js";

/** An answer may have this many characters, reasoning and tool calls included. */
const ANSWER_MAX = 8 << 20;

/** An answer without text yet. */
export function emptyAnswer(model) {
  return { content: "", reasoning: "", tools: [], finish: null, error: null, model, stats: null };
}

/** The messages of a request: the system prompt and all that comes before the message at `end`. */
export function wire(conversation, end) {
  const messages = conversation.system ? [{ role: "system", content: conversation.system }] : [];
  for (const message of conversation.messages.slice(0, end)) {
    if (message.role === "user") messages.push({ role: "user", content: message.content });
    // An answer that failed is sent empty, because chat templates want the roles in turn.
    else messages.push({ role: "assistant", content: shown(message).content });
  }
  return messages;
}

/** Streams an answer into `answer`; `onUpdate` is called after each change. */
export class Run {
  #controller = new AbortController();
  #answer;
  #onUpdate;
  #started = performance.now();
  #first = null;
  #length = 0;
  isStopped = false;

  constructor(answer, onUpdate) {
    this.#answer = answer;
    this.#onUpdate = onUpdate;
  }

  /** Ends the request; the server notices the closed connection and stops within a step. */
  stop() {
    this.isStopped = true;
    this.#controller.abort();
  }

  /** Resolves when the answer is complete, stopped or failed; the answer tells which. */
  async run(body) {
    const answer = this.#answer;
    try {
      const fields = { stream: true, stream_options: { include_usage: true }, timings_per_token: true };
      const response = await request("v1/chat/completions", { body: { ...body, ...fields }, signal: this.#controller.signal });
      let isDone = false;
      for await (const data of events(response)) {
        if (data === "[DONE]") {
          isDone = true;
          break;
        }
        this.#take(parse(data));
      }
      if (!isDone && !answer.finish) throw new ApiError("The connection ended before the answer was complete.", { type: "connection" });
    } catch (error) {
      if (this.isStopped) answer.finish = "stopped";
      else answer.error = described(error);
    }
    this.#onUpdate();
  }

  #take(chunk) {
    if (chunk.error) throw ApiError.from(chunk.error);
    const answer = this.#answer;
    answer.stats ??= { usage: null, timings: null, devices: null, first_ms: null, reasoning_ms: null };
    if (chunk.usage) answer.stats.usage = chunk.usage;
    if (chunk.timings) answer.stats.timings = chunk.timings;
    if (chunk.devices) answer.stats.devices = chunk.devices;
    const choice = chunk.choices?.[0];
    if (choice) {
      this.#takeDelta(choice.delta ?? {});
      if (choice.finish_reason) answer.finish = choice.finish_reason;
    }
    if (this.#length > ANSWER_MAX) {
      this.#controller.abort();
      throw new ApiError("The answer is too long to be shown.");
    }
    this.#onUpdate();
  }

  #takeDelta({ content, reasoning_content: reasoning, refusal, tool_calls: calls }) {
    const answer = this.#answer;
    const text = content ?? refusal;
    if (text || reasoning || calls) {
      this.#first ??= performance.now();
      answer.stats.first_ms ??= this.#first - this.#started;
    }
    if (reasoning) {
      answer.reasoning += reasoning;
      answer.stats.reasoning_ms = performance.now() - this.#first;
    }
    if (text) answer.content += text;
    this.#length += (text?.length ?? 0) + (reasoning?.length ?? 0);
    for (const call of Array.isArray(calls) ? calls : []) this.#takeCall(call);
  }

  #takeCall({ index = 0, id, function: called }) {
    const tools = this.#answer.tools;
    if (!Number.isInteger(index) || index < 0 || index > tools.length || index >= 128) throw new ApiError("The server sent a tool call out of order.");
    tools[index] ??= { id: "", name: "", args: "" };
    if (id) tools[index].id = id;
    if (called?.name) tools[index].name += called.name;
    if (called?.arguments) tools[index].args += called.arguments;
    this.#length += called?.arguments?.length ?? 0;
  }
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
}

/** An error as it is kept with the answer. */
function described(error) {
  const { message, status = 0, type = "", code = "", retryAfter = null } = error;
  return { message, status, type, code, retryAfter };
}
