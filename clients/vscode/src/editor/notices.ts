/** The status bar and what is said of agents in the background. */
import * as vscode from "vscode";
import type { Desk } from "../client/desk";
import type { Link } from "../client/link";
import { name, needs, type News, type Roster } from "../client/roster";
import type { Chats } from "./chats";
import { settings } from "./settings";

export class StatusBar {
  readonly item = vscode.window.createStatusBarItem("sojourn.status", vscode.StatusBarAlignment.Left, 10);

  constructor(private readonly link: Link, private readonly roster: Roster, desk: Desk, private readonly badge: (count: number) => void) {
    this.item.name = "Sojourn";
    link.changed.on(() => this.draw());
    roster.changed.on(() => this.draw());
    desk.changed.on(() => this.draw());
    this.draw();
    this.item.show();
  }

  private draw(): void {
    const { state } = this.link;
    const roots = this.roster.roots();
    const asking = roots.filter(needs).length;
    const running = roots.filter((one) => one.state === "running").length;
    this.badge(state.kind === "up" ? asking : 0);
    this.item.backgroundColor = asking && state.kind === "up" ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
    if (state.kind !== "up") {
      this.item.text = `$(debug-disconnect) Sojourn: ${state.kind === "connecting" ? "connecting …" : state.kind === "away" ? "shut down" : "not connected"}`;
      this.item.tooltip = "reason" in state ? state.reason : "";
      this.item.command = state.kind === "connecting" ? "sojourn.health" : "sojourn.reconnect";
      return;
    }
    const words = [running ? `${running} running` : "", asking ? `${asking} ${asking === 1 ? "needs" : "need"} you` : ""].filter(Boolean);
    this.item.text = `$(${asking ? "bell-dot" : running ? "loading~spin" : "hubot"}) Sojourn${words.length ? `: ${words.join(", ")}` : ""}`;
    this.item.tooltip = `Sojourn ${state.hello.serverInfo.version}, ${roots.length} agents`;
    this.item.command = "sojourn.pick";
  }
}

/** Says what an agent came to, when nobody looks at its chat. */
export async function tell(news: News, chats: Chats): Promise<void> {
  const { notifications } = settings();
  if (notifications === "none" || (notifications === "needed" && !news.urgent && news.agent.state !== "paused")) return;
  if (chats.sees(news.agent.agentId)) return;
  const show = news.urgent ? vscode.window.showWarningMessage : vscode.window.showInformationMessage;
  const picked = await show(`${name(news.agent)} ${news.text}`, "Open");
  if (picked === "Open") chats.show(news.agent.agentId);
}
