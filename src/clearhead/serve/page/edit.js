// <ch-edit>: switch a part of the model off, scale it, or swap in what it was in another text; and edits as words.

import { html, nothing } from "lit-html";
import { ONLY, snapshot } from "ch/api";
import { define, Element } from "ch/element";
import { on, set, state } from "ch/state";

/** Add an edit, or change the one of the same place. */
export function addEdit(edit) {
  set({ edits: [...state().edits.filter((other) => !same(other, edit)), clean(edit)] });
}

/** Take an edit away. */
export function dropEdit(edit) {
  set({ edits: state().edits.filter((other) => !same(other, edit)) });
}

/** The edit of a place, if there is one. */
export const editOf = (place) => state().edits.find((other) => same(other, place));

/** An edit in words. */
export function editWords({ name, op, head, token, by }) {
  const place = name.replace(/^encoder\./, "encoder, ").replace(/blocks\.(\d+)\./, "layer $1 ").replace(/attn\.(z|out)/, "attention")
    .replace(/cross\.(z|out)/, "cross-attention").replace("ffn.out", "feed-forward").replace("embed.tokens", "embedding");
  const given = (word, n) => (n === undefined || n === null ? "" : `${word} ${n}`);
  const where = [place, given("head", head), given("token", token)].filter(Boolean).join(", ");
  return { ablate: `${where} off`, mean: `${where} at its mean`, scale: `${where} × ${by}`, swap: `${where} swapped` }[op];
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
    const is = (op, by) => !!now && now.op === op && (by === undefined || now.by === by);
    const button = (words, hint, op, by) => html`<button type="button" class="quiet" aria-pressed=${is(op, by)} title=${snapshot ? ONLY : hint} ?disabled=${!!snapshot}
      @click=${() => (is(op, by) ? dropEdit(place) : addEdit({ ...place, op, by }))}>${words}</button>`;
    this.setAttribute("role", "group");
    this.setAttribute("aria-label", `edit ${editWords({ ...place, op: "ablate" }).replace(/ off$/, "")}`);
    this.fill(html`${this.label ? html`<span class="what">${this.label}</span>` : nothing}
      ${button("off", "Set to zero", "ablate")}${button("mean", "Set to its mean over the tokens", "mean")}
      ${button("×2", "Twice as much", "scale", 2)}${button("×½", "Half as much", "scale", 0.5)}
      ${button("×−1", "Turned round", "scale", -1)}${button("swap", "Put in what it is in another text", "swap")}`);
  }
}
define("ch-edit", EditControl);

const same = (a, b) => a.name === b.name && (a.head ?? null) === (b.head ?? null) && (a.token ?? null) === (b.token ?? null);
const clean = (edit) => Object.fromEntries(Object.entries(edit).filter(([, value]) => value !== null && value !== undefined));
