/** The whole extension in a fake editor, with a real daemon behind it and real files below it. */
import assert from "node:assert/strict";
import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { Item, Patch, ToolItem } from "../src/client/conversation";
import type { Head } from "../src/client/chat";
import type { Agent } from "../src/client/protocol";
import { activate, type Parts } from "../src/editor/extension";
import { editorPort } from "../src/editor/port";
import { Daemon, until } from "./daemon";
import * as fake from "./fake_vscode";
import { answers, commands, configuration, registeredCommands, shown, virtual, window, workspace } from "./fake_vscode";

const LIMIT = { timeout: 150_000 };
const daemon = new Daemon();
const subscriptions: { dispose(): void }[] = [];
let parts: Parts;

before(async () => {
  Object.assign(process.env, Object.fromEntries(Object.entries(daemon.env).filter(([key]) => key.startsWith("SOJOURN_"))));
  configuration["sojourn.command"] = daemon.command;
  configuration["sojourn.notifications"] = "all";
  workspace.workspaceFolders = [{ uri: fake.Uri.file(daemon.folder) }];
  parts = activate({ subscriptions, extensionUri: fake.Uri.file("/extension") } as never);
  await until("connected", () => parts.link.state.kind === "up", 60_000);
});
after(async () => {
  for (const one of subscriptions) one.dispose();
  await daemon.close();
});

/** A new agent, its panel, and what its page would have drawn. */
async function chat(agentId: string): Promise<{ panel: fake.Panel; items: () => Map<string, Item>; tool: () => ToolItem | undefined }> {
  await parts.link.call<Agent>("agent/create", { agentId, config: { tools: ["*"] } });
  await until("the roster knows it", () => parts.roster.get(agentId));
  await commands.executeCommand("sojourn.open", agentId);
  const panel = shown.panels.at(-1)!;
  panel.say({ type: "ready" });
  const items = (): Map<string, Item> => drawn(panel);
  return { panel, items, tool: () => [...items().values()].find((one): one is ToolItem => one.kind === "tool") };
}

function drawn(panel: fake.Panel): Map<string, Item> {
  const items = new Map<string, Item>();
  for (const message of panel.posted) {
    if (message.type !== "items") continue;
    const patch = message.patch as Patch;
    if (patch.reset) items.clear();
    for (const key of patch.removed) items.delete(key);
    for (const item of patch.changed) items.set(item.key, item);
  }
  return items;
}

const head = (panel: fake.Panel): Head | undefined => panel.posted.filter((one) => one.type === "head").at(-1)?.head as Head | undefined;
const said = (pattern: RegExp) => (): boolean => shown.messages.some((one) => pattern.test(one.text));
const texts = (items: Map<string, Item>): string[] => [...items.values()].flatMap((one) => (one.kind === "text" ? [one.text] : []));

test("what the manifest names is there, and nothing else", () => {
  const manifest = JSON.parse(readFileSync("package.json", "utf8")) as { contributes: { commands: { command: string }[] } };
  assert.deepEqual([...registeredCommands.keys()].sort(), manifest.contributes.commands.map((one) => one.command).sort());
});

