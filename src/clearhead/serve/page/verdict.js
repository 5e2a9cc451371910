// What a classifier says: each class with its probability, or its number; and what the edits make of that.

import { html, nothing } from "lit-html";
import { told } from "ch/colours";
import { changes, posted } from "ch/run";
import { shown } from "ch/shown";
import "ch/bars";
import "ch/figure";

const MOST = 12; // classes

/** The verdict on what is in the body of a request; nothing of a model that judges nothing. */
export function verdict({ card }, body) {
  if (card.head !== "classes" && card.head !== "number") return nothing;
  const plain = posted("classify", body, "verdict"), edited = changes() ? posted("classify", { ...body, ...changes() }, "edited verdict") : null;
  const note = !edited ? "" : card.head === "number" ? "Without your edits, and with them." : "With your edits; the dark lines are without them.";
  return html`<ch-figure .caption=${"What is it?"} .pending=${plain.pending || !!edited?.pending} .note=${note}>
    ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
    ${shown(plain, ({ classes, number }) => {
      if (!classes) return html`<p class="verdict">The model's number: <b>${told(number, 4)}</b>${edited?.value ? html` → <b>${told(edited.value.number, 4)}</b>` : nothing}</p>`;
      const now = edited?.value?.classes ?? classes;
      const order = [...now.keys()].sort((a, b) => now[b].probability - now[a].probability).slice(0, MOST);
      return html`<ch-bars .labels=${order.map((i) => now[i].text)} .values=${order.map((i) => now[i].probability)} .most=${1} .measure=${"probability"} .label=${"classes"}
        .before=${edited?.value ? order.map((i) => classes[i].probability) : null}></ch-bars>${classes.length > MOST ? html`<p class="badge">the first ${MOST} of ${classes.length}</p>` : nothing}`;
    })}</ch-figure>`;
}
