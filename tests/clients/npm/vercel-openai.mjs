// Vercel's AI SDK, by its provider for OpenAI, which speaks the Responses API.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: `${process.env.SERVER}/v1`, apiKey: "none" });
const mock = provider("mock");
const shapes = z.object({ colour: z.string(), count: z.number().int() });
const image = Buffer.from(process.env.PICTURE.split(",")[1], "base64");
const messages = [
  { role: "user", content: [{ type: "image", image }, { type: "text", text: "What is in this picture?" }] },
];
const weather = tool({
  description: "How the weather is.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});

test("a picture is asked about, whole and streamed", async () => {
  const question = { model: provider("demo"), temperature: 0, messages };
  const whole = await generateText(question);
  assert.match(whole.text, /circle/);
  assert.equal(await streamText(question).text, whole.text);
});

test("a tool is run and its result read, whole and streamed", async () => {
  const question = { model: mock, tools: { weather }, stopWhen: stepCountIs(3) };
  question.prompt = "How is the weather in Köln?";
  assert.equal((await generateText(question)).text, "It is sunny.");
  assert.equal(await streamText(question).text, "It is sunny.");
});

test("a schema is kept to, whole and streamed", async () => {
  const question = { model: mock, prompt: "Tell it as JSON.", output: Output.object({ schema: shapes }) };
  assert.deepEqual((await generateText(question)).output, { colour: "red", count: 3 });
  assert.deepEqual(await streamText(question).output, { colour: "red", count: 3 });
});
