/** The recorded transcripts: what this client makes of each is what the recording says that a client shows. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Conversation, type ToolItem } from "../src/client/conversation";
import { Follower } from "../src/client/follower";
import { Link, RpcError } from "../src/client/link";
import type { AgentEvent, Attached } from "../src/client/protocol";
import { until } from "./daemon";

interface Body { id?: number; method?: string; params?: Record<string, unknown>; result?: unknown; error?: unknown }
interface Line { to?: "daemon" | "client"; frame?: Body; shows?: Shows }
interface Shows { seq: number; messages: { role: string; text: string }[]; calls: Record<string, { status: string; output?: string }>; childMessages: number }

const FOLDER = join("..", "python", "sojourn_client", "transcripts", "recorded");
const read = (name: string): Line[] => readFileSync(join(FOLDER, name), "utf8").trim().split("\n").map((line) => JSON.parse(line) as Line);
const recordings = readdirSync(FOLDER).filter((name) => name.endsWith(".jsonl"));

function compare(told: Conversation, shows: Shows): void {
  assert.equal(told.seq, shows.seq);
  const own = told.all().filter((one) => !one.parent);
  const texts = (kind: string): string[] => own.flatMap((one) => (one.kind === kind && "text" in one ? [one.text] : []));
  const expected = (role: string): string[] => shows.messages.filter((one) => one.role === role && one.text).map((one) => one.text);
  assert.deepEqual(texts("user"), expected("user"));
  assert.deepEqual(texts("text"), expected("assistant"));
  assert.ok(!told.all().some((one) => "live" in one), "something is still drawn as if it streamed");
  for (const [callId, call] of Object.entries(shows.calls)) {
    const item = told.get(callId) as ToolItem | undefined;
    assert.deepEqual({ status: item?.status, output: item?.output }, { status: call.status, output: call.output });
  }
}

test("there are recordings", () => assert.ok(recordings.length >= 10));

for (const name of recordings) {
  test(`${name}: read as it was recorded, over all connections`, () => {
    const told = new Conversation("guide");
    const asked = new Set<number>();
    for (const { to, frame } of read(name)) {
      if (to === "daemon" && frame?.method === "agent/attach" && frame.id) asked.add(frame.id);
      if (to !== "client" || !frame) continue;
      if (!frame.method && frame.id && asked.has(frame.id) && frame.result) told.attached(frame.result as Attached);
      if (frame.method === "agent/event") assert.notEqual(told.read(frame.params as unknown as AgentEvent), "gap");
    }
    compare(told, read(name).find((line) => line.shows)!.shows!);
  });
}

for (const name of ["pending", "resolved", "rejected", "child", "retried"]) {
  test(`${name}: played by a daemon that follows it`, { timeout: 150_000 }, async () => {
    const [python] = JSON.parse(process.env.SOJOURN_TEST_COMMAND ?? '["python3"]') as string[];
    const link = new Link({ command: [python!, "-m", "sojourn_client.transcripts", "play", name], clientId: "recorder", pauses: { first: 1e6, longest: 1e6, look: 1e6 } });
    const lines = read(`${name}.jsonl`);
    const shows = lines.find((line) => line.shows)!.shows!;
    let follower: Follower | undefined;
    link.start();
    try {
      for (const { to, frame } of lines) {
        if (to !== "daemon" || !frame?.id || frame.method === "initialize") continue;
        if (frame.method === "agent/attach") {
          follower = new Follower(link, "guide");
          await until("attached", () => follower?.["attaching"] === false);
          continue;
        }
        const refused = lines.find((line) => line.to === "client" && line.frame?.id === frame.id && !line.frame?.method)?.frame?.error;
        const call = link.call(frame.method!, frame.params);
        if (refused) await assert.rejects(call, RpcError);
        else await call;
      }
      await until("everything is read", () => follower?.conversation.seq === shows.seq);
      compare(follower!.conversation, shows);
    } finally {
      link.close();
    }
  });
}
