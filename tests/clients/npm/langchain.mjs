// LangChain's classes for OpenAI's APIs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";

const configuration = { baseURL: `${process.env.SERVER}/v1` };
const options = { apiKey: "none", maxRetries: 0, configuration };
const shapes = z.object({ colour: z.string(), count: z.number().int() });
const weather = tool(({ city }) => `sunny in ${city}`, {
  name: "weather",
  description: "How the weather is.",
  schema: z.object({ city: z.string() }),
});
const picture = new HumanMessage({
  content: [
    { type: "text", text: "What is in this picture?" },
    { type: "image_url", image_url: { url: process.env.PICTURE } },
  ],
});

for (const useResponsesApi of [false, true]) {
  const model = (name) => new ChatOpenAI({ ...options, model: name, temperature: 0, useResponsesApi });
  const api = useResponsesApi ? "by responses" : "by chats";

  test(`a picture is asked about, whole and streamed, ${api}`, async () => {
    const whole = await model("demo").invoke([picture]);
    assert.match(whole.text, /circle/);
    assert.ok(whole.usage_metadata.input_tokens > 0);
    let text = "";
    for await (const chunk of await model("demo").stream([picture])) text += chunk.text;
    assert.equal(text, whole.text);
  });

  test(`a tool is called, whole and streamed, and its result read, ${api}`, async () => {
    const bound = model("mock").bindTools([weather]);
    const question = new HumanMessage("How is the weather in Köln?");
    const called = await bound.invoke([question]);
    assert.deepEqual(called.tool_calls.map(({ name, args }) => [name, args]), [["weather", { city: "Köln" }]]);
    let streamed;
    for await (const chunk of await bound.stream([question])) streamed = streamed ? streamed.concat(chunk) : chunk;
    assert.deepEqual(streamed.tool_calls[0].args, { city: "Köln" });
    const result = await weather.invoke(called.tool_calls[0]);
    assert.ok(result instanceof ToolMessage);
    assert.equal((await bound.invoke([question, called, result])).text, "It is sunny.");
  });

  test(`a schema is kept to, ${api}`, async () => {
    const structured = model("mock").withStructuredOutput(shapes, { method: "jsonSchema" });
    assert.deepEqual(await structured.invoke("Tell it as JSON."), { colour: "red", count: 3 });
  });

  test(`what is wrong raises an error with its status, ${api}`, async () => {
    await assert.rejects(model("other").invoke("x"), (error) => error.status === 404);
  });
}

test("vectors come", async () => {
  const model = new OpenAIEmbeddings({ ...options, model: "mock" });
  const vectors = await model.embedDocuments(["one", "two"]);
  assert.deepEqual(vectors.map((vector) => vector.length), [8, 8]);
  assert.deepEqual(await model.embedQuery("two"), vectors[1]);
});
