// Shows a turn: the question or the results of tools, and the answers side by side.

import { AnswerView } from "./answers.js";
import { button, element, icon, plain, visible } from "./dom.js";

/** Return a file as a small picture with its name; `remove` takes it away, if given. */
export function fileItem(file, remove) {
  const size = file.width === null ? "" : `, ${file.width} by ${file.height} pixels`;
  const picture = file.thumbnail ? copied(file.thumbnail) : element("span", { class: "sheet" }, icon("file"));
  if (file.thumbnail) {
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", plain(`${file.name}${size}`));
  }
  const label = element("span", { class: "file-name", title: plain(file.name) }, element("bdi", {}, ...visible(file.name)));
  const remover = remove && button("close", plain(`Remove ${file.name}`), remove, { isBare: true, class: "remove" });
  return element("li", { class: "file" }, picture, label, remover);
}

/** Return a copy of a canvas: a node has one place in the page. */
function copied(canvas) {
  const made = element("canvas", { width: canvas.width, height: canvas.height });
  made.getContext("2d").drawImage(canvas, 0, 0);
  return made;
}

export class TurnView {
  /**
   * @param turn the turn.
   * @param number its number, from 1.
   * @param actions what its parts do: `edit`, `choose`, `remove`, and those of answers; each is
   *   called with the turn first.
   */
  constructor(turn, number, actions) {
    this.turn = turn;
    this.actions = actions;
    this.asked = element("section", { class: "asked", "aria-label": `Message ${number}` });
    this.answers = element("div", { class: "answers" });
    this.node = element("li", { class: "turn" }, this.asked, this.answers);
    this.views = new Map();
    this.showAsked();
    this.showAnswers();
  }

  showAsked() {
    const { turn } = this;
    const results = turn.results.map(({ name, content }) =>
      element("details", { class: "call" }, element("summary", {}, "Result of ", element("code", {}, ...visible(name))), element("pre", { tabindex: "0", "aria-label": "Result" }, ...visible(content))));
    this.asked.replaceChildren(...[
      turn.files.length > 0 && element("ul", { class: "files", "aria-label": "Files" }, turn.files.map((file) => fileItem(file))),
      turn.text && element("p", { class: "question", dir: "auto" }, ...visible(turn.text)),
      ...results,
      !turn.results.length && element("div", { class: "actions" }, button("edit", "Edit message", () => this.edit(), { isBare: true })),
    ].filter(Boolean));
  }

  /** Let the user change the message; it is then asked anew. */
  edit() {
    const { turn } = this;
    const kept = new Set(turn.files);
    const text = element("textarea", { dir: "auto", "aria-label": "Edited message", rows: Math.min(12, turn.text.split("\n").length + 1) });
    text.value = turn.text;
    const files = element("ul", { class: "files", "aria-label": "Files" });
    const showFiles = () => files.replaceChildren(...[...kept].map((file) => fileItem(file, () => {
      kept.delete(file);
      showFiles();
      text.focus();
    })));
    showFiles();
    const cancel = () => {
      this.showAsked();
      this.asked.querySelector("button")?.focus();
    };
    const save = () => this.actions.edit(turn, text.value, [...kept]);
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        cancel();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    const buttons = element("div", { class: "edit-actions" }, button("close", "Cancel", cancel), button("send", "Ask anew", save, { class: "primary" }));
    this.asked.replaceChildren(files, text, buttons);
    text.focus();
  }

  /** Show the answers that the turn has now, in their order. */
  showAnswers() {
    const { turn } = this;
    for (const [answer, view] of this.views) {
      if (!turn.answers.includes(answer)) {
        view.node.remove();
        this.views.delete(answer);
      }
    }
    turn.answers.forEach((answer, index) => {
      if (!this.views.has(answer)) this.views.set(answer, this.viewOf(answer, index));
      const { node } = this.views.get(answer);
      if (this.answers.children[index] !== node) this.answers.insertBefore(node, this.answers.children[index] ?? null);
      node.setAttribute("aria-label", `Answer ${index + 1}`);
    });
    this.node.classList.toggle("has-several", turn.answers.length > 1);
    this.answers.dataset.count = String(turn.answers.length);
    this.showChoice();
  }

  viewOf(answer, index) {
    const { turn, actions } = this;
    const choice = element("button", { type: "button", class: "choice", onclick: () => actions.choose(turn, answer) }, icon("check"), element("span", {}, "Go on with this"));
    const view = new AnswerView(answer, index + 1, {
      choose: choice,
      retry: () => actions.retry(turn, answer),
      beside: () => actions.beside(turn),
      request: () => actions.request(turn, answer),
      inspect: () => actions.inspect(turn, answer),
      remove: () => actions.remove(turn, answer),
      results: (results) => actions.results(turn, answer, results),
    });
    view.choice = choice;
    return view;
  }

  /** Show which answer later turns follow. */
  showChoice() {
    const { turn } = this;
    turn.answers.forEach((answer, index) => {
      const { node, choice } = this.views.get(answer);
      const isChosen = index === turn.chosen;
      node.classList.toggle("is-chosen", isChosen && turn.answers.length > 1);
      choice.hidden = turn.answers.length < 2;
      choice.setAttribute("aria-pressed", String(isChosen));
      choice.lastChild.textContent = isChosen ? "Goes on with this" : "Go on with this";
    });
  }
}
