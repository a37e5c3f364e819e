/** The shapes of docs/protocol.md, as far as this client reads them. Fields that it does not know are ignored. */

export interface TextPart { type: "text"; text: string }
export interface ImagePart { type: "image"; mimeType: string; data?: string; uri?: string }
export interface ResourcePart { type: "resource"; uri: string; mimeType?: string; text?: string }
export interface ReasoningPart { type: "reasoning"; text: string }
export interface ToolCallPart { type: "toolCall"; id: string; name: string; arguments: Args | string }
export interface RefusalPart { type: "refusal"; text: string }
export interface OtherPart { type: "other"; provider: string; data: unknown }
export type InputPart = TextPart | ImagePart | ResourcePart;
export type Part = InputPart | ReasoningPart | ToolCallPart | RefusalPart | OtherPart;
export type Args = Record<string, unknown>;

export type Role = "system" | "user" | "assistant" | "toolResult" | "lateResult" | "summary";

export interface Message {
  messageId: string;
  role: Role;
  content: Part[];
  at?: string;
  callId?: string;
  toolName?: string;
  isError?: boolean;
  pending?: boolean;
  finishReason?: string;
}

export interface AgentConfig { model?: string; tools?: string[]; cwd?: string; preset?: string; [key: string]: unknown }
export type AgentState = "idle" | "running" | "waiting" | "paused" | "interrupted";

export interface Agent {
  agentId: string;
  title?: string;
  labels: Record<string, string>;
  state: AgentState;
  waitingFor?: "approval" | "tool" | "model";
  activeRunId?: string;
  needsReply: boolean;
  config: AgentConfig;
  seq: number;
  messageCount: number;
  pendingCalls: number;
  approvals: number;
  inbox: number;
  parent?: { agentId: string; toolCallId: string };
  createdAt: string;
  updatedAt: string;
}

export interface PathStep { agentId: string; callId: string }
export interface Decision { decision: string; by: string; at: string; arguments?: Args; reason?: string; scope?: string }

export interface Approval {
  approvalId: string;
  agentId: string;
  path: PathStep[];
  runId: string;
  callId: string;
  toolName: string;
  args: Args;
  since: string;
  expiresAt?: string;
  editable: boolean;
  /** What the call would change; the decision is for this and nothing else. */
  preview?: { type: string; path: string; text: string; truncated?: true };
  decision?: Decision;
}

export interface Verdict {
  decision: "approve" | "deny" | "edit" | "answer" | "abort";
  arguments?: Args;
  content?: string;
  reason?: string;
  scope?: "once" | "run" | "agent";
}

export interface PendingCall { callId: string; toolName: string; args: Args; since: string; placeholder: InputPart[]; answered: boolean }
export interface InboxItem { itemId: string; kind: "message" | "result" | "rejection"; content?: InputPart[]; error?: string; callId?: string }
export interface ToolResult { content: InputPart[]; isError: boolean; pending: boolean }
export interface ErrorInfo { kind: string; message: string }

export type Event =
  | { type: "agentStart"; cause: string }
  | { type: "turnStart" | "turnEnd"; turn: number }
  | { type: "contextBudget"; usedTokens: number; windowTokens: number | null; reservedTokens: number }
  | { type: "messageStart"; messageId: string; role: Role }
  | { type: "messageDelta"; messageId: string; part: number; kind: DeltaKind; offset: number; text: string }
  | { type: "messageReset"; messageId: string; reason: string }
  | { type: "generationStats"; model: string }
  | { type: "messageEnd"; message: Message }
  | { type: "approvalRequested" | "approvalResolved"; approval: Approval }
  | { type: "toolExecStart"; toolCallId: string; toolName: string; args: Args }
  | { type: "toolExecProgress"; toolCallId: string; text?: string; fraction?: number }
  | { type: "toolExecEnd" | "toolResolved"; toolCallId: string; toolName: string; result: ToolResult }
  | { type: "paused"; pending: PendingCall[]; approvals: Approval[] }
  | { type: "warning"; code: string; message: string }
  | { type: "inboxQueued"; item: InboxItem }
  | { type: "inboxRead"; itemId: string; outcome: "delivered" | "dropped" }
  | { type: "agentUpdated"; title?: string; messagesReplaced?: number }
  | { type: "nested"; toolCallId: string; event: Event }
  | { type: "agentEnd"; reason: string; error?: ErrorInfo };

export type DeltaKind = "text" | "reasoning" | "toolArguments";

export interface AgentEvent { agentId: string; runId?: string; seq?: number; at: string; replayed?: true; event: Event }
export interface Streaming { path?: PathStep[]; messageId: string; part: number; kind: DeltaKind; text: string }

export interface Attached {
  seq: number;
  oldestSeq: number;
  mode: "live" | "replay" | "snapshot";
  agent: Agent;
  pendingCalls: PendingCall[];
  approvals: Approval[];
  streaming: Streaming[];
}

export interface AgentChanged { agent?: Agent; agentId?: string; deleted?: true }
export interface ToolExecute { agentId: string; runId: string; callId: string; name: string; arguments: Args }
export interface ToolReply { content: string; isError?: boolean }
export interface ServerInfo { name: string; version: string }

export interface Hello {
  serverInfo: ServerInfo;
  protocolVersion: number;
  instanceId: string;
  storeId: string;
  limits: Record<string, number>;
  methods: string[];
}

/** Methods that take a `requestId`: sent again after a lost connection, they happen once. */
export const MUTATING = new Set([
  "agent/create", "agent/update", "agent/fork", "agent/delete", "agent/prompt", "agent/resume", "agent/compact",
  "agent/stop", "agent/replaceMessages", "inbox/push", "inbox/resolve", "inbox/reject", "inbox/remove",
  "approval/decide", "tool/register", "tool/unregister",
]);

export const ERRORS = { alreadyDecided: -31004, agentBusy: -31005, nothingToResume: -31006, seqAhead: -31016, alreadyExists: -31024 };

interface Place { line: number; character: number }

/** `workspace/applyEdit`, as far as the daemon uses it. */
export interface ApplyEdit {
  edit: { documentChanges?: { textDocument: { uri: string; version: number }; edits: { range: { start: Place; end: Place }; newText: string }[] }[] };
}
