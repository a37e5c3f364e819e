/** The chats of this window: one panel per agent, each following its agent's events, also after the window came back. */
import * as vscode from "vscode";
import { fromPage, type FromPage, type Head, type ToPage } from "../client/chat";
import { Follower } from "../client/follower";
import { RpcError, type Link } from "../client/link";
import { ERRORS, type Agent } from "../client/protocol";
import { busy, name, resumable, standing, type Roster } from "../client/roster";
import type { Approvals } from "./approvals";
import { choose, type Enclosure } from "./context";
import { page } from "./page";
import type { ToolHost } from "./toolhost";

const VIEW = "sojourn.chat";
const FLUSH_MS = 30;

export interface Around { link: Link; roster: Roster; approvals: Approvals; tools: ToolHost; extension: vscode.Uri }

export class Chats implements vscode.WebviewPanelSerializer {
  private readonly open = new Map<string, Chat>();

  constructor(private readonly around: Around) {}

  /** Shows an agent's chat. */
  show(agentId: string): Chat {
    const known = this.open.get(agentId);
    if (known) {
      known.panel.reveal();
      return known;
    }
    const panel = vscode.window.createWebviewPanel(VIEW, agentId, vscode.ViewColumn.Beside, {
      enableScripts: true, retainContextWhenHidden: false,
    });
    return this.take(panel, agentId);
  }

  /** After a reload of the window: the panel is there, the conversation is the daemon's. */
  async deserializeWebviewPanel(panel: vscode.WebviewPanel, state: unknown): Promise<void> {
    const agentId = (state as { agentId?: unknown } | undefined)?.agentId;
    if (typeof agentId === "string" && !this.open.has(agentId)) this.take(panel, agentId);
    else panel.dispose();
  }

  /** Whether a person sees this agent's chat right now. */
  sees(agentId: string): boolean { return this.open.get(agentId)?.panel.visible ?? false; }

  /** The agent whose chat is in front. */
  active(): string | undefined {
    return [...this.open.values()].find((chat) => chat.panel.active)?.agentId ?? [...this.open.values()].find((chat) => chat.panel.visible)?.agentId;
  }

  dispose(): void { for (const chat of [...this.open.values()]) chat.panel.dispose(); }

  private take(panel: vscode.WebviewPanel, agentId: string): Chat {
    const chat = new Chat(panel, agentId, this.around);
    this.open.set(agentId, chat);
    panel.onDidDispose(() => this.open.delete(agentId));
    return chat;
  }
}

export class Chat {
  readonly follower: Follower;
  private readonly enclosures = new Map<string, Enclosure>();
  private readonly parts: { dispose(): void }[];
  private ready = false;
  private timer: NodeJS.Timeout | undefined;
  private counter = 0;
  private draft: string | undefined;

  constructor(readonly panel: vscode.WebviewPanel, readonly agentId: string, private readonly around: Around) {
    panel.webview.options = { enableScripts: true, localResourceRoots: [vscode.Uri.joinPath(around.extension, "dist"), vscode.Uri.joinPath(around.extension, "media")] };
    const icon = (theme: string): vscode.Uri => vscode.Uri.joinPath(around.extension, "media", `chat-${theme}.svg`);
    panel.iconPath = { light: icon("light"), dark: icon("dark") };
    this.follower = new Follower(around.link, agentId);
    this.parts = [
      this.follower.changed.on(() => this.soon()),
      this.follower.lost.on((reason) => void vscode.window.showErrorMessage(`The chat of ${agentId}: ${reason}`)),
      around.roster.changed.on(() => { this.offerTools(); this.soon(); }),
      around.link.changed.on(() => this.soon()),
      panel.webview.onDidReceiveMessage((message: unknown) => {
        const checked = fromPage(message);
        if (checked) void this.said(checked).catch((error: unknown) => vscode.window.showErrorMessage(why(error)));
      }),
      panel.onDidChangeViewState(() => { if (!panel.visible) this.ready = false; }),
    ];
    panel.onDidDispose(() => {
      clearTimeout(this.timer);
      this.follower.dispose();
      for (const part of this.parts) part.dispose();
    });
    panel.webview.html = page(panel.webview, around.extension);
    this.offerTools();
  }

  /** Puts something beside the next prompt. */
  enclose(enclosure: Enclosure): void {
    this.enclosures.set(`chip-${(this.counter += 1)}`, enclosure);
    this.chips();
  }

  /** Puts a text into the composer. */
  propose(text: string): void {
    this.draft = text;
    this.post({ type: "draft", text });
  }

  private offerTools(): void {
    const agent = this.agent();
    if (agent) void this.around.tools.offer(agent);
  }

