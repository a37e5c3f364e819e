/** Rooms that need neither a daemon nor an editor. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Conversation, type ToolItem } from "../src/client/conversation";
import { applied, proposal } from "../src/client/edits";
import type { Agent, Attached, Event } from "../src/client/protocol";
import { needs, standing } from "../src/client/roster";
import { EDITOR_TOOLS, runTool, type EditorPort } from "../src/client/tools";
import { el, textOf, type El } from "../src/webview/element";
import { markdown } from "../src/webview/markdown";
import { view } from "../src/webview/view";

function conversation(): { told: Conversation; say: (event: Event, seq?: number) => string } {
  const told = new Conversation("a");
  return { told, say: (event, seq) => told.read({ agentId: "a", at: "", event, ...(seq === undefined ? {} : { seq }) }) };
}

const attached = (seq: number, rest: Partial<Attached> = {}): Attached => ({
  seq, oldestSeq: 1, mode: "replay", agent: { agentId: "a" } as Agent, pendingCalls: [], approvals: [], streaming: [], ...rest,
});
const delta = (offset: number, text: string): Event => ({ type: "messageDelta", messageId: "m", part: 0, kind: "text", offset, text });

test("a repeated event changes nothing, a missing one is said", () => {
  const { told, say } = conversation();
  assert.equal(say({ type: "agentStart", cause: "resume" }, 1), "read");
  told.drain();
  assert.equal(say({ type: "agentStart", cause: "resume" }, 1), "repeat");
  assert.equal(say({ type: "agentEnd", reason: "done" }, 3), "gap");
  assert.equal(told.seq, 1);
  assert.deepEqual(told.drain(), { reset: false, changed: [], removed: [] });
});

test("deltas count code points; what overlaps is taken once, a hole is said", () => {
  const { told, say } = conversation();
  assert.equal(say(delta(0, "a🙂")), "read");
  assert.equal(say(delta(1, "🙂b")), "read");
  assert.equal(say(delta(0, "a🙂b")), "repeat");
  assert.equal(say(delta(5, "x")), "gap");
  assert.deepEqual(told.all().map((one) => "text" in one && one.text), ["a🙂b"]);
});

test("what was streaming at a lost connection is replaced by what streams at the next one, after its replay", () => {
  const { told, say } = conversation();
  say(delta(0, "half an ans"));
  told.attached(attached(1, { streaming: [{ messageId: "m", part: 0, kind: "text", text: "half an answer" }] }));
  assert.deepEqual(told.all(), [], "the replay comes first");
  say({ type: "turnStart", turn: 1 }, 1);
  assert.deepEqual(told.all().map((one) => "text" in one && one.text), ["half an answer"]);
  say(delta(14, "!"));
  assert.deepEqual(told.all().map((one) => "text" in one && one.text), ["half an answer!"]);
  say({ type: "messageReset", messageId: "m", reason: "retry" });
  assert.deepEqual(told.all(), []);
});

test("a snapshot draws the messages and what is open", () => {
  const { told } = conversation();
  const call = { callId: "c", toolName: "build", args: { x: 1 }, since: "", placeholder: [], answered: false };
  told.snapshot(
    [{ messageId: "m1", role: "user", content: [{ type: "text", text: "go" }] },
      { messageId: "m2", role: "assistant", content: [{ type: "toolCall", id: "c", name: "build", arguments: { x: 1 } }] }],
    attached(7, { pendingCalls: [call], mode: "snapshot" }),
  );
  assert.equal(told.seq, 7);
  assert.deepEqual(told.all().map((one) => one.kind), ["user", "tool"]);
  assert.equal((told.get("c") as ToolItem).status, "pending");
});

test("a grandchild stands below its call, below its parent's", () => {
  const { told, say } = conversation();
  const inner: Event = { type: "messageEnd", message: { messageId: "m", role: "user", content: [{ type: "text", text: "deep" }] } };
  say({ type: "nested", toolCallId: "c1", event: { type: "nested", toolCallId: "c2", event: inner } }, 1);
  assert.deepEqual(told.all(), [{ key: "c1/c2/m", parent: "c1/c2", kind: "user", text: "deep" }]);
});

function tags(node: El | string): string[] { return typeof node === "string" ? [] : [node.tag, ...node.children.flatMap(tags)]; }
function hrefs(node: El | string): string[] { return typeof node === "string" ? [] : [...(node.attrs.href ? [node.attrs.href] : []), ...node.children.flatMap(hrefs)]; }

test("markdown becomes elements, and HTML in it text", () => {
  const made = markdown("# A **b** `c`\n\n- x\n- y\n\n```js\nlet z = '<script>';\n```\n\n| p | q |\n|---|---|\n| 1 | 2 |\n\n<img src=x onerror=alert(1)>\n");
  assert.deepEqual(made.map((one) => one.tag), ["h1", "ul", "pre", "table", "p"]);
  assert.ok(made.map(textOf).join().includes("<script>"));
  assert.ok(!made.flatMap(tags).some((tag) => ["script", "img", "iframe", "style"].includes(tag)));
  assert.equal(textOf(made[4]!), "<img src=x onerror=alert(1)>");
});

test("links go to the web and nowhere else", () => {
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "command:sojourn.delete", "//host/x", "vscode://x"]) {
    assert.deepEqual(markdown(`[x](${bad}) ![y](${bad}) <${bad}>`).flatMap(hrefs), [], bad);
  }
  assert.deepEqual(markdown("[x](https://example.org/a) ![y](http://example.org/b.png)").flatMap(hrefs), ["https://example.org/a", "http://example.org/b.png"]);
});

test("elements that load or run cannot be made", () => {
  for (const tag of ["script", "img", "iframe", "form", "style", "object"]) assert.throws(() => el(tag), /not one of a chat/);
  for (const attr of ["onclick", "src", "style", "srcdoc"]) assert.throws(() => el("div", { [attr]: "x" }), /not one of a chat/);
});

test("half a document never breaks the drawing", () => {
  const whole = "## T\n\n1. a\n   - b **c\n\n```py\nx\n```\n> q [l](http://e.org) `d\n\n|a|b|\n|-|-|\n|1|2|\n";
  for (let end = 0; end <= whole.length; end += 1) markdown(whole.slice(0, end));
});

test("a tool that asks shows its arguments and buttons, with a diff only where it edits a file", () => {
  const asks = (args: string): string => textOf(view({ key: "c", kind: "tool", callId: "c", name: "write", args, status: "asks", approvalId: "p" }));
  assert.match(asks('{"target": "x"}'), /write.*needs approval.*Arguments.*target.*Approve.*Deny.*Edit, answer/s);
  assert.doesNotMatch(asks('{"target": "x"}'), /diff/);
  assert.match(asks('{"path": "x", "content": "y"}'), /Show the diff/);
  const diff = view({ key: "c", kind: "tool", callId: "c", name: "edit", args: "{}", status: "asks", approvalId: "p", diff: "--- a\n+++ b\n-x\n+y" });
  assert.match(textOf(diff), /Change--- a\n\+\+\+ b\n-x\n\+y/);
});

test("edits are found under the usual names and fit exactly or not at all", () => {
  const cases: [Record<string, unknown>, string, string | RegExp][] = [
    [{ path: "f", content: "new" }, "old", "new"],
    [{ file_path: "f", old_string: "b", new_string: "B" }, "abc", "aBc"],
    [{ path: "f", edits: [{ oldText: "a", newText: "1" }, { oldText: "c", newText: "3" }] }, "abc", "1b3"],
    [{ path: "f", oldText: "x", newText: "y" }, "abc", /does not hold/],
    [{ path: "f", oldText: "a", newText: "y" }, "aba", /more than once/],
    [{ path: "f", oldText: "", newText: "new" }, "", "new"],
    [{ path: "f", oldText: "", newText: "new" }, "full", /old_text is empty/],
    [{ path: "f", oldText: "b", newText: "$&" }, "abc", "a$&c"],
    [{ path: "f", old_text: "a", new_text: "x", replace_all: true }, "aba", "xbx"],
  ];
  for (const [args, before, after] of cases) {
    const found = proposal(args);
    assert.ok(found, JSON.stringify(args));
    if (typeof after === "string") assert.equal(applied(found, before), after);
    else assert.throws(() => applied(found, before), after);
  }
  assert.equal(proposal({ target: "x", content: "y" }), undefined);
  assert.equal(proposal({ path: "x" }), undefined);
});

test("a call of an editor's tool that cannot be done is a result with the reason", async () => {
  const none = { async read() { return undefined; } } as unknown as EditorPort;
  for (const [name, args, reason] of [
    ["editor_nothing", {}, /no tool/], ["editor_read_buffer", {}, /"path" must be a string/], ["editor_read_buffer", { path: "x" }, /no file/],
    ["editor_apply_edit", { path: "x", old_text: "a", new_text: "b" }, /no file/], ["editor_open_location", { path: "x", line: 0 }, /whole number from 1/],
  ] as const) {
    const reply = await runTool(name, args, none);
    assert.equal(reply.isError, true);
    assert.match(reply.content, reason);
  }
});

test("the tools are those of every editor", () => {
  const every = readFileSync("../../tests/editors/tools.json", "utf8").replaceAll("from the agent's working directory", "relative to the workspace");
  assert.deepEqual(EDITOR_TOOLS.map((one) => ({ ...one })), JSON.parse(every));
});

test("a buffer is read by lines, and edited in every place when that is wanted", async () => {
  let file = "a\nb\na\n";
  const one = { async read() { return file; }, async replace(_where: string, _before: string, after: string) { file = after; return { unsaved: false }; } } as unknown as EditorPort;
  assert.equal((await runTool("editor_read_buffer", { path: "f" }, one)).content, file);
  assert.equal((await runTool("editor_read_buffer", { path: "f", line: 2 }, one)).content, "b\na\n");
  assert.equal((await runTool("editor_read_buffer", { path: "f", line: 2, lines: 1 }, one)).content, "b");
  await runTool("editor_apply_edit", { path: "f", old_text: "a", new_text: "c", replace_all: true }, one);
  assert.equal(file, "c\nb\nc\n");
});

test("an agent's standing is said in words", () => {
  const agent = { state: "idle", approvals: 0, pendingCalls: 0, inbox: 0 } as Agent;
  const cases: [Partial<Agent>, string][] = [
    [{}, "idle"], [{ state: "waiting", waitingFor: "approval" }, "waits for an approval of a child"], [{ state: "waiting", waitingFor: "approval", approvals: 2 }, "waits for 2 approvals"],
    [{ state: "waiting", waitingFor: "tool" }, "waits for the tool"], [{ state: "paused", pendingCalls: 1, inbox: 1 }, "paused, waits for 1 result, 1 in the inbox"],
    [{ pendingCalls: 2 }, "idle, waits for 2 results"], [{ state: "interrupted" }, "interrupted"],
  ];
  for (const [change, words] of cases) assert.equal(standing({ ...agent, ...change }), words);
  assert.deepEqual(cases.map(([change]) => needs({ ...agent, ...change })), [false, true, true, false, false, false, true]);
});
