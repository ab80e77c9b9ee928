// The page: connects to the server, sends messages, and shows what comes.

import { announce, button, copyButton, element, plain, visible } from "./dom.js";
import { contentOf, fileOf, fileOfBase64, partOf, refusalOf } from "./files.js";
import { LIMITS, chosenAnswer, copyOf, exported, imagesWithFiles, imported, messagesOf, newAnswer, newTurn, numFiles } from "./conversation.js";
import { inspect } from "./inspector.js";
import { Server, ServerError, Unreachable } from "./server.js";
import { Settings, restoreTheme, showSettings } from "./settings.js";
import { curlOf, markOf, pythonOf } from "./snippets.js";
import { TurnView, fileItem } from "./turns.js";

const LOADING_MS = 1500;
const MAX_RETRY_MS = 8000;
const LOADING = ["loading", "waiting", "unloading"];

const at = (id) => document.getElementById(id);

class App {
  constructor() {
    this.server = new Server();
    this.settings = new Settings();
    this.turns = [];
    this.views = new Map();
    this.files = []; // of the message that is being written
    this.running = new Map(); // the controllers of answers that are not at their end
    this.models = new Map(); // capabilities, by name
    this.serverTools = [];
    this.withoutPlaces = new Set(); // models that name no places in images
    this.retry_ms = 0;
    this.addTools();
    this.listen();
    this.connect();
  }

  // The page.

  addTools() {
    at("tools").append(
      button("add", "New conversation", () => this.restart(), { title: "New conversation" }),
      button("export", "Export", () => this.export(), { title: "Export the conversation" }),
      button("import", "Import", () => at("importer").click(), { title: "Import a conversation" }),
      element("input", { id: "importer", class: "visually-hidden", type: "file", accept: ".json,application/json", tabindex: "-1", "aria-label": "Conversation to import", onchange: (event) => this.import(event.target) }),
      button("settings", "Settings", () => this.showSettings(), { title: "Settings" }),
    );
    this.sender = element("button", { type: "submit", id: "send", class: "primary round" });
    document.querySelector(".entry-tools").append(
      button("attach", "Add files", () => at("chooser").click(), { isBare: true, id: "attach" }), this.sender);
    this.showSender();
  }