  private agent(): Agent | undefined { return this.around.roster.get(this.agentId); }

  private async said(message: FromPage): Promise<void> {
    const { link, approvals } = this.around;
    const { agentId } = this;
    switch (message.type) {
      case "ready": return this.begin();
      case "send": return this.send(message.text);
      case "attach": {
        const enclosure = await choose();
        if (enclosure) this.enclose(enclosure);
        return;
      }
      case "drop": this.enclosures.delete(message.id); return this.chips();
      case "stop": await link.call("agent/stop", { agentId }); return;
      case "resume": await link.call("agent/resume", { agentId, wait: false }); return;
      case "approve": return approvals.decide(message.approvalId, { decision: "approve" });
      case "deny": return approvals.decide(message.approvalId, { decision: "deny" });
      case "decide": return approvals.more(message.approvalId);
      case "diff": return approvals.diff(message.approvalId);
      case "resolve": case "reject": return this.settle(message.type, message.callId, message.key);
      case "unqueue": await link.call("inbox/remove", { agentId, itemId: message.itemId }); return;
    }
  }

  private begin(): void {
    this.ready = true;
    this.follower.conversation.retell();
    this.flush();
    this.chips();
    if (this.draft !== undefined) this.post({ type: "draft", text: this.draft });
    this.draft = undefined;
  }

  /** A busy agent reads it in its inbox; otherwise it starts a run. What is not taken stays in the composer. */
  private async send(text: string): Promise<void> {
    const parts = [{ type: "text", text }, ...[...this.enclosures.values()].map((one) => one.part)];
    const content = parts.length === 1 ? text : parts;
    const { agentId } = this;
    try {
      if (busy(this.agent())) await this.around.link.call("inbox/push", { agentId, content });
      else await this.around.link.call("agent/prompt", { agentId, content, ifBusy: "queue", wait: false });
      this.enclosures.clear();
      this.chips();
      this.post({ type: "sent", ok: true });
    } catch (error) {
      this.post({ type: "sent", ok: false, error: why(error) });
    }
  }

  /** `key` tells the calls of children apart, whose agent is another one. */
  private async settle(way: "resolve" | "reject", callId: string, key: string): Promise<void> {
    const agentId = key === callId ? this.agentId : this.around.roster.all().find((one) => one.parent && key.split("/").at(-2) === one.parent.toolCallId)?.agentId;
    if (!agentId) throw new Error("This result is owed to a child; open its own chat from the tree.");
    await settle(this.around.link, way, agentId, callId);
  }

  private soon(): void {
    this.timer ??= setTimeout(() => { this.timer = undefined; this.flush(); }, FLUSH_MS);
  }

  private flush(): void {
    const agent = this.agent();
    this.panel.title = (agent && name(agent)) || this.follower.conversation.title || this.agentId;
    if (!this.ready) return;
    this.post({ type: "head", head: this.head(agent) });
    const patch = this.follower.conversation.drain();
    if (patch.reset || patch.changed.length || patch.removed.length) this.post({ type: "items", patch });
  }

  private head(agent: Agent | undefined): Head {
    const { state } = this.around.link;
    const { budget } = this.follower.conversation;
    return {
      title: this.panel.title, agentId: this.agentId, state: agent?.state ?? "idle", standing: agent ? standing(agent) : "",
      model: agent?.config.model ?? "", busy: busy(agent), resumable: resumable(agent),
      ...(budget?.window ? { full: budget.used / budget.window } : {}),
      ...(state.kind === "up" ? {} : { offline: "reason" in state ? state.reason : "Connecting …" }),
    };
  }

  private chips(): void {
    this.post({ type: "chips", chips: [...this.enclosures].map(([id, { label }]) => ({ id, label })) });
  }

  private post(message: ToPage): void {
    if (this.ready) void this.panel.webview.postMessage(message);
  }
}

/** Asks for a pending call's result, or why it failed, and hands it in. */
export async function settle(link: Link, way: "resolve" | "reject", agentId: string, callId: string): Promise<void> {
  const prompt = way === "resolve" ? `The result of ${callId}` : `Why ${callId} failed`;
  const text = await vscode.window.showInputBox({ prompt, ignoreFocusOut: true });
  if (text === undefined) return;
  try {
    await link.call(`inbox/${way}`, { agentId, callId, ...(way === "resolve" ? { content: text } : { error: text }) });
  } catch (error) {
    if (!(error instanceof RpcError) || error.code !== ERRORS.alreadyDecided) throw error;
    void vscode.window.showInformationMessage(error.message);
  }
}

export function why(error: unknown): string { return error instanceof Error ? error.message : String(error); }
