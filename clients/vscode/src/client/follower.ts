/** Keeps one conversation up to date over any number of connections: attach, replay, live, and again from the last number. */
import { Conversation } from "./conversation";
import { RpcError, type Link } from "./link";
import { ERRORS, type AgentEvent, type Attached, type Message } from "./protocol";
import { Signal } from "./signal";

export class Follower {
  readonly conversation: Conversation;
  readonly changed = new Signal<void>();
  /** The agent is gone, or cannot be followed. */
  readonly lost = new Signal<string>();
  private storeId: string | undefined;
  private attaching = false;
  private held: AgentEvent[] = [];
  private readonly parts: { dispose(): void }[];

  constructor(private readonly link: Link, readonly agentId: string) {
    this.conversation = new Conversation(agentId);
    this.parts = [
      link.ready.on((session) => void session.hello.then((hello) => this.reattach(hello.storeId))),
      link.on<AgentEvent>("agent/event", (params) => { if (params.agentId === agentId) this.hear(params); }),
      link.on<{ agentId: string }>("agent/resync", (params) => { if (params.agentId === agentId) void this.attach(); }),
    ];
    if (link.hello) void this.reattach(link.hello.storeId);
  }

  dispose(): void {
    for (const part of this.parts) part.dispose();
    if (this.link.hello) void this.link.call("agent/detach", { agentId: this.agentId }).catch(() => undefined);
  }

  private async reattach(storeId: string): Promise<void> {
    if (this.storeId !== undefined && this.storeId !== storeId) this.conversation.clear();
    this.storeId = storeId;
    await this.attach();
  }

  private async attach(): Promise<void> {
    if (this.attaching) return;
    this.attaching = true;
    this.held = [];
    try {
      const answer = await this.ask();
      if (answer.mode === "snapshot") this.conversation.snapshot(await this.messages(), answer);
      else this.conversation.attached(answer);
      this.attaching = false;
      for (const params of this.held.splice(0)) this.hear(params);
      this.changed.emit();
    } catch (error) {
      if (error instanceof RpcError) this.lost.emit(error.message);
    } finally {
      this.attaching = false;
    }
  }

  private async ask(): Promise<Attached> {
    const params = { agentId: this.agentId, afterSeq: this.conversation.seq };
    try {
      return await this.link.call<Attached>("agent/attach", params);
    } catch (error) {
      if (!(error instanceof RpcError) || error.code !== ERRORS.seqAhead) throw error;
      this.conversation.clear(); // A store that was set back: what is drawn was never there.
      return this.link.call<Attached>("agent/attach", { ...params, afterSeq: 0 });
    }
  }

  private async messages(): Promise<Message[]> {
    const all: Message[] = [];
    let cursor: string | undefined;
    do {
      const page = await this.link.call<{ messages: Message[]; nextCursor?: string }>(
        "agent/messages", { agentId: this.agentId, limit: 200, ...(cursor ? { cursor } : {}) },
      );
      all.push(...page.messages);
      cursor = page.nextCursor;
    } while (cursor);
    return all;
  }

  private hear(params: AgentEvent): void {
    if (this.attaching) {
      this.held.push(params);
      return;
    }
    if (this.conversation.read(params) === "gap") void this.attach();
    else this.changed.emit();
  }
}
