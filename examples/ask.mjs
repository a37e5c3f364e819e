// Asks an agent, prints its answer while it is streamed, and decides with you about what it wants to do.
//
//     npm install --prefix examples
//     node examples/ask.mjs "Please build and deploy the website" [AGENT]
//
// `sojourn connect` carries the protocol over stdin and stdout, framed as a language server's; vscode-jsonrpc, which
// every VS Code extension can use, speaks it as it is. Without AGENT a new one is made.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline/promises";
import { pathToFileURL } from "node:url";
import { StreamMessageReader, StreamMessageWriter, createMessageConnection } from "vscode-jsonrpc/node";

const [question, name] = process.argv.slice(2);
if (!question) {
  console.error("usage: node ask.mjs QUESTION [AGENT]");
  process.exit(2);
}

const bridge = spawn("sojourn", ["connect"], { stdio: ["pipe", "pipe", "inherit"] });
const daemon = createMessageConnection(new StreamMessageReader(bridge.stdout), new StreamMessageWriter(bridge.stdin));
const terminal = createInterface({ input: process.stdin });
const typed = terminal[Symbol.asyncIterator]();

daemon.onNotification("agent/event", ({ event }) => {
  if (event.type === "messageDelta" && event.kind === "text") process.stdout.write(event.text);
  if (event.type === "messageEnd" && event.message.role === "assistant") process.stdout.write("\n");
  if (event.type === "toolExecStart") console.log(`[${event.toolName} ${JSON.stringify(event.args)}]`);
});

// Nobody has to answer: an approval that nobody decides stays open, also over a restart of the daemon.
daemon.onRequest("approval/request", async ({ approval }) => {
  process.stdout.write(`${approval.toolName} ${JSON.stringify(approval.args)}: run it? [y/N] `);
  const { value } = await typed.next();
  return { decision: value?.trim() === "y" ? "approve" : "deny" };
});

daemon.listen();
try {
  const sojourn = { clientId: "ask-node", approvals: { request: {} } };
  const rootUri = pathToFileURL(process.cwd()).href; // where the agents that are made here work
  await daemon.sendRequest("initialize", {
    processId: process.pid,
    rootUri,
    capabilities: { experimental: { sojourn } },
  });
  await daemon.sendNotification("initialized", {});
  const agentId = name ?? (await daemon.sendRequest("agent/create", { config: { tools: ["*"] } })).agentId;
  await daemon.sendRequest("agent/attach", { agentId });
  const outcome = await daemon.sendRequest("agent/prompt", { agentId, content: question });
  console.log(`(${outcome.reason})`);
  for (const call of outcome.pendingCalls) {
    console.log(`${call.toolName} is still at work: ${agentId} hears of its result later.`);
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  terminal.close();
  daemon.end();
  bridge.stdin.end();
}
