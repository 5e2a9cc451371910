"""The Transformer: attention, blocks, heads, inputs, position encodings, KV cache, int8."""
