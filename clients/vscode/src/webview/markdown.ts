/** Markdown of a model as a tree of harmless elements. HTML in it is text, images are links, and links go to the web only. */
import MarkdownIt from "markdown-it";
import { el, type El } from "./element";

const parser = new MarkdownIt("default", { html: false, linkify: false, typographer: false });
type Token = ReturnType<typeof parser.parse>[number];

export function markdown(text: string): El[] {
  const root: (El | string)[] = [];
  grow(parser.parse(text, {}), root);
  return root.filter((node): node is El => typeof node !== "string");
}

function grow(tokens: Token[], root: (El | string)[]): void {
  const stack: (El | string)[][] = [root];
  const top = (): (El | string)[] => stack[stack.length - 1] ?? root;
  for (const token of tokens) {
    if (token.nesting === 1) {
      const made = opened(token);
      top().push(made);
      stack.push(made.children);
    } else if (token.nesting === -1) {
      if (stack.length > 1) stack.pop();
    } else if (token.type === "inline") {
      grow(token.children ?? [], top());
    } else {
      top().push(leaf(token));
    }
  }
}

function opened(token: Token): El {
  if (token.tag === "a") return link(String(token.attrGet("href") ?? ""), []);
  if (token.hidden) return el("span");
  const start = token.attrGet("start");
  return el(token.tag, start === null ? {} : { start: String(start) });
}

function leaf(token: Token): El | string {
  switch (token.type) {
    case "code_inline": return el("code", {}, [token.content]);
    case "code_block":
    case "fence": {
      const language = token.info.trim().split(/\s+/)[0] ?? "";
      return el("pre", language ? { title: language } : {}, [el("code", {}, [token.content])]);
    }
    case "softbreak": return "\n";
    case "hardbreak": return el("br");
    case "hr": return el("hr");
    case "image": return link(String(token.attrGet("src") ?? ""), [token.content || "image"]);
    default: return token.content;
  }
}

function link(href: string, children: (El | string)[]): El {
  return /^https?:\/\//i.test(href) || /^mailto:/i.test(href) ? el("a", { href, title: href }, children) : el("span", { title: href }, children);
}
