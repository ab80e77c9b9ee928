// Vercel's AI SDK, by its provider for Anthropic.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createAnthropic({ baseURL: `${process.env.SERVER}/v1`, apiKey: "none" });
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
  const question = { model: provider("demo"), temperature: 0, maxOutputTokens: 100, messages };
  const whole = await generateText(question);
  assert.match(whole.text, /circle/);
  assert.equal(await streamText(question).text, whole.text);
});

test("a tool is run and its result read, whole and streamed", async () => {
  const question = { model: provider("mock"), tools: { weather }, stopWhen: stepCountIs(3) };
  question.prompt = "How is the weather in Köln?";
  assert.equal((await generateText(question)).text, "It is sunny.");
  assert.equal(await streamText(question).text, "It is sunny.");
});

test("thinking stands before the answer", async () => {
  const { reasoningText, text } = await generateText({ model: provider("mock"), prompt: "think" });
  assert.deepEqual([reasoningText, text], ["One, two.", "Two."]);
});
