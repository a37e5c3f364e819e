/** What a call would do to a file, read from its arguments, so that an approval can show it as a diff before it runs. */
import type { Args } from "./protocol";

export interface Replacement { oldText: string; newText: string; everywhere?: boolean }

/** `whole`: the file's new text; `replacements`: one after the other, each found once unless it is for everywhere. */
export type Proposal = { path: string } & ({ whole: string } | { replacements: Replacement[] });

const PATHS = ["path", "file", "file_path", "filePath", "filename", "uri"];
const WHOLE = ["content", "contents", "text", "new_content", "newContent"];
const OLD = ["oldText", "old_text", "old_string", "oldString", "old_str", "old", "search", "find"];
const NEW = ["newText", "new_text", "new_string", "newString", "new_str", "new", "replace", "replacement"];

/** The edit in a call's arguments, whichever of the usual names they have; undefined when there is none. */
export function proposal(args: Args): Proposal | undefined {
  const path = first(args, PATHS);
  if (path === undefined) return undefined;
  const replacements = Array.isArray(args.edits) ? args.edits.map(replacement) : [replacement(args)];
  if (replacements.length && replacements.every((one) => one !== undefined)) return { path, replacements };
  const whole = first(args, WHOLE);
  return whole === undefined ? undefined : { path, whole };
}

/** The text that a proposal makes of `before`. Throws with the reason when it does not fit. */
export function applied(proposed: Proposal, before: string): string {
  if ("whole" in proposed) return proposed.whole;
  return proposed.replacements.reduce((text, { oldText, newText, everywhere }) => {
    if (oldText === "") {
      if (text !== "") throw new Error("old_text is empty, which only fits an empty or new file.");
      return newText;
    }
    const at = text.indexOf(oldText);
    if (at < 0) throw new Error(`The file does not hold the text ${JSON.stringify(short(oldText))}.`);
    if (everywhere) return text.split(oldText).join(newText);
    if (text.indexOf(oldText, at + 1) >= 0) throw new Error(`The file holds the text ${JSON.stringify(short(oldText))} more than once.`);
    return text.slice(0, at) + newText + text.slice(at + oldText.length);
  }, before);
}

function replacement(value: unknown): Replacement | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const oldText = first(value as Args, OLD);
  const newText = first(value as Args, NEW);
  return oldText === undefined || newText === undefined ? undefined : { oldText, newText, ...((value as Args).replace_all === true ? { everywhere: true } : {}) };
}

function first(args: Args, names: string[]): string | undefined {
  for (const name of names) if (typeof args[name] === "string") return args[name];
  return undefined;
}

function short(text: string): string { return text.length > 60 ? `${text.slice(0, 60)}…` : text; }
