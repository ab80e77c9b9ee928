// Renders Markdown to DOM nodes: headings, lists, quotes, tables, code, emphasis and links.
//
// HTML in a text is text. Links lead to http and https alone, and images become links, so that a
// text makes the browser load nothing. The time is linear in the length of the text; the depth and
// the number of nodes are bounded.

import { copyButton, element, visible } from "./dom.js";

const MAX_DEPTH = 12;
const MAX_NODES = 20000;
const MAX_URL = 2000;
const MAX_CELLS = 64;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*)|)$/;
const LINK_TEXT = /https?:\/\/[^\s<>"'`\\]{1,2000}/y;

/**
 * Show a text in an element. Blocks that did not change since the last call keep their nodes, so a
 * growing text costs little.
 */
export function render(container, text) {
  const found = ranked(blocksOf(text.split(/\r\n|\r|\n/), 0));
  const shown = container.markdownBlocks ?? [];
  let same = 0;
  while (same < shown.length && same < found.length && shown[same].key === keyOf(found[same])) same++;
  for (const old of shown.slice(same)) old.node.remove();
  const budget = { left: MAX_NODES - shown.slice(0, same).reduce((sum, each) => sum + each.cost, 0) };
  const made = found.slice(same).map((block) => {
    const before = budget.left;
    const node = nodeOf(block, budget);
    return { key: keyOf(block), node, cost: before - budget.left };
  });
  container.append(...made.map((each) => each.node));
  container.markdownBlocks = [...shown.slice(0, same), ...made];
}

/** Return the address that a link may have, or null. */
export function safeUrl(text) {
  if (text.length > MAX_URL) return null;
  try {
    const url = new URL(text);
    const isWeb = url.protocol === "http:" || url.protocol === "https:";
    return isWeb && !url.username && !url.password ? url : null;
  } catch {
    return null;
  }
}

// Blocks.

function keyOf(block) {
  return `${block.type} ${block.rank ?? ""}\n${block.source}`;
}

/** Give headings a rank that is at most one below that of the heading before. */
function ranked(blocks) {
  let rank = 0;
  for (const block of blocks) {
    if (block.type === "heading") block.rank = rank = Math.min(block.level, rank + 1, 4);
  }
  return blocks;
}

/** Return the blocks of some lines: each has a type, its source, and what its type needs. */
function blocksOf(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const start = at;
    const block = blockAt(lines, at, depth);
    at = block.end;
    blocks.push({ ...block, source: lines.slice(start, at).join("\n") });
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  let match;
  if ((match = FENCE.exec(line))) return fenceAt(lines, at, match);
  if ((match = HEADING.exec(line))) {
    const text = match[2].replace(/[ \t]+#+[ \t]*$/, "").trim();
    return { type: "heading", level: match[1].length, text, end: at + 1 };
  }
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(lines, at, depth);
  if (isTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at);
}

function fenceAt(lines, at, [, mark, info]) {
  const isEnd = (line) => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end++;
  const text = lines.slice(at + 1, end).join("\n");
  return { type: "code", language: info.trim().slice(0, 40), text, end: Math.min(end + 1, lines.length) };
}

function quoteAt(lines, at, depth) {
  let end = at;
  const inner = [];
  while (end < lines.length && QUOTE.test(lines[end])) inner.push(lines[end++].replace(QUOTE, ""));
  return { type: "quote", blocks: blocksOf(inner, depth + 1), end };
}

function listAt(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first[2]);
  const base = first[1].length;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    const isItem = match && match[1].length <= base + 1 && /\d/.test(match[2]) === isOrdered && !RULE.test(lines[end]);
    if (!isItem) break;
    const indent = match[1].length + match[2].length + 1;
    const inner = [match[3] ?? ""];
    end++;
    while (end < lines.length && belongs(lines, end, indent, base)) {
      inner.push(lines[end].slice(Math.min(leading(lines[end]), indent)));
      end++;
    }
    items.push(blocksOf(inner, depth + 1));
  }
  return { type: "list", isOrdered, start: isOrdered ? parseInt(first[2], 10) : 1, items, end };
}

/** Tell whether a line goes on with a list's item: it is indented, or goes on with its text. */
function belongs(lines, at, indent, base) {
  const line = lines[at];
  if (!line.trim()) {
    const next = lines[at + 1];
    return next !== undefined && next.trim() !== "" && leading(next) >= Math.min(indent, base + 2);
  }
  if (leading(line) >= Math.min(indent, base + 2)) return true;
  const isNew = ITEM.test(line) || HEADING.test(line) || FENCE.test(line) || RULE.test(line) || QUOTE.test(line);
  return !isNew && lines[at - 1].trim() !== "";
}

function leading(line) {
  return line.length - line.trimStart().length;
}

