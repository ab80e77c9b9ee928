// Shows an answer: its reasoning, text, tool calls, figures and what one can do with it.

import { button, copyButton, element, icon, visible } from "./dom.js";
import { render } from "./markdown.js";

const FINISHES = {
  length: "Reached the limit of tokens.",
  content_filter: "Ended by a filter.",
};
const STATES = { waiting: "Waiting", streaming: "Answering", stopped: "Stopped", failed: "Failed", done: "" };
const PARTS = [
  ["queue", "Queue"],
  ["preparation", "Preparation"],
  ["prefill", "Prefill"],
  ["decode", "Decode"],
];

/**
 * Return the figures of an answer, in the words of the server where it states them.
 *
 * Times are in milliseconds; a figure that is not known is null.
 */
export function figuresOf({ usage, timing, firstText_ms, firstReasoning_ms }) {
  const known = (name) => timing[name] ?? null;
  const decode_ms = known("decode");
  const preparation = [timing.images, timing.prompt].filter((each) => each !== undefined);
  const isMeasured = usage && usage.completion > 1 && decode_ms > 0;
  return {
    rate: isMeasured ? ((usage.completion - 1) / decode_ms) * 1000 : null,
    firstText_ms,
    firstReasoning_ms,
    queue: known("queue"),
    preparation: preparation.length ? preparation.reduce((sum, each) => sum + each, 0) : null,
    prefill: known("first_token"),
    decode: decode_ms,
    cached: usage?.cached ?? null,
    prompt: usage?.prompt ?? null,
    completion: usage?.completion ?? null,
    reasoning: usage?.reasoning ?? null,
    image: usage?.image ?? null,
  };
}

/** Shows one answer, and follows it while it grows. */
export class AnswerView {
  /**
   * @param answer the answer.
   * @param number its number among the answers to one question, from 1.
   * @param actions what its buttons do: `retry`, `request`, `inspect`, `choose`, `remove`, `results`.
   */
  constructor(answer, number, actions) {
    this.answer = answer;
    this.actions = actions;
    this.reasoning = element("div", { class: "prose", dir: "auto" });
    this.thoughts = element("details", { class: "reasoning" }, element("summary", {}, "Reasoning"), this.reasoning);
    this.body = element("div", { class: "prose", dir: "auto" });
    this.calls = element("div", { class: "calls" });
    this.end = element("div", { class: "end" });
    this.state = element("span", { class: "state" });
    const title = element("h2", { class: "model" }, ...visible(answer.model));
    this.node = element("article", { class: "answer", "aria-label": `Answer ${number}` },
      element("header", {}, title, this.state), this.thoughts, this.body, this.calls, this.end);
    this.wasThinking = false;
    this.update();
  }

  /** Show the answer as it is now, at the next frame. */
  changed() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => this.update());
  }

  update() {
    const { answer } = this;
    this.isDue = false;
    const isOpen = answer.state === "waiting" || answer.state === "streaming";
    this.node.dataset.state = answer.state;
    this.node.setAttribute("aria-busy", String(isOpen));
    this.state.textContent = STATES[answer.state];
    this.thoughts.hidden = !answer.reasoning;
    if (answer.reasoning) this.showReasoning();
    render(this.body, answer.text);
    if (this.numCalls !== callsKey(answer.calls)) this.showCalls();
    if (isOpen) this.end.replaceChildren();
    else this.showEnd();
  }

  showReasoning() {
    const isThinking = !this.answer.text && this.answer.state === "streaming";
    // Open while the model thinks, closed once it answers; what a reader chose stays between.
    if (isThinking !== this.wasThinking) this.thoughts.open = isThinking;
    this.wasThinking = isThinking;
    render(this.reasoning, this.answer.reasoning);
  }

  showCalls() {
    this.numCalls = callsKey(this.answer.calls);
    this.calls.replaceChildren(...this.answer.calls.map((call) =>
      element("details", { class: "call", open: true },
        element("summary", {}, "Calls ", element("code", {}, ...visible(call.name))),
        element("pre", { tabindex: "0", "aria-label": "Arguments" }, ...visible(indented(call.arguments))))));
  }

  showEnd() {
    const { answer } = this;
    this.end.replaceChildren(...[
      answer.error && element("p", { class: "problem", role: "alert" }, ...visible(answer.error)),
      FINISHES[answer.finish] && element("p", { class: "note" }, FINISHES[answer.finish]),
      ...answer.notes.map((note) => element("p", { class: "note" }, ...visible(note))),
      answer.calls.length > 0 && answer.state === "done" && this.actions.results && resultsForm(answer.calls, this.actions.results),
      this.imageStrip(),
      bar(answer.timing),
      figureList(answer),
      this.buttons(),
    ].filter(Boolean));
  }

  imageStrip() {
    const { images } = this.answer;
    if (!images.length) return null;
    const tokens = images.reduce((sum, image) => sum + image.num_tokens, 0);
    const cached = images.filter((image) => image.cached).length;
    const text = `${images.length} ${images.length === 1 ? "image" : "images"}, ${tokens.toLocaleString("en-US")} tokens${cached ? `, ${cached === images.length ? "" : `${cached} `}from the cache` : ""}`;
    return element("p", { class: "images" }, text, button("inspect", "Inspect", this.actions.inspect));
  }

  buttons() {
    const { answer, actions } = this;
    return element("div", { class: "actions", role: "group", "aria-label": "Actions of this answer" },
      actions.choose,
      copyButton("Copy answer", () => answer.text, { isBare: true }),
      button("retry", "Answer again", actions.retry, { isBare: true }),
      button("columns", "Another answer beside it", actions.beside, { isBare: true }),
      button("code", "Request as a program", actions.request, { isBare: true }),
      actions.remove && button("close", "Remove this answer", actions.remove, { isBare: true }));
  }
}

