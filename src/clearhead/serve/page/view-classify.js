// Classify (L6.3): class probabilities of a text, and the effect of ablating tokens.

import { html, nothing } from "lit-html";
import { addEdit, dropEdit, editOf } from "ch/edit";
import { asked } from "ch/run";
import { verdict } from "ch/verdict";
import "ch/tokens";

const off = (token) => ({ name: "embed", token, op: "ablate" });

function template(ctx) {
  const { card, run, text } = ctx;
  if (!text?.trim()) return html`<p class="hint">Nothing to classify yet. Type a text above.</p>`;
  const flip = ({ detail: { index } }) => (editOf(off(index)) ? dropEdit(off(index)) : addEdit(off(index)));
  return html`${verdict(ctx, asked(card))}
    ${run ? html`<ch-figure .caption=${"Which tokens matter? Click one to ablate it"} .bare=${true} .note=${"Its embedding is set to zero; its position stays. Click again to restore it."}>
      <ch-tokens .tokens=${run.tokens} .selected=${run.tokens.map((_, i) => i).filter((i) => editOf(off(i)))} .label=${"tokens to ablate"} @pick=${flip}></ch-tokens></ch-figure>` : nothing}`;
}

export default {
  id: "classify",
  title: "Classify",
  sentence: "A classification head on top of the encoder predicts class probabilities for the text.",
  free: true,
  template,
};
