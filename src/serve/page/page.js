// The page of ridge serve: a conversation and a live view. What the model writes reaches the document as text only.

import { exportAll, leave, reopen, showKept } from "./conversations.js";
import { copyButton, showMarkdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input"), parameters = $("parameters");

class Lost extends Error {}  // no answer, or one that was cut; every other error has a text from the server

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// ---- What outlives the page: conversations and settings; the key only as long as the tab.

const kStore = "ridge";
const state = Object.assign({ chat: [], text: [], kept: [], settings: {}, mode: "", model: "" }, stored());
let props = {};

function stored() {
  try {
    return JSON.parse(localStorage.getItem(kStore)) ?? {};
  } catch {
    return {};
  }
}

function save() {
  try {
    localStorage.setItem(kStore, JSON.stringify(state, (name, value) => (name === "busy" ? undefined : value)));
  } catch {
    say("This browser does not keep the conversation: its storage is full or closed.");
  }
}

// ---- The server: keys, errors, lost connections.

let key = sessionStorage.getItem("ridge-key") ?? "";
let asked = null;  // a promise, while the key is asked for

function askKey(wrong) {
  $("key-label").textContent = wrong ? "The server does not take this API key." : "This server wants an API key.";
  asked ??= new Promise((resolve) => {
    $("key-form").hidden = false;
    if (!input.value) $("key").focus();
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      key = $("key").value.trim();
      sessionStorage.setItem("ridge-key", key);
      $("key").value = "";
      $("key-form").hidden = true;
      asked = null;
      input.focus();
      resolve();
    };
  });
  return asked;
}

/// Settles as `promise` does, or fails when `signal` aborts.
function unlessAborted(promise, signal) {
  return Promise.race([promise, new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  })]);
}

