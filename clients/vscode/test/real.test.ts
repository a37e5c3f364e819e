/** The client's own rooms against a real daemon that is killed, shut down and started again. */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { Item, ToolItem } from "../src/client/conversation";
import { Desk } from "../src/client/desk";
import { Follower } from "../src/client/follower";
import { Link, NoDaemon, RpcError } from "../src/client/link";
import type { Agent, ToolExecute } from "../src/client/protocol";
import { needs, Roster, standing } from "../src/client/roster";
import { EDITOR_TOOLS, runTool, type EditorPort } from "../src/client/tools";
import { Daemon, until } from "./daemon";

const LIMIT = { timeout: 150_000 };
const daemon = new Daemon();
let link: Link;
let roster: Roster;
let desk: Desk;

before(() => {
  link = daemon.link();
  roster = new Roster(link);
  desk = new Desk(link);
  link.handle<ToolExecute>("tool/execute", (call) => runTool(call.name, call.arguments, port));
  link.start();
});
after(() => daemon.close());

async function follow(agentId: string): Promise<Follower> {
  await link.call("agent/create", { agentId, config: { tools: ["*"] } });
  return new Follower(link, agentId);
}

const prompt = (agentId: string, content: string): Promise<unknown> => link.call("agent/prompt", { agentId, content, wait: false });
const tools = (follower: Follower): ToolItem[] => follower.conversation.all().filter((one): one is ToolItem => one.kind === "tool");
const texts = (follower: Follower, kind = "text"): string[] =>
  follower.conversation.all().flatMap((one) => (one.kind === kind && "text" in one ? [one.text] : []));
/** It is at rest, and each of its events was heard: the roster may know of the end before the chat does. */
const rests = (follower: Follower) => (): boolean => {
  const agent = roster.get(follower.agentId);
  return agent?.state === "idle" && !agent.activeRunId && follower.conversation.seq >= agent.seq;
};

/** What somebody sees who opens the chat only now. */
async function anew(agentId: string): Promise<Item[]> {
  const other = new Follower(link, agentId);
  const seq = (await link.call<Agent>("agent/get", { agentId })).seq;
  await until("everything is replayed", () => other.conversation.seq >= seq);
  const items = other.conversation.all();
  for (const part of other["parts"]) part.dispose(); // Not `dispose`: that would detach the first one, too.
  return items;
}

test("a prompt streams in, and whoever attaches later sees the same", LIMIT, async () => {
  const follower = await follow("stream");
  let lives = 0;
  follower.changed.on(() => { lives += Number(follower.conversation.all().some((one) => "live" in one)); });
  await prompt("stream", "slow now");
  await until("the answer", () => texts(follower).at(-1)?.endsWith("ten now"));
  await until("idle", rests(follower));
  assert.ok(lives > 3, `it was drawn ${lives} times while it streamed`);
  await prompt("stream", "think");
  await until("reasoning", () => texts(follower, "reasoning").length === 1);
  await until("idle", rests(follower));
  assert.equal(texts(follower, "reasoning")[0], "Let me see. 🙂");
  assert.deepEqual(follower.conversation.all(), await anew("stream"));
});

test("an approval comes to the desk, and what runs are the edited arguments", LIMIT, async () => {
  const follower = await follow("deploy");
  await prompt("deploy", "deploy");
  await until("asked", () => desk.of("deploy").length === 1);
  const [approval] = desk.of("deploy");
  await until("the chat shows it", () => tools(follower)[0]?.status === "asks");
  await until("the roster knows", () => needs(roster.get("deploy")!));
  assert.equal(standing(roster.get("deploy")!), "waits for 1 approval");
  assert.equal(await desk.decide(approval!.approvalId, { decision: "edit", arguments: { target: "staging" } }), undefined);
  await until("done", () => tools(follower)[0]?.status === "done");
  assert.equal(tools(follower)[0]?.output, "Deployed staging.");
  assert.match(tools(follower)[0]?.decision ?? "", /other arguments by vscode-test/);
  assert.match(String(await desk.decide(approval!.approvalId, { decision: "deny" })), /vscode-test was first: edit/);
  await until("idle", rests(follower));
  assert.deepEqual(follower.conversation.all(), await anew("deploy"));
});

