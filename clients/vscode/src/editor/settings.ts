/** The settings, read anew each time. */
import { createHash } from "node:crypto";
import * as vscode from "vscode";

export type Notify = "all" | "needed" | "none";

export interface Settings {
  command: string[];
  notifications: Notify;
  editorTools: boolean;
  newAgent: { model?: string; preset?: string; tools: string[] };
}

export function settings(): Settings {
  const found = vscode.workspace.getConfiguration("sojourn");
  const model = found.get<string>("newAgent.model", "");
  const preset = found.get<string>("newAgent.preset", "");
  return {
    command: found.get<string[]>("command", ["sojourn"]),
    notifications: found.get<Notify>("notifications", "needed"),
    editorTools: found.get<boolean>("editorTools", true),
    newAgent: {
      tools: found.get<string[]>("newAgent.tools", ["*"]), ...(model ? { model } : {}), ...(preset ? { preset } : {}),
    },
  };
}

/** The first folder of the workspace. */
export function root(): vscode.Uri | undefined { return vscode.workspace.workspaceFolders?.[0]?.uri; }

/** One name per workspace: it owns the tools of this window, and a window that comes back is the same client. */
export function clientId(): string {
  const folder = root();
  return folder ? `vscode-${createHash("sha256").update(folder.toString()).digest("hex").slice(0, 12)}` : "vscode";
}
