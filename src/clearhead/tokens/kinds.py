"""The kinds of tokenizers that are made from texts, and the token that ends a text. Stdlib only."""

KINDS = ("bpe", "characters", "bytes")
END = "<|end|>"