  listen() {
    const message = at("message");
    at("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running.size) this.stop();
      else this.send();
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running.size) this.send();
    });
    message.addEventListener("input", () => grow(message));
    at("chooser").addEventListener("change", (event) => {
      this.addFiles([...event.target.files]);
      event.target.value = "";
    });
    at("model").addEventListener("change", () => this.showModel());
    at("unlock").addEventListener("submit", (event) => {
      event.preventDefault();
      this.unlock();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running.size && !document.querySelector("dialog[open]")) this.stop();
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      this.addFiles(files);
    });
    this.listenForDrops();
    new ResizeObserver(() => this.followEnd()).observe(at("turns"));
    addEventListener("scroll", () => {
      const root = document.documentElement;
      this.isAtEnd = root.scrollHeight - root.clientHeight - root.scrollTop < 120;
    }, { passive: true });
    this.isAtEnd = true;
  }

  listenForDrops() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const show = (isShown) => at("drop").classList.toggle("is-shown", isShown);
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(true);
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && show(false));
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // else the browser would leave the page for the file
      show(false);
      this.addFiles([...event.dataTransfer.files]);
    });
  }

  followEnd() {
    if (this.isAtEnd) document.documentElement.scrollTop = document.documentElement.scrollHeight;
  }

  showSender() {
    const isRunning = this.running.size > 0;
    this.sender.replaceChildren(...button(isRunning ? "stop" : "send", "", () => {}).childNodes);
    this.sender.setAttribute("aria-label", isRunning ? "Stop" : "Send");
    this.sender.title = isRunning ? "Stop (Escape)" : "Send (Enter)";
    document.body.classList.toggle("is-running", isRunning);
  }

  // The server.

  /** Read what the server has; as long as it does not answer, try again. */
  async connect() {
    clearTimeout(this.timer);
    try {
      const capabilities = await this.server.get("v1/capabilities");
      this.connected(capabilities);
    } catch (error) {
      if (error instanceof Unreachable) this.lost();
      else if (error instanceof ServerError && error.needsKey) this.lock(this.server.hasKey ? error.message : "");
      else this.showBanner(error.message, true);
    }
  }

  connected(capabilities) {
    if (this.isLost) announce("The server answers again.");
    this.isLost = false;
    this.retry_ms = 0;
    this.serverTools = capabilities.server_tools;
    this.models = new Map(capabilities.models.flatMap((model) => [model.id, ...model.aliases].map((name) => [name, model])));
    at("locked").hidden = true;
    at("key-problem").replaceChildren();
    document.body.classList.remove("is-locked");
    this.showModels();
    const isLoading = capabilities.models.some((model) => LOADING.includes(model.state));
    if (isLoading) this.timer = setTimeout(() => this.connect(), LOADING_MS);
    this.showBanner("");
  }

  lost() {
    this.isLost = true;
    this.retry_ms = Math.min(MAX_RETRY_MS, this.retry_ms * 2 || 1000);
    this.showBanner(`The server does not answer. The page tries again every ${Math.round(this.retry_ms / 1000)} s.`, true);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), this.retry_ms);
  }

  showBanner(text, isProblem = false) {
    at("connection").hidden = !text;
    at("connection").classList.toggle("is-problem", isProblem);
    at("connection").replaceChildren(...(text ? visible(text) : []));
  }

  /** Ask for a key, and show nothing of the server. */
  lock(problem = "") {
    clearTimeout(this.timer);
    this.server.key = "";
    this.models = new Map();
    this.showModels();
    this.showBanner("");
    document.body.classList.add("is-locked");
    at("locked").hidden = false;
    at("key-problem").replaceChildren(...visible(problem));
    at("key").focus();
  }

  unlock() {
    this.server.key = at("key").value.trim();
    at("key").value = "";
    at("key-problem").replaceChildren();
    this.connect().then(() => at("locked").hidden && at("message").focus());
  }

  showModels() {
    const select = at("model");
    const before = select.value;
    const options = [...this.models].map(([name, { state }]) =>
      element("option", { value: name }, plain(name) + (state === "ready" ? "" : ` (${state})`)));
    select.replaceChildren(...(options.length ? options : [element("option", { value: "" }, "No model")]));
    select.disabled = !options.length;
    if (this.models.has(before)) select.value = before;
    this.showModel();
  }

  get model() {
    return this.models.get(at("model").value) ?? null;
  }

  showModel() {
    const { model } = this;
    const rows = [];
    if (model?.limits) {
      rows.push(["Takes", model.modalities.join(", ")], ["Context", `${model.limits.max_model_len.toLocaleString("en-US")} tokens`]);
      if (model.precision) rows.push(["Precision", model.precision]);
      if (model.modalities.includes("image")) rows.push(["Images", `up to ${model.limits.max_images} in a request`]);
    } else if (model) rows.push(["State", model.state]);
    at("about-model").replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, ...visible(value)))));
  }

  // The message that is being written.

  async addFiles(blobs) {
    const problems = [];
    for (const blob of blobs) {
      const file = await fileOf(blob, blob.name);
      const refusal = await refusalOf(file, this.model, (url) => this.askAbout(url));
      if (refusal) problems.push(`${file.name}: ${refusal}`);
      else this.files.push(file);
    }
    this.showFiles();
    this.showProblem(problems.join("\n"));
    at("message").focus();
  }

  /** Return what the server says of a file whose first bytes it gets; null if it says nothing. */
  async askAbout(url) {
    const part = { type: "image_url", image_url: { url } };
    try {
      await this.server.post("v1/chat/completions/input_tokens", { model: at("model").value, messages: [{ role: "user", content: [part] }] });
      return null;
    } catch (error) {
      return error instanceof ServerError ? error.message : null;
    }
  }

  showFiles() {
    at("files").replaceChildren(...this.files.map((file) => fileItem(file, () => {
      this.files = this.files.filter((each) => each !== file);
      this.showFiles();
      at("message").focus();
    })));
  }

  showProblem(text) {
    at("composer-problem").replaceChildren(...(text ? visible(text) : []));
  }

  send() {
    const message = at("message");
    const text = message.value.trim();
    if (!text && !this.files.length) return;
    if (!this.model) {
      this.showProblem("The server has no model that could answer.");
      return;
    }
    const turn = newTurn(text, this.files);
    this.files = [];
    at("undo").hidden = true;
    message.value = "";
    grow(message);
    this.showFiles();
    this.showProblem("");
    this.isAtEnd = true;
    this.ask(turn);
  }

  // The conversation.

  /** Add a turn, and have it answered. */
  ask(turn) {
    this.turns = [...this.turns, turn];
    turn.answers = Array.from({ length: this.settings.answers }, () => newAnswer(at("model").value));
    this.showTurns();
    return Promise.all(turn.answers.map((answer) => this.answer(turn, answer)));
  }

  showTurns() {
    for (const [turn, view] of this.views) {
      if (!this.turns.includes(turn)) {
        view.node.remove();
        this.views.delete(turn);
      }
    }
    this.turns.forEach((turn, index) => {
      if (!this.views.has(turn)) this.views.set(turn, new TurnView(turn, index + 1, this.actions));
      const view = this.views.get(turn);
      view.showAnswers();
      at("turns").append(view.node);
    });
    document.body.classList.toggle("has-turns", this.turns.length > 0);
    this.showContext();
  }

  get actions() {
    return {
      edit: (turn, text, files) => this.edit(turn, text.trim(), files),
      choose: (turn, answer) => this.choose(turn, answer),
      remove: (turn, answer) => this.remove(turn, answer),
      retry: (turn, answer) => this.again(turn, answer),
      beside: (turn) => this.beside(turn),
      request: (turn, answer) => this.showRequest(turn, answer),
      inspect: (turn, answer) => inspect(at("inspector"), answer, imagesWithFiles(this.upTo(turn), answer.images)),
      results: (turn, answer, results) => {
        this.choose(turn, answer);
        this.cutAfter(turn);
        this.ask(newTurn("", [], results));
      },
    };
  }

  upTo(turn) {
    return this.turns.slice(0, this.turns.indexOf(turn) + 1);
  }

  /** Remove the turns that follow one, if there are any, and offer to undo that. */
  cutAfter(turn) {
    this.stop();
    const rest = this.turns.length - this.upTo(turn).length;
    if (rest) this.offerUndo(`${rest} later ${rest === 1 ? "message was" : "messages were"} removed.`);
    this.turns = this.upTo(turn);
  }

  /** Say what is about to happen to the conversation, and offer to undo it. */
  offerUndo(text) {
    const before = { system: this.settings.system, turns: copyOf(this.turns) };
    const undo = () => {
      this.stop();
      this.settings.system = before.system;
      this.turns = before.turns;
      this.showTurns();
      at("undo").hidden = true;
      at("message").focus();
    };
    at("undo").replaceChildren(text, button("undo", "Undo", undo));
    at("undo").hidden = false;
    announce(text, { isShown: false });
  }

  edit(turn, text, files) {
    if (!text && !files.length) return;
    this.cutAfter(turn);
    this.turns = this.turns.slice(0, -1);
    this.ask(newTurn(text, files));
    at("message").focus();
  }

  choose(turn, answer) {
    turn.chosen = turn.answers.indexOf(answer);
    this.views.get(turn).showChoice();
  }

  again(turn, answer) {
    this.cutAfter(turn);
    const made = newAnswer(at("model").value || answer.model);
    turn.answers[turn.answers.indexOf(answer)] = made;
    this.showTurns();
    this.answer(turn, made);
  }

  beside(turn) {
    const made = newAnswer(at("model").value);
    turn.answers.push(made);
    this.showTurns();
    this.answer(turn, made);
  }

  remove(turn, answer) {
    this.running.get(answer)?.abort();
    const chosen = chosenAnswer(turn);
    turn.answers = turn.answers.filter((each) => each !== answer);
    turn.chosen = Math.max(0, turn.answers.indexOf(chosen));
    if (!turn.answers.length) {
      this.cutAfter(turn);
      this.turns = this.turns.slice(0, -1);
      at("message").value ||= turn.text;
      this.files = this.files.length ? this.files : turn.files;
      this.showFiles();
    }
    this.showTurns();
  }

  restart() {
    this.stop();
    if (this.turns.length) this.offerUndo("The conversation was removed.");
    this.turns = [];
    this.files = [];
    this.showTurns();
    this.showFiles();
    this.showProblem("");
    at("message").focus();
  }

  stop() {
    for (const controller of this.running.values()) controller.abort();
  }

  /** Return the body of the request for an answer; `contentOf` returns the content of a file. */
  bodyOf(turn, answer, contentOf) {
    const turns = this.upTo(turn);
    answer.system ??= this.settings.system;
    const messages = messagesOf(turns, answer.system, (file) => partOf(file, contentOf(file)));
    answer.options ??= { ...this.settings.body };
    const body = { model: answer.model, messages, ...answer.options };
    const count = numFiles(turns);
    if (count && !body.server_tools) body.return_image_transforms = true;
    const isOneImage = count === 1 && turns.every((each) => each.files.every((file) => file.loader !== "pdf"));
    if (isOneImage && !this.withoutPlaces.has(answer.model)) body.return_places = true;
    return body;
  }

  /** Let the model answer, and show the answer while it comes. */
  async answer(turn, answer) {
    const controller = new AbortController();
    this.running.set(answer, controller);
    this.showSender();
    const view = this.views.get(turn).views.get(answer);
    try {
      await this.streamed(turn, answer, view, controller.signal);
      answer.state = "done";
    } catch (error) {
      this.failed(answer, error);
    }
    this.running.delete(answer);
    view.update();
    this.showSender();
    this.showContext();
    if (answer.state === "done") announce("The answer is complete.", { isShown: false });
  }

  async streamed(turn, answer, view, signal) {
    const contents = new Map();
    for (const file of this.upTo(turn).flatMap((each) => each.files)) contents.set(file, await contentOf(file));
    const body = this.bodyOf(turn, answer, (file) => contents.get(file));
    const reader = new AnswerReader(answer, () => view.changed());
    try {
      await this.server.stream(body, signal, reader);
    } catch (error) {
      if (error.status !== 400 || error.param !== "return_places" || !body.return_places) throw error;
      this.withoutPlaces.add(answer.model);
      delete body.return_places;
      await this.server.stream(body, signal, reader);
    }
    reader.end();
  }

  failed(answer, error) {
    answer.state = error.name === "AbortError" ? "stopped" : "failed";
    if (answer.state === "stopped") return;
    answer.error = error instanceof Error ? error.message : "The answer failed.";
    if (error instanceof Unreachable) this.lost();
    else if (error.needsKey) this.lock(error.message);
    else if (error.retryAfter_s) answer.error += ` (try again in ${error.retryAfter_s} s)`;
  }

  /** Show how much of the context the conversation takes. */
  showContext() {
    const usage = this.turns.length ? chosenAnswer(this.turns.at(-1))?.usage : null;
    const most = this.model?.limits?.max_model_len;
    const used = usage && usage.prompt + usage.completion;
    at("context").textContent = used && most ? `${used.toLocaleString("en-US")} of ${most.toLocaleString("en-US")} tokens used` : "";
  }

  // Dialogs and files.

  showSettings() {
    const lock = this.server.hasKey ? () => this.lock() : null;
    showSettings(at("settings"), this.settings, { serverTools: this.serverTools, lock });
  }

  showRequest(turn, answer) {
    const files = this.upTo(turn).flatMap((each) => each.files);
    const body = this.bodyOf(turn, { ...answer }, (file) => markOf(files.indexOf(file)));
    const url = new URL("v1", document.baseURI).href;
    const names = files.map((file) => file.name);
    const programs = [["curl", curlOf], ["Python", pythonOf]].map(([name, write]) => {
      const text = write(url, body, names, this.server.hasKey);
      return element("section", {},
        element("div", { class: "code-bar" }, element("h3", {}, name), copyButton(`Copy ${name}`, () => text)),
        element("pre", { tabindex: "0", "aria-label": `The request with ${name}`, dir: "ltr" }, element("code", {}, ...visible(text))));
    });
    const dialog = at("request");
    const notes = [
      names.length && "Run it in the folder that has the files.",
      this.server.hasKey && "It reads the API key from the variable VLM_API_KEY.",
    ].filter(Boolean).join(" ");
    dialog.replaceChildren(
      element("header", {}, element("h2", { id: "request-title" }, "Request"), button("close", "Close", () => dialog.close(), { isBare: true })),
      notes && element("p", {}, notes), ...programs);
    dialog.showModal();
  }

  async export() {
    const text = await exported({ system: this.settings.system, turns: this.turns }, contentOf);
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    element("a", { href: url, download: "conversation.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  /** Replace the conversation by that of a file; one that is not right changes nothing. */
  async import(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      if (file.size > LIMITS.bytes) throw new Error("The file is too large.");
      const { system, turns } = await imported(await file.text(), fileOfBase64);
      this.stop();
      if (this.turns.length) this.offerUndo("The conversation was replaced.");
      this.settings.system = system;
      this.turns = turns;
      this.showTurns();
      this.showProblem("");
      announce("The conversation is imported.");
    } catch (error) {
      this.showProblem(`${file.name} was not imported. ${error.message}`);
    }
  }
}

/** Reads the events of a stream into an answer. */
class AnswerReader {
  constructor(answer, changed) {
    this.answer = answer;
    this.changed = changed;
    this.began_ms = performance.now();
  }

  notes(notes) {
    this.answer.notes = notes;
  }

  timing(timing) {
    Object.assign(this.answer.timing, timing);
  }

  event(event) {
    const { answer } = this;
    answer.state = "streaming";
    for (const { delta, finish_reason } of event.choices) {
      if (delta.reasoning) {
        answer.firstReasoning_ms ??= this.elapsed_ms;
        answer.reasoning += delta.reasoning;
      }
      if (delta.content) {
        answer.firstText_ms ??= this.elapsed_ms;
        answer.text += delta.content;
      }
      for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
      if (delta.places) answer.places = delta.places;
      if (finish_reason) answer.finish = finish_reason;
    }
    if (event.image_transforms) answer.images = event.image_transforms;
    if (event.usage) answer.usage = usageOf(event.usage);
    this.changed();
  }

  end() {
    this.answer.total_ms = this.elapsed_ms;
  }

  get elapsed_ms() {
    return performance.now() - this.began_ms;
  }
}

function addCall(calls, { index, id, function: called }) {
  calls[index] ??= { id, name: called.name ?? "", arguments: "" };
  calls[index].arguments += called.arguments ?? "";
}

function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens,
    completion: usage.completion_tokens,
    reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    image: usage.prompt_tokens_details?.image_tokens ?? 0,
  };
}

/** Make a text field as high as its text. */
function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

restoreTheme();
new App();
