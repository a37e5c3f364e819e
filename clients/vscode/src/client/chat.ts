/** What passes between the chat's page and its host, as plain messages. */
import type { Patch } from "./conversation";

export interface Head {
  title: string;
  agentId: string;
  state: string;
  standing: string;
  model: string;
  /** How full the model's window is, from 0 to 1. */
  full?: number;
  busy: boolean;
  resumable: boolean;
  /** Why there is no connection; absent while there is one. */
  offline?: string;
}

/** Something that goes along with the next prompt. */
export interface Chip { id: string; label: string }

export type ToPage =
  | { type: "head"; head: Head }
  | { type: "items"; patch: Patch }
  | { type: "chips"; chips: Chip[] }
  | { type: "draft"; text: string }
  | { type: "sent"; ok: boolean; error?: string };

export type FromPage =
  | { type: "ready" }
  | { type: "send"; text: string }
  | { type: "attach" }
  | { type: "drop"; id: string }
  | { type: "stop" | "resume" }
  | { type: "approve" | "deny" | "decide" | "diff"; approvalId: string }
  | { type: "resolve" | "reject"; callId: string; key: string }
  | { type: "unqueue"; itemId: string };

/** A message of the page, checked: a page is outside. */
export function fromPage(value: unknown): FromPage | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const message = value as Record<string, unknown>;
  if (typeof message.type !== "string" || !Object.hasOwn(NEEDS, message.type)) return undefined;
  const strings = NEEDS[message.type as FromPage["type"]];
  return strings.every((key) => typeof message[key] === "string") ? (message as unknown as FromPage) : undefined;
}

const NEEDS: Record<FromPage["type"], string[]> = {
  ready: [], send: ["text"], attach: [], drop: ["id"], stop: [], resume: [],
  approve: ["approvalId"], deny: ["approvalId"], decide: ["approvalId"], diff: ["approvalId"],
  resolve: ["callId", "key"], reject: ["callId", "key"], unqueue: ["itemId"],
};
