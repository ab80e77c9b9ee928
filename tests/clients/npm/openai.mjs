// OpenAI's own client for Node, through the calls that the server has.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.env.SERVER}/v1`, apiKey: "none", maxRetries: 0 });
const Shapes = z.object({ colour: z.string(), count: z.number().int() });
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

const asked = (text, url) => ({
  model: "mock",
  messages: [
    {
      role: "user",
      content: url ? [{ type: "image_url", image_url: { url } }, { type: "text", text }] : text,
    },
  ],
});

test("models are listed", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ["demo", "mock"]);
});

test("a picture is asked about, whole and streamed", async () => {
  const question = asked("What is in this picture?", process.env.PICTURE);
  Object.assign(question, { model: "demo", temperature: 0 });
  const whole = await client.chat.completions.create(question);
  assert.match(whole.choices[0].message.content, /circle/);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

test("a schema is parsed, whole and streamed", async () => {
  const question = { ...asked("Tell it as JSON."), response_format: zodResponseFormat(Shapes, "shapes") };
  const whole = await client.chat.completions.parse(question);
  assert.deepEqual(whole.choices[0].message.parsed, { colour: "red", count: 3 });
  const streamed = await client.chat.completions.stream(question).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, { colour: "red", count: 3 });
});

for (const stream of [false, true]) {
  test(`a tool is run and its result read, stream: ${stream}`, async () => {
    const cities = [];
    const call = ({ city }) => cities.push(city) && "sunny";
    const tool = { name: "weather", description: "How it is.", parameters, parse: JSON.parse, function: call };
    const runner = client.chat.completions.runTools({
      ...asked("How is the weather in Köln?"),
      stream,
      tools: [{ type: "function", function: tool }],
    });
    assert.equal(await runner.finalContent(), "It is sunny.");
    assert.deepEqual(cities, ["Köln"]);
  });
}

test("responses come whole and streamed, and go on from what is stored", async () => {
  const input = [
    {
      role: "user",
      content: [
        { type: "input_image", image_url: process.env.PICTURE, detail: "auto" },
        { type: "input_text", text: "What is in this picture?" },
      ],
    },
  ];
  const question = { model: "demo", temperature: 0, input };
  const whole = await client.responses.create(question);
  assert.match(whole.output_text, /circle/);
  const streamed = await client.responses.stream(question).finalResponse();
  assert.equal(streamed.output_text, whole.output_text);
  const first = await client.responses.create({ model: "mock", input: "one" });
  const next = { model: "mock", input: "two", previous_response_id: first.id };
  const second = await client.responses.create(next);
  assert.equal(second.output_text, "two");
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("reasoning stands beside the answer", async () => {
  const { message } = (await client.chat.completions.create(asked("think"))).choices[0];
  assert.deepEqual([message.reasoning_content, message.content], ["One, two.", "Two."]);
});

test("texts go on, and vectors come", async () => {
  const text = await client.completions.create({ model: "mock", prompt: "abc" });
  assert.equal(text.choices[0].text, "abc");
  const { data } = await client.embeddings.create({ model: "mock", input: ["one", "two"] });
  assert.deepEqual(data.map((each) => each.embedding.length), [8, 8]);
  const numbers = await client.embeddings.create({ model: "mock", input: "two", encoding_format: "float" });
  numbers.data[0].embedding.forEach((x, n) => assert.ok(Math.abs(x - data[1].embedding[n]) < 1e-6));
});

test("what is wrong raises the error of its status", async () => {
  const unknown = { ...asked("x"), model: "other" };
  await assert.rejects(client.chat.completions.create(unknown), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...asked("x"), temperature: 3 }), (error) => {
    return error instanceof OpenAI.BadRequestError && error.param === "temperature";
  });
  const broken = asked(JSON.stringify({ mock: { text: "abcdef", fail_at_token: 3 } }));
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of await client.chat.completions.create({ ...broken, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
  }, OpenAI.APIError);
  assert.equal(text, "abc");
});
