/** Offers the editor's tools to the agents that work in this window's folders, and runs their calls. */
import * as vscode from "vscode";
import { RpcError, type Link } from "../client/link";
import { ERRORS, type Agent, type ToolExecute } from "../client/protocol";
import { EDITOR_TOOLS, runTool } from "../client/tools";
import { editorPort, inside } from "./port";
import { settings } from "./settings";

export class ToolHost {
  private readonly offered = new Set<string>();

  constructor(private readonly link: Link, private readonly log: vscode.OutputChannel) {
    link.handle<ToolExecute>("tool/execute", (call) => {
      log.appendLine(`${call.agentId} runs ${call.name} here.`);
      return runTool(call.name, call.arguments, editorPort);
    });
    link.ready.on(() => { for (const agentId of this.offered) void this.register(agentId); });
  }

  /** Offers them to an agent of this workspace; others do not get them. */
  async offer(agent: Agent): Promise<void> {
    if (!settings().editorTools || this.offered.has(agent.agentId) || !works(agent)) return;
    this.offered.add(agent.agentId);
    await this.register(agent.agentId);
  }

  private async register(agentId: string): Promise<void> {
    try {
      await this.link.call("tool/register", { agentId, tools: EDITOR_TOOLS });
    } catch (error) {
      if (error instanceof RpcError && error.code !== ERRORS.alreadyExists) this.offered.delete(agentId);
      this.log.appendLine(`The editor's tools are not offered to ${agentId}: ${String(error)}`);
    }
  }
}

function works(agent: Agent): boolean {
  const where = agent.config.cwd;
  if (!where) return true;
  try {
    return Boolean(inside(where));
  } catch {
    return false; // Another window's agent.
  }
}