test("killed in the middle of everything, it comes back to the same paused conversation", LIMIT, async () => {
  const follower = await follow("killed");
  await prompt("killed", "build");
  await until("pending", () => tools(follower)[0]?.status === "pending" && rests(follower)());
  const drawn = follower.conversation.all();
  daemon.kill9();
  await until("lost", () => link.state.kind !== "up");
  await until("back", () => link.state.kind === "up");
  await until("the list is there", () => roster.get("killed")?.pendingCalls === 1);
  assert.deepEqual(follower.conversation.all(), drawn);

  await prompt("killed", "slow answer");
  await until("streaming", () => texts(follower).at(-1)?.startsWith("one two three"));
  daemon.kill9();
  await until("interrupted", () => roster.get("killed")?.state === "interrupted" && link.state.kind === "up");
  await until("said", () => follower.conversation.all().some((one) => one.kind === "notice" && /Interrupted/.test(one.text)));
  assert.ok(!follower.conversation.all().some((one) => "live" in one), "nothing of the broken answer is left");
  await link.call("agent/resume", { agentId: "killed", wait: false });
  await until("whole", () => texts(follower).at(-1)?.endsWith("ten answer") && rests(follower)());
  assert.equal(texts(follower).filter((one) => one.startsWith("one two")).length, 1);

  const { callId } = tools(follower)[0]!;
  await link.call("inbox/resolve", { agentId: "killed", callId, content: "built in 42 s" });
  await assert.rejects(link.call("inbox/resolve", { agentId: "killed", callId, content: "again" }), (error: RpcError) => error.code === -31004);
  await link.call("agent/resume", { agentId: "killed" });
  await until("told", () => texts(follower).at(-1) === "It is done: built in 42 s");
  assert.equal(tools(follower)[0]?.status, "done");
  assert.deepEqual(follower.conversation.all(), await anew("killed"));
});

test("an open approval outlives the daemon, and one late yes runs the call once", LIMIT, async () => {
  const follower = await follow("outlives");
  await prompt("outlives", "deploy");
  await until("asked", () => desk.of("outlives").length === 1);
  const [before] = desk.of("outlives");
  daemon.kill9();
  await until("lost", () => link.state.kind !== "up");
  await until("back", () => link.state.kind === "up" && roster.get("outlives")?.state === "waiting");
  await until("asked again", () => desk.of("outlives")[0]?.approvalId === before?.approvalId);
  await desk.decide(before!.approvalId, { decision: "approve" });
  await until("done", () => tools(follower)[0]?.status === "done" && rests(follower)());
  assert.equal(tools(follower).length, 1);
  assert.deepEqual(follower.conversation.all(), await anew("outlives"));
});

test("a child's work stands inside the call that started it", LIMIT, async () => {
  const follower = await follow("parent");
  await prompt("parent", "research hello");
  await until("done", () => tools(follower)[0]?.status === "done" && rests(follower)());
  const call = tools(follower)[0]!;
  const inner = follower.conversation.all().filter((one) => one.parent === call.key);
  assert.deepEqual(inner.map((one) => one.kind), ["user", "text"]);
  await roster.open("parent");
  assert.equal(roster.children("parent").length, 1);
  assert.ok(roster.roots().every((one) => !one.parent));
  assert.deepEqual(follower.conversation.all(), await anew("parent"));
});

