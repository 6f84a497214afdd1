// Keeps conversations in the browser's IndexedDB, at most the latest 200, or in memory where storage is blocked.

/** The oldest conversations beyond these are removed. */
const CONVERSATIONS_MAX = 200;
const NAME = "conversations";

export class Store {
  #database = null;
  #memory = new Map();
  #others = null;

  /** False if conversations are lost with the tab. */
  get isKept() {
    return this.#database !== null;
  }

  /** `onChange` is called when another tab changed something. */
  async open(onChange) {
    try {
      this.#database = await new Promise((resolve, reject) => {
        const opening = indexedDB.open("bilayer", 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore(NAME, { keyPath: "id" });
        opening.onsuccess = () => resolve(opening.result);
        opening.onerror = () => reject(opening.error);
      });
      this.#others = new BroadcastChannel("bilayer");
      this.#others.onmessage = onChange;
    } catch {
      this.#database = null;
    }
  }

  /** All conversations, the latest first. */
  async all() {
    const found = this.#database ? await this.#ask("readonly", (kept) => kept.getAll()) : [...this.#memory.values()];
    return found.filter(isConversation).sort((a, b) => b.updated - a.updated);
  }

  async put(conversation) {
    this.#memory.set(conversation.id, conversation);
    if (!this.#database) return;
    try {
      await this.#ask("readwrite", (kept) => kept.put(conversation));
      const all = await this.all();
      for (const old of all.slice(CONVERSATIONS_MAX)) await this.#ask("readwrite", (kept) => kept.delete(old.id));
    } catch {
      // The quota is spent or storage went away: this tab still has it.
      this.#database = null;
      return;
    }
    this.#others?.postMessage("changed");
  }

  async remove(id) {
    this.#memory.delete(id);
    if (!this.#database) return;
    await this.#ask("readwrite", (kept) => kept.delete(id));
    this.#others?.postMessage("changed");
  }

  #ask(mode, query) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(NAME, mode);
      const asked = query(transaction.objectStore(NAME));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = () => reject(transaction.error);
      transaction.onerror = () => reject(transaction.error);
    });
  }
}

/** Whether a stored record has the shape that this page writes. */
function isConversation(value) {
  return typeof value?.id === "string" && typeof value.title === "string" && Array.isArray(value.messages);
}

/** A new, empty conversation. */
export function conversation(system) {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const now = Date.now();
  return { id, title: "", created: now, updated: now, system, messages: [] };
}

/** The answer that is shown of an assistant's message; earlier ones are kept beside it. */
export function shown(message) {
  return message.answers[message.shown];
}

/** A conversation as the API writes one, for the exported file. */
export function exported(conversation) {
  const messages = conversation.messages.map((message) => {
    if (message.role !== "assistant") return { role: message.role, content: message.content };
    const { content, reasoning, tools, finish, model, stats } = shown(message);
    const written = { role: "assistant", content, model, finish_reason: finish };
    if (reasoning) written.reasoning_content = reasoning;
    if (tools.length > 0) written.tool_calls = tools.map(({ id, name, args }) => ({ id, type: "function", function: { name, arguments: args } }));
    if (stats?.usage) written.usage = stats.usage;
    if (stats?.timings) written.timings = stats.timings;
    return written;
  });
  if (conversation.system) messages.unshift({ role: "system", content: conversation.system });
  const { title, created, updated } = conversation;
  return { title, created: new Date(created).toISOString(), updated: new Date(updated).toISOString(), messages };
}
