// Builds DOM nodes. Text becomes text nodes and nothing else: no function here parses markup.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  add: "M12 5v14M5 12h14",
  attach: "M20 11.5 12 19.6a5 5 0 0 1-7.1-7.1l8.3-8.3a3.4 3.4 0 0 1 4.8 4.8l-8.3 8.2a1.7 1.7 0 0 1-2.4-2.4l7.6-7.5",
  check: "M5 12.5 10 17.5 19.5 7",
  close: "M6 6l12 12M18 6 6 18",
  code: "M8.5 7 3.5 12l5 5M15.5 7l5 5-5 5",
  columns: "M4 5h6.5v14H4zM13.5 5H20v14h-6.5z",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  export: "M12 4v11M7.5 8.5 12 4l4.5 4.5M5 15v5h14v-5",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  import: "M12 15V4M7.5 10.5 12 15l4.5-4.5M5 15v5h14v-5",
  inspect: "M10.5 4a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13zM15.3 15.3 20 20",
  key: "M15 4a5 5 0 1 1-4.6 7L4 17.4V20h3.5v-2.5H10V15h2.6l.8-.8A5 5 0 0 1 15 4zM16 8h.01",
  retry: "M19.5 12A7.5 7.5 0 1 1 17 6.4M19.5 4v4.5H15",
  send: "M12 19V5M5.5 11.5 12 5l6.5 6.5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  undo: "M4.5 12A7.5 7.5 0 1 0 7 6.4M4.5 4v4.5H9",
  stop: "M7 7h10v10H7z",
};

/**
 * Return a new element.
 *
 * Properties that begin with "on" are event listeners; "class" and "dataset" are those of the
 * element; `true` sets an attribute without a value, and false, null and undefined set nothing.
 * Children are nodes and texts; null, undefined and false are left out.
 */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "dataset") Object.assign(made.dataset, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Return a drawn sign, which screen readers skip. */
export function icon(name) {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 24 24");
  drawn.setAttribute("class", "icon");
  drawn.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawn.append(path);
  return drawn;
}

/** Return a button with a sign; `label` is its name, and its text unless `isBare`. */
export function button(sign, label, onclick, { isBare = false, ...properties } = {}) {
  const named = isBare ? { "aria-label": label, title: label } : {};
  return element(
    "button",
    { type: "button", onclick, ...named, ...properties },
    sign && icon(sign),
    !isBare && element("span", {}, label),
  );
}

// Characters that would be invisible, or change the order in which others are shown.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\uffff]|[\u{e0000}-\u{e0fff}]/gu;

/** Return the code point of a character, such as U+202E. */
function codePoint(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Return nodes for a text that nobody checked: hidden characters are shown by their number. */
export function visible(text) {
  const nodes = [];
  let start = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > start) nodes.push(text.slice(start, match.index));
    nodes.push(element("span", { class: "hidden-character" }, codePoint(match[0])));
    start = match.index + match[0].length;
  }
  if (start < text.length || !nodes.length) nodes.push(text.slice(start));
  return nodes;
}

/** Return a text for an attribute, a title or a file name: without hidden characters. */
export function plain(text) {
  return text.replace(HIDDEN, codePoint);
}

/** Put a text on the clipboard; return whether that worked. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // the page is not a secure context, or the browser asks and the user denies
  }
}

/** Return a button that copies what a function returns, and says so. */
export function copyButton(label, textOf, options = {}) {
  const made = button("copy", label, async () => {
    const isCopied = await copy(textOf());
    announce(isCopied ? "Copied." : "The browser does not allow copying here.");
    made.classList.toggle("is-done", isCopied);
    setTimeout(() => made.classList.remove("is-done"), 1500);
  }, options);
  return made;
}

/** Tell a screen reader something short, and show it for a moment unless it is plain to see. */
export function announce(text, { isShown = true } = {}) {
  const status = document.getElementById("announcement");
  status.replaceChildren(...visible(text));
  status.classList.toggle("is-shown", isShown);
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => status.classList.remove("is-shown"), 4000);
}
