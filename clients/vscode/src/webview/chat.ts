/** The chat's page: draws what the host says, and tells it what a person did. */
import type { Item, Patch } from "../client/conversation";
import type { Chip, FromPage, Head, ToPage } from "../client/chat";
import { el, mount } from "./element";
import { view } from "./view";

declare function acquireVsCodeApi(): { postMessage(message: FromPage): void; getState(): unknown; setState(state: unknown): void };

const host = acquireVsCodeApi();
const log = found("log");
const composer = found("composer") as HTMLTextAreaElement;
const boxes = new Map<string, HTMLElement>();

window.addEventListener("message", (event: MessageEvent<ToPage>) => {
  const message = event.data;
  if (message.type === "head") drawHead(message.head);
  else if (message.type === "items") draw(message.patch);
  else if (message.type === "chips") drawChips(message.chips);
  else if (message.type === "draft") { composer.value = message.text; keep(); composer.focus(); }
  else sent(message.ok, message.error);
});

document.addEventListener("click", (event) => {
  const button = (event.target as HTMLElement).closest<HTMLElement>("[data-do]");
  if (button) press(button.dataset.do ?? "", button.dataset.id ?? "", button.dataset.key ?? "");
});
composer.addEventListener("input", keep);
composer.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
const kept = host.getState() as { agentId?: string; text?: string } | undefined;
let agentId = kept?.agentId;
composer.value = kept?.text ?? "";
host.postMessage({ type: "ready" });

/** The page is made anew whenever it was hidden; what was typed comes back. */
function keep(): void { host.setState({ agentId, text: composer.value }); }

function press(action: string, id: string, key: string): void {
  switch (action) {
    case "send": return send();
    case "attach": case "stop": case "resume": return host.postMessage({ type: action });
    case "drop": return host.postMessage({ type: "drop", id });
    case "unqueue": return host.postMessage({ type: "unqueue", itemId: id });
    case "resolve": case "reject": return host.postMessage({ type: action, callId: id, key });
    case "approve": case "deny": case "decide": case "diff": return host.postMessage({ type: action, approvalId: id });
    default:
  }
}

function send(): void {
  const text = composer.value;
  if (!text.trim()) return;
  composer.disabled = true;
  host.postMessage({ type: "send", text });
}

/** What was typed stays until the daemon has it. */
function sent(ok: boolean, error?: string): void {
  composer.disabled = false;
  if (ok) composer.value = "";
  keep();
  found("error").textContent = ok ? "" : (error ?? "It was not sent.");
  composer.focus();
}

function draw(patch: Patch): void {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  if (patch.reset) {
    log.replaceChildren();
    boxes.clear();
  }
  for (const key of patch.removed) {
    boxes.get(key)?.remove();
    boxes.delete(key);
  }
  for (const item of patch.changed) drawItem(item);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function drawItem(item: Item): void {
  const made = mount(view(item));
  let box = boxes.get(item.key);
  if (!box) {
    box = document.createElement("div");
    boxes.set(item.key, box);
    nest(item.parent).append(box);
  }
  const old = box.firstElementChild;
  if (!old) return box.prepend(made);
  keepFolds(old, made);
  old.replaceWith(made);
}

/** Where the items of a child go: a box below its call's own. */
function nest(parent: string | undefined): HTMLElement {
  const owner = parent === undefined ? undefined : boxes.get(parent);
  if (!owner) return log;
  const last = owner.lastElementChild;
  if (last instanceof HTMLElement && last.classList.contains("children")) return last;
  const made = mount(el("div", { class: "children" }));
  owner.append(made);
  return made;
}

/** What a person has opened stays open while it is drawn anew. */
function keepFolds(old: Element, made: Element): void {
  const before = folds(old);
  folds(made).forEach((fold, number) => { if (before[number]?.open) fold.open = true; });
}

function folds(box: Element): HTMLDetailsElement[] {
  return [...(box instanceof HTMLDetailsElement ? [box] : []), ...box.querySelectorAll("details")];
}

function drawHead(now: Head): void {

  found("title").textContent = now.title;
  const state = found("state");
  state.textContent = now.offline ? "not connected" : now.standing;
  state.className = `state ${now.offline ? "offline" : now.state}`;
  state.title = now.offline ?? "";
  found("model").textContent = [now.model, now.full === undefined ? "" : `${Math.round(now.full * 100)} % of the window`].filter(Boolean).join(" · ");
  found("stop").hidden = !now.busy;
  found("resume").hidden = !now.resumable;
  found("send").textContent = now.busy ? "Push" : "Send";
  composer.placeholder = now.busy ? "Say something to the running agent …" : `Ask ${now.title} …`;
  agentId = now.agentId;
  keep();
}

function drawChips(chips: Chip[]): void {
  found("chips").replaceChildren(...chips.map((chip) => mount(
    el("span", { class: "chip" }, [chip.label, el("button", { "data-do": "drop", "data-id": chip.id, "aria-label": `Leave out ${chip.label}` }, ["×"])]),
  )));
}

function found(id: string): HTMLElement {
  const one = document.getElementById(id);
  if (!one) throw new Error(`The page has no element ${id}.`);
  return one;
}