function callsKey(calls) {
  return calls.reduce((sum, call) => sum + call.name.length + call.arguments.length + 1, 0);
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // a model may write anything
  }
}

/** Return a form for the results of the tools that an answer called. */
function resultsForm(calls, submit) {
  const fields = calls.map((call, index) =>
    element("label", {}, element("span", {}, "Result of ", element("code", {}, ...visible(call.name))),
      element("textarea", { rows: "2", dir: "auto", name: `result-${index}` })));
  const form = element("form", { class: "results", "aria-label": "Results of tools" }, fields, element("button", { type: "submit" }, icon("send"), element("span", {}, "Send results")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const texts = [...form.querySelectorAll("textarea")].map((each) => each.value);
    submit(calls.map((call, index) => ({ id: call.id, name: call.name, content: texts[index] })));
  });
  return form;
}

/** Return the times of an answer as a bar, or null if none is known. */
function bar(timing) {
  const figures = figuresOf({ usage: null, timing });
  const parts = PARTS.filter(([name]) => figures[name] > 0);
  if (!parts.length) return null;
  const total = parts.reduce((sum, [name]) => sum + figures[name], 0);
  const label = parts.map(([name, what]) => `${what} ${duration(figures[name])}`).join(", ");
  return element("div", { class: "bar", role: "img", "aria-label": label }, parts.map(([name, what]) => {
    const piece = element("span", { class: `part-${name}`, title: `${what}: ${duration(figures[name])}` });
    piece.style.flexGrow = String(Math.max(figures[name] / total, 0.004));
    return piece;
  }));
}

function figureList(answer) {
  const figures = figuresOf(answer);
  const rows = [
    ["Tokens/s", figures.rate === null ? null : figures.rate < 100 ? figures.rate.toFixed(1) : Math.round(figures.rate).toLocaleString("en-US")],
    ["First text", duration(figures.firstText_ms)],
    ["First reasoning", duration(figures.firstReasoning_ms)],
    ...PARTS.map(([name, what]) => [what, duration(figures[name]), name]),
    ["Prompt", tokens(figures.prompt)],
    ["Cached", tokens(figures.cached)],
    ["Images", figures.image ? tokens(figures.image) : null],
    ["Answer", tokens(figures.completion)],
    ["Reasoning", figures.reasoning ? tokens(figures.reasoning) : null],
  ];
  const known = rows.filter(([, value]) => value !== null);
  if (!known.length) return null;
  return element("dl", { class: "figures-of-answer" }, known.map(([name, value, part]) =>
    element("div", {}, element("dt", { class: part && `part-${part}` }, name), element("dd", {}, value))));
}

function tokens(count) {
  return count === null ? null : `${count.toLocaleString("en-US")} tok`;
}

function duration(value_ms) {
  if (value_ms === null || value_ms === undefined) return null;
  if (value_ms >= 10000) return `${(value_ms / 1000).toFixed(1)} s`;
  return value_ms >= 1000 ? `${(value_ms / 1000).toFixed(2)} s` : `${value_ms < 10 ? value_ms.toFixed(1) : Math.round(value_ms)} ms`;
}
