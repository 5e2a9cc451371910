// <ch-view>: any lens view. One dimension as bars, two as a heat map, more as several heat maps.

import { html, nothing } from "lit-html";
import { define, Element } from "ch/element";
import { once } from "ch/steady";
import "ch/bars";
import "ch/figure";
import "ch/map";

const MOST = 64; // maximum number of maps per figure

export class View extends Element {
  static properties = {
    view: null, // as sent by the API, with decoded values
    pending: false, caption: null,
    cursor: null, // [row, col] in every map
    masked: null,
  };

  draw() {
    if (!this.view) return;
    const { axes, title, note } = this.view;
    this.fill(html`<ch-figure .caption=${this.caption ?? title} .note=${note ?? ""} .pending=${this.pending}>
      ${axes.length === 1 ? this.#bars() : this.#maps()}</ch-figure>`);
  }

  #bars() {
    const { axes, values, signed, vmax, value_name } = this.view;
    return html`<ch-bars .labels=${axes[0].labels} .values=${values} .signed=${signed} .most=${vmax} .measure=${value_name}
      @pick=${(event) => this.tell("pick", event.detail)}></ch-bars>`;
  }

  #maps() {
    const { axes, values, shape, signed, words, value_name, plain } = this.view;
    const [down, across] = axes.slice(-2);
    const size = down.labels.length * across.labels.length;
    const names = titles(axes.slice(0, -2));
    const most = this.view.vmax ?? largest(values);
    return html`<div class="maps ${names.length > 1 ? "many" : ""}">${names.slice(0, MOST).map((name, i) => html`<div>
      ${name ? html`<h3>${name}</h3>` : nothing}
      <ch-map .values=${cut(this.view, i, size, shape)} .rows=${down.labels} .cols=${across.labels} .signed=${signed} .most=${most}
        .words=${words} .plain=${!!plain} .measure=${value_name} .by=${[down.name, across.name]} .label=${name || this.view.title}
        .cursor=${this.cursor} .masked=${this.masked} @pick=${(event) => this.tell("pick", { ...event.detail, map: i })}
        @hover=${(event) => this.tell("hover", event.detail && { ...event.detail, map: i })}></ch-map></div>`)}</div>
      ${names.length > MOST ? html`<p class="badge">the first ${MOST} of ${names.length}</p>` : nothing}`;
  }
}
define("ch-view", View);

/** One map of a view; memoized, so that it is not redrawn. */
const cut = (view, i, size, shape) => once(view, i, () => ({ shape: shape.slice(-2), data: view.values.subarray(i * size, (i + 1) * size) }));

function titles(leading) {
  return leading.reduce((names, axis) => names.flatMap((name) => axis.labels.map((label) => `${name}${name && ", "}${axis.name} ${label}`)), [""]);
}

function largest(values) {
  let most = 0;
  for (const value of values) if (Number.isFinite(value) && Math.abs(value) > most) most = Math.abs(value);
  return most || 1;
}
