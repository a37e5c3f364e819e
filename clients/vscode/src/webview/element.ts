/** A tree of elements as a value: made and tested without a page, and put into one without any HTML being parsed. */
export interface El { tag: string; attrs: Record<string, string>; children: (El | string)[] }

/** What may be in a chat. Nothing that loads, runs or submits. */
const TAGS = new Set([
  "div", "section", "details", "summary", "span", "p", "pre", "code", "em", "strong", "s", "a", "ul", "ol", "li", "hr", "br",
  "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "button", "progress",
]);
const ATTRS = new Set(["class", "href", "title", "start", "open", "role", "value", "max", "aria-label", "data-do", "data-id", "data-key"]);

export function el(tag: string, attrs: Record<string, string> = {}, children: (El | string)[] = []): El {
  if (!TAGS.has(tag)) throw new Error(`The element ${JSON.stringify(tag)} is not one of a chat.`);
  for (const name of Object.keys(attrs)) if (!ATTRS.has(name)) throw new Error(`The attribute ${JSON.stringify(name)} is not one of a chat.`);
  return { tag, attrs, children };
}

export function mount(node: El): HTMLElement {
  const made = document.createElement(node.tag);
  for (const [name, value] of Object.entries(node.attrs)) made.setAttribute(name, value);
  for (const child of node.children) made.append(typeof child === "string" ? child : mount(child));
  return made;
}

/** The text in it. */
export function textOf(node: El | string): string {
  return typeof node === "string" ? node : node.children.map(textOf).join("");
}
