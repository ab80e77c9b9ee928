// A request as a program: for a shell with curl, and in Python with OpenAI's client.
//
// Files are named, not included: both programs read them from the folder that they run in.

const CONTENT = /\u0001(\d+)\u0001/;

/** Return the mark of a file in a body; the programs replace it by the file's content. */
export function markOf(index) {
  return `\u0001${index}\u0001`;
}

/** Return JSON in ASCII, so that no character hides or changes the order of others. */
function ascii(value, indent) {
  const text = JSON.stringify(value, null, indent);
  return text.replace(/[\u007f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Return a shell command.
 *
 * @param url the address of the API, which ends with /v1.
 * @param body the body; `markOf` stands for the content of files.
 * @param names the names of the files.
 * @param hasKey whether the server needs a key.
 */
export function curlOf(url, body, names, hasKey) {
  const key = hasKey ? ' \\\n  -H "authorization: Bearer $VLM_API_KEY"' : "";
  const head = `curl ${quoted(`${url}/chat/completions`)} \\\n  -H 'content-type: application/json'${key} \\\n  -d @- <<END\n`;
  // The shell reads $, ` and \ in what stands between the two lines END.
  const text = ascii(body, 1).replace(/[\\$`]/g, "\\$&");
  const marked = /\\\\u0001(\d+)\\\\u0001/g;
  return `${head}${text.replace(marked, (mark, index) =>
    index in names ? `$(base64 < ${quoted(names[index])} | tr -d '\\n')` : mark)}\nEND\n`;
}

function quoted(text) {
  return `'${text.replace(/'/g, "'\\''")}'`;
}

/** Return a Python program; its arguments are those of `curlOf`. */
export function pythonOf(url, body, names, hasKey) {
  const { model, messages, stream, stream_options, ...rest } = body;
  const known = ["temperature", "top_p", "max_tokens", "seed", "tools", "reasoning_effort"];
  const named = Object.entries(rest).filter(([name]) => known.includes(name));
  const other = Object.fromEntries(Object.entries(rest).filter(([name]) => !known.includes(name)));
  const lines = [
    ...(names.length ? ["import base64"] : []),
    ...(hasKey ? ["import os"] : []),
    ...(names.length || hasKey ? [""] : []),
    "from openai import OpenAI",
    "",
    ...(names.length ? ["", "def content(path):", '    with open(path, "rb") as file:', "        return base64.b64encode(file.read()).decode()", "", ""] : []),
    `client = OpenAI(base_url=${literal(url)}, api_key=${hasKey ? 'os.environ["VLM_API_KEY"]' : '"none"'})`,
    "stream = client.chat.completions.create(",
    `    model=${literal(model)},`,
    `    messages=${literal(messages, names)},`,
    ...named.map(([name, value]) => `    ${name}=${literal(value)},`),
    "    stream=True,",
    ...(Object.keys(other).length ? [`    extra_body=${literal(other)},`] : []),
    ")",
    "for event in stream:",
    "    if event.choices:",
    '        print(event.choices[0].delta.content or "", end="", flush=True)',
    "print()",
  ];
  return `${lines.join("\n")}\n`;
}

/** Return a value as Python writes it. */
function literal(value, names = [], indent = "    ") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return textLiteral(value, names);
  if (typeof value !== "object") return String(value);
  const inner = `${indent}    `;
  const isList = Array.isArray(value);
  const entries = isList
    ? value.map((each) => literal(each, names, inner))
    : Object.entries(value).map(([key, each]) => `${ascii(key)}: ${literal(each, names, inner)}`);
  if (!entries.length) return isList ? "[]" : "{}";
  const flat = entries.join(", ");
  if (flat.length < 70 && !flat.includes("\n")) return isList ? `[${flat}]` : `{${flat}}`;
  const lines = entries.map((each) => `${inner}${each},\n`).join("");
  return isList ? `[\n${lines}${indent}]` : `{\n${lines}${indent}}`;
}

function textLiteral(text, names) {
  const match = CONTENT.exec(text);
  if (!match || !(match[1] in names)) return pythonText(text);
  return `${pythonText(text.slice(0, match.index))} + content(${pythonText(names[match[1]])})`;
}

/** Return a text as Python writes it: pairs of surrogates are one character there. */
function pythonText(text) {
  return ascii(text).replace(/\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})/g, (_, high, low) => {
    const point = (parseInt(high, 16) - 0xd800) * 0x400 + parseInt(low, 16) - 0xdc00 + 0x10000;
    return `\\U${point.toString(16).padStart(8, "0")}`;
  });
}
