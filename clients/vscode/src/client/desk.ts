/**
 * The open approvals of all agents and their children, whichever chat is open. Nobody has to answer here: whoever
 * decides first, from anywhere, wins, and an approval that is gone elsewhere is withdrawn here.
 */
import { RpcError, type Link } from "./link";
import { ERRORS, type AgentChanged, type Approval, type Verdict } from "./protocol";
import { Signal } from "./signal";

export class Desk {
  readonly asked = new Signal<Approval>();
  readonly withdrawn = new Signal<Approval>();
  readonly changed = new Signal<void>();
  private open = new Map<string, Approval>();
  private counts = new Map<string, number>();
  private reading = false;
  private again = false;

  constructor(private readonly link: Link) {
    link.ready.on(() => void this.refresh());
    link.on<AgentChanged>("agent/changed", ({ agent, agentId }) => this.hear(agent?.agentId ?? agentId ?? "", agent?.approvals ?? 0));
  }

  all(): Approval[] { return [...this.open.values()]; }
  get(approvalId: string): Approval | undefined { return this.open.get(approvalId); }

  /** The approvals of an agent, and of its children. */
  of(agentId: string): Approval[] {
    return this.all().filter((one) => one.agentId === agentId || one.path.some((step) => step.agentId === agentId));
  }

  /** Decides; answers who was first when somebody else was. */
  async decide(approvalId: string, verdict: Verdict): Promise<string | undefined> {
    try {
      await this.link.call("approval/decide", { approvalId, ...verdict });
      this.take(approvalId);
      return undefined;
    } catch (error) {
      if (!(error instanceof RpcError) || error.code !== ERRORS.alreadyDecided) throw error;
      this.take(approvalId);
      return `${String(error.data.by ?? "somebody else")} was first: ${String(error.data.decision ?? "decided")}`;
    }
  }

  /** Reads the list; what is asked for meanwhile is read once more afterwards. */
  async refresh(): Promise<void> {
    this.again = true;
    if (this.reading) return;
    this.reading = true;
    try {
      while (this.again) {
        this.again = false;
        const { approvals } = await this.link.call<{ approvals: Approval[] }>("approval/list");
        this.replace(approvals);
      }
    } catch {
      this.again = false; // No connection: the next one reads the list.
    } finally {
      this.reading = false;
    }
  }

  private hear(agentId: string, count: number): void {
    if ((this.counts.get(agentId) ?? 0) === count && this.of(agentId).length === count) return;
    this.counts.set(agentId, count);
    void this.refresh();
  }

  private replace(approvals: Approval[]): void {
    const now = new Map(approvals.map((one) => [one.approvalId, one]));
    const before = this.open;
    this.open = now;
    for (const [id, one] of before) if (!now.has(id)) this.withdrawn.emit(one);
    for (const [id, one] of now) if (!before.has(id)) this.asked.emit(one);
    this.changed.emit();
  }

  private take(approvalId: string): void {
    const one = this.open.get(approvalId);
    if (!one) return;
    this.open.delete(approvalId);
    this.withdrawn.emit(one);
    this.changed.emit();
  }
}