const delay = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function errorText(response) {
  const text = await response.text().catch(() => "");
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}. ${text.slice(0, 300)}`;
  }
}

/// A good answer. Asks for the key when the server wants one. Fails with Lost, or with the server's text. Without a
/// signal the answer must come within seconds.
async function call(path, options, signal) {
  for (;;) {
    const used = key;
    let response;
    try {
      const headers = { "Content-Type": "application/json", ...(used && { Authorization: `Bearer ${used}` }) };
      response = await fetch(path, { ...options, headers, signal: signal ?? AbortSignal.timeout(15000), cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Lost();
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await errorText(response));
    if (used === key) await (signal ? unlessAborted(askKey(used !== ""), signal) : askKey(used !== ""));
  }
}

/// The data of the server-sent events of an answer.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", data = [];
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Lost();
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) {
        data.push(line.slice(5).replace(/^ /, ""));
      } else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

let silence = 0;  // the timer that clears a passing notice

function say(text, passing = false) {
  clearTimeout(silence);
  if ($("link").textContent !== text) $("link").textContent = text;
  if (passing) silence = setTimeout(() => say(""), 4000);
}

// ---- The conversation.

const turns = () => state[mode()];
const mode = () => (props.template === "none" ? "text" : state.mode || (props.template === "plain" ? "text" : "chat"));
let stopper = null;  // while an answer is under way
let atEnd = true;    // the log shows its end, and goes on doing so

/// Makes `box` show what a turn says: an answer of a chat as Markdown, all else as it is.
function showText(box, turn) {
  if (turn.role === "assistant" && mode() === "chat") return showMarkdown(box, turn.content);
  const node = box.firstElementChild ?? box.appendChild(element("p", ""));
  if (!node.firstChild) node.append("");
  const shown = node.firstChild;
  if (turn.content.startsWith(shown.data)) shown.appendData(turn.content.slice(shown.data.length));
  else shown.data = turn.content;
}

function showReasoning(box, turn) {
  box.hidden = !turn.reasoning;
  box.firstChild.textContent = turn.busy && !turn.content ? "Reasoning …" : "Reasoning";
  if (turn.reasoning) showMarkdown(box.lastChild, turn.reasoning);
}

/// The arguments of a call with a line each, unless they would not read the same.
function readable(text) {
  try {
    const value = JSON.parse(text), bare = (json) => json.replace(/\s/g, "");
    return bare(JSON.stringify(value)) === bare(text) ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

function showCalls(box, calls) {
  box.replaceChildren(...calls.flatMap(({ name, args }) => {
    const shown = Object.assign(element("pre", "", readable(args)), { tabIndex: 0, role: "group", ariaLabel: `Arguments of ${name}` });
    return [element("p", "call", `Calls ${name}`), shown];
  }));
}

/// Fields that Enter sends.
function sendsOnEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}

function button(text, className, act) {
  const made = element("button", className, text);
  made.type = act ? "button" : "submit";
  if (act) made.addEventListener("click", act);
  return made;
}

/// A form of labelled fields [label, value]; `act` gets their values.
function form(className, fields, buttons, act) {
  const made = element("form", className), row = element("div", "buttons");
  row.append(...buttons);
  made.append(...fields.map(([name, value]) => {
    const label = element("label", "", name), field = Object.assign(element("textarea", ""), { value, required: true, rows: 2 });
    label.append(field);
    field.addEventListener("input", () => fit(field));
    sendsOnEnter(field, () => made.requestSubmit());
    return label;
  }), row);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    act([...made.querySelectorAll("textarea")].map((field) => field.value));
  });
  return made;
}

/// Puts a field in the place of a message. What follows the message is dropped when the new one is sent.
function edit(turn, text, opener) {
  const close = () => {
    editor.remove();
    text.hidden = opener.hidden = false;
    opener.focus();
  };
  const editor = form("editor", [["Edit message (what follows is dropped)", turn.content]], [button("Cancel", "", close), button("Send again", "when-idle")], ([value]) => {
    if (!value.trim() || !ready()) return;
    drop(turns().indexOf(turn));
    ask([{ role: "user", content: value.trim() }]);
    input.focus();
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  });
  text.hidden = opener.hidden = true;
  text.after(editor);
  const field = editor.querySelector("textarea");
  fit(field);
  field.focus();
}

/// Under an answer that calls tools: fields for what they gave.
function showResults() {
  log.querySelector(".results")?.remove();
  const { calls } = turns().at(-1) ?? {};
  if (!calls || stopper) return;
  log.append(form("results", calls.map(({ name }) => [`Result of ${name}`, ""]), [button(calls.length > 1 ? "Send results" : "Send result", "")], (values) => {
    if (!ready()) return;
    ask(values.map((content, i) => ({ role: "tool", content, id: calls[i].id, name: calls[i].name })));
    input.focus();
  }));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

/// Adds a turn to the log and returns the function that shows it anew.
function addTurn(turn) {
  const box = element("div", `turn ${turn.role}`);
  const reasoning = element("details", "reasoning"), text = element("div", "text"), calls = element("div", ""), meta = element("p", "meta"), error = element("p", "error");
  box.append(element("p", "who", turn.role === "user" ? "You" : turn.role === "tool" ? `Result of ${turn.name}` : "Model"), reasoning, text, calls, meta, error);
  reasoning.append(document.createElement("summary"), element("div", ""));
  if (turn.role === "user" && mode() === "chat") {
    const opener = button("Edit", "edit when-idle", () => edit(turn, text, opener));
    opener.ariaLabel = `Edit message: ${turn.content.slice(0, 40)}`;
    box.append(opener);
  }
  if (turn.role === "assistant" && mode() === "chat") box.append(copyButton("Copy answer", () => turn.content));
  log.querySelector(".empty")?.remove();
  log.append(box);
  const show = () => {
    showReasoning(reasoning, turn);
    showText(text, turn);
    if (turn.calls) showCalls(calls, turn.calls);
    meta.textContent = turn.meta ?? "";
    meta.hidden = !turn.meta;
    error.textContent = turn.error ?? "";
    error.hidden = !turn.error;
    box.classList.toggle("busy", turn.busy === true);
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  show();
  log.scrollTop = log.scrollHeight;
  return show;
}

function showConversation() {
  const ids = props.template === "none", text = mode() === "text";
  $("mode").value = mode();
  $("mode").disabled = ids || stopper !== null;
  $("system-field").hidden = $("tools-field").hidden = text;
  $("tools").disabled = text;  // what is wrong in it holds nothing up
  $("input-label").textContent = ids ? "Token ids" : text ? "Text to continue" : "Message";
  $("note").hidden = !ids && props.template !== "plain";
  $("note").textContent = ids ? "This model has no tokenizer: it takes and gives token ids, such as 1 15 27."
    : text ? "This model has no chat template: it continues your text. An empty field lets it write on."
    : "This model has no chat template: it may not answer as an assistant does.";
  log.classList.toggle("flow", text);
  log.replaceChildren();
  if (!turns().length) log.append(element("p", "empty", text ? "Write the start of a text." : "Ask something."));
  turns().forEach(addTurn);
  showList();
  showButtons();
}

/// The conversations that were left.
function showList() {
  $("kept-none").hidden = state.kept.length > 0;
  const changed = () => {
    save();
    showConversation();
  };
  showKept($("kept-list"), state.kept, {
    open: (n) => {
      if (stopper) return;
      reopen(state, n, mode());
      changed();
      if (narrow.matches) open("kept", false);
      input.focus();
    },
    remove: (n) => {
      if (!confirm("Delete this conversation?")) return;
      state.kept.splice(n, 1);
      changed();
      $("show-kept").focus();
    },
  });
}

function showButtons() {
  const busy = stopper !== null;
  const hadFocus = document.activeElement === $("stop");
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("regenerate").disabled = busy || !turns().length;
  $("mode").disabled = busy || props.template === "none";
  $("new").disabled = $("choice").disabled = busy;
  showResults();
  for (const one of log.querySelectorAll(".when-idle")) one.disabled = busy;
  log.ariaBusy = busy;  // screen readers speak the answer when it is whole
  if (hadFocus && !busy) input.focus();
}

/// The tools of a text, or null for none. Throws an Error that says what is wrong.
function toolsOf(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("This is no list: tools stand between [ and ].");
  tools.forEach((tool, i) => {
    if (tool?.type !== "function") throw new Error(`Tool ${i + 1} needs "type": "function".`);
    if (!tool.function?.name || typeof tool.function.name !== "string") throw new Error(`Tool ${i + 1} needs "function": {"name": ...}.`);
  });
  return tools.length ? tools : null;
}

function checkTools() {
  let wrong = "";
  try {
    toolsOf($("tools").value);
  } catch (error) {
    wrong = error.message;
  }
  $("tools").setCustomValidity(wrong);
  $("tools").ariaInvalid = wrong !== "";
  $("tools-error").textContent = wrong;
}

/// What is set, under the names of the API.
function settings() {
  const set = {};
  for (const field of parameters.elements) {
    if (field.name && field.name !== "system" && field.name !== "tools" && field.value !== "") set[field.name] = field.type === "number" ? field.valueAsNumber : field.value.trim();
  }
  return set;
}

function requestBody() {
  const body = { ...settings(), model: props.model, stream: true, stream_options: { include_usage: true } };
  const said = turns().filter((turn) => turn.content !== "");
  if (props.template === "none") return { ...body, prompt: said.flatMap((turn) => turn.content.match(/\d+/g) ?? []).map(Number) };
  if (mode() === "text") return { ...body, prompt: said.map((turn) => turn.content).join("") };
  const tools = toolsOf($("tools").value);
  const system = $("system").value ? [{ role: "system", content: $("system").value }] : [];
  const messages = [];
  for (const { role, content, calls, id, name } of turns()) {
    const last = messages.at(-1);
    if (role === "tool") messages.push({ role, tool_call_id: id, name, content });
    else if (calls) messages.push({ role, content: content || null, tool_calls: calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.args } })) });
    else if (content === "") continue;
    // Where an answer failed, two messages of one person become one: templates want turns.
    else if (last?.role === role && !last.tool_calls) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return { ...body, messages: [...system, ...messages], ...(tools && { tools }) };
}

function summary(finish, usage, seconds) {
  const parts = [];
  if (usage) {
    const rate = seconds > .2 && usage.completion_tokens > 1 ? ` (${number((usage.completion_tokens - 1) / seconds, 1)} a second)` : "";
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`${number(usage.completion_tokens)} tokens${rate}`, `prompt ${number(usage.prompt_tokens)}${cached ? `, ${number(cached)} cached` : ""}`);
  }
  if (finish === "tool_calls") parts.push("calls tools");
  if (finish === "length") parts.push("cut at the limit of tokens");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

/// Sends the conversation; while no server is there, again and again.
async function post(path, body, signal) {
  for (let wait = 1;; wait = Math.min(2 * wait, 8)) {
    try {
      const response = await call(path, { method: "POST", body }, signal);
      if (wait > 1) say("");
      return response;
    } catch (error) {
      if (!(error instanceof Lost)) throw error;
      say("No connection to the server. The message is sent again when it is back.");
      await unlessAborted(delay(1000 * wait), signal);
    }
  }
}

async function answer() {
  const body = JSON.stringify(requestBody());
  const turn = { role: "assistant", content: "", busy: true };
  turns().push(turn);
  const show = addTurn(turn);
  const { signal } = (stopper = new AbortController());
  showButtons();
  let finish = "", usage = null, first = 0, last = 0, whole = false, drawn = false;
  try {
    const response = await post(mode() === "text" ? "v1/completions" : "v1/chat/completions", body, signal);
    for await (const data of events(response)) {
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      usage = part.usage ?? usage;
      const choice = part.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const ids = choice.token_ids?.length ? `${choice.token_ids.join(" ")} ` : "";
      const more = choice.delta?.content || choice.text || (props.template === "none" && ids);
      const calls = choice.delta?.tool_calls ?? [], thought = choice.delta?.reasoning_content ?? "";
      if (!more && !calls.length && !thought) continue;
      turn.content += more || "";
      if (thought) turn.reasoning = (turn.reasoning ?? "") + thought;
      for (const { index, id, function: piece } of calls) {
        const call = ((turn.calls ??= [])[index] ??= { id, name: piece.name, args: "" });
        call.args += piece.arguments ?? "";
      }
      last = performance.now();
      first ||= last;
      if (!drawn) requestAnimationFrame(() => { drawn = false; show(); });
      drawn = true;
    }
    if (!whole) throw new Lost();
  } catch (error) {
    if (signal.aborted) finish = "stopped";
    else turn.error = error instanceof Lost ? "The connection was lost before the answer was whole. Regenerate asks again." : error.message;
  }
  stopper = null;
  delete turn.busy;
  turn.meta = summary(finish, usage, (last - first) / 1000);
  show();
  showButtons();
  save();
}

/// Whether an answer can be asked for; shows the settings that stand in the way.
function ready() {
  if (stopper) return false;
  if (parameters.checkValidity()) return true;
  open("settings", true);
  parameters.reportValidity();
  return false;
}

/// Drops the turns from the n-th on.
function drop(n) {
  turns().length = n;
  for (const box of [...log.querySelectorAll(".turn")].slice(n)) box.remove();
}

/// Adds turns and asks for the answer to them.
function ask(more) {
  for (const turn of more) {
    turns().push(turn);
    addTurn(turn);
  }
  save();
  answer();
}

function send() {
  if (!ready()) return;
  const text = input.value;
  if (props.template === "none" && /[^\d\s,]/.test(text)) return say("Token ids are numbers with spaces between them.", true);
  if (!text.trim() && (mode() === "chat" || (!text && !turns().length))) return;
  if (narrow.matches) kPanels.forEach((panel) => open(panel, false));
  input.value = "";
  fit(input);
  ask(text ? [{ role: "user", content: mode() === "chat" ? text.trim() : text }] : []);
}

function regenerate() {
  if (!ready()) return;
  if (turns().at(-1).role === "assistant") drop(turns().length - 1);
  answer();
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

log.addEventListener("scroll", () => { atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60; });
new ResizeObserver(() => { if (atEnd) log.scrollTop = log.scrollHeight; }).observe(log);
input.addEventListener("input", () => fit(input));
sendsOnEnter(input, send);
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
  input.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stopper?.abort();
});
$("stop").addEventListener("click", () => stopper?.abort());
$("regenerate").addEventListener("click", () => {
  input.focus();
  regenerate();
});
$("new").addEventListener("click", () => {
  leave(state, mode());
  save();
  showConversation();
  input.focus();
});
$("choice").addEventListener("change", () => {
  Object.assign(state, { model: $("choice").value, mode: "" });
  save();
  wake();
});
$("mode").addEventListener("change", () => {
  state.mode = $("mode").value;
  save();
  showConversation();
});
parameters.addEventListener("input", () => {
  checkTools();
  state.settings = Object.fromEntries([...parameters.elements].filter((field) => field.name && field.value).map((field) => [field.name, field.value]));
  save();
});
$("export").addEventListener("click", () => exportAll(state));
parameters.addEventListener("submit", (event) => event.preventDefault());
$("clear").addEventListener("click", () => {
  parameters.reset();
  checkTools();
  state.settings = {};
  save();
});
addEventListener("pagehide", save);

// ---- Panels.

const narrow = matchMedia("(max-width: 760px)");

function open(panel, on) {
  $(panel).hidden = !on;
  $(`show-${panel}`).ariaExpanded = on;
}

const kPanels = ["kept", "settings", "live"];
for (const panel of kPanels) {
  $(`show-${panel}`).addEventListener("click", () => {
    open(panel, $(panel).hidden);
    if (narrow.matches) kPanels.filter((other) => other !== panel).forEach((other) => open(other, false));
    if (panel === "live") wake();
  });
}

// ---- The live view.

const number = (value, digits = 0) => (Number.isFinite(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "–");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)), units.length - 1);
  return `${number(value / 1024 ** unit, unit ? 1 : 0)} ${units[unit]}`;
}

/// Parts [name, class, size, text] as a bar of `whole`, and as a legend under it.
function showBar(bar, legend, parts, whole) {
  bar.replaceChildren(...parts.filter(([, , size]) => size > 0).map(([, className, size]) => {
    const piece = element("i", className);
    piece.style.flexGrow = size / whole;
    return piece;
  }));
  const rest = whole - parts.reduce((sum, [, , size]) => sum + size, 0);
  if (rest > 0) {
    const piece = element("i", "");
    piece.style.flexGrow = rest / whole;
    bar.append(piece);
  }
  bar.ariaLabel = parts.map(([name, , , text]) => `${name} ${text}`).join(", ");
  legend.replaceChildren(...parts.map(([name, className, , text]) => {
    const line = element("span", "");
    line.append(element("i", `key ${className}`), `${name} ${text}`);
    return line;
  }));
}

const rates = [];

function showStatus({ queue, running, step }) {
  $("tok_s").textContent = number(step.tok_s, 1);
  $("step_ms").textContent = `${number(step.ms_p50, 2)} ms`;
  $("running").textContent = number(running.length);
  $("queue").textContent = number(queue);
  rates.push(step.tok_s || 0);
  if (rates.length > 60) rates.shift();
  const top = Math.max(1, ...rates);
  $("history").firstChild.setAttribute("points", rates.map((rate, i) => `${60 - rates.length + i + .5},${19 - 17 * rate / top}`).join(" "));
  $("history-text").textContent = `Last minute; highest ${number(Math.max(...rates), 1)}`;
  const parts = [["planning", "shared"], ["model", "used"], ["sampling", "cached"], ["events", "events"]]
    .map(([name, className]) => [name, className, step.parts_ms_p50[name], `${number(step.parts_ms_p50[name], 2)} ms`]);
  showBar($("parts-bar"), $("parts"), parts, Math.max(1e-9, parts.reduce((sum, [, , size]) => sum + size, 0)));
  showBar($("batch-bar"), $("batch"), [
    ["decoding sequences", "used", step.decode_seqs, number(step.decode_seqs)],
    ["prompt tokens", "cached", step.prompt_tokens, number(step.prompt_tokens)],
  ], Math.max(1, step.decode_seqs + step.prompt_tokens));
  $("slots-none").hidden = running.length > 0;
  $("slots").closest("table").hidden = running.length === 0;
  $("slots").replaceChildren(...running.map((one) => {
    const row = document.createElement("tr");
    row.append(...[one.id, one.state, number(one.n_prompt), number(one.n_cached), number(one.n_generated), number(one.tok_s, 1)].map((cell) => element("td", "", cell)));
    return row;
  }));
}

function showKv({ pages, tokens, sequence_bytes, sequence_f16_bytes }) {
  const parts = ["used", "shared", "cached", "free"].map((name) => [name, name, pages[name], number(pages[name])]);
  showBar($("pages-bar"), $("pages"), parts, Math.max(1, pages.total, parts.reduce((sum, [, , size]) => sum + size, 0)));
  $("kv-tokens").textContent = tokens ? `Rows of ${number(tokens)} tokens of running sequences.` : "No sequence runs.";
  const times = sequence_bytes > 0 ? ` (${number(sequence_f16_bytes / sequence_bytes, 1)} times as much)` : "";
  showBar($("kv-bar"), $("kv"), [["now", "used", sequence_bytes, bytes(sequence_bytes)],
    ["in f16", "free", Math.max(0, sequence_f16_bytes - sequence_bytes), `${bytes(sequence_f16_bytes)}${times}`]], Math.max(1, sequence_f16_bytes));
}

function showProps(now) {
  const changed = now.template !== props.template || now.model !== props.model;
  if (changed && state.model !== now.model) Object.assign(state, { model: now.model, mode: "" });  // another model: its own default
  props = now;
  const kv = now.kv_formats ? [...new Set([now.kv_formats.k, now.kv_formats.v])].join("/") : "";
  $("model").textContent = [now.model, now.device, kv && `KV ${kv}`].filter(Boolean).join(" · ");
  $("model").title = $("model").textContent;
  $("kv-token").textContent = `${kv}: ${number(now.kv_bytes_per_token)} bytes a token; f16: ${number(now.kv_bytes_per_token_f16)}`;
  $("server").textContent = `Ridge ${now.version} on ${now.device}, context of ${number(now.n_ctx)} tokens`;
  document.title = `${now.model} · Ridge`;
  if (changed && !stopper) showConversation();
}

let wake = () => {};  // ends the pause between two looks
const pause = (ms) => Promise.race([delay(ms), new Promise((resolve) => { wake = resolve; })]);
const get = async (path) => (await call(path, {})).json().catch(() => { throw new Lost(); });

let models = [];  // names; several are chosen from
const chosen = () => (models.includes(state.model) ? state.model : models[0]);

function showModels() {
  $("choice").hidden = $("choice-label").hidden = models.length < 2;
  $("choice").replaceChildren(...models.map((name) => element("option", "", name)));
  $("choice").value = chosen();
}

/// What the server says of the model: of one among several nothing until a message has loaded it.
async function look() {
  if (!models.length) {
    models = (await get("v1/models")).data.map(({ id }) => id);
    showModels();
  }
  if (models.length < 2) {
    showProps(await get("props"));
  } else {
    const shown = chosen();
    try {
      showProps(await get(`props?model=${encodeURIComponent(shown)}`));
      if ($("link").textContent.includes("not loaded")) say("");
    } catch (error) {
      if (error instanceof Lost) throw error;
      showProps({ ...props, model: shown, template: "model", kv_formats: null });
      if (!stopper) say(`${shown} is not loaded: the first message loads it.`);
      return;
    }
  }
  if ($("live").hidden) return;
  const query = models.length > 1 ? `?model=${encodeURIComponent(chosen())}` : "";
  const [status, kv] = await Promise.allSettled([get(`status${query}`), get(`kv${query}`)]);
  if (status.value) showStatus(status.value);
  if (kv.value) showKv(kv.value);
  const failed = [status, kv].find(({ reason }) => reason)?.reason;
  if (failed instanceof Lost) throw failed;
  $("live-error").hidden = !failed;
  $("live-error").textContent = failed?.message ?? "";
}

async function watch() {
  for (let wait = 1, down = false;;) {
    try {
      await look();
      if (down) say("The connection is back.", true);
      down = false;
      wait = 1;
    } catch (error) {
      say(error instanceof Lost ? "The connection to the server is lost. Trying again." : error.message);
      down = true;
      wait = Math.min(2 * wait, 8);
    }
    await pause(1000 * wait);
    while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

for (const [name, value] of Object.entries(state.settings)) {
  if (parameters.elements[name]) parameters.elements[name].value = value;
}
checkTools();
showConversation();
watch();
