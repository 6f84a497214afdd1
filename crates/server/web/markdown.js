// Splits Markdown into blocks and renders them as DOM nodes, incrementally while text still arrives.
//
// The dialect is what models write: CommonMark's paragraphs, ATX headings, lists, quotes, fenced code and rules,
// with GitHub's tables, task lists and strikethrough. Markup in the text stays text, and every loop is bounded,
// because the text is outside data.

import { copyButton, el } from "./dom.js";
import { inline } from "./inline.js";

/** Quotes and lists nested deeper than this are shown as text. */
const DEPTH_MAX = 12;
const COLUMNS_MAX = 64;

// None of these patterns backtracks over a long line: the text is outside data.
const FENCE = /^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const DELIMITER = /^:?-+:?$/;

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

/** The blocks of a text, each with the index of its first line. */
export function parse(source, depth = 0) {
  const lines = source.split("\n").map((line) => line.replace(/\r$/, "").replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    ")));
  const rules = depth < DEPTH_MAX ? [fence, heading, rule, quote, list, table, paragraph] : [paragraph];
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    for (const take of rules) {
      const taken = take(lines, at, depth);
      if (!taken) continue;
      blocks.push({ ...taken.block, line: at });
      at = taken.end;
      break;
    }
  }
  return blocks;
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [mark, info] = open[1] ? [open[1], open[2]] : [open[3], open[4]];
  const indent = indentOf(lines[at]);
  const closing = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
  const body = [];
  let end = at + 1;
  let closed = false;
  for (; end < lines.length && !closed; end++) {
    closed = closing.test(lines[end]);
    if (!closed) body.push(lines[end].slice(Math.min(indent, indentOf(lines[end]))));
  }
  const language = info.trim().split(/[\s{]/)[0].slice(0, 32);
  return { block: { kind: "code", language, text: body.join("\n"), closed }, end };
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  let text = lines[at].slice(found[0].length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || /\s/.test(text[end - 1])) text = text.slice(0, end).trimEnd();
  return { block: { kind: "heading", level: found[1].length, text }, end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { block: { kind: "rule" }, end: at + 1 } : null;
}

function quote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  const body = [];
  let end = at;
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    if (!QUOTE.test(lines[end]) && startsBlock(lines, end)) break;
    body.push(lines[end].replace(QUOTE, ""));
  }
  return { block: { kind: "quote", source: body.join("\n") }, end };
}

/**
 * A list and its items' sources. Models indent nested items by two, three or four spaces under any marker, so a
 * line belongs to an item from two spaces on, where CommonMark counts the marker's width.
 */
function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first || RULE.test(lines[at])) return null;
  const base = first[1].length;
  if (base > 3) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let loose = false;
  let blanks = 0;
  let width = 0;
  let end = at;
  for (let line = at; line < lines.length; line++) {
    const text = lines[line];
    if (isBlank(text)) {
      blanks += 1;
      continue;
    }
    const marker = ITEM.exec(text);
    const isInside = items.length > 0 && indentOf(text) >= base + 2;
    if (!isInside && marker && /\d/.test(marker[2]) === ordered && !RULE.test(text)) {
      loose ||= blanks > 0 && items.length > 0;
      width = marker[1].length + marker[2].length + Math.min(Math.max(marker[3].length, 1), 4);
      items.push([marker[4]]);
    } else if (isInside || (blanks === 0 && !startsBlock(lines, line))) {
      loose ||= blanks > 0 && !marker;
      items.at(-1).push(...Array(blanks).fill(""), text.slice(Math.min(width, indentOf(text))));
    } else {
      break;
    }
    blanks = 0;
    end = line + 1;
  }
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return { block: { kind: "list", ordered, start, loose, items: items.map((item) => item.join("\n")) }, end };
}

function isTable(lines, at) {
  const [head, delimiters] = [lines[at], lines[at + 1]];
  if (delimiters === undefined || !head.includes("|") || !delimiters.includes("|")) return false;
  const columns = cells(delimiters);
  return columns.every((column) => DELIMITER.test(column)) && cells(head).length === columns.length;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).slice(0, COLUMNS_MAX).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && !isBlank(lines[end]) && lines[end].includes("|"); end++) rows.push(cells(lines[end]).slice(0, head.length));
  return { block: { kind: "table", head, align, rows }, end };
}

