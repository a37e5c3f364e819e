/** The chat's page: fixed text, one script, nothing from elsewhere. What a model says never gets here. */
import { randomBytes } from "node:crypto";
import * as vscode from "vscode";

export function page(webview: vscode.Webview, extension: vscode.Uri): string {
  const nonce = randomBytes(16).toString("hex");
  const script = webview.asWebviewUri(vscode.Uri.joinPath(extension, "dist", "chat.js")).toString();
  const style = webview.asWebviewUri(vscode.Uri.joinPath(extension, "media", "chat.css")).toString();
  const csp = `default-src 'none'; base-uri 'none'; form-action 'none'; style-src ${webview.cspSource}; script-src 'nonce-${nonce}'`;
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${csp}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="${style}">
<title>Sojourn</title>
</head>
<body>
<header>
  <span id="title"></span> <span id="state" class="state"></span> <span id="model"></span>
  <span class="gap"></span>
  <button id="stop" data-do="stop" hidden>Stop</button>
  <button id="resume" data-do="resume" hidden>Resume</button>
</header>
<main id="log" role="log" aria-live="polite" aria-label="Conversation" tabindex="0"></main>
<footer>
  <div id="error" role="alert"></div>
  <div id="chips" class="chips"></div>
  <textarea id="composer" rows="3" aria-label="Message"></textarea>
  <div class="buttons">
    <button data-do="attach" title="A selection, the editor's text, or a file">Enclose …</button>
    <span class="gap"></span>
    <button id="send" class="primary" data-do="send">Send</button>
  </div>
</footer>
<script nonce="${nonce}" src="${script}"></script>
</body>
</html>`;
}
