// A conversation: its turns, the body of the request that goes on with it, and its file.
//
// A turn is a message of the user with the answers to it, or the results of tools that an answer
// called. Later turns follow the chosen answer of each. Nothing here touches the page.

const FORMAT = "vlmkit-conversation";
const VERSION = 1;
export const LIMITS = { bytes: 256 * 2 ** 20, turns: 1024, answers: 16, files: 64, calls: 128, images: 256, tiles: 256, text: 4_000_000 };

/** Return a new turn. A turn with `results` has those of tools, and no text and no files. */
export function newTurn(text, files = [], results = []) {
  return { text, files, results, answers: [], chosen: 0 };
}

/** Return an answer that has no text yet. */
export function newAnswer(model) {
  return {
    model,
    text: "",
    reasoning: "",
    calls: [],
    state: "waiting", // then "streaming", and at last "done", "stopped" or "failed"
    finish: "",
    error: "",
    notes: [],
    usage: null,
    timing: {},
    firstText_ms: null,
    firstReasoning_ms: null,
    total_ms: null,
    images: [],
    places: [],
  };
}

/** Return the answer that later turns follow. */
export function chosenAnswer(turn) {
  return turn.answers[turn.chosen] ?? null;
}

/** Return copies of turns, which later changes of the turns leave as they are. */
export function copyOf(turns) {
  return turns.map((turn) => ({ ...turn, answers: [...turn.answers] }));
}

/** Return the number of files in some turns. */
export function numFiles(turns) {
  return turns.reduce((sum, turn) => sum + turn.files.length, 0);
}

/**
 * Return the messages up to a turn, the newest question included and its answers left out.
 *
 * @param turns the turns; each but the last is followed by its chosen answer.
 * @param system the first message; empty for none.
 * @param partOf returns the part of a message that is a file.
 */
export function messagesOf(turns, system, partOf) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  turns.forEach((turn, index) => {
    messages.push(...asked(turn, partOf));
    const answer = chosenAnswer(turn);
    if (index < turns.length - 1 && answer) messages.push(said(answer));
  });
  return messages;
}

function asked(turn, partOf) {
  if (turn.results.length) {
    return turn.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content }));
  }
  if (!turn.files.length) return [{ role: "user", content: turn.text }];
  const text = turn.text ? [{ type: "text", text: turn.text }] : [];
  return [{ role: "user", content: [...turn.files.map(partOf), ...text] }];
}

function said(answer) {
  const message = { role: "assistant", content: answer.text };
  if (answer.reasoning) message.reasoning_content = answer.reasoning;
  if (answer.calls.length) {
    message.tool_calls = answer.calls.map(({ id, name, arguments: text }) => ({
      id, type: "function", function: { name, arguments: text },
    }));
  }
  return message;
}

/**
 * Return the images of an answer with the files that they are of: one entry for each image of the
 * prompt, oldest first. A document has one for each of its pages.
 */
export function imagesWithFiles(turns, images) {
  const files = turns.flatMap((turn) => turn.files);
  const found = [];
  let at = 0;
  for (const file of files) {
    let page = 0;
    while (at < images.length && (images[at].page ?? 0) > page) {
      page = images[at].page;
      found.push({ image: images[at++], file, page });
    }
    if (page === 0 && at < images.length) found.push({ image: images[at++], file, page: null });
  }
  return found;
}

// Files of conversations.

/** Return a conversation as the text of a file; `contentOf` returns a file's content in base64. */
export async function exported({ system, turns }, contentOf) {
  const written = [];
  for (const turn of turns) {
    const files = [];
    for (const file of turn.files) {
      files.push({ name: file.name, type: file.type, content: await contentOf(file) });
    }
    const answers = turn.answers.map((answer) => ({ ...answer }));
    written.push({ ...turn, files, answers });
  }
  return JSON.stringify({ format: FORMAT, version: VERSION, system, turns: written }, null, 1);
}

/**
 * Return the conversation in the text of a file; `fileOf` makes a file of its description.
 *
 * @throws {Error} the text is no such file; the message names what is wrong with it.
 */
export async function imported(text, fileOf) {
  if (text.length > LIMITS.bytes) throw new Error("The file is too large.");
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const at = new Reader("");
  const whole = at.object(read);
  if (whole.format !== FORMAT) throw new Error("The file is not a conversation that this page exported.");
  if (whole.version !== VERSION) throw new Error("The file is of another version of this page.");
  const system = at.in("system").text(whole.system);
  const turns = [];
  for (const [index, turn] of at.in("turns").list(whole.turns, LIMITS.turns).entries()) {
    turns.push(await readTurn(at.in(`turns[${index}]`), turn, fileOf));
  }
  return { system, turns };
}

async function readTurn(at, value, fileOf) {
  const turn = at.object(value);
  const files = [];
  for (const [index, each] of at.in("files").list(turn.files, LIMITS.files).entries()) {
    const here = at.in(`files[${index}]`);
    const file = here.object(each);
    const read = { name: here.in("name").text(file.name), type: here.in("type").text(file.type), content: here.in("content").base64(file.content) };
    try {
      files.push(await fileOf(read));
    } catch (error) {
      throw new Error(`${here.path}: ${error.message}`);
    }
  }
  const results = at.in("results").list(turn.results, LIMITS.calls).map((each, index) => {
    const here = at.in(`results[${index}]`);
    const result = here.object(each);
    return { id: here.in("id").text(result.id), name: here.in("name").text(result.name), content: here.in("content").text(result.content) };
  });
  const answers = at.in("answers").list(turn.answers, LIMITS.answers).map((each, index) => readAnswer(at.in(`answers[${index}]`), each));
  const chosen = at.in("chosen").index(turn.chosen, Math.max(answers.length, 1));
  return { ...newTurn(at.in("text").text(turn.text), files, results), answers, chosen };
}

