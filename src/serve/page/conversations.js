// Conversations that a person has left: kept in the browser's storage, listed, opened again, deleted, exported.

const kMost = 100;  // the oldest one goes first

function title({ turns }) {
  const said = turns.find((turn) => turn.role === "user" && turn.content.trim())?.content ?? "";
  return said.trim().split("\n")[0].slice(0, 60) || "Without words";
}

/// Moves the turns of a mode to the conversations that were left.
export function leave(state, mode) {
  if (state[mode].length) state.kept.unshift({ mode, when: Date.now(), model: state.model, turns: state[mode] });
  state.kept.length = Math.min(state.kept.length, kMost);
  state[mode] = [];
}

/// Makes the n-th of them the one that goes on; the present one is left.
export function reopen(state, n, mode) {
  const [one] = state.kept.splice(n, 1);
  leave(state, mode);
  state.mode = one.mode;
  state[one.mode] = one.turns;
}

function button(text, label, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, ariaLabel: label });
  made.addEventListener("click", act);
  return made;
}

/// Lists them; `open` and `remove` get a number.
export function showKept(list, kept, { open, remove }) {
  list.replaceChildren(...kept.map((one, i) => {
    const row = document.createElement("li"), when = document.createElement("span");
    when.className = "hint";
    when.textContent = new Date(one.when).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    row.append(button(title(one), `Open: ${title(one)}`, () => open(i)), when, button("Delete", `Delete: ${title(one)}`, () => remove(i)));
    return row;
  }));
}

/// A download of all conversations and the system prompt as JSON.
export function exportAll(state) {
  const present = ["chat", "text"].filter((mode) => state[mode].length).map((mode) => ({ mode, when: Date.now(), model: state.model, turns: state[mode] }));
  const document_ = { format: "ridge-conversations", version: 1, system: state.settings.system ?? "", conversations: [...present, ...state.kept] };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(document_, (name, value) => (name === "busy" ? undefined : value), 1)], { type: "application/json" }));
  link.download = "ridge-conversations.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
