// Requests to the server. The key stays in the memory of this module, and is sent in a header only.

const MAX_EVENT = 64 * 2 ** 20;
const NAMED_HEADERS = {
  "x-vlmkit-ignored": "Without effect",
  "x-vlmkit-max-tokens": "Lowered to the most that fits: max_tokens",
  "x-vlmkit-unconstrained": "Not enforced",
};

/** An error that the server states. */
export class ServerError extends Error {
  constructor(status, { message, code = "", param = "" }, retryAfter_s = null) {
    super(message);
    Object.assign(this, { status, code, param, retryAfter_s });
  }

  /** Whether the server asks for a key, or does not take this one. */
  get needsKey() {
    return this.status === 401;
  }
}

/** The server cannot be reached, or the connection broke. */
export class Unreachable extends Error {}

export class Server {
  #key = "";

  /** Use a key from now on; empty for none. */
  set key(text) {
    this.#key = text;
  }

  get hasKey() {
    return this.#key !== "";
  }

  /** Return the JSON of a path. */
  async get(path) {
    return (await this.#fetch(path, {})).json();
  }

  /** Send a body, and return the JSON of the answer. */
  async post(path, body, signal) {
    return (await this.#fetch(path, { method: "POST", body: JSON.stringify(body), signal })).json();
  }

  /**
   * Stream a chat.
   *
   * @param body the body, without `stream`.
   * @param signal ends the request.
   * @param on what is called: `notes` with lines about the request, `timing` with milliseconds by
   *   name, `event` with each event.
   */
  async stream(body, signal, on) {
    const asked = { ...body, stream: true, stream_options: { include_usage: true } };
    const answer = await this.#fetch("v1/chat/completions", {
      method: "POST", body: JSON.stringify(asked), signal, headers: { "x-vlmkit-timing": "1" },
    });
    on.notes(notesOf(answer.headers));
    on.timing(timingOf(answer.headers.get("server-timing") ?? ""));
    let isComplete = false;
    for await (const { comment, data } of eventsOf(answer.body)) {
      if (comment.startsWith("server-timing:")) on.timing(timingOf(comment.slice(14)));
      else if (data === "[DONE]") isComplete = true;
      else if (data) {
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(200, event.error);
        on.event(event);
      }
    }
    if (!isComplete) throw new Unreachable("The connection to the server broke.");
  }

  async #fetch(path, { headers = {}, ...options }) {
    const sent = { ...headers };
    if (this.#key) sent.authorization = `Bearer ${this.#key}`;
    if (options.body) sent["content-type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, {
        ...options, headers: sent, credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreachable("The server does not answer.");
    }
    if (!answer.ok) throw await errorOf(answer);
    return answer;
  }
}

async function errorOf(answer) {
  const retryAfter_s = Number.parseInt(answer.headers.get("retry-after") ?? "", 10);
  let error = { message: `The server answered with status ${answer.status}.` };
  try {
    const body = await answer.json();
    if (typeof body.error?.message === "string") error = body.error;
  } catch {
    // a proxy's error, which is no JSON: the status says what is known
  }
  return new ServerError(answer.status, error, Number.isFinite(retryAfter_s) ? retryAfter_s : null);
}

function notesOf(headers) {
  return Object.entries(NAMED_HEADERS).flatMap(([name, what]) => {
    const value = headers.get(name);
    return value ? [`${what}: ${value}`] : [];
  });
}

/** Return the durations in milliseconds of a Server-Timing header, by name. */
export function timingOf(text) {
  const found = {};
  for (const entry of text.split(",")) {
    const match = /^\s*([a-z0-9_]{1,40});dur=([0-9.]{1,20})\s*$/.exec(entry);
    if (match) found[match[1]] = Number(match[2]);
  }
  return found;
}

/** Yield the comments and the data of server-sent events. */
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (rest.length > MAX_EVENT) throw new Unreachable("The server sent an event that is too long.");
      for (const line of lines) {
        if (line.startsWith("data:")) yield { comment: "", data: line.slice(5).trim() };
        else if (line.startsWith(":")) yield { comment: line.slice(1).trim(), data: "" };
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Unreachable || error instanceof ServerError) throw error;
    throw new Unreachable("The connection to the server broke.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
