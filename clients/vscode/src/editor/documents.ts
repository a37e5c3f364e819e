/**
 * Files with unsaved changes, as they are in this window: the daemon's own file tools read them so, and change them by
 * asking. Only unsaved files of the workspace are told; a change is made only of the text that was told, and not saved.
 */
import * as vscode from "vscode";
import type { Link } from "../client/link";
import type { ApplyEdit } from "../client/protocol";
import { inside } from "./port";
import { settings } from "./settings";

const WAIT_MS = 150;

export class Documents implements vscode.Disposable {
  /** The versions that the daemon knows, by URI. */
  private readonly told = new Map<string, number>();
  private readonly waiting = new Map<string, NodeJS.Timeout>();
  private readonly subscriptions: { dispose(): void }[];

  constructor(private readonly link: Link) {
    link.handle<ApplyEdit>("workspace/applyEdit", (params) => this.apply(params));
    this.subscriptions = [
      link.ready.on(() => {
        this.told.clear();
        this.syncAll();
      }),
      link.changing.on(() => this.syncAll()),
      vscode.workspace.onDidChangeTextDocument((event) => this.soon(event.document)),
      vscode.workspace.onDidSaveTextDocument((document) => this.sync(document)),
      vscode.workspace.onDidCloseTextDocument((document) => this.close(document.uri.toString())),
    ];
  }

  dispose(): void {
    for (const one of this.subscriptions) one.dispose();
    for (const one of this.waiting.values()) clearTimeout(one);
  }

  private syncAll(): void {
    for (const one of vscode.workspace.textDocuments) this.sync(one);
  }

  /** Tells the daemon how a file is now, when it does not know that. */
  private sync(document: vscode.TextDocument): void {
    const uri = document.uri.toString();
    clearTimeout(this.waiting.get(uri));
    this.waiting.delete(uri);
    if (!this.link.hello) return;
    if (!document.isDirty || !settings().editorTools || !ours(document)) return this.close(uri);
    const { version } = document;
    const known = this.told.get(uri);
    if (known === undefined) {
      this.link.tell("textDocument/didOpen", { textDocument: { uri, languageId: document.languageId, version, text: document.getText() } });
    } else if (known !== version) {
      this.link.tell("textDocument/didChange", { textDocument: { uri, version }, contentChanges: [{ text: document.getText() }] });
    }
    this.told.set(uri, version);
  }

  private soon(document: vscode.TextDocument): void {
    const uri = document.uri.toString();
    if (!this.waiting.has(uri)) this.waiting.set(uri, setTimeout(() => this.sync(document), WAIT_MS));
  }

  private close(uri: string): void {
    if (this.told.delete(uri)) this.link.tell("textDocument/didClose", { textDocument: { uri } });
  }

  /** Answers the daemon's request for a change. */
  async apply(params: ApplyEdit): Promise<{ applied: boolean; failureReason?: string }> {
    const change = params.edit.documentChanges?.[0];
    const uri = change?.textDocument.uri ?? "";
    const document = vscode.workspace.textDocuments.find((one) => one.uri.toString() === uri);
    if (!change || !document || this.told.get(uri) !== change.textDocument.version) {
      return { applied: false, failureReason: "it is not as it was told" };
    }
    if (document.version !== change.textDocument.version) {
      return { applied: false, failureReason: "the user has changed it meanwhile" };
    }
    const edit = new vscode.WorkspaceEdit();
    for (const { range, newText } of change.edits) {
      edit.replace(document.uri, new vscode.Range(range.start.line, range.start.character, range.end.line, range.end.character), newText);
    }
    if (!(await vscode.workspace.applyEdit(edit))) return { applied: false, failureReason: "the editor refused it" };
    this.sync(document);
    return { applied: true };
  }
}

function ours(document: vscode.TextDocument): boolean {
  try {
    return document.uri.scheme === "file" && Boolean(inside(document.uri.fsPath));
  } catch {
    return false;
  }
}
