// Asks a running kadenced with the official `openai` package for Node: SOCKET MODULES
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [socket, modules] = process.argv.slice(2);
const need = createRequire(modules + "/");
const { default: OpenAI } = need("openai");
const { Agent, fetch } = need("undici");
const fetchOptions = { dispatcher: new Agent({ connect: { socketPath: socket } }) };
const client = new OpenAI({ baseURL: "http://kadence/v1", apiKey: "none", fetch, fetchOptions, maxRetries: 0 });
const ask = { model: "k3-s-f16", messages: [{ role: "user", content: "Hello" }], max_tokens: 20, temperature: 0 };

const whole = await client.chat.completions.create(ask);
assert(whole.choices[0].message.content && whole.usage.completion_tokens <= 20);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
const schema = { type: "object", required: ["ok"], additionalProperties: false, properties: { ok: { type: "boolean" } } };
const format = { type: "json_schema", json_schema: { name: "it", strict: true, schema } };
const answer = await client.chat.completions.create({ ...ask, max_tokens: 200, response_format: format });
assert.equal(typeof JSON.parse(answer.choices[0].message.content).ok, "boolean");
await assert.rejects(client.chat.completions.create({ ...ask, model: "nope" }), { code: "model_not_found", status: 404 });
console.log("openai_clients: whole, streamed, schema, error ... ok with openai for Node");
