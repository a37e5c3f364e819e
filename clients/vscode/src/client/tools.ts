/**
 * The tools that the editor offers to agents. What they see and change is the editor's: buffers with their unsaved
 * text, edits that the editor can undo. `EditorPort` is all that they need of it.
 */
import { applied, proposal } from "./edits";
import type { Args, ToolReply } from "./protocol";

export interface Buffer { path: string; language: string; unsaved: boolean; active: boolean; lines: number }
export interface Problem { path: string; line: number; severity: string; message: string; source?: string }
export interface Selected { path: string; language: string; unsaved: boolean; startLine: number; endLine: number; text: string }

/** Lines count from 1. Paths may be absolute or relative to the workspace; a path outside of it is refused. */
export interface EditorPort {
  buffers(): Buffer[];
  problems(path?: string): Problem[];
  selection(): Selected | undefined;
  /** A file's text, the unsaved one where there is one; undefined when there is no such file. */
  read(path: string): Promise<string | undefined>;
  /** Replaces a file's text by an edit that can be undone; answers whether the file was left unsaved. */
  replace(path: string, before: string | undefined, after: string): Promise<{ unsaved: boolean }>;
  open(path: string, line?: number, endLine?: number): Promise<void>;
}

export interface EditorTool { name: string; description: string; inputSchema: object; approval: "allow" | "ask" }

const path = { type: "string", description: "Absolute, or relative to the workspace." };

export const EDITOR_TOOLS: EditorTool[] = [
  tool("vscode_buffers", "allow", "The files that are open in the editor, with unsaved ones marked.", {}),
  tool("vscode_read", "allow", "A file's text as the editor has it, unsaved changes included.", { path }, ["path"]),
  tool("vscode_diagnostics", "allow", "Errors and warnings that the editor shows, of one file or of all.", { path }),
  tool("vscode_selection", "allow", "What is selected in the active editor, or the line of the cursor.", {}),
  tool("vscode_apply_edit", "ask", "Replaces `oldText`, which must be in the file exactly once, by `newText`, in the editor's buffer. Unsaved changes are kept, and the edit can be undone. An empty `oldText` makes a new file.", {
    path, oldText: { type: "string" }, newText: { type: "string" },
  }, ["path", "oldText", "newText"]),
  tool("vscode_open", "allow", "Shows a file to the user, with a line or a range of lines selected.", {
    path, line: { type: "integer", minimum: 1 }, endLine: { type: "integer", minimum: 1 },
  }, ["path"]),
];

/** Runs a call. A call that cannot be done is a failed result with the reason, which the model reads. */
export async function runTool(name: string, args: Args, editor: EditorPort): Promise<ToolReply> {
  try {
    return { content: await run(name, args, editor) };
  } catch (error) {
    return { content: error instanceof Error ? error.message : String(error), isError: true };
  }
}

async function run(name: string, args: Args, editor: EditorPort): Promise<string> {
  switch (name) {
    case "vscode_buffers": return rows(editor.buffers(), "No file is open.");
    case "vscode_read": return present(await editor.read(text(args, "path")), text(args, "path"));
    case "vscode_diagnostics": return rows(editor.problems(args.path === undefined ? undefined : text(args, "path")), "There are no errors and no warnings.");
    case "vscode_selection": {
      const selected = editor.selection();
      return selected ? JSON.stringify(selected) : "No text editor is active.";
    }
    case "vscode_apply_edit": return edit(args, editor);
    case "vscode_open": {
      await editor.open(text(args, "path"), line(args, "line"), line(args, "endLine"));
      return `Opened ${text(args, "path")}.`;
    }
    default: throw new Error(`This editor has no tool ${JSON.stringify(name)}.`);
  }
}

async function edit(args: Args, editor: EditorPort): Promise<string> {
  const where = text(args, "path");
  const before = await editor.read(where);
  const proposed = proposal({
    path: where, oldText: lines(text(args, "oldText"), before), newText: lines(text(args, "newText"), before),
  });
  if (!proposed) throw new Error("The arguments hold no edit.");
  if (before === undefined && args.oldText !== "") throw new Error(`There is no file ${JSON.stringify(where)}.`);
  const { unsaved } = await editor.replace(where, before, applied(proposed, before ?? ""));
  return unsaved ? `Edited ${where}; the buffer had unsaved changes before, so it is left unsaved.` : `Edited and saved ${where}.`;
}

/** With the line ends of the file that it is for: models write the short ones. */
function lines(piece: string, file: string | undefined): string {
  return file?.includes("\r\n") ? piece.replace(/\r?\n/g, "\r\n") : piece;
}

function present(found: string | undefined, where: string): string {
  if (found === undefined) throw new Error(`There is no file ${JSON.stringify(where)}.`);
  return found;
}

function text(args: Args, key: string): string {
  const value = args[key];
  if (typeof value !== "string") throw new Error(`The argument ${JSON.stringify(key)} must be a string.`);
  return value;
}

function line(args: Args, key: string): number | undefined {
  const value = args[key];
  if (value === undefined) return undefined;
  if (typeof value !== "number" || !Number.isInteger(value) || value < 1) throw new Error(`The argument ${JSON.stringify(key)} must be a line number from 1.`);
  return value;
}

function rows(found: object[], none: string): string {
  return found.length ? found.map((one) => JSON.stringify(one)).join("\n") : none;
}

function tool(name: string, approval: "allow" | "ask", description: string, properties: object, required: string[] = []): EditorTool {
  return { name, description, approval, inputSchema: { type: "object", properties, required, additionalProperties: false } };
}