function readAnswer(at, value) {
  const answer = at.object(value);
  const read = newAnswer(at.in("model").text(answer.model));
  for (const name of ["text", "reasoning", "finish", "error"]) read[name] = at.in(name).text(answer[name]);
  for (const name of ["firstText_ms", "firstReasoning_ms", "total_ms"]) read[name] = at.in(name).numberOrNull(answer[name]);
  read.state = at.in("state").oneOf(answer.state, ["done", "stopped", "failed"], { waiting: "stopped", streaming: "stopped" });
  read.notes = at.in("notes").list(answer.notes, 64).map((each, index) => at.in(`notes[${index}]`).text(each));
  read.calls = at.in("calls").list(answer.calls, LIMITS.calls).map((each, index) => {
    const here = at.in(`calls[${index}]`);
    const call = here.object(each);
    return { id: here.in("id").text(call.id), name: here.in("name").text(call.name), arguments: here.in("arguments").text(call.arguments) };
  });
  read.usage = answer.usage === null ? null : readUsage(at.in("usage"), answer.usage);
  const timing = at.in("timing").object(answer.timing);
  for (const [name, value_ms] of Object.entries(timing).slice(0, 256)) {
    if (/^[a-z0-9_]{1,40}$/.test(name)) read.timing[name] = at.in(`timing.${name}`).number(value_ms);
  }
  read.images = at.in("images").list(answer.images, LIMITS.images).map((each, index) => readImage(at.in(`images[${index}]`), each));
  read.places = at.in("places").list(answer.places, 1024).map((each, index) => {
    const here = at.in(`places[${index}]`);
    const place = here.object(each);
    return {
      label: here.in("label").text(place.label),
      box: place.box === null ? null : here.in("box").numbers(place.box, 4),
      point: place.point === null ? null : here.in("point").numbers(place.point, 2),
    };
  });
  return read;
}

function readUsage(at, value) {
  const usage = at.object(value);
  const read = {};
  for (const name of ["prompt", "completion", "reasoning", "cached", "image"]) read[name] = at.in(name).number(usage[name]);
  return read;
}

function readImage(at, value) {
  const image = at.object(value);
  const transform = image.transform === null ? null : readTransform(at.in("transform"), image.transform);
  return {
    num_tokens: at.in("num_tokens").number(image.num_tokens),
    cached: at.in("cached").boolean(image.cached),
    page: at.in("page").numberOrNull(image.page),
    transform,
  };
}

function readTransform(at, value) {
  const read = at.object(value);
  const pairs = ["source_size", "upright_size", "used_size", "scale"].map((name) => [name, at.in(name).numbers(read[name], 2)]);
  const grid = (read.grid ?? null) === null ? null : at.in("grid").object(read.grid);
  return {
    ...Object.fromEntries(pairs),
    turned: at.in("turned").boolean(read.turned),
    crop: read.crop === null ? null : at.in("crop").numbers(read.crop, 4),
    pad: at.in("pad").numbers(read.pad, 4),
    num_tiles: at.in("num_tiles").number(read.num_tiles),
    grid: grid && {
      columns: at.in("grid.columns").count(grid.columns),
      rows: at.in("grid.rows").count(grid.rows),
      tile_size: at.in("grid.tile_size").numbers(grid.tile_size, 2),
      step: at.in("grid.step").numbers(grid.step, 2),
    },
  };
}

/** Checks values of a file, and names their place in it. */
class Reader {
  constructor(path) {
    this.path = path;
  }

  in(name) {
    return new Reader(this.path ? `${this.path}.${name}` : name);
  }

  fail(expected) {
    throw new Error(`${this.path || "The file"} must be ${expected}.`);
  }

  object(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : this.fail("an object");
  }

  list(value, most) {
    if (!Array.isArray(value)) this.fail("a list");
    return value.length <= most ? value : this.fail(`a list of at most ${most}`);
  }

  text(value) {
    return typeof value === "string" && value.length <= LIMITS.text ? value : this.fail("a text");
  }

  base64(value) {
    return typeof value === "string" && /^[A-Za-z0-9+/]*={0,2}$/.test(value) ? value : this.fail("base64");
  }

  number(value) {
    return typeof value === "number" && Number.isFinite(value) && Math.abs(value) < 1e15 ? value : this.fail("a number");
  }

  count(value) {
    return Number.isInteger(value) && value > 0 && value <= LIMITS.tiles ? value : this.fail(`a number from 1 to ${LIMITS.tiles}`);
  }

  numberOrNull(value) {
    return value === null ? null : this.number(value);
  }

  numbers(value, count) {
    const read = this.list(value, count).map((each) => this.number(each));
    return read.length === count ? read : this.fail(`${count} numbers`);
  }

  boolean(value) {
    return typeof value === "boolean" ? value : this.fail("true or false");
  }

  index(value, count) {
    return Number.isInteger(value) && value >= 0 && value < count ? value : this.fail("the number of an answer");
  }

  oneOf(value, known, renamed) {
    const found = Object.hasOwn(renamed, value) ? renamed[value] : value;
    return known.includes(found) ? found : this.fail(`one of ${known.join(", ")}`);
  }
}
