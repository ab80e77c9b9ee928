// Vercel's AI SDK, by its provider for servers that speak OpenAI's API.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "vlmkit",
  baseURL: `${process.env.SERVER}/v1`,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const mock = provider("mock");
const shapes = z.object({ colour: z.string(), count: z.number().int() });
const picture = Buffer.from(process.env.PICTURE.split(",")[1], "base64");
const messages = [
  {
    role: "user",
    content: [
      { type: "image", image: picture },
      { type: "text", text: "What is in this picture?" },
    ],
  },
];
const tools = {
  weather: tool({
    description: "How the weather is.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};

test("a picture is asked about, whole and streamed", async () => {
  const question = { model: provider("demo"), temperature: 0, messages };
  const whole = await generateText(question);
  assert.match(whole.text, /circle/);
  assert.ok(whole.usage.inputTokens > 0);
  const streamed = streamText(question);
  assert.equal(await streamed.text, whole.text);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
});

test("a tool is run and its result read, whole and streamed", async () => {
  const question = { model: mock, tools, prompt: "How is the weather in Köln?", stopWhen: stepCountIs(3) };
  assert.equal((await generateText(question)).text, "It is sunny.");
  const streamed = streamText(question);
  const kinds = [];
  for await (const part of streamed.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-result"));
  assert.equal(await streamed.text, "It is sunny.");
});

test("a schema is kept to, whole and streamed", async () => {
  const question = { model: mock, prompt: "Tell it as JSON.", output: Output.object({ schema: shapes }) };
  assert.deepEqual((await generateText(question)).output, { colour: "red", count: 3 });
  assert.deepEqual(await streamText(question).output, { colour: "red", count: 3 });
});

test("reasoning stands beside the answer, whole and streamed", async () => {
  const whole = await generateText({ model: mock, prompt: "think" });
  assert.deepEqual([whole.reasoningText, whole.text], ["One, two.", "Two."]);
  const streamed = streamText({ model: mock, prompt: "think" });
  assert.equal(await streamed.reasoningText, "One, two.");
});

test("texts go on, and vectors come", async () => {
  const { text } = await generateText({ model: provider.completionModel("mock"), prompt: "abc" });
  assert.match(text, /abc/);
  const model = provider.embeddingModel("mock");
  const { embeddings } = await embedMany({ model, values: ["one", "two"] });
  assert.deepEqual(embeddings.map((vector) => vector.length), [8, 8]);
});

test("what is wrong raises an error with its status", async () => {
  const asked = generateText({ model: provider("other"), prompt: "x", maxRetries: 0 });
  await assert.rejects(asked, (error) => APICallError.isInstance(error) && error.statusCode === 404);
});
