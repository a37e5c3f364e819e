/** Where everything meets: the connection, the views, the commands. */
import * as vscode from "vscode";
import { Desk } from "../client/desk";
import { Link, type LinkOptions } from "../client/link";
import type { Agent } from "../client/protocol";
import { busy, name, needs, Roster, standing } from "../client/roster";
import { Approvals, PROPOSED } from "./approvals";
import { Chats, settle, why, type Chat } from "./chats";
import { bufferOf, fileAt, selectionOf, type Enclosure } from "./context";
import { Documents } from "./documents";
import { health } from "./health";
import { StatusBar, tell } from "./notices";
import { clientId, root, settings } from "./settings";
import { ToolHost } from "./toolhost";
import { AgentTree, type Node } from "./tree";

export interface Parts { link: Link; roster: Roster; desk: Desk; chats: Chats; approvals: Approvals; tree: AgentTree; documents: Documents }

export function activate(context: vscode.ExtensionContext): Parts {
  const log = vscode.window.createOutputChannel("Sojourn");
  const link = new Link(options(log));
  const roster = new Roster(link);
  const desk = new Desk(link);
  const approvals = new Approvals(desk, roster);
  const tools = new ToolHost(link, log);
  const documents = new Documents(link);
  const chats = new Chats({ link, roster, approvals, tools, extension: context.extensionUri });
  const tree = new AgentTree(link, roster, desk);
  const parts = { link, roster, desk, chats, approvals, tree, documents };
  const view = vscode.window.createTreeView("sojourn.agents", { treeDataProvider: tree });
  const bar = new StatusBar(link, roster, desk, (count) => {
    view.badge = count ? { value: count, tooltip: `${count} need you` } : undefined;
  });
  roster.news.on((news) => void tell(news, chats));
  link.changed.on((state) => {
    void vscode.commands.executeCommand("setContext", "sojourn.connected", state.kind === "up");
    if (state.kind === "failed") void offerHelp(state.reason);
  });
  context.subscriptions.push(
    log, view, bar.item, documents, { dispose: () => chats.dispose() }, { dispose: () => link.close() },
    vscode.window.registerWebviewPanelSerializer("sojourn.chat", chats),
    vscode.workspace.registerTextDocumentContentProvider(PROPOSED, approvals),
    vscode.languages.registerCodeLensProvider({ language: "json", scheme: "untitled" }, approvals),
    vscode.workspace.onDidChangeConfiguration((event) => { if (event.affectsConfiguration("sojourn.command")) link.restart(options(log)); }),
    ...commands(parts, log),
  );
  link.start();
  return parts;
}

export function deactivate(): void {
  // Everything is in the context's subscriptions; agents go on in the daemon.
}

function options(log: vscode.OutputChannel): LinkOptions {
  const folder = root();
  return {
    command: settings().command, clientId: clientId(), log: (line) => log.appendLine(line),
    ...(folder ? { rootUri: folder.toString(), cwd: folder.fsPath } : {}),
  };
}

async function offerHelp(reason: string): Promise<void> {
  const picked = await vscode.window.showErrorMessage(`Sojourn: ${reason}`, "Settings", "Help");
  if (picked === "Settings") await vscode.commands.executeCommand("workbench.action.openSettings", "sojourn.command");
  if (picked === "Help") await vscode.commands.executeCommand("sojourn.help");
}

function commands(parts: Parts, log: vscode.OutputChannel): vscode.Disposable[] {
  const { link, desk, chats, approvals } = parts;
  const table: Record<string, (argument?: unknown) => unknown> = {
    "sojourn.new": () => create(parts),
    "sojourn.open": async (one) => chats.show(await chosen(parts, one)),
    "sojourn.pick": async () => chats.show(await chosen(parts)),
    "sojourn.prompt": (one) => prompt(parts, one),
    "sojourn.askAboutSelection": () => ask(parts, selected()),
    "sojourn.askAboutEditor": () => ask(parts, bufferOf(editor().document)),
    "sojourn.askAboutFile": async (uri) => ask(parts, uri instanceof vscode.Uri ? await fileAt(uri) : bufferOf(editor().document)),
    "sojourn.push": async (one) => push(link, await chosen(parts, one)),
    "sojourn.stop": async (one) => link.call("agent/stop", { agentId: await chosen(parts, one, busy) }),
    "sojourn.resume": async (one) => link.call("agent/resume", { agentId: await chosen(parts, one), wait: false }),
    "sojourn.rename": async (one) => rename(parts, await chosen(parts, one)),
    "sojourn.delete": async (one) => remove(parts, await chosen(parts, one)),
    "sojourn.decide": async (one) => approvals.more(approvalOf(one) ?? (await openApproval(desk))),
    "sojourn.approve": async (one) => approvals.decide(approvalOf(one) ?? (await openApproval(desk)), { decision: "approve" }),
    "sojourn.deny": async (one) => approvals.decide(approvalOf(one) ?? (await openApproval(desk)), { decision: "deny" }),
    "sojourn.diff": async (one) => approvals.diff(approvalOf(one) ?? (await openApproval(desk))),
    "sojourn.runWithArguments": (uri) => approvals.runWith(uri as vscode.Uri | undefined),
    "sojourn.closeArguments": (uri) => approvals.putAside(uri as vscode.Uri),
    "sojourn.resolve": async (one) => settlePending(link, "resolve", one, parts),
    "sojourn.reject": async (one) => settlePending(link, "reject", one, parts),
    "sojourn.reconnect": () => link.start(options(log)),
    "sojourn.refresh": () => link.restart(options(log)),
    "sojourn.health": async () => vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ language: "markdown", content: await health(link) })),
    "sojourn.help": () => vscode.commands.executeCommand("workbench.action.openWalkthrough", "sojourn.sojourn#sojourn.start", false),
    "sojourn.log": () => log.show(),
  };
  return Object.entries(table).map(([id, run]) => vscode.commands.registerCommand(id, async (argument?: unknown) => {
    try {
      return await run(argument);
    } catch (error) {
      if (!(error instanceof Nothing)) void vscode.window.showErrorMessage(why(error));
      return undefined;
    }
  }));
}

