// Output of a classifier or regressor, with and without edits.

import { html, nothing } from "lit-html";
import { told } from "ch/colors";
import { changes, posted } from "ch/run";
import { shown } from "ch/shown";
import "ch/bars";
import "ch/figure";

const MOST = 12; // classes shown

/** The classification of a request body; nothing for models without such a head. */
export function verdict({ card }, body) {
  if (card.head !== "classification" && card.head !== "regression") return nothing;
  const plain = posted("classify", body, "verdict"), edited = changes() ? posted("classify", { ...body, ...changes() }, "edited verdict") : null;
  const note = !edited ? "" : card.head === "regression" ? "Without and with your edits." : "With your edits; dark lines are without edits.";
  return html`<ch-figure .caption=${"Prediction"} .pending=${plain.pending || !!edited?.pending} .note=${note}>
    ${edited?.error ? html`<p class="problem">${edited.error.message}</p>` : nothing}
    ${shown(plain, ({ labels: classes, value: number }) => {
      if (!classes) return html`<p class="verdict">Predicted value: <b>${told(number, 4)}</b>${edited?.value ? html` → <b>${told(edited.value.value, 4)}</b>` : nothing}</p>`;
      const now = edited?.value?.labels ?? classes;
      const order = [...now.keys()].sort((a, b) => now[b].probability - now[a].probability).slice(0, MOST);
      return html`<ch-bars .labels=${order.map((i) => now[i].text)} .values=${order.map((i) => now[i].probability)} .most=${1} .measure=${"probability"} .label=${"classes"}
        .before=${edited?.value ? order.map((i) => classes[i].probability) : null}></ch-bars>${classes.length > MOST ? html`<p class="badge">the first ${MOST} of ${classes.length}</p>` : nothing}`;
    })}</ch-figure>`;
}
