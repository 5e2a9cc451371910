// Where to look: the three attentions, their paths, and who may look at whom in each.

/** The path of an attention's values in a layer. */
export const path = (part, layer) => ({ attention: `blocks.${layer}.attn`, cross: `blocks.${layer}.cross`, encoder: `encoder.blocks.${layer}.attn` })[part];

/** The attentions that a model has. */
export const parts = (card) => (card.kind === "encoder-decoder" ? ["attention", "cross", "encoder"] : ["attention"]);

/** How many layers one of them has. */
export const layers = (card, part) => (part === "encoder" ? card.encoder_layers : card.layers);

/** The tokens on both sides: [queries, keys]. */
export function sides(run, part) {
  const own = part === "encoder" ? run.source : run.tokens;
  return [own, part === "attention" ? run.tokens : run.source];
}

export const texts = (tokens) => tokens.map(({ text }) => text);

/** The mask of an attention: its name, and whether a query may not look at a key. */
export function mask(card, part) {
  const causal = part === "attention" && card.kind !== "encoder", window = part === "cross" ? 0 : card.window;
  const near = window ? `, at most ${window - 1} tokens away` : "";
  if (causal) return { words: `causal mask: a token sees itself and what came before${near}`, hidden: (r, c) => c > r || (!!window && r - c >= window) };
  if (window) return { words: `a window: a token sees what is at most ${window - 1} tokens away`, hidden: (r, c) => Math.abs(r - c) >= window };
  return { words: part === "cross" ? "no mask: a token of the target sees the whole source" : "no mask: every token sees the whole text", hidden: null };
}

/** The layer and head of the state, within what the model has. */
export function place(state, card) {
  const part = parts(card).includes(state.part) ? state.part : "attention";
  const within = (n, count) => Math.max(0, Math.min(count - 1, Math.floor(n)));
  return { part, layer: within(state.layer, layers(card, part)), head: within(state.head, card.heads) };
}
