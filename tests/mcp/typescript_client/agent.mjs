// An agent with the official TypeScript client. It uses every tool, reads resources, and meets an error and a cancel.
// Arguments: the directory with the client's packages, the revision ("auto" or "legacy"), and either the address of a
// server and a token, or the words of a command that is one.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [packages, mode, ...server] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");
const TOOLS = ["finish", "lock", "mail", "note", "status", "submit", "take", "wait"];
const WAIT_S = 45;
const kind = `acme.typescript.${server[0].startsWith("http") ? "http" : "stdio"}.${mode}`;

function transport() {
  if (server[0].startsWith("http")) {
    const [address, token] = server;
    return new StreamableHTTPClientTransport(new URL(address), {
      requestInit: { headers: { Authorization: `Bearer ${token}` } },
    });
  }
  const [command, ...args] = server;
  return new StdioClientTransport({ command, args, env: process.env });
}

const client = new Client({ name: "agent", version: "1" }, { versionNegotiation: { mode } });
await client.connect(transport());

async function call(name, args = {}, options = {}) {
  const answer = await client.callTool({ name, arguments: args }, options);
  assert(!answer.isError, JSON.stringify(answer));
  return answer.structuredContent;
}

async function refusal(name, args) {
  const answer = await client.callTool({ name, arguments: args });
  assert(answer.isError, JSON.stringify(answer));
  return answer.content[0].text;
}

const { tools } = await client.listTools();
assert.deepEqual(tools.map((each) => each.name).sort(), TOOLS);
assert(tools.every((each) => each.description && each.inputSchema && each.outputSchema));

// A job from submit to result.
assert.equal((await call("take", { kinds: [kind] })).state, "none");
const { job } = await call("submit", { kind, payload: { file: "a.py" } });
const taken = await call("take", { kinds: [kind], wait_s: WAIT_S });
assert.deepEqual([taken.job, taken.fence, taken.data.payload], [job, 1, { file: "a.py" }]);
const hold = { job, fence: taken.fence };
assert.equal((await call("note", { ...hold, text: "half" })).state, "held");
const mine = await call("status");
assert(mine.lines.some((each) => each.includes(job)));
assert.match(await refusal("finish", { job, fence: 7 }), /fence/);
assert.equal((await call("finish", { ...hold, result: { good: true } })).state, "succeeded");
assert.deepEqual((await call("wait", { handle: job })).data, { result: { good: true } });

// Locks and mail.
const keys = [`file:${kind}`];
const held = await call("lock", { keys });
assert.equal((await call("lock", { keys, do: "renew" })).fence, held.fence);
assert.equal((await call("lock", { keys, do: "release" })).state, "released");
const { id } = await call("mail", { do: "send", to: mine.you.split("@")[0], text: "hello" });
assert.deepEqual((await call("mail")).data.map((each) => [each.id, each.text]), [[id, "hello"]]);
assert.equal((await call("mail", { do: "done", id })).state, "acknowledged");

// Resources.
const uri = `hocket://job/${job}`;
const { contents } = await client.readResource({ uri });
assert.equal(JSON.parse(contents[0].text).state, "succeeded");
assert((await client.listResources()).resources.some((each) => each.uri === uri));
assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 4);

// Errors.
assert.match(await refusal("take", {}), /kinds/);
await assert.rejects(client.callTool({ name: "no_such_tool", arguments: {} }), /no tool/);
await assert.rejects(client.readResource({ uri: "hocket://secret/1" }), /no resource/);

// A call that is cancelled takes nothing. The request after it shows that the first one has come.
const cancelling = new AbortController();
const waiting = call("take", { kinds: [kind], wait_s: WAIT_S }, { signal: cancelling.signal });
await call("status");
cancelling.abort("not wanted");
await assert.rejects(waiting);
const later = await call("submit", { kind });
assert.equal((await call("take", { kinds: [kind], wait_s: WAIT_S })).job, later.job);

// A resource that is watched.
if (mode === "auto") {
  const told = new Promise((resolve) => {
    client.setNotificationHandler("notifications/resources/updated", (notice) => resolve(notice.params.uri));
  });
  const watched = `hocket://job/${later.job}`;
  const subscription = await client.listen({ resourceSubscriptions: [watched] });
  await call("finish", { job: later.job, fence: 1 });
  assert.equal(await told, watched);
  await subscription.close();
}
await client.close();
console.log(`did all in revision ${mode}`);
