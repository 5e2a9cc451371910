"""A model as a folder for CTranslate2: `model.bin`, `config.json`, its vocabularies, and the tokenizers beside them.

A decoder is for `ctranslate2.Generator`, an encoder-decoder for `Translator`, an encoder for `Encoder`, and one that
hears (`shape.input` is sound) for `models.Whisper`. What CTranslate2 would compute otherwise than we do is refused.

Tokens are passed as `config.use` puts them around a text, for CTranslate2 is told to add none: `begin` before and
`end` after what is read. A single `start` token is its decoder_start_token. None or several are what target_prefix
begins with, of which the result leaves out the first; for sound they are the prompt, which ends with <|notimestamps|>
or else Whisper's rules of time hold. It stops at the first `stop` token; where there are more, pass all of them as
end_token. A token of `never` has no probability left; the others share it. `config.json` repeats all of `use`, in ids.
A token that the tokenizer has no name for, or any without a tokenizer, is called `<unused12>`. Pass only tokens of the
vocabulary: CTranslate2 does not check.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.model.transformer import Transformer
from clearhead.tokens.text import Tokenizer
from clearhead.weights import features
from clearhead.weights.checkpoint import Checkpoint
from clearhead.weights.ctranslate2_spec import ACTIVATIONS, Writer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PLACED = (c.NoPositions, c.Learned, c.Sinusoidal, c.Relative, c.Shaw, c.Alibi, c.Rotary)  # what the writer expresses
BEGIN, END, TIMELESS = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"  # what its Whisper looks for


def write(folder: Path, model: Checkpoint) -> None:
    """Fills an empty folder."""
    try:
        from ctranslate2 import specs  # type: ignore[import-untyped]
    except ImportError:
        raise ClearheadError("CTranslate2 is not installed; pip install 'clearhead[ctranslate2]'.") from None
    m, use = model.config.model, model.config.use
    names = _names(model.tokenizer, m.vocabulary)
    reasons = _in_sound(m, use, names) if _hears(m) else _in_text(m, use)
    for reason in (*_in_weights(model.net), *_in_any(m), *reasons):
        raise ClearheadError(reason)
    writer = Writer(model.net, specs)
    spec = writer.whole(() if _hears(m) else use.never)
    for name in writer.left.values():
        raise ClearheadError(f"CTranslate2 has no place for {name}, which the configuration does not tell of.")
    source = names
    if isinstance(m.shape, c.EncoderDecoder) and not _hears(m):
        source = _names(model.tokenizers[1], m.shape.vocabulary or m.vocabulary)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(names)
    else:
        spec.register_vocabulary(names)
    told = _told_of_sound(m, use, names) if _hears(m) else _told_of_text(m, use, names, source)
    for key, value in {**told, "layer_norm_epsilon": m.norm.eps, "use": asdict(use)}.items():
        spec.config.add_attribute(key, value)
    spec.validate()
    spec.optimize()  # a shared matrix is stored once
    spec.save(str(folder))
    features.write(folder, m)
    model.save_tokenizers_for_engines(folder)


def _hears(m: c.ModelConfig) -> bool:
    return isinstance(m.shape, c.EncoderDecoder) and isinstance(m.shape.input, c.Sound)


# ---------------------------------------------------------------- what cannot be said
def _in_weights(net: Transformer) -> Iterator[str]:
    for name, p in net.named_parameters():
        if p.dtype not in DTYPES:
            dtype = str(p.dtype).removeprefix("torch.")
            yield f"CTranslate2 holds float32, float16 or bfloat16, but {name} is {dtype}."


def _in_any(m: c.ModelConfig) -> Iterator[str]:
    both = m.shape if isinstance(m.shape, c.EncoderDecoder) else None
    if isinstance(m.shape, c.Encoder) and not isinstance(m.head, c.Hidden):
        yield f"CTranslate2's encoders end with hidden states, not with head {m.head.kind}; give the model head hidden."
    if not isinstance(m.shape, c.Encoder) and not isinstance(m.head, c.Language):
        yield f"CTranslate2's decoders write tokens; they need head language, not {m.head.kind}."
    if not isinstance(m.shape, c.Encoder) and any(getattr(s, "kinds", 0) for s in (m.input, both and both.input)):
        yield f"CTranslate2 knows kinds of sentence in an encoder alone, not in shape {m.shape.kind}."
    if m.ffn.activation not in ACTIVATIONS:
        yield f"CTranslate2 has no activation {m.ffn.activation}; it has {', '.join(ACTIVATIONS)}."
    if 0 < m.attention.window < (longest := max(m.context, both.context if both else 0)):
        window = f"attention.window = {m.attention.window} is less than the context of {longest}"
        yield f"CTranslate2 fails where a window ends, and {window}; it can only do without one."
    if both and m.attention.qk_norm:
        yield "CTranslate2's cross-attention does not normalise each head, which attention.qk_norm asks for."


def _in_text(m: c.ModelConfig, use: c.Use) -> Iterator[str]:
    for source in (m.input, m.shape.input) if isinstance(m.shape, c.EncoderDecoder) else (m.input,):
        if not isinstance(source, c.Tokens):
            yield f"CTranslate2 does not read {source.kind} here; it reads tokens, or sound in an encoder-decoder."
    match m.position, m.shape:
        case c.Alibi(), c.Encoder() | c.EncoderDecoder():
            yield f"CTranslate2 knows alibi positions in a decoder alone, not in shape {m.shape.kind}."
        case c.Relative(), c.Decoder():
            yield "CTranslate2 misplaces the tokens of a prompt among relative positions; a decoder alone needs others."
    if not isinstance(m.position, PLACED):
        yield f"CTranslate2 has no {m.position.kind} positions."
    if use.never_first:
        yield f"CTranslate2 cannot forbid first tokens, as use.never_first = {use.never_first} does."


def _in_sound(m: c.ModelConfig, use: c.Use, names: list[str]) -> Iterator[str]:
    if m.wiring != "pre" or ACTIVATIONS.get(m.ffn.activation) != "GELU":
        yield f"CTranslate2 hears with wiring pre and gelu or geglu, not with {m.wiring} and {m.ffn.activation}."
    if not isinstance(m.position, c.NoPositions | c.Learned | c.Sinusoidal):
        yield f"CTranslate2 hears with positions that are added to embeddings, not with {m.position.kind} ones."
    for token in (BEGIN, END, TIMELESS):
        if token not in names:
            yield f"CTranslate2 hears with Whisper's tokens, but there is no {token} in the tokenizer."
    if [names[i] for i in use.stop] != [END]:
        yield f"CTranslate2 stops at {END} when it hears, but use.stop is {use.stop}."


# ---------------------------------------------------------------- tokens
def _names(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """What each id is called."""
    found = [None if tokenizer is None else tokenizer._inner.id_to_token(i) for i in range(size)]
    known = {token for token in found if token is not None}
    return [_new(f"<unused{i}>", known) if token is None else token for i, token in enumerate(found)]


def _new(name: str, known: set[str]) -> str:
    return name if name not in known else _new(f"<{name}>", known)


def _told_of_text(m: c.ModelConfig, use: c.Use, names: list[str], source: list[str]) -> dict[str, Any]:
    """Where texts begin and end. What is in no vocabulary is never written: the end, where there is none."""
    end = names[use.stop[0]] if use.stop else _new("<nothing>", {*names, *source})
    told: dict[str, Any] = {"bos_token": source[use.begin[0]] if use.begin else end, "eos_token": end, "unk_token": end}
    if use.stop or isinstance(m.shape, c.Encoder):
        told["unk_token"] = next((token for token in ("<unk>", "[UNK]") if token in names), end)
    if isinstance(m.shape, c.EncoderDecoder):
        told["decoder_start_token"] = names[use.start[0]] if len(use.start) == 1 else None
    return told


def _told_of_sound(m: c.ModelConfig, use: c.Use, names: list[str]) -> dict[str, Any]:
    return {
        "suppress_ids": use.never,
        "suppress_ids_begin": use.never_first,
        "lang_ids": [i for i, token in enumerate(names) if re.fullmatch(r"<\|[a-z]{2,3}\|>", token)],
        "alignment_heads": list(product(range(m.layers // 2, m.layers), range(m.attention.heads))),
    }
