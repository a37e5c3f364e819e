/** A real daemon with a scripted model, in a directory of its own. It is started by `sojourn connect`, as an editor does. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { Link, type LinkOptions } from "../src/client/link";

const SCRIPT = `
rules:
  - when: {user: '(?i)^slow (?P<what>.+)'}
    reply: {text: "one two three four five six seven eight nine ten {what}", delay_ms: 80}
  - when: {user: '(?i)^hang'}
    reply: {text: "waiting for ever", delay_ms: 60000}
  - when: {user: '(?i)^think'}
    reply: {reasoning: "Let me see. 🙂", text: "# Title\\n\\n**bold** <b>not html</b> [x](javascript:alert(1))"}
  - when: {user: '(?i)^edit'}
    reply:
      calls:
        - {name: editor_apply_edit, arguments: {path: "notes.txt", old_text: "two", new_text: "TWO"}}
  - when: {user: '(?i)^mend'}
    reply: {calls: [{name: edit, arguments: {path: "poem.txt", old_text: "rose", new_text: "ROSE"}}]}
  - when: {user: '(?i)^replace (?P<old>\\w+) (?P<new>\\w+)', turn: 1}
    reply: {calls: [{name: edit, arguments: {path: "draft.txt", old_text: "{old}", new_text: "{new}"}}]}
  - when: {user: '(?i)^peruse', turn: 1}
    reply: {calls: [{name: read, arguments: {path: "draft.txt"}}]}
  - when: {user: '(?i)^look'}
    reply:
      calls:
        - {name: editor_open_buffers, arguments: {}}
        - {name: editor_read_buffer, arguments: {path: "../outside.txt"}}
  - when: {user: '(?i)^nap'}
    reply: {calls: [{name: demo_sleep, arguments: {seconds: 30}}]}
  - when: {user: '(?i)^build', tool: demo_build}
    reply: {text: "I start it.", calls: [{name: demo_build, arguments: {target: "site"}}]}
  - when: {user: '(?i)^deploy', tool: demo_deploy}
    reply: {reasoning: "A person decides.", calls: [{name: demo_deploy, arguments: {target: "site"}}]}
  - when: {user: '(?i)^research (?P<what>.+)', tool: delegate}
    reply: {text: "A helper looks.", calls: [{name: delegate, arguments: {task: "say {what}"}}]}
  - when: {late_result: "*"}
    reply: {text: "It is done: {result}"}
  - when: {tool_result: "*"}
    reply: {text: "{tool} says: {result}"}
  - when: {always: true}
    reply: {text: "You said: {user}"}
`;

const COMMAND = JSON.parse(process.env.SOJOURN_TEST_COMMAND ?? '["python3", "-m", "sojourn"]') as string[];

export class Daemon {
  readonly root = mkdtempSync(join(tmpdir().length > 40 ? "/tmp" : tmpdir(), "sj-"));
  readonly folder = mkdtempSync(join(this.root, "w-"));
  readonly env: NodeJS.ProcessEnv;
  readonly command = COMMAND;
  private links: Link[] = [];

  constructor() {
    writeFileSync(join(this.root, "script.yaml"), SCRIPT);
    writeFileSync(join(this.root, "config.toml"), '[daemon]\ndefault_model = "scripted"\n[models.scripted]\nbackend = "scripted"\nscript = "script.yaml"\n');
    const kept = Object.entries(process.env).filter(([key]) => !/^(SOJOURN_|XDG_)/.test(key));
    this.env = {
      ...Object.fromEntries(kept), HOME: this.root, SOJOURN_CONFIG: join(this.root, "config.toml"),
      SOJOURN_STATE_DIR: join(this.root, "state"), SOJOURN_SOCKET: join(this.root, "s"),
    };
  }

  /** A line that is not started yet. */
  link(options: Partial<LinkOptions> = {}): Link {
    const link = new Link({
      command: this.command, clientId: "vscode-test", env: this.env, rootUri: `file://${this.folder}`,
      pauses: { first: 30, longest: 500, look: 100 }, ...options,
    });
    this.links.push(link);
    return link;
  }

  pid(): number | undefined {
    try {
      return (JSON.parse(readFileSync(join(this.root, "state", "daemon.json"), "utf8")) as { pid: number }).pid;
    } catch {
      return undefined;
    }
  }

  kill9(): void {
    const pid = this.pid();
    if (pid) process.kill(pid, "SIGKILL");
  }

  run(...args: string[]): { status: number | null; stdout: string; stderr: string } {
    const [file, ...first] = this.command;
    return spawnSync(file!, [...first, ...args], { env: this.env, encoding: "utf8", timeout: 30_000 });
  }

  async close(): Promise<void> {
    for (const link of this.links) link.close();
    try { this.kill9(); } catch { /* It has ended already. */ }
    await pause(50);
    rmSync(this.root, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Waits until something is so. The limit is the test's own fault, not a time that anything takes. */
export async function until(what: string, so: () => unknown, limitMs = 45_000): Promise<void> {
  const end = Date.now() + limitMs;
  while (!(await so())) {
    if (Date.now() > end) throw new Error(`It never came to this: ${what}`);
    await pause(10);
  }
}
