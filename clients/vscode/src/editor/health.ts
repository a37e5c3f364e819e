/** The health check: a page that says what works, what does not, and what to do about it. */
import { execFile } from "node:child_process";
import type { Link } from "../client/link";
import { why } from "./chats";
import { clientId, root, settings } from "./settings";

interface Finding { ok: boolean; text: string; advice?: string }
interface Status { version: string; state: string; agents: number; activeRuns: number; clients: number; store: { path: string; bytes: number } }

export async function health(link: Link): Promise<string> {
  const findings = [await command(), connection(link), ...(link.hello ? await daemon(link) : []), workspace()];
  const good = findings.every((one) => one.ok);
  const lines = findings.map(({ ok, text, advice }) => `- ${ok ? "OK" : "**Wrong**"}: ${text}${advice ? `\n  - ${advice}` : ""}`);
  return `# Sojourn: ${good ? "all is well" : "something is wrong"}\n\n${lines.join("\n")}\n\n\`sojourn doctor\` in a terminal looks deeper: config, state, models.\n`;
}

function command(): Promise<Finding> {
  const [file, ...first] = settings().command;
  return new Promise((resolve) => {
    execFile(file ?? "sojourn", [...first, "--version"], { timeout: 10_000 }, (error, stdout) => {
      resolve(error
        ? { ok: false, text: `the command ${JSON.stringify(settings().command)} does not run: ${error.message.split("\n")[0]}`, advice: "Install Sojourn, or set `sojourn.command` to where it is." }
        : { ok: true, text: `the command is ${stdout.trim()}` });
    });
  });
}

function connection(link: Link): Finding {
  const { state } = link;
  if (state.kind === "up") return { ok: true, text: `connected as \`${link.clientId}\` to Sojourn ${state.hello.serverInfo.version}, protocol ${state.hello.protocolVersion}` };
  return { ok: false, text: "reason" in state ? `not connected: ${state.reason}` : `not connected: ${state.kind}`, advice: "Run the command *Sojourn: Reconnect*; the output channel *Sojourn* says more." };
}

async function daemon(link: Link): Promise<Finding[]> {
  try {
    const status = await link.call<Status>("server/status");
    const { models } = await link.call<{ models: { name: string; default: boolean }[] }>("model/list");
    const { tools } = await link.call<{ tools: { name: string; source: string }[] }>("tool/list");
    const mine = tools.filter((one) => one.source === `client:${clientId()}`).length;
    const usual = models.find((one) => one.default)?.name;
    return [
      {
        ok: status.state === "ready", text: `the daemon is ${status.state}: ${status.agents} agents, ${status.activeRuns} running, ${status.clients} clients, state in \`${status.store.path}\``,
        ...(status.state === "degraded" ? { advice: "Its disk said no; free some room, then look at `sojourn doctor`." } : {}),
      },
      { ok: models.length > 0, text: `models: ${models.map((one) => one.name).join(", ") || "none"}${usual ? `; new agents use ${usual}` : ""}` },
      { ok: true, text: settings().editorTools ? `${mine} registrations of this editor's tools, for agents that work in this folder` : "the editor's tools are turned off" },
    ];
  } catch (error) {
    return [{ ok: false, text: `the daemon did not answer: ${why(error)}` }];
  }
}

function workspace(): Finding {
  const folder = root();
  return folder
    ? { ok: true, text: `new agents work in \`${folder.fsPath}\`` }
    : { ok: false, text: "no folder is open", advice: "Open one: new agents work in it, and the editor's tools are for its files only." };
}
