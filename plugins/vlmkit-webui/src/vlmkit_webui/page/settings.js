// The settings of requests, and their dialog. What is empty has the default of the model.

import { button, element, visible } from "./dom.js";

const THEME = "vlmkit-theme";
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }, "0 takes the likeliest token."],
  ["top_p", "Top p", { min: 0.01, max: 1, step: "any" }, "Keeps the likeliest tokens up to this sum."],
  ["max_tokens", "Most tokens of an answer", { min: 1, step: 1 }, ""],
  ["seed", "Seed", { min: 0, step: 1 }, "The same seed gives the same answer."],
  ["max_image_tokens", "Most tokens of an image", { min: 1, step: 1 }, "Makes images smaller for the model."],
];
const EFFORTS = ["none", "low", "medium", "high"];

export class Settings {
  system = "";
  answers = 1;
  fields = {};
  tools = [];
  serverTools = [];

  /** Return the fields of a body. */
  get body() {
    const body = { ...this.fields };
    if (this.serverTools.length) body.server_tools = this.serverTools;
    else if (this.tools.length) body.tools = this.tools;
    return body;
  }
}

/** Use the theme that was chosen before, if there is one. */
export function restoreTheme() {
  try {
    applyTheme(localStorage.getItem(THEME) ?? "");
  } catch {
    // the browser keeps nothing for this page
  }
}

function applyTheme(name) {
  const isKnown = name === "light" || name === "dark";
  if (isKnown) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

function chooseTheme(name) {
  applyTheme(name);
  try {
    localStorage.setItem(THEME, name);
  } catch {
    // it holds until the page is closed
  }
}

/**
 * Show the dialog.
 *
 * @param dialog the dialog.
 * @param settings what it changes.
 * @param server `serverTools` are the names of the server's tools; `lock` forgets the key, if the
 *   page has one.
 */
export function showSettings(dialog, settings, { serverTools, lock }) {
  const form = element("form", { autocomplete: "off" });
  const problem = element("p", { class: "problem", role: "alert" });
  const system = element("textarea", { name: "system", rows: "3", dir: "auto" });
  system.value = settings.system;
  const tools = element("textarea", { name: "tools", rows: "3", spellcheck: "false", dir: "ltr", "aria-describedby": "tools-note" });
  tools.value = settings.tools.length ? JSON.stringify(settings.tools, null, 1) : "";
  form.append(
    field("System prompt", system),
    element("div", { class: "grid" }, NUMBERS.map((row) => numberField(settings, row)), answersField(settings), effortField(settings)),
    field("Tools, as a JSON list of functions", tools, note("tools-note", "The answer may call them; you enter their results.")),
    ...(serverTools.length ? [serverToolsField(settings, serverTools)] : []),
    themeField(),
    problem,
    element("div", { class: "dialog-actions" },
      lock && button("key", "Forget the API key", () => {
        dialog.close();
        lock();
      }),
      button("close", "Cancel", () => dialog.close()),
      element("button", { type: "submit", class: "primary" }, "Use these settings")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      take(settings, form);
      dialog.close();
    } catch (error) {
      problem.replaceChildren(...visible(error.message));
    }
  });
  dialog.replaceChildren(element("header", {}, element("h2", { id: "settings-title" }, "Settings"), button("close", "Close", () => dialog.close(), { isBare: true })), form);
  dialog.showModal();
}

function take(settings, form) {
  const data = new FormData(form);
  const text = String(data.get("tools")).trim();
  let tools = [];
  if (text) {
    try {
      tools = JSON.parse(text);
    } catch {
      throw new Error("The tools are not JSON.");
    }
    if (!Array.isArray(tools)) throw new Error("The tools must be a JSON list.");
  }
  const fields = {};
  for (const [name] of NUMBERS) {
    const value = String(data.get(name)).trim();
    if (value !== "") fields[name] = Number(value);
  }
  const effort = data.get("reasoning_effort");
  if (effort) fields.reasoning_effort = effort;
  Object.assign(settings, {
    system: data.get("system"), answers: Number(data.get("answers")), fields, tools, serverTools: data.getAll("server_tools"),
  });
}

function field(label, input, after = null) {
  return element("label", { class: "field" }, element("span", {}, label), input, after);
}

function note(id, text) {
  return element("small", { id }, text);
}

function numberField(settings, [name, label, limits, text]) {
  const input = element("input", { type: "number", name, inputmode: "decimal", placeholder: "model's own", ...limits, ...(text ? { "aria-describedby": `${name}-note` } : {}) });
  input.value = settings.fields[name] ?? "";
  return field(label, input, text && note(`${name}-note`, text));
}

function choice(name, values, chosen) {
  const select = element("select", { name }, values.map(([value, label]) => element("option", { value }, label)));
  select.value = chosen;
  return select;
}

function answersField(settings) {
  const values = [1, 2, 3, 4].map((count) => [String(count), String(count)]);
  return field("Answers side by side", choice("answers", values, String(settings.answers)));
}

function effortField(settings) {
  const values = [["", "model's own"], ...EFFORTS.map((each) => [each, each])];
  return field("Reasoning effort", choice("reasoning_effort", values, settings.fields.reasoning_effort ?? ""));
}

function serverToolsField(settings, names) {
  return element("fieldset", {}, element("legend", {}, "Tools that the server runs"), names.map((name) =>
    element("label", { class: "check" }, element("input", { type: "checkbox", name: "server_tools", value: name, checked: settings.serverTools.includes(name) }), element("span", {}, ...visible(name)))));
}

function themeField() {
  const chosen = document.documentElement.dataset.theme ?? "";
  const values = [["", "As the system"], ["light", "Light"], ["dark", "Dark"]];
  return element("fieldset", {}, element("legend", {}, "Appearance"), values.map(([value, label]) =>
    element("label", { class: "check" }, element("input", { type: "radio", name: "theme", value, checked: value === chosen, onchange: () => chooseTheme(value) }), element("span", {}, label))));
}
