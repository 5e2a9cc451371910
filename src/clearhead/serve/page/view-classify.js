// Classify (L6.3): an encoder with a head of a few classes judges a whole text; which words decide?

import { html, nothing } from "lit-html";
import { addEdit, dropEdit, editOf } from "ch/edit";
import { asked } from "ch/run";
import { verdict } from "ch/verdict";
import "ch/tokens";

const off = (token) => ({ name: "embed.tokens", token, op: "ablate" });

function template(ctx) {
  const { card, run, text } = ctx;
  if (!text?.trim()) return html`<p class="hint">There is no text to judge yet. Type one above.</p>`;
  const flip = ({ detail: { index } }) => (editOf(off(index)) ? dropEdit(off(index)) : addEdit(off(index)));
  return html`${verdict(ctx, asked(card))}
    ${run ? html`<ch-figure .caption=${"Which words decide? Click one to switch it off"} .bare=${true} .note=${"Its vector is zero then, before the first layer; its place stays. Click it again, and it is back."}>
      <ch-tokens .tokens=${run.tokens} .selected=${run.tokens.map((_, i) => i).filter((i) => editOf(off(i)))} .label=${"tokens to switch off"} @pick=${flip}></ch-tokens></ch-figure>` : nothing}`;
}

export default {
  id: "classify",
  title: "Classify",
  sentence: "One head on top of the encoder says which class the whole text is of, and how surely.",
  free: true,
  template,
};
