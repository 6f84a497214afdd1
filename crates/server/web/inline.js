// Renders the inline part of Markdown: emphasis, code, links and line breaks, as DOM nodes.

import { el } from "./dom.js";

/** Delimiters beyond these are text: emphasis looks back for its opener, which must not become quadratic. */
const DELIMITERS_MAX = 256;
/** A longer run of one mark is text, because each pair of marks is one level of nesting. */
const RUN_MAX = 8;
/** A link's label and address are looked for this far. */
const LINK_MAX = 2000;
const DEPTH_MAX = 4;

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
const BARE = /https?:\/\/[^\s<>"'`\\]{1,2000}/y;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;
/** How formulas begin and end; they are shown as they are written. */
const MATH = [["\\(", "\\)"], ["\\[", "\\]"], ["$$", "$$"]];

/** The nodes of a text without block structure. */
export function inline(text, depth = 0) {
  return new Inline(text, depth).run();
}

/** The address if it is an absolute one of http or https, else null. */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, children) {
  return el("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

class Inline {
  #text;
  #depth;
  #at = 0;
  #plain = "";
  #items = [];
  #delimiters = 0;
  /** Lengths of backtick runs that are known to have no partner. */
  #lonely = new Set();

  constructor(text, depth) {
    this.#text = text;
    this.#depth = depth;
  }

  run() {
    while (this.#at < this.#text.length) {
      if (!this.#step()) {
        this.#plain += this.#text[this.#at];
        this.#at += 1;
      }
    }
    this.#flush();
    this.#pair();
    return this.#items.map((item) => item.node ?? document.createTextNode(item.mark.repeat(item.count)));
  }

  /** Takes one construct at the current place; false if there is none. */
  #step() {
    switch (this.#text[this.#at]) {
      case "\n":
        return this.#push(el("br"), 1);
      case "\\":
        return this.#math() || this.#escape();
      case "$":
        return this.#math();
      case "`":
        return this.#code();
      case "*":
      case "_":
      case "~":
        return this.#delimiter();
      case "!":
        return this.#text[this.#at + 1] === "[" && this.#link(1);
      case "[":
        return this.#link(0);
      case "<":
      case "h":
        return this.#address();
      case "&":
        return this.#entity();
      default:
        return false;
    }
  }

  #flush() {
    if (this.#plain) this.#items.push({ node: document.createTextNode(this.#plain) });
    this.#plain = "";
  }

  #push(node, length) {
    this.#flush();
    this.#items.push({ node });
    this.#at += length;
    return true;
  }

  #escape() {
    const next = this.#text[this.#at + 1];
    if (next === "\n") {
      this.#at += 1;
      return true;
    }
    if (next === undefined || !ESCAPABLE.test(next)) return false;
    this.#plain += next;
    this.#at += 2;
    return true;
  }

  #entity() {
    ENTITY.lastIndex = this.#at;
    const found = ENTITY.exec(this.#text);
    if (!found) return false;
    this.#plain += ENTITIES[found[1]];
    this.#at += found[0].length;
    return true;
  }

  #math() {
    for (const [open, close] of MATH) {
      if (!this.#text.startsWith(open, this.#at)) continue;
      const end = this.#text.slice(0, this.#at + LINK_MAX).indexOf(close, this.#at + open.length);
      if (end < 0) return false;
      const source = this.#text.slice(this.#at + open.length, end).trim();
      return source !== "" && this.#push(el("span", { class: "math", text: source }), end + close.length - this.#at);
    }
    return false;
  }

  #code() {
    const open = /`+/y;
    open.lastIndex = this.#at;
    const run = open.exec(this.#text)[0];
    if (!this.#lonely.has(run.length)) {
      for (let at = this.#at + run.length; ; ) {
        const start = this.#text.indexOf("`", at);
        if (start < 0) break;
        open.lastIndex = start;
        const close = open.exec(this.#text)[0];
        if (close.length === run.length) return this.#pushCode(this.#text.slice(this.#at + run.length, start), start + close.length);
        at = start + close.length;
      }
      this.#lonely.add(run.length);
    }
    this.#plain += run;
    this.#at += run.length;
    return true;
  }

  #pushCode(body, end) {
    let text = body.replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(text) || /^ `|` $/.test(text)) text = text.slice(1, -1);
    return this.#push(el("code", { text }), end - this.#at);
  }

  /** A run of emphasis marks, with CommonMark's rules for what may open and close. */
  #delimiter() {
    const mark = this.#text[this.#at];
    let end = this.#at;
    while (this.#text[end] === mark) end += 1;
    const count = end - this.#at;
    if (this.#delimiters >= DELIMITERS_MAX || count > RUN_MAX || (mark === "~" && count !== 2)) {
      this.#plain += mark.repeat(count);
      this.#at = end;
      return true;
    }
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[end] ?? " ";
    const isLeft = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const isRight = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const isWord = mark === "_";
    this.#flush();
    this.#items.push({
      mark,
      count,
      whole: count,
      opens: isLeft && (!isWord || !isRight || PUNCTUATION.test(before)),
      closes: isRight && (!isWord || !isLeft || PUNCTUATION.test(after)),
    });
    this.#delimiters += 1;
    this.#at = end;
    return true;
  }

  /** Wraps what stands between an opening and a closing run, innermost first. */
  #pair() {
    const items = this.#items;
    for (let closer = 1; closer < items.length; closer++) {
      while (items[closer]?.closes && items[closer].count > 0) {
        const opener = this.#opener(closer);
        if (opener < 0) break;
        const used = Math.min(items[opener].count, items[closer].count) >= 2 ? 2 : 1;
        const tag = items[closer].mark === "~" ? "del" : used === 2 ? "strong" : "em";
        const inner = items.slice(opener + 1, closer).map((item) => item.node ?? item.mark.repeat(item.count));
        items[opener].count -= used;
        items[closer].count -= used;
        items.splice(opener + 1, closer - opener - 1, { node: el(tag, {}, ...inner) });
        closer = opener + 2;
      }
    }
    this.#items = items.filter((item) => item.node || item.count > 0);
  }

  #opener(closer) {
    const close = this.#items[closer];
    for (let at = closer - 1; at >= 0; at--) {
      const open = this.#items[at];
      if (!open.opens || open.mark !== close.mark || open.count === 0) continue;
      const isBoth = (open.closes || close.opens) && (open.whole + close.whole) % 3 === 0;
      if (isBoth && !(open.whole % 3 === 0 && close.whole % 3 === 0)) continue;
      return at;
    }
    return -1;
  }

  /** `[label](address "title")`; a picture is shown as a link, because this page loads nothing from elsewhere. */
  #link(skip) {
    if (this.#depth >= DEPTH_MAX) return false;
    const start = this.#at + skip + 1;
    const label = this.#balanced(start, "[", "]");
    if (label < 0 || this.#text[label + 1] !== "(") return false;
    const end = this.#balanced(label + 2, "(", ")");
    if (end < 0) return false;
    const target = /^\s*(?:<([^<>\n]*)>|(\S+))(?:\s+(?:"[^"]*"|'[^']*'))?\s*$/.exec(this.#text.slice(label + 2, end));
    const address = target && safeAddress(target[1] ?? target[2]);
    if (!address) return false;
    const text = this.#text.slice(start, label) || address;
    return this.#push(link(address, inline(text, DEPTH_MAX)), end + 1 - this.#at);
  }

  /** Where the bracket closes that opened before `from`, or -1. */
  #balanced(from, open, close) {
    let depth = 1;
    for (let at = from; at < Math.min(this.#text.length, from + LINK_MAX); at++) {
      if (this.#text[at] === "\\") at += 1;
      else if (this.#text[at] === open) depth += 1;
      else if (this.#text[at] === close && --depth === 0) return at;
    }
    return -1;
  }

  /** `<https://...>` and addresses that stand in the text. */
  #address() {
    const isAngled = this.#text[this.#at] === "<";
    // Inside a link's label an address is text: links do not nest.
    if (this.#depth >= DEPTH_MAX || (!isAngled && /\w/.test(this.#text[this.#at - 1] ?? " "))) return false;
    BARE.lastIndex = this.#at + (isAngled ? 1 : 0);
    let found = BARE.exec(this.#text)?.[0];
    if (!found) return false;
    if (isAngled && this.#text[BARE.lastIndex] !== ">") return false;
    if (!isAngled) found = trimEnd(found);
    const address = safeAddress(found);
    if (!address) return false;
    return this.#push(link(address, [found]), found.length + (isAngled ? 2 : 0));
  }
}

/** An address without the sentence's punctuation; a closing parenthesis stays when it was opened inside. */
function trimEnd(address) {
  for (;;) {
    const last = address.at(-1);
    const isUnopened = last === ")" && address.split(")").length > address.split("(").length;
    if (!isUnopened && !/[.,;:!?*_~\]}|]/.test(last)) return address;
    address = address.slice(0, -1);
  }
}
