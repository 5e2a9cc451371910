// Comparing two runs: shared tokens, differences of patterns, next-token probabilities.

import { html } from "lit-html";
import { told } from "ch/colors";
import { array, got, home } from "ch/run";
import { once } from "ch/steady";

/** Positions to compare, [[i, j], …]: all if the lengths match, else the common prefix and suffix. */
export function shared(a, b) {
  if (a.length === b.length) return a.map((_, i) => [i, i]);
  const same = (i, j) => i >= 0 && j >= 0 && i < a.length && j < b.length && a[i].text === b[j].text;
  const pairs = [];
  let first = 0, last = 0;
  while (same(first, first)) pairs.push([first, first++]);
  const most = Math.min(a.length, b.length) - first;
  while (last < most && same(a.length - 1 - last, b.length - 1 - last)) last++;
  for (; last > 0; last--) pairs.push([a.length - last, b.length - last]);
  return pairs;
}

/** second − first over pairs of query and key positions: { shape, data, most }; memoized. */
export function apart(first, second, queries, keys = queries) {
  return once(once(first, second, () => ({})), `${queries} ${keys}`, () => {
    const data = new Float32Array(queries.length * keys.length), [wide, other] = [first.shape[1], second.shape[1]];
    queries.forEach(([qi, qj], r) => keys.forEach(([ki, kj], c) => (data[r * keys.length + c] = second.data[qj * other + kj] - first.data[qi * wide + ki])));
    return { shape: [queries.length, keys.length], data, most: data.reduce((a, b) => Math.max(a, Math.abs(b)), 0) };
  });
}

/** One head's pattern in a run, as a resource. */
export function pattern(run, path, head, slot) {
  const url = `/api/runs/${run}/tensor/${path}.pattern?head=${head}`;
  return array(url, slot);
}

/** The probability of every token after the last one of a run, as a resource. */
export function chances(run, slot) {
  const url = `/api/runs/${run}/logits?token=-1`;
  return array(url, slot, ({ data }) => softmax(data));
}

function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const raised = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((value) => value / sum);
}

/** The top next tokens of two runs with their probabilities in both; of two models, matched by text. */
export function likeliest(runs, names, models = []) {
  const rows = runs.map(({ id }, i) => chances(id, `chances ${i}`));
  const words = models.map((name) => got(`${home(name)}/vocabulary`));
  if ([...rows, ...words].some(({ value, pending }) => !value || pending)) return html`<p class="hint">Running the model …</p>`;
  const place = (i, id, text) => (words.length ? words[i].value.indexOf(text) : id);
  const ids = new Map(runs.flatMap(({ top }) => top.slice(0, 7)).map(({ id, text }) => [models.length ? text : id, text]));
  return html`<div class="scroll"><table class="numbers changes"><thead><tr><th scope="col">next</th>${names.map((name) => html`<th scope="col">${name}</th>`)}<th scope="col">difference</th></tr></thead>
    <tbody>${[...ids].map(([id, text]) => {
      const [first, second] = rows.map(({ value }, i) => value[place(i, id, text)]);
      if (first === undefined || second === undefined) return html`<tr><th scope="row" class="word">${text}</th>${[first, second].map((one) => html`<td>${one === undefined ? "not in vocabulary" : told(one)}</td>`)}<td></td></tr>`;
      return html`<tr><th scope="row" class="word">${text}</th><td>${told(first)}</td><td>${told(second)}</td><td class=${second < first ? "less" : "more"}>${second < first ? "−" : "+"}${told(Math.abs(second - first))}</td></tr>`;
    })}</tbody></table></div>`;
}
