// The extension in a real workbench: code-server in chromium, with a real daemon behind it. A long stage of its own:
// it needs code-server and playwright-core from npm and a chromium, which its caller names.
//
//   SOJOURN_WORKBENCH={"codeServer": ".../code-server/out/node/entry.js", "playwright": ".../node_modules/playwright-core",
//                      "chromium": "/usr/bin/chromium", "vsix": "....vsix", "command": ["sojourn"], "root": DIR, "shots": DIR}
//
// The daemon is started by the extension; SOJOURN_* of the environment say where it lives. Prints one line per step.
import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { createRequire } from "node:module";
import { join } from "node:path";

const given = JSON.parse(process.env.SOJOURN_WORKBENCH);
const { chromium } = createRequire(import.meta.url)(given.playwright);
const folder = join(given.root, "site");
const data = join(given.root, "code");
const LIMIT = 90_000;

const step = (what) => console.log(`ok ${what}`);
const sojourn = (...args) => spawnSync(given.command[0], [...given.command.slice(1), ...args], { encoding: "utf8", timeout: 60_000, cwd: folder });
const shot = (page, name) => page.screenshot({ path: join(given.shots, `${name}.png`) });

function prepare() {
  for (const dir of [folder, join(data, "User"), join(data, "Machine"), given.shots]) mkdirSync(dir, { recursive: true });
  writeFileSync(join(folder, "notes.md"), "# Release notes\n\n- The site builds in 42 s.\n- Deploys go to production.\n");
  writeFileSync(join(data, "Machine", "settings.json"), JSON.stringify({ "sojourn.command": given.command }));
  writeFileSync(join(data, "User", "settings.json"), JSON.stringify({
    "workbench.startupEditor": "none", "security.workspace.trust.enabled": false,
    "workbench.colorTheme": "Default Dark Modern", "chat.commandCenter.enabled": false, "window.commandCenter": false,
    "workbench.secondarySideBar.defaultVisibility": "hidden", "telemetry.telemetryLevel": "off",
  }));
  const places = ["--user-data-dir", data, "--extensions-dir", join(given.root, "extensions")];
  const done = spawnSync(process.execPath, [given.codeServer, ...places, "--install-extension", given.vsix], { encoding: "utf8" });
  if (done.status !== 0) throw new Error(`The package was not installed: ${done.stdout}${done.stderr}`);
  step("the package is installed");
  return places;
}