function cellsOf(line) {
  const text = line.trim().replace(/^\|/, "");
  const cells = [];
  let cell = "";
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") cell += text[++at];
    else if (text[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[at];
  }
  if (cell.trim()) cells.push(cell.trim());
  return cells.slice(0, MAX_CELLS);
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const rule = cellsOf(lines[at + 1]);
  return rule.length > 0 && rule.every((cell) => /^:?-+:?$/.test(cell)) && cellsOf(lines[at]).length === rule.length;
}

function tableAt(lines, at) {
  const aligned = cellsOf(lines[at + 1]).map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "end";
    return "start";
  });
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) rows.push(cellsOf(lines[end++]));
  return { type: "table", head: cellsOf(lines[at]), aligned, rows, end };
}

function paragraphAt(lines, at) {
  let end = at + 1;
  const stops = (index) =>
    !lines[index].trim() ||
    [FENCE, HEADING, RULE, QUOTE].some((each) => each.test(lines[index])) ||
    ITEM.test(lines[index]) ||
    isTable(lines, index);
  while (end < lines.length && !stops(end)) end++;
  return { type: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n"), end };
}

// Nodes.

const MAKERS = {
  paragraph: (block, budget) => made("p", { dir: "auto" }, inline(block.text, budget), budget),
  heading: (block, budget) =>
    // The page has its own headings: those of an answer follow in rank. One inside a list has none.
    made(block.rank ? `h${block.rank + 2}` : "div", { dir: "auto", class: `level-${block.level}` }, inline(block.text, budget), budget),
  rule: (_, budget) => made("hr", {}, [], budget),
  quote: (block, budget) => made("blockquote", {}, block.blocks.map((each) => nodeOf(each, budget)), budget),
  list: (block, budget) => {
    const start = block.isOrdered && block.start !== 1 ? { start: block.start } : {};
    const items = block.items.map((item) => made("li", { dir: "auto" }, itemNodes(item, budget), budget));
    return made(block.isOrdered ? "ol" : "ul", start, items, budget);
  },
  table: (block, budget) => {
    const row = (cells, name) =>
      made("tr", {}, block.aligned.map((side, index) =>
        made(name, { class: `align-${side}`, dir: "auto" }, inline(cells[index] ?? "", budget), budget)), budget);
    const head = made("thead", {}, [row(block.head, "th")], budget);
    const body = made("tbody", {}, block.rows.map((cells) => row(cells, "td")), budget);
    const label = { class: "table", role: "group", "aria-label": "Table", tabindex: "0" };
    return element("div", label, made("table", {}, [head, body], budget));
  },
  code: (block, budget) => {
    const bar = element("div", { class: "code-bar" },
      element("span", {}, ...visible(block.language || "text")),
      copyButton("Copy code", () => block.text, { isBare: true }));
    const pre = element("pre", { tabindex: "0", "aria-label": "Code" }, element("code", {}, ...visible(block.text)));
    return made("div", { class: "code", dir: "ltr" }, [bar, pre], budget);
  },
};

function nodeOf(block, budget) {
  // Beyond the bound, what is left is shown as it was written.
  if (budget.left <= 0) return element("p", { dir: "auto", class: "as-written" }, ...visible(block.source ?? ""));
  return MAKERS[block.type](block, budget);
}

function made(name, properties, children, budget) {
  budget.left--;
  return element(name, properties, ...children);
}

/** Return the nodes of a list's item; the text of one paragraph stands without that. */
function itemNodes(blocks, budget) {
  return blocks.flatMap((block, index) => {
    if (index > 0 || block.type !== "paragraph") return [nodeOf(block, budget)];
    const task = /^\[([ xX])\][ \t]+/.exec(block.text);
    if (!task) return inline(block.text, budget);
    const isDone = task[1] !== " ";
    const box = element("span", { class: "task", role: "img", "aria-label": isDone ? "done" : "not done" }, isDone ? "☑" : "☐");
    return [box, " ", ...inline(block.text.slice(task[0].length), budget)];
  });
}

// Inline.

function inline(text, budget, depth = 0) {
  return depth > MAX_DEPTH || budget.left <= 0 ? visible(text) : new Inline(text, budget, depth).nodes();
}

/** Reads a text once from left to right. */
class Inline {
  constructor(text, budget, depth) {
    this.text = text;
    this.budget = budget;
    this.depth = depth;
    this.closing = closingBrackets(text);
    this.unclosed = new Set(); // marks without a closing one from here on
    this.found = [];
    this.plain = "";
  }

  nodes() {
    let at = 0;
    while (at < this.text.length) at = this.step(at);
    this.flush();
    return this.found;
  }

  step(at) {
    const char = this.text[at];
    if (char === "\\" && /[!-/:-@[-`{-~]/.test(this.text[at + 1] ?? "")) {
      this.plain += this.text[at + 1];
      return at + 2;
    }
    if (char === "\n") return this.add(element("br"), at + 1);
    const next =
      (char === "`" && this.code(at)) ||
      ((char === "*" || char === "_" || char === "~") && this.emphasis(at)) ||
      ((char === "[" || char === "!") && this.link(at)) ||
      (char === "<" && this.autolink(at)) ||
      (char === "h" && this.bareLink(at));
    if (next) return next;
    this.plain += char;
    return at + 1;
  }

  flush() {
    if (this.plain) this.found.push(...visible(this.plain));
    this.plain = "";
  }

  add(node, next) {
    this.flush();
    this.budget.left--;
    this.found.push(node);
    return next;
  }

  code(at) {
    let size = 1;
    while (this.text[at + size] === "`") size++;
    const mark = "`".repeat(size);
    let end = this.unclosed.has(mark) ? -1 : this.text.indexOf(mark, at + size);
    while (end >= 0 && this.text[end + size] === "`") {
      let past = end + size;
      while (this.text[past] === "`") past++;
      end = this.text.indexOf(mark, past);
    }
    if (end < 0) {
      this.unclosed.add(mark);
      this.plain += mark;
      return at + size;
    }
    const text = this.text.slice(at + size, end).replace(/\n/g, " ");
    const inner = text.trim() && text.startsWith(" ") && text.endsWith(" ") ? text.slice(1, -1) : text;
    return this.add(element("code", { dir: "ltr" }, ...visible(inner)), end + size);
  }

  emphasis(at) {
    const char = this.text[at];
    const size = this.text[at + 1] === char ? 2 : 1;
    const mark = char.repeat(size);
    if (mark === "~" || /\s/.test(this.text[at + size] ?? " ")) return 0;
    if (char === "_" && isWord(this.text[at - 1])) return 0;
    const end = this.closerOf(mark, at + size);
    if (end < 0) return 0;
    const name = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" }[mark];
    const inner = inline(this.text.slice(at + size, end), this.budget, this.depth + 1);
    return this.add(element(name, {}, ...inner), end + size);
  }

  /** Return where a mark is closed; what was once sought in vain is not sought again. */
  closerOf(mark, from) {
    if (this.unclosed.has(mark)) return -1;
    const char = mark[0];
    let at = this.text.indexOf(mark, from);
    while (at >= 0) {
      const after = this.text[at + mark.length];
      const isAlone = mark.length === 2 || (this.text[at - 1] !== char && after !== char);
      const isCloser = at > from && !/\s/.test(this.text[at - 1]) && this.text[at - 1] !== "\\" && isAlone;
      if (isCloser && !(char === "_" && isWord(after))) return at;
      at = this.text.indexOf(mark, at + (isAlone ? mark.length : 2));
    }
    this.unclosed.add(mark);
    return -1;
  }

  link(at) {
    const isImage = this.text[at] === "!";
    const open = isImage ? at + 1 : at;
    const close = this.closing.get(open);
    if (close === undefined || this.text[close + 1] !== "(") return 0;
    const end = this.within(")", close + 2);
    if (end < 0) return 0;
    const [target] = this.text.slice(close + 2, end).trim().split(/\s/, 1);
    const label = this.text.slice(open + 1, close);
    const url = safeUrl(target.replace(/^<|>$/g, ""));
    if (!url) return 0; // shown as it was written
    const text = isImage ? `image: ${label || url.host}` : label || url.href;
    return this.add(anchor(url, text), end + 1);
  }

  autolink(at) {
    const end = this.within(">", at + 1);
    const url = end > 0 ? safeUrl(this.text.slice(at + 1, end)) : null;
    return url ? this.add(anchor(url, url.href), end + 1) : 0;
  }

  /** Return where a character follows within the length of an address, or -1. */
  within(char, from) {
    const end = this.text.slice(from, from + MAX_URL).indexOf(char);
    return end < 0 ? -1 : from + end;
  }

  bareLink(at) {
    if (isWord(this.text[at - 1])) return 0;
    LINK_TEXT.lastIndex = at;
    const match = LINK_TEXT.exec(this.text);
    if (!match) return 0;
    const text = match[0].replace(/[).,;:!?*_~\]]+$/, "");
    const url = safeUrl(text);
    return url ? this.add(anchor(url, text), at + text.length) : 0;
  }
}

function isWord(char) {
  return char !== undefined && /[\p{L}\p{N}]/u.test(char);
}

/** Return where each bracket is closed, in one pass. */
function closingBrackets(text) {
  const open = [];
  const found = new Map();
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "[") open.push(at);
    else if (text[at] === "]" && open.length) found.set(open.pop(), at);
  }
  return found;
}

/** Return a link that shows where it leads. */
function anchor(url, text) {
  const shows = text.includes(url.host);
  return element(
    "a",
    { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", dir: "auto" },
    ...visible(text),
    !shows && element("span", { class: "host" }, ` (${url.host})`),
  );
}
