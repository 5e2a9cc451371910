"""The stack of a model that reads text, with its tokenizer and embedding matrix."""

from typing import TYPE_CHECKING

from clearhead.errors import ClearheadError, check_type
from clearhead.lens.activation_cache import ActivationCache, check_no_nan
from clearhead.lens.argument_checks import check_layer
from clearhead.lens.tokens import token_labels
from clearhead.model.embeddings import TokenEmbedding
from clearhead.model.transformer import Stack, Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model


class TextStack:
    """The stack of a model that reads text: its tokenizer, embedding matrix and special tokens.

    That is the encoder of an encoder-decoder that translates text, and otherwise the only stack.
    """

    def __init__(self, model: "Model") -> None:
        check_type(getattr(model, "net", model), Transformer, "a model")
        self.model = model
        encoder = model.net.encoder
        encoder_reads_text = encoder is not None and isinstance(encoder.embed, TokenEmbedding)
        self.stack: Stack = encoder if encoder is not None and encoder_reads_text else model.net
        self.is_encoder = self.stack is not model.net
        tokenizer = model.tokenizers[self.is_encoder]
        if not isinstance(self.stack.embed, TokenEmbedding):
            raise ClearheadError("this model does not read text; it has no word vectors.")
        if tokenizer is None:
            raise ClearheadError("this model has no tokenizer, so words cannot be looked up.")
        self.tokenizer: Tokenizer = tokenizer
        self.embedding = self.stack.embed.tokens.weight.detach()
        inference = model.config.inference
        has_special_tokens = self.is_encoder or encoder is None
        self.bos_tokens = inference.bos_tokens if has_special_tokens else ()
        self.sep_tokens = inference.sep_tokens if has_special_tokens else ()
        self.mask_token = next(iter(inference.mask_token), None)
        self.prefix = "encoder." if self.is_encoder else ""  # of its activations

    def encode_word(self, word: str) -> list[int]:
        """The token ids of a word inside a text: with the leading space, if tokens contain it."""
        if not word.strip():
            raise ClearheadError("the word is empty.")
        ids = self.tokenizer.encode(f" {word.strip()}" if self.tokenizer.has_space_prefix else word)
        if not ids:
            raise ClearheadError(f"{word!r} has no tokens.")
        for name, i in self.tokenizer.special_tokens.items():
            if i in ids:
                raise ClearheadError(f"{word!r} has no tokens; the tokenizer maps it to {name}.")
        return ids

    def to_str_tokens(self, ids: list[int]) -> tuple[str, ...]:
        return tuple(token_labels(self.tokenizer, ids))

    def resid_name(self, layer: int) -> str:
        """The name of the residual stream after a layer."""
        layer = check_layer(layer, len(self.stack.blocks))
        return f"{self.prefix}blocks.{layer}.resid_post"

    def watch(self, rows: list[list[int]], names: list[str]) -> ActivationCache:
        """Activations of this stack for rows of token ids."""
        if not self.is_encoder:
            return check_no_nan(self.model.watch(rows, names))
        # the encoder does not depend on the target, but the model needs one
        target = list(self.model.config.inference.decoder_start_tokens) or [0]
        return check_no_nan(self.model.watch([target] * len(rows), names, source=rows))
