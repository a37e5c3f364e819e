/**
 * What a chat shows of one agent, built from its events and nothing else. The rule: the same events give the same
 * items, whether they came live, replayed or half of each; a repeated event changes nothing, a missing one is said.
 */
import type {
  AgentEvent, Approval, Attached, Decision, DeltaKind, ErrorInfo, Event, InboxItem, Message, Part, Streaming, ToolResult,
} from "./protocol";

export type ToolStatus =
  | "called" | "asks" | "decided" | "running" | "pending" | "done" | "failed" | "interrupted";

interface Common {
  key: string;
  /** The key of the tool item whose child this belongs to. */
  parent?: string;
}
export interface TextItem extends Common {
  kind: "user" | "text" | "reasoning" | "refusal" | "summary" | "system" | "draft" | "queued";
  text: string;
  /** Names of what was sent along. */
  context?: string[];
  live?: true;
}
export interface ToolItem extends Common {
  kind: "tool";
  callId: string;
  name: string;
  args: string;
  status: ToolStatus;
  output?: string;
  progress?: string;
  fraction?: number;
  approvalId?: string;
  editable?: boolean;
  /** The change that a person decides about, as a unified diff. */
  diff?: string;
  decision?: string;
}
export interface NoticeItem extends Common { kind: "notice"; tone: "info" | "warn" | "error"; text: string }
export type Item = TextItem | ToolItem | NoticeItem;

export interface Patch {
  /** Everything before is void; `changed` is the whole conversation. */
  reset: boolean;
  /** In their order. New ones go to the end of their parent. */
  changed: Item[];
  removed: string[];
}

interface Live { path: string[]; messageId: string; lengths: Map<number, number> }

/** What `read` made of an event. After `gap` attach again from `seq`. */
export type Reading = "read" | "repeat" | "gap";

export class Conversation {
  /** The number of the last event that was read. */
  seq = 0;
  title: string | undefined;
  /** Tokens in the model's window, and how large it is. */
  budget: { used: number; window: number | null } | undefined;
  private items = new Map<string, Item>();
  private live = new Map<string, Live>();
  private dirty = new Set<string>();
  private gone = new Set<string>();
  private wiped = true;
  private notices = 0;
  private awaited: { seq: number; streaming: Streaming[] } | undefined;

  constructor(readonly agentId: string) {}

  all(): Item[] { return [...this.items.values()]; }
  get(key: string): Item | undefined { return this.items.get(key); }

  /** What has changed since the last call. */
  drain(): Patch {
    const patch: Patch = {
      reset: this.wiped,
      changed: this.all().filter((item) => this.wiped || this.dirty.has(item.key)),
      removed: [...this.gone],
    };
    this.wiped = false;
    this.dirty.clear();
    this.gone.clear();
    return patch;
  }

  /** The next `drain` tells everything: a new reader. */
  retell(): void { this.wiped = true; }

  /** Forgets everything: another store, or a conversation that starts behind what is kept. */
  clear(seq = 0): void {
    this.items.clear();
    this.live.clear();
    this.awaited = undefined;
    this.seq = seq;
    this.notices = 0;
    this.wiped = true;
  }

  /** The answer to `agent/attach`. What was streaming before is void; what streams now is known once the replay is read. */
  attached(answer: Attached): void {
    for (const key of [...this.live.keys()]) this.dropLive(key);
    if (answer.agent.title !== undefined) this.title = answer.agent.title;
    this.awaited = { seq: answer.seq, streaming: answer.streaming };
    this.catchUp();
  }

  /** A conversation whose older events are gone: its messages, as of event number `seq`. */
  snapshot(messages: Message[], answer: Attached): void {
    this.clear(answer.seq);
    for (const message of messages) this.message([], message);
    for (const call of answer.pendingCalls) this.tool([], call.callId, call.toolName, call.args, "pending");
    for (const approval of answer.approvals) this.ask(approval.path.map((step) => step.callId), approval);
    this.attached(answer);
  }

  read(params: AgentEvent): Reading {
    if (params.seq === undefined) return this.apply([], params.event, "live");
    if (params.seq <= this.seq) return "repeat";
    if (params.seq > this.seq + 1) return "gap";
    this.seq = params.seq;
    this.apply([], params.event, String(params.seq));
    this.catchUp();
    return "read";
  }

  private catchUp(): void {
    if (!this.awaited || this.seq < this.awaited.seq) return;
    const { streaming } = this.awaited;
    this.awaited = undefined;
    for (const piece of streaming) {
      const path = (piece.path ?? []).map((step) => step.callId);
      this.stream(path, piece.messageId, piece.part, piece.kind, 0, piece.text);
    }
  }

