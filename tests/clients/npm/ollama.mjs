// Ollama's client; the server has vlmkit-ollama.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.SERVER });
const picture = process.env.PICTURE.split(",")[1];
const user = (content, fields = {}) => [{ role: "user", content, ...fields }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "How the weather is.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

async function streamed(question) {
  const pieces = [];
  for await (const piece of await client.chat({ ...question, stream: true })) pieces.push(piece);
  return pieces;
}

test("a picture is asked about, whole and streamed", async () => {
  const messages = user("What is in this picture?", { images: [picture] });
  const question = { model: "demo", messages, options: { temperature: 0 } };
  const whole = (await client.chat(question)).message.content;
  assert.match(whole, /circle/);
  const pieces = await streamed(question);
  assert.equal(pieces.map((piece) => piece.message.content).join(""), whole);
  assert.ok(pieces.at(-1).done);
});

test("a tool is called, streamed, and its result read", async () => {
  const messages = user("How is the weather in Köln?");
  const pieces = await streamed({ model: "mock", messages, tools });
  const calls = pieces.flatMap((piece) => piece.message.tool_calls ?? []);
  assert.deepEqual(calls.map((call) => call.function.arguments), [{ city: "Köln" }]);
  messages.push({ role: "assistant", content: "I look.", tool_calls: calls });
  messages.push({ role: "tool", tool_name: "weather", content: "sunny" });
  const answer = await client.chat({ model: "mock", messages, tools });
  assert.equal(answer.message.content, "It is sunny.");
});

test("an answer has a form, and reasoning is apart", async () => {
  const properties = { colour: { type: "string" }, count: { type: "integer" } };
  const format = { type: "object", properties, required: ["colour", "count"] };
  const formed = await client.chat({ model: "mock", messages: user("Tell it as JSON."), format });
  assert.deepEqual(JSON.parse(formed.message.content), { colour: "red", count: 3 });
  const { message } = await client.chat({ model: "mock", messages: user("think"), think: true });
  assert.deepEqual([message.thinking, message.content], ["One, two.", "Two."]);
});

test("models are listed, and vectors returned", async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((model) => model.name).sort(), ["demo", "mock"]);
  assert.ok((await client.show({ model: "demo" })).capabilities.includes("vision"));
  const { embeddings } = await client.embed({ model: "mock", input: ["one", "two"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [8, 8]);
});

test("a wrong request is an error with its status and a text", async () => {
  const asked = [
    () => client.chat({ model: "other", messages: user("x") }),
    () => client.pull({ model: "other" }),
  ];
  for (const ask of asked) {
    await assert.rejects(ask, { status_code: 404, message: /not served here/ });
  }
});

test("an answer can be aborted", async () => {
  const pieces = await client.chat({ model: "mock", messages: user("x ".repeat(500)), stream: true });
  await assert.rejects(async () => {
    for await (const _ of pieces) client.abort();
  }, { name: "AbortError" });
});
