/** Approvals as the editor's own prompts: a notification, the diff for edits, and the arguments to be edited. */
import { resolve } from "node:path";
import * as vscode from "vscode";
import type { Desk } from "../client/desk";
import { applied, proposal } from "../client/edits";
import type { Approval, Args, Verdict } from "../client/protocol";
import { name, type Roster } from "../client/roster";
import { EDITOR_TOOLS } from "../client/tools";
import { inside } from "./port";

export const PROPOSED = "sojourn-proposed";

export class Approvals implements vscode.TextDocumentContentProvider, vscode.CodeLensProvider {
  private readonly texts = new Map<string, string>();
  /** Untitled documents with arguments, and whose they are. */
  private readonly edited = new Map<string, string>();
  private readonly lensesChanged = new vscode.EventEmitter<void>();
  readonly onDidChangeCodeLenses = this.lensesChanged.event;

  constructor(private readonly desk: Desk, private readonly roster: Roster) {
    desk.asked.on((approval) => void this.notify(approval));
    desk.withdrawn.on(({ approvalId }) => {
      for (const uri of this.texts.keys()) if (uri.includes(`/${approvalId}/`)) this.texts.delete(uri);
    });
  }

  provideTextDocumentContent(uri: vscode.Uri): string { return this.texts.get(uri.toString()) ?? ""; }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    if (!this.edited.has(document.uri.toString())) return [];
    const top = new vscode.Range(0, 0, 0, 0);
    return [
      new vscode.CodeLens(top, { title: "$(play) Run with these arguments", command: "sojourn.runWithArguments", arguments: [document.uri] }),
      new vscode.CodeLens(top, { title: "$(close) Leave it open", command: "sojourn.closeArguments", arguments: [document.uri] }),
    ];
  }

  /** Asks until it is decided here, or the notification is put aside; it stays open then, in the chat and the tree. */
  private async notify(approval: Approval): Promise<void> {
    const agent = this.roster.get(approval.agentId);
    const edit = approval.preview ?? proposal(approval.args);
    const buttons = ["Approve", "Deny", ...(edit ? ["Show Diff"] : []), "More …"];
    const text = `${agent ? name(agent) : approval.agentId} wants to run ${approval.toolName}: ${brief(approval.args)}`;
    for (;;) {
      const picked = await vscode.window.showWarningMessage(text, ...buttons);
      if (picked === "Approve") return this.decide(approval.approvalId, { decision: "approve" });
      if (picked === "Deny") return this.decide(approval.approvalId, { decision: "deny" });
      if (picked === "More …") return this.more(approval.approvalId);
      if (picked !== "Show Diff" || !this.desk.get(approval.approvalId)) return;
      await this.diff(approval.approvalId);
    }
  }

  async decide(approvalId: string, verdict: Verdict): Promise<void> {
    const other = await this.desk.decide(approvalId, verdict);
    if (other) void vscode.window.showInformationMessage(`Nothing was changed: ${other}.`);
  }

  /** Everything that can be decided. */
  async more(approvalId: string): Promise<void> {
    const approval = this.desk.get(approvalId);
    if (!approval) return void vscode.window.showInformationMessage("This approval is no longer open.");
    const choices: { label: string; detail?: string; run: () => Promise<void> }[] = [
      { label: "Approve", run: () => this.decide(approvalId, { decision: "approve" }) },
      { label: "Approve for this run", detail: `Every call of ${approval.toolName} until the run ends`, run: () => this.decide(approvalId, { decision: "approve", scope: "run" }) },
      { label: "Approve for this agent", detail: `Every call of ${approval.toolName} from now on`, run: () => this.decide(approvalId, { decision: "approve", scope: "agent" }) },
      ...(approval.editable ? [{ label: "Edit the arguments …", run: () => this.edit(approval) }] : []),
      { label: "Answer instead …", detail: "Nothing runs; what you write is the result", run: () => this.ask(approvalId, "The result", (content) => ({ decision: "answer", content })) },
      { label: "Deny", run: () => this.decide(approvalId, { decision: "deny" }) },
      { label: "Deny, and say why …", run: () => this.ask(approvalId, "Why not", (reason) => ({ decision: "deny", reason })) },
      { label: "Stop the run", run: () => this.decide(approvalId, { decision: "abort" }) },
    ];
    const picked = await vscode.window.showQuickPick(choices, { placeHolder: `${approval.toolName}: ${brief(approval.args)}` });
    await picked?.run();
  }

  /** Shows what an edit would do, or the arguments where it is none. */
  async diff(approvalId: string): Promise<void> {
    const approval = this.desk.get(approvalId);
    if (!approval) return;
    const edit = proposal(approval.args);
    if (!edit) return this.asText(approval);
    let file: vscode.Uri;
    let before: string | undefined;
    let after: string;
    try {
      file = inside(this.fullPath(approval, edit.path));
      before = await vscode.workspace.openTextDocument(file).then((document) => document.getText(), () => undefined);
      after = applied(edit, before ?? "");
    } catch (error) {
      if (approval.preview) return this.asText(approval);
      return void vscode.window.showWarningMessage(`This edit does not fit ${edit.path}: ${(error as Error).message}`);
    }
    const left = before === undefined ? this.virtual(`${approvalId}/nothing/${edit.path}`, "") : file;
    const right = this.virtual(`${approvalId}/proposed/${edit.path}`, after);
    await vscode.commands.executeCommand("vscode.diff", left, right, `${edit.path}: ${approval.toolName}, not done yet`, { preview: true });
  }

  /** The change as the daemon tells it, or the arguments. */
  private asText(approval: Approval): void {
    const [name, text] = approval.preview
      ? [`${approval.preview.path}.diff`, approval.preview.text]
      : ["arguments.json", JSON.stringify(approval.args, null, 2)];
    void vscode.window.showTextDocument(this.virtual(`${approval.approvalId}/${name}`, text));
  }

  /** A path in a call of the daemon's tools is meant from the agent's directory. */
  private fullPath(approval: Approval, where: string): string {
    const cwd = this.roster.get(approval.agentId)?.config.cwd;
    const ours = EDITOR_TOOLS.some((one) => one.name === approval.toolName);
    return cwd && !ours ? resolve(cwd, where) : where;
  }

  private async edit(approval: Approval): Promise<void> {
    const document = await vscode.workspace.openTextDocument({ language: "json", content: JSON.stringify(approval.args, null, 2) });
    this.edited.set(document.uri.toString(), approval.approvalId);
    await vscode.window.showTextDocument(document);
    this.lensesChanged.fire();
  }

  /** The command behind the lens: the arguments in the document are the ones that run. */
  async runWith(uri: vscode.Uri | undefined): Promise<void> {
    const where = uri ?? vscode.window.activeTextEditor?.document.uri;
    const document = vscode.workspace.textDocuments.find((one) => one.uri.toString() === where?.toString());
    const approvalId = document && this.edited.get(document.uri.toString());
    if (!document || !approvalId) return void vscode.window.showInformationMessage("This document holds no arguments of an approval.");
    let args: unknown;
    try {
      args = JSON.parse(document.getText());
    } catch (error) {
      return void vscode.window.showErrorMessage(`The arguments are not JSON: ${(error as Error).message}`);
    }
    if (typeof args !== "object" || args === null || Array.isArray(args)) {
      return void vscode.window.showErrorMessage("The arguments must be a JSON object.");
    }
    await this.decide(approvalId, { decision: "edit", arguments: args as Args });
    await this.putAside(document.uri);
  }

  /** Closes the document; the approval stays open unless it was decided. */
  async putAside(uri: vscode.Uri): Promise<void> {
    this.edited.delete(uri.toString());
    this.lensesChanged.fire();
    await vscode.window.showTextDocument(uri);
    await vscode.commands.executeCommand("workbench.action.revertAndCloseActiveEditor");
  }

  private async ask(approvalId: string, prompt: string, verdict: (text: string) => Verdict): Promise<void> {
    const text = await vscode.window.showInputBox({ prompt, ignoreFocusOut: true });
    if (text !== undefined) await this.decide(approvalId, verdict(text));
  }

  private virtual(path: string, text: string): vscode.Uri {
    const uri = vscode.Uri.from({ scheme: PROPOSED, path: `/${path}` });
    this.texts.set(uri.toString(), text);
    return uri;
  }
}

export function brief(args: Args): string {
  const text = Object.entries(args).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  const line = text.replace(/\s+/g, " ");
  return line.length > 160 ? `${line.slice(0, 160)}…` : line;
}