/** The person chose nothing; nothing is said of it. */
class Nothing extends Error {}

async function create(parts: Parts): Promise<Chat> {
  const agent = await parts.link.call<Agent>("agent/create", { config: settings().newAgent });
  parts.roster.put(agent);
  return parts.chats.show(agent.agentId);
}

/** The agent that a command is for: of the tree, by its id, or as a person picks it. */
async function chosen(parts: Parts, argument?: unknown, wanted: (agent: Agent) => boolean = () => true): Promise<string> {
  if (typeof argument === "string") return argument;
  const node = argument as Node | undefined;
  if (node?.kind === "agent") return node.agent.agentId;
  const agents = parts.roster.roots().filter(wanted);
  const picked = await vscode.window.showQuickPick(
    [
      ...agents.map((agent) => ({ label: `${needs(agent) ? "$(bell-dot) " : ""}${name(agent)}`, description: standing(agent), agentId: agent.agentId })),
      { label: "$(add) New agent", description: "", agentId: "" },
    ],
    { placeHolder: "Which agent?" },
  );
  if (!picked) throw new Nothing();
  return picked.agentId || (await create(parts)).agentId;
}

async function prompt(parts: Parts, argument: unknown): Promise<void> {
  const agentId = await chosen(parts, argument);
  const content = await vscode.window.showInputBox({ prompt: `Prompt for ${agentId}`, ignoreFocusOut: true });
  if (!content) throw new Nothing();
  parts.chats.show(agentId);
  await parts.link.call("agent/prompt", { agentId, content, ifBusy: "queue", wait: false });
}

async function ask(parts: Parts, enclosure: Enclosure): Promise<void> {
  const agentId = parts.chats.active() ?? (await chosen(parts));
  parts.chats.show(agentId).enclose(enclosure);
}

function editor(): vscode.TextEditor {
  const found = vscode.window.activeTextEditor;
  if (!found) throw new Error("No text editor is active.");
  return found;
}

function selected(): Enclosure {
  const found = selectionOf(editor());
  if (!found) throw new Error("Nothing is selected.");
  return found;
}

async function push(link: Link, agentId: string): Promise<void> {
  const content = await vscode.window.showInputBox({ prompt: `Leave a message in the inbox of ${agentId}`, ignoreFocusOut: true });
  if (content) await link.call("inbox/push", { agentId, content });
}

async function rename(parts: Parts, agentId: string): Promise<void> {
  const before = parts.roster.get(agentId);
  const title = await vscode.window.showInputBox({ prompt: "A title", value: before?.title ?? "" });
  if (title !== undefined) await parts.link.call("agent/update", { agentId, title: title || null });
}

async function remove(parts: Parts, agentId: string): Promise<void> {
  const agent = parts.roster.get(agentId);
  const picked = await vscode.window.showWarningMessage(
    `Delete ${agent ? name(agent) : agentId} and its whole conversation? This cannot be undone.`, { modal: true }, "Delete",
  );
  if (picked === "Delete") await parts.link.call("agent/delete", { agentId, force: true });
}

function approvalOf(argument: unknown): string | undefined {
  if (typeof argument === "string") return argument;
  const node = argument as Node | undefined;
  return node?.kind === "approval" ? node.approval.approvalId : undefined;
}

async function openApproval(desk: Desk): Promise<string> {
  const picked = await vscode.window.showQuickPick(
    desk.all().map((one) => ({ label: one.toolName, description: one.agentId, detail: JSON.stringify(one.args), id: one.approvalId })),
    { placeHolder: "Which approval?" },
  );
  if (!picked) throw new Nothing();
  return picked.id;
}

async function settlePending(link: Link, way: "resolve" | "reject", argument: unknown, parts: Parts): Promise<void> {
  const node = argument as Node | undefined;
  if (node?.kind === "pending") return settle(link, way, node.agentId, node.call.callId);
  const agentId = await chosen(parts, argument, (agent) => agent.pendingCalls > 0);
  const { pendingCalls } = await link.call<{ pendingCalls: { callId: string; toolName: string; answered: boolean }[] }>("agent/pendingCalls", { agentId });
  const picked = await vscode.window.showQuickPick(
    pendingCalls.filter((one) => !one.answered).map((one) => ({ label: one.toolName, description: one.callId, callId: one.callId })),
    { placeHolder: "Which call's result?" },
  );
  if (!picked) throw new Nothing();
  return settle(link, way, agentId, picked.callId);
}
