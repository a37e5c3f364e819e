/**
 * The line to the daemon: `sojourn connect` as a child process, the handshake, and a new line when the old one is lost.
 *
 * A call outlives its connection: what changes something carries a `requestId`, so it is sent again on the next
 * connection until it has its answer, and happens once. Listeners of `ready` run after every handshake, before calls
 * that wait for a connection go out.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { randomUUID } from "node:crypto";
import {
  createMessageConnection, ErrorCodes, ResponseError, StreamMessageReader, StreamMessageWriter,
  type MessageConnection, type MessageWriter,
} from "vscode-jsonrpc/node";
import { MUTATING, type Hello } from "./protocol";
import { Signal } from "./signal";

export interface LinkOptions {
  /** The command and its first arguments; `connect` is added. */
  command: string[];
  clientId: string;
  rootUri?: string;
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  /** Milliseconds of the first and the longest pause between two tries, and between two looks for a daemon that was shut down. */
  pauses?: { first: number; longest: number; look: number };
  log?: (line: string) => void;
}

/** `away`: the daemon was shut down by somebody; it is not started again behind their back. */
export type LinkState =
  | { kind: "connecting" }
  | { kind: "up"; hello: Hello }
  | { kind: "lost"; reason: string }
  | { kind: "away"; reason: string }
  | { kind: "failed"; reason: string }
  | { kind: "closed" };

export class RpcError extends Error {
  constructor(readonly code: number, message: string, readonly data: Record<string, unknown> = {}) {
    super(message);
  }
}

/** The line was given up while a call waited for it. */
export class NoDaemon extends Error {}

type Handler = (params: never) => unknown;
const TRIES = 6;

export class Link {
  readonly changed = new Signal<LinkState>();
  readonly ready = new Signal<Session>();
  /** Before a call that changes something is sent. */
  readonly changing = new Signal<void>();
  state: LinkState = { kind: "connecting" };
  private readonly handlers = new Map<string, Handler>();
  private readonly listeners = new Map<string, Signal<unknown>>();
  private session: Session | undefined;
  private waiting: { resolve: (session: Session) => void; reject: (error: Error) => void }[] = [];
  private timer: NodeJS.Timeout | undefined;
  private failures = 0;
  private readonly pauses: { first: number; longest: number; look: number };

  constructor(private options: LinkOptions) {
    this.pauses = options.pauses ?? { first: 200, longest: 10_000, look: 10_000 };
  }

  get clientId(): string { return this.options.clientId; }
  get hello(): Hello | undefined { return this.state.kind === "up" ? this.state.hello : undefined; }

  /** Notifications of the daemon. */
  on<T>(method: string, listener: (params: T) => void): { dispose(): void } {
    let signal = this.listeners.get(method);
    if (!signal) this.listeners.set(method, (signal = new Signal<unknown>()));
    return signal.on(listener as (params: unknown) => void);
  }

  /** Requests of the daemon; set before `start`. */
  handle<T>(method: string, handler: (params: T) => unknown): void {
    this.handlers.set(method, handler as Handler);
  }

  /** Connects, also when it was given up; with options as they are now. */
  start(options: Partial<LinkOptions> = {}): void {
    this.options = { ...this.options, ...options };
    if (this.state.kind === "up" || (this.session && this.state.kind === "connecting")) return;
    clearTimeout(this.timer);
    this.failures = 0;
    this.open();
  }

  /** Ends this line and begins anew. */
  restart(options: Partial<LinkOptions> = {}): void {
    const old = this.session;
    this.session = undefined;
    old?.end();
    this.state = { kind: "connecting" };
    this.start(options);
  }

  close(): void {
    clearTimeout(this.timer);
    const old = this.session;
    this.session = undefined;
    this.become({ kind: "closed" });
    old?.end();
  }