test("the page may load and run nothing but its own", LIMIT, async () => {
  const { panel } = await chat("page");
  assert.match(panel.webview.html, /default-src 'none'; base-uri 'none'; form-action 'none'; style-src vscode-webview:; script-src 'nonce-[0-9a-f]{32}'"/);
  assert.equal(panel.webview.html.match(/<script/g)?.length, 1);
  assert.doesNotMatch(panel.webview.html, /unsafe|https?:/);
});

test("a prompt with the selection and an unsaved buffer, and its answer in the page", LIMIT, async () => {
  const { panel, items } = await chat("context");
  const file = join(daemon.folder, "code.txt");
  writeFileSync(file, "alpha\nbeta\n");
  const document = await workspace.openTextDocument(fake.Uri.file(file));
  document.type("alpha\nBETA\n");
  window.activeTextEditor = { document, selection: new fake.Selection(1, 0, 1, 4) };
  await commands.executeCommand("sojourn.askAboutSelection");
  await commands.executeCommand("sojourn.askAboutEditor");
  const chips = panel.posted.filter((one) => one.type === "chips").at(-1)?.chips as { id: string; label: string }[];
  assert.deepEqual(chips.map((one) => one.label), ["code.txt:2–2", "code.txt (unsaved)"]);
  panel.say({ type: "send", text: "what is this?" });
  await until("answered", () => texts(items()).some((one) => one.startsWith("You said: what is this?")));
  const { messages } = await parts.link.call<{ messages: { content: { type: string; text?: string; uri?: string }[] }[] }>("agent/messages", { agentId: "context" });
  assert.deepEqual(messages[0]?.content.slice(1).map((one) => [one.text, one.uri?.split("#")[1]]), [["BETA", "L2-L2"], ["alpha\nBETA\n", undefined]]);
  assert.ok(panel.posted.some((one) => one.type === "sent" && one.ok));
  assert.equal((panel.posted.filter((one) => one.type === "chips").at(-1)?.chips as unknown[]).length, 0);
  await until("the head says so", () => head(panel)?.standing === "idle" && head(panel)?.busy === false);
  assert.equal(readFileSync(file, "utf8"), "alpha\nbeta\n");
});

test("an edit asks by a notification with its diff, keeps what is unsaved, and can be undone", LIMIT, async () => {
  const file = join(daemon.folder, "notes.txt");
  writeFileSync(file, "one\ntwo\nthree\n");
  const document = await workspace.openTextDocument(fake.Uri.file(file));
  document.type("one\ntwo\nthree, unsaved\n");
  const { panel, tool } = await chat("edits");
  await until("offered", () => shown.panels.length && offered("edits"));
  answers.push({ to: /edits wants to run editor_apply_edit/, with: "Show Diff" }, { to: /edits wants to run editor_apply_edit/, with: "Approve" });
  panel.say({ type: "send", text: "edit it" });
  await until("done", () => tool()?.status === "done");
  const diff = shown.executed.find((one) => one[0] === "vscode.diff");
  assert.equal(String(diff?.[1]), `file://${file}`);
  assert.equal(document.getText(), "one\nTWO\nthree, unsaved\n");
  assert.equal(document.isDirty, true);
  assert.equal(readFileSync(file, "utf8"), "one\ntwo\nthree\n");
  document.undo();
  assert.equal(document.getText(), "one\ntwo\nthree, unsaved\n");
});

test("the daemon's own tools see and change what is not saved", LIMIT, async () => {
  const file = join(daemon.folder, "draft.txt");
  writeFileSync(file, "one\ntwo\n");
  const document = await workspace.openTextDocument(fake.Uri.file(file));
  document.type("𝒳 mine\ntwo\n");
  await parts.link.call<Agent>("agent/create", { agentId: "drafts", config: { tools: ["read", "edit"], approvals: { "*": "allow" }, cwd: daemon.folder } });
  const ask = async (content: string): Promise<string> =>
    (await parts.link.call<{ output: string }>("agent/prompt", { agentId: "drafts", content })).output;
  await until("it is told", async () => (await ask("peruse it")).includes("𝒳 mine\ntwo"));
  assert.match(await ask("replace mine ours"), /Edited/);
  assert.equal(document.getText(), "𝒳 ours\ntwo\n");
  assert.equal(readFileSync(file, "utf8"), "one\ntwo\n");
  document.undo();
  await until("it is told", async () => (await ask("peruse it")).includes("𝒳 mine"));
  const range = { start: { line: 0, character: 0 }, end: { line: 0, character: 0 } };
  const change = { textDocument: { uri: document.uri.toString(), version: document.version }, edits: [{ range, newText: "late " }] };
  document.type("𝒳 mine, and more\n");
  assert.deepEqual(await parts.documents.apply({ edit: { documentChanges: [change] } }), { applied: false, failureReason: "the user has changed it meanwhile" });
  assert.equal(document.getText(), "𝒳 mine, and more\n");
  await document.save();
  assert.match(await ask("replace mine theirs"), /Edited/);
  assert.equal(readFileSync(file, "utf8"), "𝒳 theirs, and more\n");
});

test("an edit by a tool of the daemon shows its change, in the chat and as a diff of the editor", LIMIT, async () => {
  const file = join(daemon.folder, "poem.txt");
  writeFileSync(file, "a rose\nis a flower\n");
  const { panel, tool } = await chat("mends");
  const before = shown.executed.length;
  answers.push({ to: /mends wants to run edit/, with: "Show Diff" });
  panel.say({ type: "send", text: "mend it" });
  await until("asked", () => tool()?.status === "asks" && tool()?.diff);
  assert.match(tool()!.diff!, /-a rose\n\+a ROSE\n/);
  await until("a diff", () => shown.executed.slice(before).some((one) => one[0] === "vscode.diff"));
  const [, left, right] = shown.executed.slice(before).find((one) => one[0] === "vscode.diff")!;
  assert.equal(String(left), `file://${file}`);
  assert.equal(virtual.get("sojourn-proposed")!.provideTextDocumentContent(right as fake.Uri), "a ROSE\nis a flower\n");
  panel.say({ type: "approve", approvalId: tool()!.approvalId });
  await until("done", () => tool()?.status === "done");
  assert.equal(readFileSync(file, "utf8"), "a ROSE\nis a flower\n");
});

let offers: string[] = [];
function offered(agentId: string): boolean {
  void parts.link.call<{ tools: { name: string; source: string }[] }>("tool/list", { agentId }).then(({ tools }) => {
    offers = tools.filter((one) => one.source === `client:${parts.link.clientId}`).map((one) => one.name);
  });
  return offers.includes("editor_apply_edit");
}

test("the arguments are edited in a document of their own, and what stands there runs", LIMIT, async () => {
  const { panel, tool } = await chat("arguments");
  panel.say({ type: "send", text: "deploy" });
  await until("asked", () => tool()?.status === "asks" && parts.desk.of("arguments").length);
  assert.ok(said(/arguments wants to run demo_deploy: target: site/)());
  assert.equal(shown.badge?.value, 1);
  assert.match(shown.status.text, /1 needs you/);
  answers.push({ to: /demo_deploy: target: site/, with: "Edit the arguments …" });
  panel.say({ type: "decide", approvalId: tool()!.approvalId });
  await until("a document", () => workspace.textDocuments.some((one) => one.uri.scheme === "untitled"));
  const document = workspace.textDocuments.find((one) => one.uri.scheme === "untitled")!;
  assert.equal(parts.approvals.provideCodeLenses(document as never).length, 2);
  document.type("{ not json");
  await commands.executeCommand("sojourn.runWithArguments", document.uri);
  assert.ok(said(/The arguments are not JSON/)());
  document.type('{"target": "staging"}');
  await commands.executeCommand("sojourn.runWithArguments", document.uri);
  await until("done", () => tool()?.output === "Deployed staging.");
  assert.deepEqual(parts.approvals.provideCodeLenses(document as never), []);
});

test("a pending result is resolved by hand from the tree, and resume reads it", LIMIT, async () => {
  const { panel, items, tool } = await chat("late");
  panel.say({ type: "send", text: "build" });
  await until("pending", () => tool()?.status === "pending" && parts.roster.get("late")?.state === "idle");
  await until("counted", () => parts.roster.get("late")?.pendingCalls === 1);
  const [agent] = (await parts.tree.getChildren()).filter((one) => one.kind === "agent" && one.agent.agentId === "late");
  assert.equal(parts.tree.getTreeItem(agent!).description, "idle, waits for 1 result");
  const [pending] = await parts.tree.getChildren(agent);
  assert.equal(parts.tree.getTreeItem(pending!).contextValue, "pending");
  answers.push({ to: /The result of msg-/, with: "built by hand" });
  await commands.executeCommand("sojourn.resolve", pending);
  await until("resumable", () => head(panel)?.resumable);
  panel.say({ type: "resume" });
  await until("told", () => texts(items()).includes("It is done: built by hand"));
  assert.equal(tool()?.status, "done");
});

test("a busy agent is pushed to and stopped; one in the background that finishes is told of", LIMIT, async () => {
  const { panel, items, tool } = await chat("nap");
  panel.say({ type: "send", text: "nap" });
  await until("running", () => tool()?.status === "running" && head(panel)?.busy);
  panel.say({ type: "send", text: "wake up" });
  await until("queued", () => [...items().values()].some((one) => one.kind === "queued" && one.text === "wake up"));
  panel.visible = false;
  await commands.executeCommand("sojourn.stop", "nap");
  await until("told", said(/^nap has finished/));
  await until("drawn", () => tool()?.status === "failed");
});

test("a window that comes back draws the same, and so does one whose daemon was killed", LIMIT, async () => {
  const { panel, items, tool } = await chat("back");
  panel.say({ type: "send", text: "build" });
  await until("pending", () => tool()?.status === "pending" && parts.roster.get("back")?.state === "idle");
  await until("whole", () => [...items().values()].some((one) => one.kind === "text" && !one.live && one.text.startsWith("demo_build says: ")));
  const seen = [...items().values()];
  daemon.kill9();
  await until("said", () => head(panel)?.offline !== undefined && /not connected|connecting/.test(shown.status.text));
  await until("back", () => parts.link.state.kind === "up" && head(panel)?.offline === undefined, 30_000);
  assert.deepEqual([...items().values()], seen);
  panel.dispose();
  const again = window.createWebviewPanel("sojourn.chat", "back");
  await parts.chats.deserializeWebviewPanel(again as never, { agentId: "back" });
  again.say({ type: "ready" });
  await until("the same", () => drawn(again).size === seen.length);
  assert.deepEqual([...drawn(again).values()], seen);
});

test("the tools of the editor see what is open and stay inside the workspace", LIMIT, async () => {
  const file = join(daemon.folder, "seen.txt");
  writeFileSync(file, "x\ny\n");
  writeFileSync(join(daemon.root, "secret.txt"), "secret");
  symlinkSync(join(daemon.root, "secret.txt"), join(daemon.folder, "link.txt"));
  const uri = fake.Uri.file(file);
  window.tabGroups.all = [{ tabs: [{ input: new fake.TabInputText(uri) }] }];
  shown.diagnostics.push([uri, [{ range: new fake.Range(1, 0, 1, 1), severity: 0, message: "bad y" }]]);
  const document = await workspace.openTextDocument(uri);
  window.activeTextEditor = { document, selection: new fake.Selection(1, 0, 1, 0) };
  assert.deepEqual(editorPort.buffers(), [{ path: "seen.txt", language: "plaintext", unsaved: false, active: true, lines: 3 }]);
  assert.deepEqual(editorPort.problems("seen.txt"), [{ path: "seen.txt", line: 2, severity: "error", message: "bad y" }]);
  assert.deepEqual(editorPort.selection(), { path: "seen.txt", language: "plaintext", unsaved: false, startLine: 2, endLine: 2, text: "y" });
  for (const path of ["../secret.txt", join(daemon.root, "secret.txt"), "link.txt", "file:///etc/passwd"]) {
    await assert.rejects(editorPort.read(path), /outside of the workspace|out of the workspace/);
  }
  assert.equal(await editorPort.read("none.txt"), undefined);
  await editorPort.replace("new.txt", undefined, "fresh\n");
  assert.equal(readFileSync(join(daemon.folder, "new.txt"), "utf8"), "fresh\n");
  await assert.rejects(editorPort.replace("seen.txt", "something else", "z"), /changed meanwhile/);
  await editorPort.open("seen.txt", 2);
  assert.equal(shown.opened.at(-1)?.selection?.start.line, 1);
});

test("the health check says what works", LIMIT, async () => {
  await commands.executeCommand("sojourn.health");
  const page = workspace.textDocuments.at(-1)!.getText();
  assert.match(page, /^# Sojourn: all is well/);
  assert.match(page, /models: .*scripted; new agents use scripted/);
  assert.match(page, /registrations of this editor's tools/);
});

test("messages of the page that are none are left alone", LIMIT, async () => {
  const { panel } = await chat("odd");
  const before = shown.messages.length;
  for (const odd of [null, 1, "x", {}, { type: "approve" }, { type: "nonsense" }, { type: "send", text: 1 }, { type: "constructor" }]) panel.say(odd);
  panel.say({ type: "resume" });
  await until("only the last was heard", () => shown.messages.length > before);
  assert.equal(shown.messages.length, before + 1);
  assert.ok(virtual.has("sojourn-proposed"));
});
