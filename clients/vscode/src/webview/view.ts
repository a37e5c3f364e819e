/** How the items of a conversation look: a tree of elements for each. */
import type { Item, NoticeItem, TextItem, ToolItem } from "../client/conversation";
import { proposal } from "../client/edits";
import { el, type El } from "./element";
import { markdown } from "./markdown";

const STATUS: Record<ToolItem["status"], string> = {
  called: "called", asks: "needs approval", decided: "decided", running: "running", pending: "result pending",
  done: "done", failed: "failed", interrupted: "interrupted",
};

/** An item's own elements, the first of which is a box with the item's class. */
export function view(item: Item): El {
  if (item.kind === "tool") return toolView(item);
  if (item.kind === "notice") return noticeView(item);
  return textView(item);
}

function textView(item: TextItem): El {
  const live = item.live ? " live" : "";
  switch (item.kind) {
    case "reasoning":
      return el("details", { class: `item reasoning${live}` }, [
        el("summary", {}, [item.live ? "Thinking …" : "Thought"]), el("div", { class: "body" }, markdown(item.text)),
      ]);
    case "summary":
    case "system":
      return el("details", { class: `item ${item.kind}` }, [
        el("summary", {}, [item.kind === "summary" ? "Summary of what came before" : "Instructions"]),
        el("div", { class: "body" }, markdown(item.text)),
      ]);
    case "draft":
      return el("div", { class: "item draft live" }, [el("span", {}, ["Writing a call …"]), el("pre", {}, [item.text])]);
    case "queued":
      return el("div", { class: "item queued" }, [
        el("span", { class: "label" }, ["In the inbox"]), el("span", {}, [item.text]),
        button("unqueue", "Take back", { "data-id": item.key.replace(/^.*inbox:/, "") }),
      ]);
    case "user":
      return el("div", { class: "item user", role: "article", "aria-label": "You" }, [
        ...(item.context?.length ? [el("div", { class: "chips" }, item.context.map((uri) => el("span", { class: "chip", title: uri }, [tail(uri)])))] : []),
        el("div", { class: "body plain" }, [item.text]),
      ]);
    default:
      return el("div", { class: `item ${item.kind}${live}`, role: "article", "aria-label": "Agent" }, [el("div", { class: "body" }, markdown(item.text))]);
  }
}

function toolView(item: ToolItem): El {
  const line = el("div", { class: "line" }, [
    el("code", { class: "name" }, [item.name]),
    el("span", { class: `status ${item.status}` }, [STATUS[item.status]]),
    ...(item.decision ? [el("span", { class: "decision" }, [item.decision])] : []),
  ]);
  const parts: El[] = [line];
  if (item.diff) parts.push(diffView(item.diff, item.status === "asks"));
  else if (item.args && item.args !== "{}") parts.push(folded("Arguments", item.args, item.status === "asks"));
  if (item.fraction !== undefined && item.status === "running") parts.push(el("progress", { value: String(item.fraction), max: "1" }));
  if (item.progress && item.status === "running") parts.push(el("pre", { class: "output" }, [item.progress]));
  if (item.output) parts.push(output(item));
  if (item.approvalId) parts.push(approvalButtons(item.approvalId, item.diff !== undefined || changesFile(item.args)));
  if (item.status === "pending") {
    parts.push(el("div", { class: "buttons" }, [
      button("resolve", "Give the result …", { "data-id": item.callId, "data-key": item.key }),
      button("reject", "Say that it failed …", { "data-id": item.callId, "data-key": item.key }),
    ]));
  }
  return el("section", { class: `item tool ${item.status}`, "aria-label": `Tool ${item.name}, ${STATUS[item.status]}` }, parts);
}

function approvalButtons(approvalId: string, diff: boolean): El {
  const on = { "data-id": approvalId };
  return el("div", { class: "buttons" }, [
    el("button", { class: "primary", "data-do": "approve", ...on }, ["Approve"]),
    button("deny", "Deny", on), ...(diff ? [button("diff", "Show the diff", on)] : []), button("decide", "Edit, answer, more …", on),
  ]);
}

function diffView(diff: string, open: boolean): El {
  const lines = diff.split("\n").map((line) =>
    el("span", { class: line.startsWith("+") ? "added" : line.startsWith("-") ? "taken" : "same" }, [`${line}\n`]));
  return el("details", open ? { open: "" } : {}, [el("summary", {}, ["Change"]), el("pre", { class: "diff" }, lines)]);
}

function changesFile(args: string): boolean {
  try {
    return proposal(JSON.parse(args) as Record<string, unknown>) !== undefined;
  } catch {
    return false; // Not an object: the model could not write JSON.
  }
}

function output(item: ToolItem): El {
  const text = item.output ?? "";
  return text.length > 600 || text.split("\n").length > 12 ? folded("Output", text, false) : el("pre", { class: "output" }, [text]);
}

function folded(title: string, text: string, open: boolean): El {
  return el("details", open ? { open: "" } : {}, [el("summary", {}, [title]), el("pre", {}, [text])]);
}

function noticeView(item: NoticeItem): El {
  return el("div", { class: `item notice ${item.tone}`, role: item.tone === "info" ? "note" : "alert" }, [item.text]);
}

function button(action: string, label: string, attrs: Record<string, string>): El {
  return el("button", { "data-do": action, ...attrs }, [label]);
}

function tail(uri: string): string {
  const name = uri.split("/").pop();
  return name || uri;
}
