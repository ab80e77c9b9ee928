// Anthropic's own client for Node, through the calls of its API that the server has.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.SERVER, apiKey: "none", maxRetries: 0 });
const data = process.env.PICTURE.split(",")[1];
const image = { type: "image", source: { type: "base64", media_type: "image/png", data } };
const asked = (...content) => ({
  model: "mock",
  max_tokens: 100,
  messages: [{ role: "user", content }],
});
const text = (said) => ({ type: "text", text: said });
const tools = [
  {
    name: "weather",
    description: "How the weather is.",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

test("a picture is asked about, whole and streamed", async () => {
  const question = { ...asked(image, text("What is in this picture?")), model: "demo", temperature: 0 };
  const whole = await client.messages.create(question);
  assert.match(whole.content[0].text, /circle/);
  assert.equal(await client.messages.stream(question).finalText(), whole.content[0].text);
});

test("tokens are counted", async () => {
  const { max_tokens, ...question } = asked(image, text("hello"));
  const answer = await client.messages.create({ max_tokens, ...question });
  const { input_tokens } = await client.messages.countTokens(question);
  assert.equal(input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens);
});

test("a tool is called, whole and streamed, and its result read", async () => {
  const question = { ...asked(text("How is the weather in Köln?")), tools };
  const whole = await client.messages.create(question);
  const call = whole.content.find((block) => block.type === "tool_use");
  assert.deepEqual([whole.stop_reason, call.input], ["tool_use", { city: "Köln" }]);
  const streamed = await client.messages.stream(question).finalMessage();
  assert.deepEqual(streamed.content.at(-1).input, { city: "Köln" });
  const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
  question.messages.push({ role: "assistant", content: whole.content });
  question.messages.push({ role: "user", content: [result] });
  const answer = await client.messages.create(question);
  assert.equal(answer.content[0].text, "It is sunny.");
});

test("thinking stands before the answer", async () => {
  const answer = await client.messages.create(asked(text("think")));
  assert.deepEqual(answer.content.map((block) => block.type), ["thinking", "text"]);
});

test("what is wrong raises the error of its status", async () => {
  const unknown = { ...asked(text("x")), model: "other" };
  await assert.rejects(client.messages.create(unknown), Anthropic.NotFoundError);
  const hot = { ...asked(text("x")), temperature: 3 };
  await assert.rejects(client.messages.create(hot), Anthropic.BadRequestError);
});
