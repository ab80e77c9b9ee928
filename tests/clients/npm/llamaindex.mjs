// LlamaIndex, by its classes for OpenAI's APIs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { OpenAI, OpenAIEmbedding, OpenAIResponses } from "@llamaindex/openai";
import { tool } from "llamaindex";
import { z } from "zod";

const options = { apiKey: "none", baseURL: `${process.env.SERVER}/v1`, maxRetries: 0 };
const shapes = z.object({ colour: z.string(), count: z.number().int() });
const question = [
  {
    role: "user",
    content: [
      { type: "text", text: "What is in this picture?" },
      { type: "image_url", image_url: { url: process.env.PICTURE } },
    ],
  },
];
const weather = tool({
  name: "weather",
  description: "How the weather is.",
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `sunny in ${city}`,
});
const asked = (content) => [{ role: "user", content }];

for (const [api, Model] of [["chats", OpenAI], ["responses", OpenAIResponses]]) {
  const model = (name) => new Model({ ...options, model: name, temperature: 0 });

  test(`a picture is asked about, whole and streamed, by ${api}`, async () => {
    const whole = await model("demo").chat({ messages: question });
    assert.match(whole.message.content, /circle/);
    let text = "";
    for await (const chunk of await model("demo").chat({ messages: question, stream: true })) text += chunk.delta;
    // With responses it repeats the last piece for each event that has none, whoever answers.
    assert.ok(api === "chats" ? text === whole.message.content : text.startsWith(whole.message.content));
  });

  test(`what is wrong raises an error with its status, by ${api}`, async () => {
    await assert.rejects(model("other").chat({ messages: asked("x") }), (error) => error.status === 404);
  });
}

test("a tool is called, run and its result read", async () => {
  const model = new OpenAI({ ...options, model: "mock", supportToolCall: true });
  const { newMessages, toolCalls } = await model.exec({ messages: asked("How is the weather in Köln?"), tools: [weather] });
  assert.deepEqual(toolCalls.map(({ name, input }) => [name, input]), [["weather", { city: "Köln" }]]);
  const messages = [...asked("How is the weather in Köln?"), ...newMessages];
  const answer = await model.exec({ messages, tools: [weather] });
  assert.equal(answer.newMessages.at(-1).content, "It is sunny.");
});

test("a schema is kept to", async () => {
  const model = new OpenAI({ ...options, model: "mock" });
  const answer = await model.chat({ messages: asked("Tell it as JSON."), responseFormat: shapes });
  assert.deepEqual(JSON.parse(answer.message.content), { colour: "red", count: 3 });
});

test("vectors come", async () => {
  const model = new OpenAIEmbedding({ ...options, model: "mock" });
  const vectors = await model.getTextEmbeddings(["one", "two"]);
  assert.deepEqual(vectors.map((vector) => vector.length), [8, 8]);
});
