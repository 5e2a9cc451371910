// Keyboard shortcuts and their help dialog.

import { html } from "lit-html";
import { clear } from "ch/inspector";
import { set } from "ch/state";

const KEYS = [
  ["1 – 9", "view"], ["[ ]", "layer"], ["{ }", "head"], ["← →", "previous or next token; in a heat map, move the cell"], ["Enter", "lock the cell"],
  ["T", "show the focused (or first) figure as a table"], ["Space", "play or pause"], [".", "single step"], ["/", "edit the text"], ["Esc", "clear"], ["?", "this help"],
];

/** Handle shortcuts outside of form fields. `shown` returns the views, `move` changes layer, head or token. */
export function listen({ shown, move }) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      else clear();
      return;
    }
    if (typing) return;
    const digit = Number(event.key);
    if (digit >= 1 && digit <= 9) shown()[digit - 1] && set({ view: shown()[digit - 1].id });
    else if (event.key === "[" || event.key === "]") move("layer", event.key === "]" ? 1 : -1);
    else if (event.key === "{" || event.key === "}") move("head", event.key === "}" ? 1 : -1);
    else if (event.key === "/") document.querySelector("form.prompt textarea[name=text]")?.focus();
    else if (event.key === "?") document.getElementById("help").showModal();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (!event.target.matches?.("body, main")) return; // handled by the focused element
      move("query", event.key === "ArrowRight" ? 1 : -1);
    } else if (event.key === " " && event.target.closest?.("button, summary, a")) return;
    else if (event.key === " " || event.key === ".") {
      const told = new CustomEvent(event.key === " " ? "play" : "step", { cancelable: true });
      if (window.dispatchEvent(told)) return; // not handled
    } else if (event.key.toLowerCase() === "t") {
      const button = document.querySelector("main ch-figure:has(ch-map) > header .tools > button");
      if (!button) return;
      button.click();
    } else return;
    event.preventDefault();
  });
}

/** The help dialog. */
export function help() {
  return html`<dialog id="help" aria-label="keyboard shortcuts" @click=${(event) => event.target.id === "help" && event.target.close()}>
    <form method="dialog"><h2>Keyboard shortcuts</h2><dl>${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
      <button class="main">Close</button></form></dialog>`;
}