  /** `id` is unique among numbered events. */
  private apply(path: string[], event: Event, id: string): Reading {
    switch (event.type) {
      case "nested": return this.apply([...path, event.toolCallId], event.event, id);
      case "messageDelta": return this.stream(path, event.messageId, event.part, event.kind, event.offset, event.text);
      case "messageReset": this.dropLive(messageKey(path, event.messageId)); break;
      case "messageEnd": this.message(path, event.message); break;
      case "toolExecStart": this.tool(path, event.toolCallId, event.toolName, event.args, "running"); break;
      case "toolExecProgress": this.progress(path, event.toolCallId, event.text, event.fraction); break;
      case "toolExecEnd":
      case "toolResolved": this.result(path, event.toolCallId, event.toolName, event.result); break;
      case "approvalRequested": this.ask(path, event.approval); break;
      case "approvalResolved": this.decided(path, event.approval); break;
      case "inboxQueued": this.queued(path, event.item); break;
      case "inboxRead": this.remove(scoped(path, `inbox:${event.itemId}`)); break;
      case "contextBudget": if (!path.length) this.budget = { used: event.usedTokens, window: event.windowTokens }; break;
      case "agentUpdated": this.updated(event); break;
      case "warning": this.notice(path, id, "warn", event.message); break;
      case "agentStart": if (event.cause === "resume") this.notice(path, id, "info", "Resumed."); break;
      case "agentEnd": this.ended(path, id, event.reason, event.error); break;
      default: break; // messageStart, turns, stats, paused: nothing to draw, or said by what follows.
    }
    return "read";
  }

  private stream(path: string[], messageId: string, part: number, kind: DeltaKind, offset: number, text: string): Reading {
    const key = messageKey(path, messageId);
    const live: Live = this.live.get(key) ?? { path, messageId, lengths: new Map<number, number>() };
    const known = live.lengths.get(part) ?? 0;
    if (offset > known) return "gap";
    const points = [...text];
    const fresh = points.slice(known - offset);
    if (!fresh.length) return "repeat";
    this.live.set(key, live);
    live.lengths.set(part, known + fresh.length);
    const itemKey = `${key}#${part}`;
    const before = this.items.get(itemKey);
    const sofar = before && "text" in before ? before.text : "";
    const shown = kind === "toolArguments" ? "draft" : kind;
    this.put({ ...this.at(itemKey, path), kind: shown, text: sofar + fresh.join(""), live: true });
    return "read";
  }

  private dropLive(key: string): void {
    const live = this.live.get(key);
    if (!live) return;
    this.live.delete(key);
    for (const part of live.lengths.keys()) this.remove(`${key}#${part}`);
  }

  private message(path: string[], message: Message): void {
    const key = messageKey(path, message.messageId);
    switch (message.role) {
      case "assistant": this.turn(path, key, message.content); break;
      case "toolResult":
      case "lateResult": {
        const result = { content: message.content, isError: message.isError ?? false, pending: message.pending ?? false };
        this.result(path, message.callId ?? "", message.toolName ?? "", result as ToolResult);
        break;
      }
      default: this.put({ ...this.at(key, path), kind: message.role, ...said(message.content) });
    }
  }

  private turn(path: string[], key: string, content: Part[]): void {
    const live = this.live.get(key);
    this.live.delete(key);
    const kept = new Set<string>();
    content.forEach((part, number) => {
      const itemKey = `${key}#${number}`;
      if (part.type === "text" || part.type === "reasoning" || part.type === "refusal") {
        if (part.text === "") return;
        kept.add(itemKey);
        this.put({ ...this.at(itemKey, path), kind: part.type, text: part.text });
      } else if (part.type === "toolCall") {
        this.tool(path, part.id, part.name, part.arguments, "called");
      }
    });
    for (const part of live?.lengths.keys() ?? []) {
      if (!kept.has(`${key}#${part}`)) this.remove(`${key}#${part}`);
    }
  }

  private tool(path: string[], callId: string, name: string, args: unknown, status: ToolStatus): ToolItem {
    const key = scoped(path, callId);
    const before = this.items.get(key);
    const item: ToolItem = {
      ...(before?.kind === "tool" ? before : this.at(key, path)),
      kind: "tool", callId, name, args: typeof args === "string" ? args : JSON.stringify(args ?? {}, null, 2), status,
    };
    this.put(item);
    return item;
  }

  private change(path: string[], callId: string, change: (item: ToolItem) => ToolItem): void {
    const item = this.items.get(scoped(path, callId));
    if (item?.kind === "tool") this.put(change(item));
  }

  private progress(path: string[], callId: string, text?: string, fraction?: number): void {
    this.change(path, callId, (item) => ({
      ...item,
      ...(text === undefined ? {} : { progress: joined(item.progress, text) }),
      ...(fraction === undefined ? {} : { fraction }),
    }));
  }

