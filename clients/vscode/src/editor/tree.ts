/** The tree of agents: state, what they wait for, and below each its open approvals, pending results and children. */
import * as vscode from "vscode";
import type { Desk } from "../client/desk";
import type { Link } from "../client/link";
import type { Agent, Approval, PendingCall } from "../client/protocol";
import { busy, name, needs, resumable, standing, type Roster } from "../client/roster";
import { brief } from "./approvals";

export type Node =
  | { kind: "agent"; agent: Agent }
  | { kind: "approval"; approval: Approval }
  | { kind: "pending"; agentId: string; call: PendingCall };

const ICONS: Record<Agent["state"], string> = {
  idle: "circle-outline", running: "loading~spin", waiting: "bell-dot", paused: "debug-pause", interrupted: "debug-disconnect",
};

export class AgentTree implements vscode.TreeDataProvider<Node> {
  private readonly changes = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changes.event;

  constructor(private readonly link: Link, private readonly roster: Roster, private readonly desk: Desk) {
    roster.changed.on(() => this.changes.fire());
    desk.changed.on(() => this.changes.fire());
  }

  refresh(): void { this.changes.fire(); }

  getTreeItem(node: Node): vscode.TreeItem {
    if (node.kind === "agent") return agentItem(node.agent);
    if (node.kind === "approval") return approvalItem(node.approval);
    return pendingItem(node.agentId, node.call);
  }

  async getChildren(node?: Node): Promise<Node[]> {
    if (!node) return this.roster.roots().map((agent) => ({ kind: "agent", agent }));
    if (node.kind !== "agent") return [];
    const { agentId, pendingCalls } = node.agent;
    const open = this.desk.all().filter((one) => one.agentId === agentId);
    await this.roster.open(agentId);
    const pending = pendingCalls
      ? (await this.link.call<{ pendingCalls: PendingCall[] }>("agent/pendingCalls", { agentId })).pendingCalls
      : [];
    return [
      ...open.map((approval): Node => ({ kind: "approval", approval })),
      ...pending.map((call): Node => ({ kind: "pending", agentId, call })),
      ...this.roster.children(agentId).map((agent): Node => ({ kind: "agent", agent })),
    ];
  }
}

function agentItem(agent: Agent): vscode.TreeItem {
  const item = new vscode.TreeItem(name(agent), vscode.TreeItemCollapsibleState.Collapsed);
  item.id = agent.agentId;
  item.description = standing(agent);
  item.iconPath = new vscode.ThemeIcon(ICONS[agent.state], needs(agent) ? new vscode.ThemeColor("list.warningForeground") : undefined);
  item.contextValue = `agent ${busy(agent) ? "busy" : resumable(agent) ? "resumable" : "still"}`;
  item.tooltip = `${agent.agentId}\n${standing(agent)}\n${agent.config.cwd ?? ""}`.trim();
  item.command = { command: "sojourn.open", title: "Open the chat", arguments: [agent.agentId] };
  item.accessibilityInformation = { label: `${name(agent)}, ${standing(agent)}` };
  return item;
}

function approvalItem(approval: Approval): vscode.TreeItem {
  const item = new vscode.TreeItem(`${approval.toolName}?`);
  item.id = approval.approvalId;
  item.description = brief(approval.args);
  item.iconPath = new vscode.ThemeIcon("bell-dot", new vscode.ThemeColor("list.warningForeground"));
  item.contextValue = "approval";
  item.command = { command: "sojourn.decide", title: "Decide", arguments: [approval.approvalId] };
  return item;
}

function pendingItem(agentId: string, call: PendingCall): vscode.TreeItem {
  const item = new vscode.TreeItem(call.toolName);
  item.id = `${agentId}/${call.callId}`;
  item.description = call.answered ? "its result waits to be read" : "its result is owed";
  item.iconPath = new vscode.ThemeIcon("watch");
  item.contextValue = call.answered ? "answered" : "pending";
  item.tooltip = `${call.callId}\n${brief(call.args)}`;
  return item;
}
