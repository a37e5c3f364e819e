/** What goes along with a prompt: a selection, a buffer with its unsaved text, a file. */
import * as vscode from "vscode";
import type { ResourcePart } from "../client/protocol";
import { shorten } from "./port";

export interface Enclosure { label: string; part: ResourcePart }

const LARGEST = 1_000_000;

export function selectionOf(editor: vscode.TextEditor): Enclosure | undefined {
  const { selection, document } = editor;
  if (selection.isEmpty) return undefined;
  const lines = [selection.start.line + 1, selection.end.line + 1];
  return {
    label: `${shorten(document.uri)}:${lines.join("–")}`,
    part: part(`${document.uri.toString()}#L${lines[0]}-L${lines[1]}`, document.getText(selection)),
  };
}

export function bufferOf(document: vscode.TextDocument): Enclosure {
  return { label: `${shorten(document.uri)}${document.isDirty ? " (unsaved)" : ""}`, part: part(document.uri.toString(), document.getText()) };
}

export async function fileAt(uri: vscode.Uri): Promise<Enclosure> {
  return bufferOf(await vscode.workspace.openTextDocument(uri));
}

/** Asks what to enclose. */
export async function choose(): Promise<Enclosure | undefined> {
  const editor = vscode.window.activeTextEditor ?? vscode.window.visibleTextEditors[0];
  const selected = editor && selectionOf(editor);
  const picked = await vscode.window.showQuickPick([
    ...(selected ? [{ label: "$(selection) Selection", description: selected.label, enclosure: selected }] : []),
    ...(editor ? [{ label: "$(file-code) Editor", description: bufferOf(editor.document).label, enclosure: bufferOf(editor.document) }] : []),
    { label: "$(files) File …", description: "", enclosure: undefined },
  ], { placeHolder: "What goes along with the next prompt?" });
  if (!picked || picked.enclosure) return picked?.enclosure;
  const files = await vscode.window.showOpenDialog({ canSelectMany: false, openLabel: "Enclose" });
  return files?.[0] ? fileAt(files[0]) : undefined;
}

function part(uri: string, text: string): ResourcePart {
  if (text.length > LARGEST) throw new Error(`${uri} is too long to go along: ${text.length} characters, at most ${LARGEST}.`);
  return { type: "resource", uri, mimeType: "text/plain", text };
}
