// <ch-tokens>: tokens as a row of buttons, optionally colored by values.

import { html } from "lit-html";
import { css, ink } from "ch/colors";
import { define, Element } from "ch/element";

export class Tokens extends Element {
  static properties = {
    tokens: [], // { text, id, special }
    values: null, // one per token
    most: null, signed: false,
    selected: -1, // one index or several
    marked: -1, // highlighted index
    label: "tokens",
  };

  draw() {
    const { values } = this;
    const most = this.most ?? (values ? Math.max(1e-30, ...Array.from(values, (v) => Math.abs(v) || 0)) : 1);
    const chosen = new Set([this.selected].flat());
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", this.label);
    this.fill(html`${this.tokens.map((token, i) => {
      const share = values ? Math.max(-1, Math.min(1, values[i] / most)) : 0;
      const tint = values ? `background:${css(share)};color:${ink(share)}` : "";
      return html`<button type="button" class="token ${token.special ? "special" : ""} ${this.marked === i ? "marked" : ""}" data-i=${i}
        aria-pressed=${chosen.has(i)} title=${`token ${i}${token.id === null || token.id === undefined ? "" : `, id ${token.id}`}`} .style=${tint}>${token.text}</button>`;
    })}`);
  }

  connectedCallback() {
    const at = (event) => event.target.closest?.("button.token")?.dataset.i;
    this.addEventListener("click", (event) => at(event) && this.tell("pick", { index: Number(at(event)), more: event.shiftKey }));
    this.addEventListener("pointerover", (event) => this.tell("hover", { index: Number(at(event) ?? -1) }));
    this.addEventListener("pointerleave", () => this.tell("hover", { index: -1 }));
    this.addEventListener("focusin", (event) => at(event) && this.tell("hover", { index: Number(at(event)) }));
    this.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const next = step && this.querySelector(`button[data-i="${Number(at(event)) + step}"]`);
      if (!next) return;
      next.focus();
      event.preventDefault();
      event.stopPropagation();
    });
    super.connectedCallback();
  }
}
define("ch-tokens", Tokens);
