/**
 * A `vscode` for tests in plain node: as much of the editor as the extension touches, with real files below it. What the
 * extension shows is kept in `shown`; what a person answers is put into `answers` beforehand.
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import * as path from "node:path";

export class Uri {
  private constructor(readonly scheme: string, readonly path: string, readonly fragment = "") {}
  static file(full: string): Uri { return new Uri("file", full); }
  static parse(text: string): Uri {
    const [, scheme = "file", rest = "", fragment = ""] = /^([a-z-]+):(?:\/\/)?([^#]*)#?(.*)$/.exec(text) ?? [];
    return new Uri(scheme, rest, fragment);
  }
  static from(parts: { scheme: string; path: string }): Uri { return new Uri(parts.scheme, parts.path); }
  static joinPath(base: Uri, ...more: string[]): Uri { return new Uri(base.scheme, path.join(base.path, ...more)); }
  get fsPath(): string { return this.path; }
  toString(): string { return `${this.scheme}://${this.path}`; }
}

export class Position { constructor(readonly line: number, readonly character: number) {} }

export class Range {
  readonly start: Position;
  readonly end: Position;
  constructor(a: Position | number, b: Position | number, c?: number, d?: number) {
    this.start = a instanceof Position ? a : new Position(a, b as number);
    this.end = b instanceof Position ? b : new Position(c ?? 0, d ?? 0);
  }
  get isEmpty(): boolean { return this.start.line === this.end.line && this.start.character === this.end.character; }
}

export class Selection extends Range {
  get active(): Position { return this.end; }
}

export class EventEmitter<T> {
  private readonly listeners = new Set<(value: T) => void>();
  readonly event = (listener: (value: T) => void): { dispose(): void } => {
    this.listeners.add(listener);
    return { dispose: () => this.listeners.delete(listener) };
  };
  fire(value: T): void { for (const one of [...this.listeners]) one(value); }
}

export class ThemeIcon { constructor(readonly id: string, readonly color?: unknown) {} }
export class ThemeColor { constructor(readonly id: string) {} }
export class CodeLens { constructor(readonly range: Range, readonly command: unknown) {} }
export class TabInputText { constructor(readonly uri: Uri) {} }
export class TreeItem { constructor(readonly label: string, readonly collapsibleState = 0) {} }
export const TreeItemCollapsibleState = { None: 0, Collapsed: 1, Expanded: 2 };
export const StatusBarAlignment = { Left: 1, Right: 2 };
export const ViewColumn = { Beside: -2 };

export class TextDocument {
  isDirty = false;
  version = 1;
  languageId = "plaintext";
  private readonly history: string[] = [];
  constructor(readonly uri: Uri, private content: string) {}
  get lineCount(): number { return this.content.split("\n").length; }
  getText(range?: Range): string {
    return range ? this.content.slice(this.offsetAt(range.start), this.offsetAt(range.end)) : this.content;
  }
  offsetAt(at: Position): number {
    const lines = this.content.split("\n");
    const before = lines.slice(0, at.line).reduce((sum, one) => sum + one.length + 1, 0);
    return Math.min(before + Math.min(at.character, lines[at.line]?.length ?? 0), this.content.length);
  }
  positionAt(offset: number): Position {
    const before = this.content.slice(0, offset).split("\n");
    return new Position(before.length - 1, before[before.length - 1]?.length ?? 0);
  }
  lineAt(line: number): { range: Range } { return { range: new Range(line, 0, line, (this.content.split("\n")[line] ?? "").length) }; }
  /** What typing does. */
  type(text: string): void { this.history.push(this.content); this.become(text); }
  undo(): void { this.become(this.history.pop() ?? this.content); }
  async save(): Promise<boolean> {
    writeFileSync(this.uri.fsPath, this.content);
    this.isDirty = false;
    events.saved.fire(this);
    return true;
  }
  private become(text: string): void {
    this.content = text;
    this.isDirty = true;
    this.version += 1;
    events.changed.fire({ document: this });
  }
}

const events = { changed: new EventEmitter<{ document: TextDocument }>(), saved: new EventEmitter<TextDocument>(), closed: new EventEmitter<TextDocument>() };

export class WorkspaceEdit {
  readonly steps: { uri: Uri; range: Range | undefined; text: string }[] = [];
  createFile(uri: Uri): void { this.steps.push({ uri, range: undefined, text: "" }); }
  insert(uri: Uri, at: Position, text: string): void { this.steps.push({ uri, range: new Range(at, at), text }); }
  replace(uri: Uri, range: Range, text: string): void { this.steps.push({ uri, range, text }); }
}

export interface Panel {
  title: string;
  visible: boolean;
  active: boolean;
  webview: { html: string; options: unknown; cspSource: string; asWebviewUri(uri: Uri): Uri; postMessage(message: unknown): Promise<boolean>; onDidReceiveMessage: unknown };
  posted: { type: string; [key: string]: unknown }[];
  say(message: unknown): void;
  reveal(): void;
  dispose(): void;
}

/** What the extension has shown and registered. */
export const shown = {
  messages: [] as { text: string; buttons: string[] }[],
  picks: [] as { labels: string[] }[],
  panels: [] as Panel[],
  opened: [] as { uri: Uri; selection?: Range }[],
  executed: [] as unknown[][],
  status: { text: "", tooltip: "", command: "", show() {}, dispose() {} },
  badge: undefined as { value: number } | undefined,
  diagnostics: [] as [Uri, { range: Range; severity: number; message: string; source?: string }[]][],
};