const freePort = () => new Promise((resolve) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

async function listening(port) {
  for (const end = Date.now() + LIMIT; Date.now() < end; await new Promise((r) => setTimeout(r, 200))) {
    if ((await fetch(`http://127.0.0.1:${port}/healthz`).catch(() => undefined))?.ok) return;
  }
  throw new Error("code-server does not listen.");
}

const chat = (page) => page.frameLocator("iframe.webview.ready").frameLocator("iframe#active-frame");
async function say(page, text) {
  const composer = chat(page).locator("#composer");
  await composer.fill(text);
  await composer.press("Enter");
}
const conversation = (page) => chat(page).locator("#log").innerText();

async function open(browser, port) {
  const page = await browser.newPage({ viewport: { width: 1180, height: 760 } });
  page.setDefaultTimeout(LIMIT);
  await page.goto(`http://127.0.0.1:${port}/?folder=${encodeURIComponent(folder)}`);
  await page.locator(".statusbar-item", { hasText: /^\s*Sojourn/ }).waitFor();
  return page;
}

async function scenes(page) {
  await page.locator('.action-item [aria-label^="Sojourn"]').first().click();
  for (let tries = 0; tries < 5 && !(await chat(page).locator("#composer").isVisible()); tries += 1) {
    await page.locator(".monaco-list-row", { hasText: "guide" }).first().click();
    await chat(page).locator("#composer").waitFor({ timeout: 10_000 }).catch(() => undefined); // Drawn anew under the click.
  }
  await chat(page).locator("#composer").waitFor();
  step("the tree shows the agent, and a click opens its chat");

  await say(page, "Please build and deploy the website");
  await chat(page).locator(".tool.asks").waitFor();
  await chat(page).locator(".tool.pending").waitFor();
  await page.locator(".notification-list-item", { hasText: "wants to run demo_deploy" }).waitFor();
  await page.locator(".monaco-list-row", { hasText: "waits for 1 approval" }).first().waitFor();
  step("a pending result in the chat, an approval as a notification, both in the tree");
  await shot(page, "chat");
}

async function kills(page) {
  const before = await conversation(page);
  process.kill(JSON.parse(readFileSync(join(process.env.SOJOURN_STATE_DIR, "daemon.json"), "utf8")).pid, "SIGKILL");
  await chat(page).locator("#state.offline").waitFor();
  await chat(page).locator("#state:not(.offline)").waitFor();
  if ((await conversation(page)) !== before) throw new Error("The conversation is another one after the daemon was killed.");
  step("the daemon was killed: the same conversation");

  await page.reload();
  await chat(page).locator(".tool.asks").waitFor();
  const after = await conversation(page);
  if (after !== before) throw new Error(`The conversation is another one after the window was closed:\n${before}\n---\n${after}`);
  step("the window was loaded anew: the same conversation");
}

async function decisions(page) {
  const notification = page.locator(".notification-list-item", { hasText: "wants to run demo_deploy" }).first();
  await notification.waitFor();
  await notification.hover();
  await notification.locator("a.monaco-button, .monaco-text-button", { hasText: /^Approve$/ }).click();
  await chat(page).locator(".tool.done", { hasText: "Deployed" }).waitFor();
  step("approved by the notification");

  await chat(page).locator('button[data-do="resolve"]').click();
  await page.locator(".quick-input-widget input").fill("built in 42 s");
  await page.keyboard.press("Enter");
  await chat(page).locator("#resume").click();
  await chat(page).locator(".item.text", { hasText: "built in 42 s" }).waitFor();
  step("a result given by hand, and read");
  await shot(page, "done");
}

async function edits(page) {
  await page.locator('.action-item [aria-label^="Sojourn"]').first().waitFor();
  await say(page, "Please edit the notes");
  const notification = page.locator(".notification-list-item", { hasText: "wants to run editor_apply_edit" }).first();
  await notification.waitFor();
  await notification.hover();
  await notification.locator("a.monaco-button, .monaco-text-button", { hasText: /^Show Diff$/ }).click();
  await page.locator(".diff-editor, .monaco-diff-editor").first().waitFor();
  await page.locator(".monaco-diff-editor .line-insert, .monaco-diff-editor .char-insert").first().waitFor();
  step("the diff of an edit that is not done yet");
  await shot(page, "diff");
  const again = page.locator(".notification-list-item", { hasText: "wants to run editor_apply_edit" }).first();
  await again.hover();
  await again.locator("a.monaco-button, .monaco-text-button", { hasText: /^Approve$/ }).click();
  await page.locator(".tab", { hasText: "guide" }).click();
  await chat(page).locator(".tool.done", { hasText: "Edited" }).waitFor();
  if (!readFileSync(join(folder, "notes.md"), "utf8").includes("staging")) throw new Error("The file was not edited.");
  step("the edit, done by the editor");
}

const places = prepare();
const made = sojourn("create", "guide");
if (made.status !== 0) throw new Error(`No agent: ${made.stderr}`);
const port = await freePort();
const server = spawn(process.execPath, [
  given.codeServer, ...places, "--bind-addr", `127.0.0.1:${port}`, "--auth", "none", "--disable-telemetry",
  "--disable-update-check", "--disable-workspace-trust", folder,
], { stdio: ["ignore", "ignore", "inherit"] });
let browser;
try {
  await listening(port);
  browser = await chromium.launch({ executablePath: given.chromium, args: ["--no-sandbox"] });
  const page = await open(browser, port);
  step("the workbench is connected");
  try {
    await scenes(page);
    await kills(page);
    await decisions(page);
    await edits(page);
  } catch (error) {
    await shot(page, "failed");
    throw error;
  }
} finally {
  await browser?.close();
  server.kill();
}
console.log("done");
