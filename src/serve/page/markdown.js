// Markdown of an answer as elements of the document. Text becomes text nodes only, never markup.

const kFence = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const kHeading = /^\s{0,3}(#{1,6})\s+(.*)$/;
const kRule = /^\s{0,3}([-*_])(?:\s*\1){2,}\s*$/;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kQuote = /^\s{0,3}>\s?/;
const kTableRule = /^[\s|:-]*-[\s|:-]*$/;
const kMostNested = 6, kMostInline = 20000, kMostColumns = 64;

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/// Blocks of a text: {kind, lines}.
function blocks(text) {
  const lines = text.split("\n"), found = [];
  const blank = (i) => i >= lines.length || !lines[i].trim();
  const starts = (i) => [kFence, kHeading, kRule, kItem, kQuote].some((form) => form.test(lines[i]));
  for (let i = 0; i < lines.length;) {
    const first = i, line = lines[i], fence = line.match(kFence);
    let kind = "paragraph";
    if (!line.trim()) {
      ++i;
      continue;
    }
    if (fence) {
      kind = "code";
      do ++i; while (i < lines.length && !(lines[i].trim().startsWith(fence[1]) && !lines[i].trim().replaceAll(fence[1][0], "")));
      ++i;
    } else if (kHeading.test(line)) {
      kind = "heading";
      ++i;
    } else if (kRule.test(line)) {
      kind = "rule";
      ++i;
    } else if (kItem.test(line)) {
      kind = "list";
      do ++i; while (i < lines.length && (kItem.test(lines[i]) || /^\s+\S/.test(lines[i]) || (!lines[i].trim() && !blank(i + 1) && (kItem.test(lines[i + 1]) || /^\s{2,}\S/.test(lines[i + 1])))));
    } else if (kQuote.test(line)) {
      kind = "quote";
      do ++i; while (i < lines.length && kQuote.test(lines[i]));
    } else if (line.includes("|") && !blank(i + 1) && lines[i + 1].includes("|") && kTableRule.test(lines[i + 1])) {
      kind = "table";
      do ++i; while (!blank(i) && lines[i].includes("|"));
    } else {
      do ++i; while (!blank(i) && !starts(i));
    }
    found.push({ kind, lines: lines.slice(first, i) });
  }
  return found;
}

const kInline = new RegExp([
  "(`+)(?<code>.+?)\\1(?!`)", "\\*\\*(?<strong>(?=\\S).+?)\\*\\*", "__(?<strong2>(?=\\S).+?)__", "~~(?<del>(?=\\S).+?)~~",
  "\\*(?<em>[^\\s*][^*]*)\\*", "(?<![\\w_])_(?<em2>[^\\s_][^_]*)_(?![\\w_])",
  "\\[(?<label>[^\\[\\]]+)\\]\\((?<to>https?://[^\\s()]+)\\)", "(?<url>https?://[^\\s<>()\"'`]+[^\\s<>()\"'`.,;:!?*_])", "\\\\(?<plain>[\\\\`*_~\\[\\]()#|!>+.-])",
].join("|"), "gs");

function link(to, label) {
  const made = element("a");
  Object.assign(made, { href: to, rel: "noopener noreferrer", target: "_blank" });
  made.append(...label);
  return made;
}

/// Nodes of a text with its marks: code, strong, emphasis, links.
function inline(text, depth = 0) {
  if (text.length > kMostInline || depth > kMostNested) return [text];
  const nodes = [];
  let at = 0;
  const wrap = (tag, inner) => {
    const made = element(tag);
    made.append(...inline(inner, depth + 1));
    return made;
  };
  for (const found of text.matchAll(kInline)) {
    const { code, strong, strong2, del, em, em2, label, to, url, plain } = found.groups;
    if (found.index > at) nodes.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    if (code !== undefined) nodes.push(element("code", "", code));
    else if (strong ?? strong2) nodes.push(wrap("strong", strong ?? strong2));
    else if (del) nodes.push(wrap("del", del));
    else if (em ?? em2) nodes.push(wrap("em", em ?? em2));
    else if (to) nodes.push(link(to, inline(label, kMostNested)));
    else if (url) nodes.push(link(url, [url]));
    else nodes.push(plain);
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = Object.assign(element("textarea", "aside"), { value: text });  // pages over plain HTTP have no clipboard
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("not copied");
}

/// A button that copies what `text` gives.
export function copyButton(label, text) {
  const made = Object.assign(element("button", "copy", "Copy"), { type: "button", ariaLabel: label });
  made.addEventListener("click", async () => {
    const done = await copyText(text()).then(() => "Copied", () => "Not copied");
    made.textContent = done;
    setTimeout(() => { made.textContent = "Copy"; }, 2000);
  });
  return made;
}

function codeText({ lines }) {
  const inner = lines.slice(1), fence = lines[0].match(kFence)[1];
  if (inner.length && inner.at(-1).trim().startsWith(fence) && !inner.at(-1).trim().replaceAll(fence[0], "")) inner.pop();
  return inner.join("\n");
}

function codeBlock(block) {
  const made = element("div", "code"), head = element("div", "code-head"), pre = element("pre");
  Object.assign(pre, { tabIndex: 0, role: "group", ariaLabel: "Code" });
  pre.append(codeText(block));
  head.append(element("span", "", block.lines[0].match(kFence)[2]), copyButton("Copy code", () => pre.textContent));
  made.append(head, pre);
  return made;
}

function list({ lines }, depth) {
  const [, margin, mark] = lines[0].match(kItem), ordered = /\d/.test(mark);
  const made = element(ordered ? "ol" : "ul");
  if (ordered) made.start = parseInt(mark, 10);
  const items = [];
  for (const line of lines) {
    const found = line.match(kItem);
    if (found && found[1].length <= margin.length) items.push([found[3]]);
    else items.at(-1).push(line.slice(Math.min(margin.length + 2, line.search(/\S|$/))));
  }
  for (const item of items) {
    const box = element("li"), inner = blocks(item.join("\n"));
    inner.forEach((block, i) => (i === 0 && block.kind === "paragraph" ? box.append(...inline(block.lines.join("\n"))) : box.append(render(block, depth + 1))));
    made.append(box);
  }
  return made;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table({ lines }) {
  const made = element("table"), box = element("div", "wide-table");
  lines.filter((_, i) => i !== 1).forEach((line, i) => {
    const row = element("tr");
    for (const cell of cells(line).slice(0, kMostColumns)) {
      const one = element(i ? "td" : "th");
      one.append(...inline(cell));
      row.append(one);
    }
    made.append(row);
  });
  box.append(made);
  return box;
}

function render(block, depth = 0) {
  const { kind, lines } = block;
  if (kind === "code") return codeBlock(block);
  if (kind === "rule") return element("hr");
  if (kind === "table" && cells(lines[0]).length <= kMostColumns) return table(block);
  if (kind === "list" && depth < kMostNested) return list(block, depth);
  let made;
  if (kind === "heading") {
    const [, marks, text] = lines[0].match(kHeading);
    made = element(`h${Math.min(6, marks.length + 2)}`);  // below the headings of the page
    made.append(...inline(text.replace(/\s+#+\s*$/, "")));
  } else if (kind === "quote" && depth < kMostNested) {
    made = element("blockquote");
    made.append(...blocks(lines.map((line) => line.replace(kQuote, "")).join("\n")).map((inner) => render(inner, depth + 1)));
  } else {
    made = element("p");
    made.append(...inline(lines.join("\n")));
  }
  return made;
}

/// Makes `box` show a text. Only blocks that changed change, so that selections stay and screen readers hear the new words.
export function showMarkdown(box, text) {
  const wanted = blocks(text);
  wanted.forEach((block, i) => {
    const source = block.lines.join("\n");
    let node = box.children[i];
    if (node?.source === source) return;
    if (block.kind === "code" && node?.head === block.lines[0]) {
      const shown = node.querySelector("pre").firstChild, now = codeText(block);
      if (shown && now.startsWith(shown.data)) shown.appendData(now.slice(shown.data.length));
      else node.querySelector("pre").textContent = now;
    } else {
      const made = render(block);
      if (node) node.replaceWith(made);
      else box.append(made);
      node = made;
    }
    node.source = source;
    node.head = block.kind === "code" ? block.lines[0] : undefined;
  });
  while (box.children.length > wanted.length) box.lastChild.remove();
}