test("a push reaches a busy agent, and a stop ends its tool", LIMIT, async () => {
  const follower = await follow("busy");
  await prompt("busy", "nap");
  await until("running", () => tools(follower)[0]?.status === "running" && tools(follower)[0]?.progress);
  await link.call("inbox/push", { agentId: "busy", content: "hurry" });
  await until("queued", () => texts(follower, "queued")[0] === "hurry");
  await link.call("agent/stop", { agentId: "busy" });
  await until("stopped", () => tools(follower)[0]?.status === "failed" && rests(follower)());
  assert.deepEqual(texts(follower, "queued"), ["hurry"]);
  await link.call("agent/resume", { agentId: "busy" });
  await until("read", () => texts(follower, "user").includes("hurry") && !texts(follower, "queued").length);
  assert.deepEqual(follower.conversation.all(), await anew("busy"));
});

const port: EditorPort = {
  buffers: () => [{ path: "notes.txt", language: "plaintext", unsaved: true, active: true, lines: 2 }],
  problems: () => [],
  selection: () => undefined,
  async read(path) {
    if (path.startsWith("..")) throw new Error(`The path ${JSON.stringify(path)} is outside of the workspace.`);
    return readFileSync(join(daemon.folder, path), "utf8");
  },
  async replace(path, _before, after) {
    writeFileSync(join(daemon.folder, path), after);
    return { unsaved: true };
  },
  async open() {},
};

test("the editor's tools run here, after an approval where they change something", LIMIT, async () => {
  writeFileSync(join(daemon.folder, "notes.txt"), "one\r\ntwo\r\n");
  const follower = await follow("editor");
  await link.call("tool/register", { agentId: "editor", tools: EDITOR_TOOLS });
  await prompt("editor", "edit");
  await until("asked", () => desk.of("editor").length === 1);
  assert.equal(readFileSync(join(daemon.folder, "notes.txt"), "utf8"), "one\r\ntwo\r\n");
  await desk.decide(desk.of("editor")[0]!.approvalId, { decision: "approve" });
  await until("edited", () => tools(follower)[0]?.status === "done" && rests(follower)());
  assert.equal(readFileSync(join(daemon.folder, "notes.txt"), "utf8"), "one\r\nTWO\r\n");
  assert.match(tools(follower)[0]!.output!, /left unsaved/);
  await prompt("editor", "look");
  await until("both", () => tools(follower).length === 3 && tools(follower).every((one) => one.status === "done" || one.status === "failed"));
  assert.match(tools(follower)[1]!.output!, /"unsaved":true/);
  assert.match(tools(follower)[2]!.output!, /outside of the workspace/);
});

test("a request whose answer was lost is sent again and happens once", LIMIT, async () => {
  const asked = link.call<Agent>("agent/create", { config: {}, requestId: "lost-one" });
  daemon.kill9();
  const made = await asked;
  const again = await link.call<Agent>("agent/create", { config: {}, requestId: "lost-one" });
  assert.equal(again.agentId, made.agentId);
});

test("a daemon that was shut down is not started again behind somebody's back", LIMIT, async () => {
  await until("up", () => link.state.kind === "up");
  assert.equal(daemon.run("shutdown").status, 0);
  await until("away", () => link.state.kind === "away");
  await assert.rejects(link.call("server/status"), NoDaemon);
  assert.equal(daemon.run("pid").status, 3);
  assert.equal(daemon.run("serve", "--detach").status, 0); // Somebody else starts it.
  await until("found", () => link.state.kind === "up");
  await link.call("server/status");
});

test("a command that is not there is said in words, once, and a start with another one works", LIMIT, async () => {
  const other = daemon.link({ command: ["no-such-sojourn"], clientId: "other" });
  other.start();
  await until("failed", () => other.state.kind === "failed");
  assert.match((other.state as { reason: string }).reason, /"no-such-sojourn" was not found.*sojourn\.command/);
  await assert.rejects(other.call("server/status"), NoDaemon);
  other.start({ command: daemon.command });
  await until("up", () => other.state.kind === "up");
});

test("a daemon's no is an error with its code and data", LIMIT, async () => {
  await assert.rejects(link.call("agent/get", { agentId: "nobody" }), (error: RpcError) => {
    assert.equal(error.code, -31001);
    assert.equal(error.data.kind, "agentNotFound");
    return true;
  });
});