  /** The answer of a method. Waits for a connection; throws `RpcError` for the daemon's no, `NoDaemon` when there is none. */
  async call<T>(method: string, params: object = {}): Promise<T> {
    const body = MUTATING.has(method) ? { requestId: randomUUID(), ...params } : params;
    for (let left = TRIES; ; left -= 1) {
      const session = await this.up();
      if (MUTATING.has(method)) this.changing.emit();
      try {
        return await session.send<T>(method, body);
      } catch (error) {
        if (!(error instanceof ConnectionLost) || left <= 1) throw error;
      }
    }
  }

  /** Sends a notification, when there is a connection. */
  tell(method: string, params: object): void {
    if (this.state.kind === "up") this.session?.tell(method, params);
  }

  private up(): Promise<Session> {
    if (this.session && this.state.kind === "up") return Promise.resolve(this.session);
    if (this.state.kind === "failed" || this.state.kind === "away") return Promise.reject(new NoDaemon(this.state.reason));
    if (this.state.kind === "closed") return Promise.reject(new NoDaemon("The connection was closed."));
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  private open(): void {
    this.become({ kind: "connecting" });
    const session = new Session(this.options, this.handlers, (method, params) => this.listeners.get(method)?.emit(params));
    this.session = session;
    void session.hello.then(
      (hello) => { if (this.session === session) this.opened(session, hello); },
      () => undefined,
    );
    void session.ended.then((end) => { if (this.session === session) this.ended(end); });
  }

  private opened(session: Session, hello: Hello): void {
    this.failures = 0;
    this.state = { kind: "up", hello };
    this.ready.emit(session);
    this.changed.emit(this.state);
    for (const one of this.waiting.splice(0)) one.resolve(session);
  }

  private ended(end: End): void {
    this.session = undefined;
    this.options.log?.(`The connection ended: ${end.reason}`);
    if (end.kind === "failed") return this.become({ kind: "failed", reason: end.reason });
    if (end.kind === "away") {
      this.become({ kind: "away", reason: end.reason });
      this.timer = setTimeout(() => this.look(), this.pauses.look);
      return;
    }
    const pause = Math.min(this.pauses.first * 2 ** this.failures, this.pauses.longest);
    this.failures += 1;
    this.become({ kind: "lost", reason: end.reason });
    this.timer = setTimeout(() => this.open(), pause);
  }

  /** Connects when somebody else has started the daemon. */
  private look(): void {
    const [command, ...first] = this.options.command;
    const child = spawn(command ?? "sojourn", [...first, "pid"], { stdio: "ignore", env: this.options.env ?? process.env });
    child.on("error", () => undefined);
    child.on("exit", (code) => {
      if (this.state.kind !== "away") return;
      if (code === 0) this.open();
      else this.timer = setTimeout(() => this.look(), this.pauses.look);
    });
  }

  private become(state: LinkState): void {
    this.state = state;
    if (state.kind === "failed" || state.kind === "away" || state.kind === "closed") {
      const reason = state.kind === "closed" ? "The connection was closed." : state.reason;
      for (const one of this.waiting.splice(0)) one.reject(new NoDaemon(reason));
    }
    this.changed.emit(state);
  }
}

const SETTLE_MS = 50;

/** What the library itself answers when the stream is gone. */
const GONE = new Set<number>([ErrorCodes.MessageWriteError, ErrorCodes.PendingResponseRejected, ErrorCodes.ConnectionInactive]);

/** A writer whose writes never fail: the library lets a failed one escape as an unhandled rejection. The end of the process says it. */
function quiet(writer: StreamMessageWriter): MessageWriter {
  return {
    onError: writer.onError, onClose: writer.onClose,
    write: (message) => writer.write(message).catch(() => undefined),
    end: () => writer.end(), dispose: () => writer.dispose(),
  };
}

interface End { kind: "lost" | "away" | "failed"; reason: string }
class ConnectionLost extends Error {}

/** One connection, from the handshake to its end. */
export class Session {
  readonly hello: Promise<Hello>;
  readonly ended: Promise<End>;
  private readonly child: ChildProcess;
  private readonly connection: MessageConnection;
  private readonly lost: Promise<never>;
  private draining = false;
  private refused: string | undefined;
  private stderr = "";
  private finish!: (end: End) => void;