function paragraph(lines, at, depth) {
  const body = [];
  let end = at;
  for (; end < lines.length && !isBlank(lines[end]); end++) {
    if (end > at && depth < DEPTH_MAX && startsBlock(lines, end)) break;
    // Two spaces at the end are a line break, and so is every end of a line here.
    body.push(lines[end].trim());
  }
  return { block: { kind: "paragraph", text: body.join("\n") }, end };
}

/** Whether a line ends the paragraph before it. */
function startsBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, at)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[1].length <= 3 && item[4] !== "" && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]));
}

function renderAll(source, depth) {
  return parse(source, depth).map((block) => render(block, depth));
}

/** The node of a block. */
export function render(block, depth = 0) {
  switch (block.kind) {
    case "code":
      return renderCode(block);
    case "heading":
      // The page has its own first and second levels.
      return el(`h${Math.min(block.level + 2, 6)}`, { class: `level-${block.level}` }, ...inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...renderAll(block.source, depth + 1));
    case "list":
      return renderList(block, depth);
    case "table":
      return renderTable(block);
    default:
      return el("p", {}, ...inline(block.text));
  }
}

function renderCode(block) {
  const code = el("code", { text: block.text });
  const head = el("div", { class: "code-head" }, el("span", { text: block.language || "text" }), copyButton("Copy the code", () => code.textContent));
  return el("div", { class: "code" }, head, el("pre", { tabindex: "0" }, code));
}

function renderList(block, depth) {
  const node = el(block.ordered ? "ol" : "ul", { class: block.loose ? null : "tight" });
  if (block.ordered && block.start !== 1) node.setAttribute("start", block.start);
  for (const source of block.items) {
    const task = /^\[([ xX])\][ \t]+/.exec(source);
    const item = el("li", { class: task ? "task" : null });
    if (task) item.append(el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Task" }));
    item.append(...renderAll(task ? source.slice(task[0].length) : source, depth + 1));
    node.append(item);
  }
  return node;
}

function renderTable(block) {
  const cell = (tag, text, column) => el(tag, { class: block.align[column] === "left" ? null : block.align[column] }, ...inline(text));
  const head = el("thead", {}, el("tr", {}, ...block.head.map((text, column) => cell("th", text, column))));
  const rows = block.rows.map((row) => el("tr", {}, ...block.head.map((_, column) => cell("td", row[column] ?? "", column))));
  return el("div", { class: "table", tabindex: "0" }, el("table", {}, head, el("tbody", {}, ...rows)));
}

/**
 * Renders a text that grows. A block is final once a later one begins on a complete line; only what follows the
 * last final block is parsed and rendered again, so the price of an update does not grow with the answer.
 */
export class Stream {
  #target;
  #onBlock;
  #done = 0;
  #open = [];

  /** `onBlock` is called with each node that will not change any more. */
  constructor(target, onBlock = () => {}) {
    this.#target = target;
    this.#onBlock = onBlock;
  }

  /** Shows the text so far, which must begin with the text shown before. */
  update(source, isWhole = false) {
    const rest = source.slice(this.#done);
    const blocks = parse(rest);
    const starts = [0];
    for (let at = rest.indexOf("\n"); at >= 0; at = rest.indexOf("\n", at + 1)) starts.push(at + 1);
    const incomplete = starts.length - 1;
    let final = 0;
    while (final + 1 < blocks.length && blocks[final + 1].line < incomplete) final += 1;
    if (isWhole) final = blocks.length;

    const kept = blocks.length > 0 ? this.#extend(blocks[0]) : null;
    const nodes = blocks.map((block, index) => (index === 0 && kept) || render(block));
    for (const node of this.#open) if (node !== kept) node.remove();
    this.#target.append(...nodes.filter((node) => node !== kept));
    this.#open = nodes.slice(final);
    for (const node of nodes.slice(0, final)) this.#onBlock(node);
    if (final > 0) this.#done = final < blocks.length ? this.#done + starts[blocks[final].line] : source.length;
  }

  /** The open code block with more text, which keeps its selection, scroll position and focus. */
  #extend(block) {
    const node = this.#open[0];
    if (block.kind !== "code" || !node?.classList.contains("code")) return null;
    if (node.firstChild.firstChild.textContent !== (block.language || "text")) return null;
    const code = node.querySelector("code");
    const shown = code.textContent;
    if (!block.text.startsWith(shown)) return null;
    if (block.text.length > shown.length) code.append(block.text.slice(shown.length));
    return node;
  }
}
