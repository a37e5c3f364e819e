/** The editor as its tools use it. Only files of the workspace, whatever a path says. */
import { realpath } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import type { Buffer, EditorPort, Problem, Selected } from "../client/tools";

const SEVERITIES = ["error", "warning", "information", "hint"];

export const editorPort: EditorPort = {
  buffers(): Buffer[] {
    const active = vscode.window.activeTextEditor?.document.uri.toString();
    const shown = new Set(vscode.window.tabGroups.all.flatMap((group) => group.tabs).map((tab) =>
      tab.input instanceof vscode.TabInputText ? tab.input.uri.toString() : ""));
    const loaded = new Map(vscode.workspace.textDocuments.map((one) => [one.uri.toString(), one]));
    return [...shown].filter(Boolean).map((uri) => {
      const document = loaded.get(uri);
      return {
        path: shorten(vscode.Uri.parse(uri)), language: document?.languageId ?? "", unsaved: document?.isDirty ?? false,
        active: uri === active, lines: document?.lineCount ?? 0,
      };
    });
  },

  problems(only?: string): Problem[] {
    const wanted = only === undefined ? undefined : inside(only).toString();
    return vscode.languages.getDiagnostics().filter(([uri]) => !wanted || uri.toString() === wanted).flatMap(([uri, found]) =>
      found.map((one) => ({
        path: shorten(uri), line: one.range.start.line + 1, severity: SEVERITIES[one.severity] ?? "error",
        message: one.message, ...(one.source ? { source: one.source } : {}),
      })));
  },

  selection(): Selected | undefined {
    const editor = vscode.window.activeTextEditor;
    if (!editor) return undefined;
    const range = editor.selection.isEmpty ? editor.document.lineAt(editor.selection.active.line).range : editor.selection;
    return {
      path: shorten(editor.document.uri), language: editor.document.languageId, unsaved: editor.document.isDirty,
      startLine: range.start.line + 1, endLine: range.end.line + 1, text: editor.document.getText(range),
    };
  },

  async read(where: string): Promise<string | undefined> {
    const uri = await checked(where);
    if (!(await exists(uri))) return undefined;
    return (await vscode.workspace.openTextDocument(uri)).getText();
  },

  async replace(where: string, before: string | undefined, after: string): Promise<{ unsaved: boolean }> {
    const uri = await checked(where);
    const edit = new vscode.WorkspaceEdit();
    if (before === undefined) {
      edit.createFile(uri, { overwrite: false, ignoreIfExists: false });
      edit.insert(uri, new vscode.Position(0, 0), after);
    } else {
      const document = await vscode.workspace.openTextDocument(uri);
      if (document.getText() !== before) throw new Error(`${where} was changed meanwhile; read it again.`);
      const [start, end, piece] = difference(before, after);
      edit.replace(uri, new vscode.Range(document.positionAt(start), document.positionAt(end)), piece);
    }
    const dirty = before !== undefined && (await vscode.workspace.openTextDocument(uri)).isDirty;
    if (!(await vscode.workspace.applyEdit(edit))) throw new Error(`The editor refused the edit of ${where}.`);
    if (!dirty) await (await vscode.workspace.openTextDocument(uri)).save();
    return { unsaved: dirty };
  },

  async open(where: string, line?: number, column?: number): Promise<void> {
    const uri = await checked(where);
    if (!(await exists(uri))) throw new Error(`There is no file ${JSON.stringify(where)}.`);
    const place = new vscode.Position((line ?? 1) - 1, (column ?? 1) - 1);
    const selection = line === undefined ? undefined : new vscode.Range(place, place);
    await vscode.window.showTextDocument(uri, { preserveFocus: true, preview: false, ...(selection ? { selection } : {}) });
  },
};

/** A path as the model and people see it: relative to the workspace. */
export function shorten(uri: vscode.Uri): string {
  return uri.scheme === "file" ? vscode.workspace.asRelativePath(uri, (vscode.workspace.workspaceFolders?.length ?? 0) > 1) : uri.toString();
}

/** The file that a path names. Throws for one outside of the workspace. */
export function inside(where: string): vscode.Uri {
  const folders = vscode.workspace.workspaceFolders ?? [];
  const named = where.startsWith("file:") ? vscode.Uri.parse(where).fsPath : where;
  for (const folder of folders) {
    const full = path.resolve(folder.uri.fsPath, named);
    if (within(folder.uri.fsPath, full)) return vscode.Uri.file(full);
  }
  throw new Error(`The path ${JSON.stringify(where)} is outside of the workspace${folders.length ? "" : ", in which no folder is open"}.`);
}

/** The same, for what reads and writes: a link that leads out of the workspace is outside, too. */
async function checked(where: string): Promise<vscode.Uri> {
  const uri = inside(where);
  const real = await nearest(uri.fsPath);
  for (const folder of vscode.workspace.workspaceFolders ?? []) {
    if (within(await realpath(folder.uri.fsPath), real)) return uri;
  }
  throw new Error(`The path ${JSON.stringify(where)} leads out of the workspace.`);
}

/** The real path of a file, or of the nearest folder above it that is there. */
async function nearest(full: string): Promise<string> {
  try {
    return await realpath(full);
  } catch {
    const above = path.dirname(full);
    return above === full ? full : path.join(await nearest(above), path.basename(full));
  }
}

function within(folder: string, full: string): boolean {
  const way = path.relative(folder, full);
  return way === "" || (way !== ".." && !way.startsWith(`..${path.sep}`) && !path.isAbsolute(way));
}

async function exists(uri: vscode.Uri): Promise<boolean> {
  try {
    return Boolean(await vscode.workspace.fs.stat(uri));
  } catch {
    return vscode.workspace.textDocuments.some((one) => one.uri.toString() === uri.toString());
  }
}

/** Where two texts differ, so that an edit leaves cursors and folds elsewhere alone: from, to, and the new piece. */
function difference(before: string, after: string): [number, number, string] {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < most - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  return [start, before.length - end, after.slice(start, after.length - end)];
}