  private result(path: string[], callId: string, name: string, result: ToolResult): void {
    const before = this.items.get(scoped(path, callId));
    if (before?.kind !== "tool") this.tool(path, callId, name, {}, "called");
    const status = result.pending ? "pending" : result.isError ? "failed" : "done";
    this.change(path, callId, ({ progress: _progress, fraction: _fraction, approvalId: _approval, ...item }) => ({
      ...item, status, output: said(result.content).text,
    }));
  }

  private ask(path: string[], approval: Approval): void {
    const item = this.tool(path, approval.callId, approval.toolName, approval.args, "asks");
    const diff = approval.preview?.type === "diff" ? { diff: approval.preview.text } : {};
    this.put({ ...item, approvalId: approval.approvalId, editable: approval.editable, ...diff });
  }

  private decided(path: string[], approval: Approval): void {
    const { decision } = approval;
    this.change(path, approval.callId, ({ approvalId: _approval, ...item }) => ({
      ...item,
      status: item.status === "asks" ? "decided" : item.status,
      ...(decision ? { decision: verdictWords(decision) } : {}),
      ...(decision?.arguments ? { args: JSON.stringify(decision.arguments, null, 2) } : {}),
    }));
  }

  private queued(path: string[], item: InboxItem): void {
    const text = item.kind === "message" ? said(item.content ?? []).text : `A ${item.kind} for ${item.callId ?? "a call"}`;
    this.put({ ...this.at(scoped(path, `inbox:${item.itemId}`), path), kind: "queued", text });
  }

  private updated(event: { title?: string; messagesReplaced?: number }): void {
    if (event.title !== undefined) this.title = event.title;
    if (event.messagesReplaced === undefined) return;
    for (const key of [...this.items.keys()]) this.remove(key);
    this.live.clear();
    this.notice([], `replaced-${this.seq}`, "info", `The conversation was replaced by one of ${event.messagesReplaced} messages.`);
  }

  private ended(path: string[], id: string, reason: string, error: ErrorInfo | undefined): void {
    for (const [key, live] of [...this.live]) {
      if (live.path.join("/") === path.join("/")) this.dropLive(key);
    }
    for (const item of this.all()) {
      const open = item.kind === "tool" && ["called", "running", "decided"].includes(item.status);
      if (open && item.key === scoped(path, item.callId) && reason !== "paused") this.put({ ...item, status: "interrupted" });
    }
    if (error) this.notice(path, id, "error", error.message);
    else if (reason !== "done") this.notice(path, id, reason === "maxTurns" ? "warn" : "info", ENDINGS[reason] ?? `The run ended: ${reason}.`);
  }

  private notice(path: string[], id: string, tone: NoticeItem["tone"], text: string): void {
    const key = scoped(path, `notice:${id === "live" ? `live-${(this.notices += 1)}` : id}`);
    this.put({ ...this.at(key, path), kind: "notice", tone, text });
  }

  private at(key: string, path: string[]): Common {
    return path.length ? { key, parent: path.join("/") } : { key };
  }

  private put(item: Item): void {
    this.items.set(item.key, item);
    this.dirty.add(item.key);
    this.gone.delete(item.key);
  }

  private remove(key: string): void {
    if (!this.items.delete(key)) return;
    this.dirty.delete(key);
    this.gone.add(key);
  }
}

const ENDINGS: Record<string, string> = {
  paused: "Paused: it goes on when it is resumed.",
  stopped: "Stopped.",
  maxTurns: "The run has used up its turns. Resume gives it more.",
  interrupted: "Interrupted by the end of the daemon. Resume carries on.",
};

/** The texts of a content, and the names of what is not text. */
export function said(content: Part[]): { text: string; context?: string[] } {
  const texts: string[] = [];
  const context: string[] = [];
  for (const part of content) {
    if (part.type === "text") texts.push(part.text);
    else if (part.type === "resource") context.push(part.uri);
    else if (part.type === "image") context.push(part.uri ?? `an image (${part.mimeType})`);
  }
  return { text: texts.join("\n"), ...(context.length ? { context } : {}) };
}

function verdictWords(decision: Decision): string {
  const words: Record<string, string> = {
    approve: "Approved", deny: "Denied", edit: "Approved with other arguments", answer: "Answered", abort: "Aborted",
    stopped: "Stopped", closed: "Closed", expired: "Expired",
  };
  const reason = decision.reason ? `: ${decision.reason}` : "";
  return `${words[decision.decision] ?? decision.decision} by ${decision.by}${reason}`;
}

function joined(before: string | undefined, text: string): string {
  const whole = before ? `${before}\n${text}` : text;
  return whole.length > 20_000 ? `…${whole.slice(-20_000)}` : whole;
}

function scoped(path: string[], name: string): string { return [...path, name].join("/"); }
function messageKey(path: string[], messageId: string): string { return scoped(path, messageId); }
