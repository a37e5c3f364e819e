/** The agents of the daemon as `agent/list` and `agent/watch` tell of them, and which of them need a person. */
import type { Link, Session } from "./link";
import type { Agent, AgentChanged } from "./protocol";
import { Signal } from "./signal";

export interface News { agent: Agent; before: Agent | undefined; text: string; urgent: boolean }

export class Roster {
  readonly changed = new Signal<void>();
  /** An agent has come to a point that a person may want to hear of. Approvals are not among them: the desk has those. */
  readonly news = new Signal<News>();
  private agents = new Map<string, Agent>();
  private filling: Map<string, Agent> | undefined;

  constructor(private readonly link: Link) {
    link.on<AgentChanged>("agent/changed", (params) => this.hear(params));
    link.ready.on((session) => void this.fill(session));
  }

  get(agentId: string): Agent | undefined { return this.agents.get(agentId); }

  /** Newest activity first; those that need somebody before the others. */
  roots(): Agent[] { return this.sorted((agent) => !agent.parent); }
  children(agentId: string): Agent[] { return this.sorted((agent) => agent.parent?.agentId === agentId); }
  all(): Agent[] { return this.sorted(() => true); }

  private sorted(wanted: (agent: Agent) => boolean): Agent[] {
    return [...this.agents.values()].filter(wanted).sort(
      (a, b) => Number(needs(b)) - Number(needs(a)) || b.updatedAt.localeCompare(a.updatedAt),
    );
  }

  /** The list anew: what changes while it is read is newer than what is read. */
  private async fill(session: Session): Promise<void> {
    const filling = (this.filling = new Map<string, Agent>());
    try {
      await session.send("agent/watch", {});
      const seen = new Map<string, Agent>();
      let cursor: string | undefined;
      do {
        const page = await session.send<{ agents: Agent[]; nextCursor?: string }>("agent/list", { limit: 200, ...(cursor ? { cursor } : {}) });
        for (const agent of page.agents) seen.set(agent.agentId, agent);
        cursor = page.nextCursor;
      } while (cursor);
      for (const [id, agent] of this.agents) if (agent.parent && seen.has(agent.parent.agentId)) seen.set(id, agent);
      for (const [id, agent] of filling) seen.set(id, agent);
      if (this.filling === filling) this.agents = seen;
    } catch {
      return; // The connection is gone; the next one fills anew.
    } finally {
      if (this.filling === filling) this.filling = undefined;
    }
    this.changed.emit();
  }

  /** Reads the children of an agent, which the list leaves out. */
  async open(agentId: string): Promise<void> {
    const page = await this.link.call<{ agents: Agent[] }>("agent/list", { parentAgentId: agentId, limit: 200 });
    for (const agent of page.agents) this.agents.set(agent.agentId, agent);
  }

  /** Takes in an agent that this client has just made or read. */
  put(agent: Agent): void {
    this.agents.set(agent.agentId, agent);
    this.filling?.set(agent.agentId, agent);
    this.changed.emit();
  }

  private hear(params: AgentChanged): void {
    if (params.deleted && params.agentId) {
      this.agents.delete(params.agentId);
      this.filling?.delete(params.agentId);
    } else if (params.agent) {
      const before = this.agents.get(params.agent.agentId);
      this.agents.set(params.agent.agentId, params.agent);
      this.filling?.set(params.agent.agentId, params.agent);
      const text = happened(before, params.agent);
      if (text) this.news.emit({ agent: params.agent, before, text, urgent: needs(params.agent) });
    }
    this.changed.emit();
  }
}

export function name(agent: Agent): string { return agent.title || agent.agentId; }

/** Whether an agent, or a child that it waits for, stands still until a person does something. */
export function needs(agent: Agent): boolean {
  return agent.approvals > 0 || agent.waitingFor === "approval" || agent.state === "interrupted" || (agent.state === "paused" && !agent.pendingCalls);
}

export function busy(agent: Agent | undefined): boolean { return agent?.state === "running" || agent?.state === "waiting"; }

/** Whether resume would do something. */
export function resumable(agent: Agent | undefined): boolean {
  return Boolean(agent && !busy(agent) && (agent.state !== "idle" || agent.inbox || agent.needsReply));
}

/** An agent's state and what it waits for, in a few words. */
export function standing(agent: Agent): string {
  const words: string[] = [];
  if (agent.approvals) words.push(plural(agent.approvals, "approval"));
  else if (agent.state === "waiting" && agent.waitingFor) words.push(agent.waitingFor === "approval" ? "an approval of a child" : `the ${agent.waitingFor}`);
  if (agent.pendingCalls) words.push(plural(agent.pendingCalls, "result"));
  const state = words.length ? `${agent.state === "idle" ? "idle, waits" : agent.state === "waiting" ? "waits" : `${agent.state}, waits`} for ${words.join(" and ")}` : agent.state;
  return agent.inbox ? `${state}, ${agent.inbox} in the inbox` : state;
}

function happened(before: Agent | undefined, now: Agent): string | undefined {
  if (!before || now.parent || before.state === now.state) return undefined;
  if (now.state === "interrupted") return "was interrupted. Resume carries on.";
  if (now.state === "paused" && !now.approvals) return `is paused${now.pendingCalls ? ` and waits for ${plural(now.pendingCalls, "result")}` : ""}.`;
  if (now.state === "idle" && (before.state === "running" || before.state === "waiting")) return "has finished.";
  return undefined;
}

function plural(count: number, word: string): string { return count === 1 ? `1 ${word}` : `${count} ${word}s`; }