  constructor(options: LinkOptions, handlers: Map<string, Handler>, notified: (method: string, params: unknown) => void) {
    this.ended = new Promise((resolve) => (this.finish = resolve));
    this.lost = this.ended.then((end) => { throw new ConnectionLost(end.reason); });
    this.lost.catch(() => undefined);
    const [command, ...first] = options.command;
    this.child = spawn(command ?? "sojourn", [...first, "connect"], {
      stdio: ["pipe", "pipe", "pipe"],
      env: options.env ?? process.env,
      ...(options.cwd ? { cwd: options.cwd } : {}),
    });
    this.watch(command ?? "sojourn", options.log);
    this.connection = createMessageConnection(
      new StreamMessageReader(this.child.stdout!), quiet(new StreamMessageWriter(this.child.stdin!)),
    );
    this.connection.onError(() => this.end());
    this.connection.onNotification((method, params) => {
      if (method === "server/state") this.draining = (params as { state?: string }).state === "draining";
      notified(method, params);
    });
    for (const [method, handler] of handlers) {
      this.connection.onRequest(method, (params: unknown) => handler(params as never));
    }
    this.connection.listen();
    this.hello = this.greet(options);
    this.hello.catch(() => undefined);
  }

  async send<T>(method: string, params: object): Promise<T> {
    try {
      return await Promise.race([this.connection.sendRequest<T>(method, params), this.lost]);
    } catch (error) {
      if (error instanceof ConnectionLost) throw error;
      if (error instanceof ResponseError && !GONE.has(error.code)) throw new RpcError(error.code, error.message, (error.data as object | null ?? {}) as never);
      throw new ConnectionLost(String(error)); // What the library says about a stream that is gone.
    }
  }

  tell(method: string, params: object): void {
    void this.connection.sendNotification(method, params).catch(() => undefined); // A stream that is gone; its end is told.
  }

  end(): void {
    this.child.stdin?.end();
    this.child.kill();
  }

  private async greet(options: LinkOptions): Promise<Hello> {
    const ours = {
      protocolVersions: [1], clientId: options.clientId, tools: { execute: {} }, deltas: { maxLatencyMs: 30 },
    };
    try {
      const answer = await this.send<{ serverInfo: Hello["serverInfo"]; capabilities: { experimental: { sojourn: Omit<Hello, "serverInfo"> } } }>(
        "initialize",
        {
          processId: process.pid, clientInfo: { name: "VS Code" }, rootUri: options.rootUri ?? null,
          capabilities: { workspace: { applyEdit: true, workspaceEdit: { documentChanges: true } }, experimental: { sojourn: ours } },
        },
      );
      await this.connection.sendNotification("initialized", {});
      return { serverInfo: answer.serverInfo, ...answer.capabilities.experimental.sojourn };
    } catch (error) {
      if (error instanceof RpcError) this.refused = error.message;
      this.end();
      throw error;
    }
  }

  private watch(command: string, log: ((line: string) => void) | undefined): void {
    this.child.stdin!.on("error", () => undefined); // A broken pipe; the exit below says it.
    this.child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      this.stderr = (this.stderr + text).slice(-4000);
      log?.(text.trimEnd());
    });
    this.child.on("error", (error: NodeJS.ErrnoException) => {
      const reason = error.code === "ENOENT"
        ? `The command ${JSON.stringify(command)} was not found. Install Sojourn, or set "sojourn.command".`
        : `The command ${JSON.stringify(command)} did not start: ${error.message}`;
      this.finish({ kind: "failed", reason });
    });
    // The library hands messages out one by one, each in a turn of its own: the last ones come after the end of the pipe.
    this.child.on("close", (code) => void setTimeout(() => this.finish(this.why(code)), SETTLE_MS));
  }

  private why(code: number | null): End {
    if (this.refused) return { kind: "failed", reason: this.refused };
    if (this.draining) return { kind: "away", reason: "The daemon was shut down." };
    const said = this.stderr.trim().split("\n").pop();
    return { kind: "lost", reason: said || `"sojourn connect" ended with exit code ${code ?? "of a signal"}.` };
  }
}
