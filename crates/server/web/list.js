// The list of conversations: open, rename, export, delete.

import { byId, download, el, iconButton, toast } from "./dom.js";
import { exported } from "./store.js";

export class List {
  #node = byId("conversations");
  #store;
  #chat;
  #all = [];
  #renaming = null;

  /** `onOpen` is called after a conversation was chosen. */
  constructor(store, chat, onOpen) {
    this.#store = store;
    this.#chat = chat;
    this.onOpen = onOpen;
    byId("export").addEventListener("click", () => this.#exportAll());
  }

  /** Reads the store and shows what it has. */
  async refresh() {
    this.#all = await this.#store.all();
    byId("kept").textContent = this.#store.isKept ? "Kept in this browser only" : "Not kept: storage is blocked";
    byId("export").disabled = this.#all.length === 0;
    if (!this.#renaming) this.#render();
  }

  #render() {
    const rows = this.#all.map((each) => this.#row(each));
    if (rows.length === 0) rows.push(el("li", { class: "none", text: "No conversations yet" }));
    const focused = this.#node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.#node.replaceChildren(...rows);
    if (focused) this.#node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(each) {
    const { id, title } = each;
    const isOpen = id === this.#chat.current?.id;
    const name = title || "Untitled";
    const open = el("button", { type: "button", class: "row", "aria-current": isOpen ? "true" : null, "data-key": id, title: name, click: () => this.#open(each) }, el("span", { text: name }));
    if (this.#chat.isRunningIn(id)) open.append(el("i", { class: "busy", role: "img", "aria-label": "is being answered" }));
    const tools = el(
      "div",
      { class: "tools" },
      iconButton("edit", `Rename ${name}`, () => this.#rename(item, each), { "data-key": `${id}-rename` }),
      iconButton("download", `Export ${name}`, () => download(`${fileName(name)}.json`, exported(each)), { "data-key": `${id}-export` }),
      iconButton("trash", `Delete ${name}`, () => this.#delete(each), { "data-key": `${id}-delete` }),
    );
    const item = el("li", { class: isOpen ? "open" : null }, open, tools);
    return item;
  }

  #open(each) {
    if (each.id !== this.#chat.current?.id) this.#chat.open(this.#chat.running(each.id) ?? each);
    this.onOpen();
  }

  #rename(item, each) {
    const input = el("input", { type: "text", maxlength: 120, "aria-label": "Name of the conversation", value: each.title });
    let isDone = false;
    const finish = async (isKept) => {
      if (isDone) return;
      isDone = true;
      this.#renaming = null;
      const title = input.value.trim();
      if (isKept && title) await this.#retitle(each, title);
      await this.refresh();
      this.#node.querySelector(`[data-key="${each.id}-rename"]`)?.focus();
    };
    input.addEventListener("blur", () => finish(true));
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      finish(event.key === "Enter");
    });
    this.#renaming = each.id;
    item.replaceChildren(input);
    input.focus();
    input.select();
  }

  async #retitle(each, title) {
    // The open conversation is another object than its stored copy.
    const { current } = this.#chat;
    const kept = this.#chat.running(each.id) ?? (current?.id === each.id ? current : each);
    kept.title = title;
    await this.#store.put(kept);
  }

  async #delete(each) {
    this.#chat.forget(each.id);
    await this.#store.remove(each.id);
    if (this.#chat.current?.id === each.id) this.#chat.start(each.system);
    await this.refresh();
    const click = async () => {
      await this.#store.put({ ...each, isDeleted: false });
      await this.refresh();
    };
    toast(`Deleted “${each.title || "Untitled"}”`, { label: "Undo", click });
  }

  async #exportAll() {
    download("bilayer-conversations.json", { conversations: (await this.#store.all()).map(exported) });
  }
}

function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation";
}
