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
  open(path: string, line?: number, column?: number): Promise<void>;
}

export interface EditorTool { name: string; description: string; inputSchema: object; approval: "allow" | "ask" }

const path = { type: "string", description: "Absolute, or relative to the workspace." };

/** Names and arguments are the same in all editors; those of the edit are the daemon's own `edit`'s. */
export const EDITOR_TOOLS: EditorTool[] = [
  tool("editor_apply_edit", "ask", "Replaces old_text by new_text in a file, in the user's editor, where it can be undone. old_text must stand there exactly once, unless replace_all is true; an empty old_text makes a new file. The file is saved, unless the user has unsaved changes in it.", {
    path,
    old_text: { type: "string", description: "Exactly as in the file, with enough around it to be unique." },
    new_text: { type: "string" },
    replace_all: { type: "boolean", description: "Replace every place where it stands." },
  }, ["path", "old_text", "new_text"]),
  tool("editor_diagnostics", "allow", "Tells the errors and warnings that the user's editor shows, of one file or of all open ones.", { path }),
  tool("editor_open_buffers", "allow", "Lists the files that are open in the user's editor, with unsaved ones marked.", {}),
  tool("editor_open_location", "allow", "Shows the user a place in a file, in their editor.", {
    path, line: { type: "integer", minimum: 1 }, column: { type: "integer", minimum: 1 },
  }, ["path"]),
  tool("editor_read_buffer", "allow", "Reads a file as it is in the user's editor, unsaved changes included.", {
    path,
    line: { type: "integer", minimum: 1, description: "The first line." },
    lines: { type: "integer", minimum: 1, description: "How many lines." },
  }, ["path"]),
  tool("editor_selection", "allow", "Tells what the user has selected in their editor.", {}),
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
    case "editor_open_buffers": return rows(editor.buffers(), "No file is open.");
    case "editor_read_buffer": return excerpt(present(await editor.read(text(args, "path")), text(args, "path")), args);
    case "editor_diagnostics": return rows(editor.problems(args.path === undefined ? undefined : text(args, "path")), "There are no errors and no warnings.");
    case "editor_selection": {
      const selected = editor.selection();
      return selected ? JSON.stringify(selected) : "No text editor is active.";
    }
    case "editor_apply_edit": return edit(args, editor);
    case "editor_open_location": {
      await editor.open(text(args, "path"), whole(args, "line"), whole(args, "column"));
      return `Opened ${text(args, "path")}.`;
    }
    default: throw new Error(`This editor has no tool ${JSON.stringify(name)}.`);
  }
}

async function edit(args: Args, editor: EditorPort): Promise<string> {
  const where = text(args, "path");
  const before = await editor.read(where);
  const proposed = proposal({
    path: where, old_text: lines(text(args, "old_text"), before), new_text: lines(text(args, "new_text"), before), replace_all: args.replace_all,
  });
  if (!proposed) throw new Error("The arguments hold no edit.");
  if (before === undefined && args.old_text !== "") throw new Error(`There is no file ${JSON.stringify(where)}.`);
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

function excerpt(file: string, args: Args): string {
  const [first, count] = [whole(args, "line") ?? 1, whole(args, "lines")];
  return first === 1 && count === undefined ? file : file.split("\n").slice(first - 1, count && first - 1 + count).join("\n");
}

function whole(args: Args, key: string): number | undefined {
  const value = args[key];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== "number" || !Number.isInteger(value) || value < 1) throw new Error(`The argument ${JSON.stringify(key)} must be a whole number from 1.`);
  return value;
}

function rows(found: object[], none: string): string {
  return found.length ? found.map((one) => JSON.stringify(one)).join("\n") : none;
}

function tool(name: string, approval: "allow" | "ask", description: string, properties: object, required: string[] = []): EditorTool {
  return { name, description, approval, inputSchema: { type: "object", properties, ...(required.length ? { required } : {}), additionalProperties: false } };
}
