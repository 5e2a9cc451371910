// <ch-bars>: a bar chart; each bar is a button.

import { html, nothing } from "lit-html";
import { told } from "ch/colors";
import { define, Element, framed } from "ch/element";
import { csvOf, npyOf } from "ch/export";

export class Bars extends Element {
  static properties = {
    labels: [], values: [], notes: null, // a note next to each value
    signed: false, most: null, measure: "value",
    before: null, // values without edits, drawn as a line
    selected: -1, label: "",
  };

  draw() {
    const values = Array.from(this.values);
    const most = this.most ?? Math.max(1e-30, ...values.map((v) => Math.abs(v) || 0), ...Array.from(this.before ?? [], (v) => Math.abs(v) || 0));
    const share = (value) => Math.min(1, (this.signed ? Math.abs(value) : Math.max(0, value)) / most || 0);
    this.classList.toggle("signed", this.signed);
    this.setAttribute("role", "group");
    if (this.label) this.setAttribute("aria-label", this.label);
    this.fill(html`${values.map((value, i) => html`
      <button type="button" class="bar ${value < 0 ? "less" : ""}" data-i=${i} aria-pressed=${this.selected === i}
        @click=${(event) => { this.#show(i, "lock"); this.tell("pick", { index: i, value, more: event.shiftKey }); }}
        @pointerenter=${() => { this.#show(i); this.tell("hover", { index: i, value }); }} @pointerleave=${() => { this.#show(-1); this.tell("hover", null); }}>
        <span class="name">${this.labels[i]}</span>
        <span class="track" .style=${`--share:${share(value)}`}><span class="fill"></span>
          ${this.before && !Number.isNaN(this.before[i]) ? html`<span class="before" .style=${`--share:${share(this.before[i])}`} title=${`without edits ${told(this.before[i])}`}></span>` : nothing}</span>
        <span class="number">${told(value)}</span>${this.notes ? html`<span class="note">${this.notes[i]}</span>` : nothing}
      </button>`)}`);
  }

  /** Show a bar, or nothing, in the inspector. */
  #show(i, how = "hover") {
    this.tell("inspect", i < 0 ? null : { ...framed(this), where: [this.labels[i]], measure: this.measure, value: this.values[i], how }, true);
  }

  csv() {
    return csvOf([["name", this.measure], ...Array.from(this.values, (value, i) => [this.labels[i], value])]);
  }

  npy() {
    return npyOf([this.values.length], Float32Array.from(this.values));
  }
}
define("ch-bars", Bars);
