// <ch-edit>: ablate, scale or patch an activation; and descriptions of edits.

import { html, nothing } from "lit-html";
import { ONLY, snapshot } from "ch/api";
import { define, Element } from "ch/element";
import { on, set, state } from "ch/state";

/** Add an edit, or replace the one at the same place. */
export function addEdit(edit) {
  set({ edits: [...state().edits.filter((other) => !same(other, edit)), clean(edit)] });
}

/** Remove an edit. */
export function dropEdit(edit) {
  set({ edits: state().edits.filter((other) => !same(other, edit)) });
}

/** The edit at a place, if any. */
export const editOf = (place) => state().edits.find((other) => same(other, place));

/** Describe an edit. */
export function editWords({ name, op, head, token, factor }) {
  const place = name.replace(/^encoder\./, "encoder, ").replace(/blocks\.(\d+)\./, "layer $1 ").replace(/cross_attn\.(z|out)/, "cross-attention")
    .replace(/\battn\.(z|out)/, "attention").replace("ffn.out", "feed-forward").replace(/\bembed$/, "embedding");
  const given = (word, n) => (n === undefined || n === null ? "" : `${word} ${n}`);
  const where = [place, given("head", head), given("token", token)].filter(Boolean).join(", ");
  return { ablate: `${where} off`, mean_ablate: `${where} set to its mean`, scale: `${where} × ${factor}`, patch: `${where} patched` }[op];
}

export class EditControl extends Element {
  static properties = { name: "", head: null, token: null, label: "" };

  connectedCallback() {
    this.stop = on(() => this.soon());
    super.connectedCallback();
  }

  disconnectedCallback() {
    this.stop();
  }

  draw() {
    const place = { name: this.name, head: this.head, token: this.token };
    const now = editOf(place);
    const is = (op, factor) => !!now && now.op === op && (factor === undefined || now.factor === factor);
    const button = (words, hint, op, factor) => html`<button type="button" class="quiet" aria-pressed=${is(op, factor)} title=${snapshot ? ONLY : hint} ?disabled=${!!snapshot}
      @click=${() => (is(op, factor) ? dropEdit(place) : addEdit({ ...place, op, factor }))}>${words}</button>`;
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", `edit ${editWords({ ...place, op: "ablate" }).replace(/ off$/, "")}`);
    this.fill(html`${this.label ? html`<span class="what">${this.label}</span>` : nothing}
      ${button("off", "Set to zero", "ablate")}${button("mean", "Replace with the mean over all tokens", "mean_ablate")}
      ${button("×2", "Multiply by 2", "scale", 2)}${button("×½", "Multiply by 0.5", "scale", 0.5)}
      ${button("×−1", "Multiply by −1", "scale", -1)}${button("patch", "Replace it with its value in another text", "patch")}`);
  }
}
define("ch-edit", EditControl);

const same = (a, b) => a.name === b.name && (a.head ?? null) === (b.head ?? null) && (a.token ?? null) === (b.token ?? null);
const clean = (edit) => Object.fromEntries(Object.entries(edit).filter(([, value]) => value !== null && value !== undefined));
