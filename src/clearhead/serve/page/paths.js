// The attention types of a model: activation paths, layers and masks.

/** Activation path of an attention layer. */
export const path = (part, layer) => ({ attention: `blocks.${layer}.attn`, cross: `blocks.${layer}.cross_attn`, encoder: `encoder.blocks.${layer}.attn` })[part];

/** The attention types of a model. */
export const parts = (card) => (card.architecture === "encoder-decoder" ? ["attention", "cross", "encoder"] : ["attention"]);

/** Number of layers of an attention type. */
export const layers = (card, part) => (part === "encoder" ? card.encoder_layers : card.n_layers);

/** The tokens on both sides: [queries, keys]. */
export function sides(run, part) {
  const own = part === "encoder" ? run.source_tokens : run.tokens;
  return [own, part === "attention" ? run.tokens : run.source_tokens];
}

export const texts = (tokens) => tokens.map(({ text }) => text);

/** The mask of an attention type: description, and whether a (query, key) cell is masked. */
export function mask(card, part) {
  const causal = part === "attention" && card.architecture !== "encoder", window = part === "cross" ? 0 : card.sliding_window;
  const near = window ? `, at most ${window - 1} tokens away` : "";
  if (causal) return { words: `causal mask: a token attends to itself and earlier tokens${near}`, hidden: (r, c) => c > r || (!!window && r - c >= window) };
  if (window) return { words: `sliding window: a token attends to tokens at most ${window - 1} tokens away`, hidden: (r, c) => Math.abs(r - c) >= window };
  return { words: part === "cross" ? "no mask: target tokens attend to the whole source" : "no mask: every token attends to the whole text", hidden: null };
}

/** The selected attention type, layer and head, clamped to the model. */
export function place(state, card) {
  const part = parts(card).includes(state.part) ? state.part : "attention";
  const within = (n, count) => Math.max(0, Math.min(count - 1, Math.floor(n)));
  return { part, layer: within(state.layer, layers(card, part)), head: within(state.head, card.n_heads) };
}
