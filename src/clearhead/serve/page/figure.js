// <ch-figure>: a figure with caption, note and export menu.

import { html, nothing, render } from "lit-html";
import { define, Element } from "ch/element";
import { drawingSvg, fileName, mapCsv, mapPicture, mapSvg, npyOf, save, tableCsv } from "ch/export";

export class Figure extends Element {
  static properties = { caption: "", note: "", pending: false, badge: "", bare: false }; // bare: no export menu

  connectedCallback() {
    this.setAttribute("role", "figure");
    this.head ??= this.insertBefore(document.createElement("header"), this.firstChild);
    this.foot ??= this.appendChild(document.createElement("footer"));
    this.addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
    super.connectedCallback();
  }

  draw() {
    this.setAttribute("aria-label", this.caption);
    this.classList.toggle("pending", this.pending);
    render(html`<h2>${this.caption}</h2>${this.badge ? html`<span class="badge">${this.badge}</span>` : nothing}
      ${this.bare ? nothing : this.#tools()}`, this.head);
    render(this.note ? html`<p>${this.note}</p>` : nothing, this.foot);
  }

  /** Table and export buttons; the export formats are determined when the menu opens. */
  #tools() {
    return html`<div class="tools">
        <button type="button" class="quiet" title="Show the numbers as a table (T)" @click=${() => this.#table()}>Table</button>
        <details class="menu"><summary class="quiet" title="Save this figure as a file" @click=${() => this.draw()}>Save</summary>
          <div class="items">${this.#kinds().map(([kind, make]) => html`<button type="button" @click=${() => { make(); this.#close(); }}>${kind}</button>`)}</div>
        </details>
      </div>`;
  }

  get #parts() {
    return [...this.querySelectorAll("ch-map, ch-bars, ch-patches")].filter((part) => part.values);
  }

  #close() {
    this.querySelector("details.menu")?.removeAttribute("open");
  }

  #table() {
    const maps = this.#parts.filter((part) => part.localName === "ch-map");
    const to = !maps[0]?.tabled;
    for (const map of maps) map.tabled = to;
  }

  #kinds() {
    const parts = this.#parts, maps = parts.filter((part) => part.plan);
    const each = (ending, make) => parts.forEach((part, i) => make(part, `${this.#name(part, parts, i)}.${ending}`));
    const kinds = [
      ["CSV", () => each("csv", (part, name) => save(name, part.csv ? part.csv() : mapCsv(part), "text/csv"))],
      [".npy", () => each("npy", (part, name) => save(name, part.npy ? part.npy() : npyOf(part.values.shape, part.values.data), "application/octet-stream"))],
    ];
    const own = (kind) => [...this.querySelectorAll(kind)].filter((part) => !part.closest("ch-map, ch-bars"));
    const [tables, drawings] = [own("table"), own("svg")];
    const others = [
      ["CSV of the table", () => tables.forEach((table, i) => save(`${this.#name(table, tables, i)}.csv`, tableCsv(table), "text/csv"))],
      ["SVG of the drawing", () => drawings.forEach((drawing, i) => save(`${this.#name(drawing, drawings, i)}.svg`, drawingSvg(drawing), "image/svg+xml"))],
    ].filter((_, i) => [tables, drawings][i].length);
    if (!maps.length) return [...(parts.length ? kinds : []), ...others];
    return [
      ...others,
      ["PNG, 2×", () => maps.forEach((map, i) => mapPicture(map).toBlob((blob) => save(`${this.#name(map, maps, i)}.png`, blob)))],
      ["SVG", () => maps.forEach((map, i) => save(`${this.#name(map, maps, i)}.svg`, mapSvg(map), "image/svg+xml"))],
      ...kinds,
    ];
  }

  #name(part, parts, i) {
    return fileName(part.name || this.caption) + (parts.length > 1 ? `-${i}` : "");
  }
}
define("ch-figure", Figure);