/** What a person answers: the first one whose `to` fits what is asked is taken, once. */
export const answers: { to: RegExp; with: string | ((labels: string[]) => string | undefined) }[] = [];
export const configuration: Record<string, unknown> = {};
const registered = new Map<string, (...args: unknown[]) => unknown>();

function answer(asked: string, labels: string[]): string | undefined {
  const at = answers.findIndex((one) => one.to.test(asked));
  if (at < 0) return undefined;
  const [one] = answers.splice(at, 1);
  return typeof one?.with === "function" ? one.with(labels) : one?.with;
}

async function message(text: string, ...rest: unknown[]): Promise<string | undefined> {
  const buttons = rest.filter((one): one is string => typeof one === "string");
  shown.messages.push({ text, buttons });
  return answer(text, buttons);
}

function panel(_type: string, title: string): Panel {
  const received = new EventEmitter<unknown>();
  const disposed = new EventEmitter<void>();
  const state = new EventEmitter<void>();
  const made = {
    title, visible: true, active: true, posted: [] as Panel["posted"],
    webview: {
      html: "", options: {}, cspSource: "vscode-webview:", asWebviewUri: (uri: Uri) => uri, onDidReceiveMessage: received.event,
      async postMessage(one: never): Promise<boolean> { made.posted.push(structuredClone(one)); return true; },
    },
    onDidDispose: disposed.event, onDidChangeViewState: state.event,
    say: (one: unknown) => received.fire(one), reveal() {}, dispose: () => disposed.fire(),
  };
  for (const other of shown.panels) other.active = false;
  shown.panels.push(made);
  return made;
}

export const window = {
  activeTextEditor: undefined as { document: TextDocument; selection: Selection } | undefined,
  visibleTextEditors: [] as unknown[],
  tabGroups: { all: [] as { tabs: { input: unknown }[] }[] },
  createOutputChannel: () => ({ appendLine() {}, show() {}, dispose() {} }),
  createTreeView: () => ({ set badge(value: { value: number } | undefined) { shown.badge = value; }, dispose() {} }),
  createStatusBarItem: () => shown.status,
  createWebviewPanel: panel,
  registerWebviewPanelSerializer: () => ({ dispose() {} }),
  showInformationMessage: message, showWarningMessage: message, showErrorMessage: message,
  async showInputBox(options: { prompt: string }) { return answer(options.prompt, []); },
  async showQuickPick(items: { label: string }[], options: { placeHolder: string }) {
    shown.picks.push({ labels: items.map((one) => one.label) });
    const label = answer(options.placeHolder, items.map((one) => one.label));
    return items.find((one) => one.label === label);
  },
  async showOpenDialog() { return undefined; },
  async showTextDocument(what: TextDocument | Uri, options?: { selection?: Range }) {
    const uri = what instanceof TextDocument ? what.uri : what;
    shown.opened.push({ uri, ...(options?.selection ? { selection: options.selection } : {}) });
  },
};

let untitled = 0;
export const workspace = {
  workspaceFolders: undefined as { uri: Uri }[] | undefined,
  textDocuments: [] as TextDocument[],
  getConfiguration: (section: string) => ({ get: (key: string, usual: unknown) => configuration[`${section}.${key}`] ?? usual }),
  onDidChangeConfiguration: new EventEmitter<unknown>().event,
  onDidChangeTextDocument: events.changed.event, onDidSaveTextDocument: events.saved.event, onDidCloseTextDocument: events.closed.event,
  registerTextDocumentContentProvider: (scheme: string, provider: { provideTextDocumentContent(uri: Uri): string }) => {
    virtual.set(scheme, provider);
    return { dispose() {} };
  },
  asRelativePath: (uri: Uri) => path.relative(workspace.workspaceFolders?.[0]?.uri.fsPath ?? "/", uri.fsPath),
  fs: { async stat(uri: Uri) { if (!existsSync(uri.fsPath)) throw new Error("FileNotFound"); return {}; } },
  async openTextDocument(what: Uri | { content: string; language: string }): Promise<TextDocument> {
    if (!(what instanceof Uri)) {
      const made = new TextDocument(Uri.from({ scheme: "untitled", path: `Untitled-${(untitled += 1)}` }), what.content);
      made.languageId = what.language;
      workspace.textDocuments.push(made);
      return made;
    }
    const known = workspace.textDocuments.find((one) => one.uri.toString() === what.toString());
    if (known) return known;
    const made = new TextDocument(what, readFileSync(what.fsPath, "utf8"));
    workspace.textDocuments.push(made);
    return made;
  },
  async applyEdit(edit: WorkspaceEdit): Promise<boolean> {
    for (const { uri, range, text } of edit.steps) {
      if (!range) writeFileSync(uri.fsPath, "", { flag: "wx" });
      const document = await workspace.openTextDocument(uri);
      if (!range) continue;
      const before = document.getText();
      document.type(before.slice(0, document.offsetAt(range.start)) + text + before.slice(document.offsetAt(range.end)));
    }
    return true;
  },
};
export const virtual = new Map<string, { provideTextDocumentContent(uri: Uri): string }>();

export const languages = {
  registerCodeLensProvider: () => ({ dispose() {} }),
  getDiagnostics: () => shown.diagnostics,
};

export const commands = {
  registerCommand(id: string, run: (...args: unknown[]) => unknown) {
    registered.set(id, run);
    return { dispose: () => registered.delete(id) };
  },
  async executeCommand(id: string, ...args: unknown[]) {
    shown.executed.push([id, ...args]);
    return registered.get(id)?.(...args);
  },
};
export const registeredCommands = registered;
