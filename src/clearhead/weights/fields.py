"""Tables that translate configurations: attributes of a published `config.json` and options of ours, both ways.

No attribute is ignored in silence: each is a field, or known to say nothing about what the model computes, or refused.
What a format cannot express shows by itself: it does not come back when what was written is read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clearhead import config as c
from clearhead import reader
from clearhead.errors import ClearheadError

Tree = reader.Tree
REQUIRED: Any = object()


class Inexpressible(Exception):
    """Why a format has no way to say what a model is."""


@dataclass(frozen=True)
class Is:
    """An attribute that is an option of ours, or several; `absent` is what its absence means to them."""

    theirs: str
    ours: str  # with dots; several with a space between
    absent: Any = REQUIRED
    words: Mapping[Any, Any] = field(default_factory=dict)  # their values that are called otherwise here
    only_words: bool = False  # no other values are known

    def read(self, theirs: Tree, ours: Tree) -> None:
        value = theirs.pop(self.theirs, self.absent)
        if value is REQUIRED:
            raise ClearheadError(f"its configuration lacks {self.theirs}.")
        try:
            known = value in self.words
        except TypeError:  # a list or a table
            known = False
        if not known and self.only_words:
            raise unknown(self.theirs, value, self.words)
        for option in self.ours.split():
            if _has(ours, option):
                _put(ours, option, self.words[value] if known else value)

    def write(self, ours: Tree, theirs: Tree) -> None:
        option = self.ours.split()[0]
        if not _has(ours, option):
            return
        value = _get(ours, option)
        known = [k for k, v in self.words.items() if v == value]
        if self.only_words and not known:
            raise Inexpressible(f"{option} = {value!r} has no name there")
        theirs[self.theirs] = known[0] if known else value


@dataclass(frozen=True)
class Only:
    """An attribute of which we know one value."""

    theirs: str
    value: Any

    def read(self, theirs: Tree, ours: Tree) -> None:
        value = theirs.pop(self.theirs, self.value)
        if value != self.value and value is not None:
            raise unknown(self.theirs, value, [self.value])

    def write(self, ours: Tree, theirs: Tree) -> None:
        theirs[self.theirs] = self.value


@dataclass(frozen=True)
class Both:
    """What takes more than one attribute, or more than one option."""

    read: Callable[[Tree, Tree], None]
    write: Callable[[Tree, Tree], None] = lambda ours, theirs: None


def unknown(name: str, value: object, known: Any) -> ClearheadError:
    words = ", ".join(map(repr, known))
    return ClearheadError(
        f"its configuration asks for {name} = {value!r}, which clearhead does not do; it knows {words}."
    )


@dataclass(frozen=True, init=False)
class Ignored:
    """Attributes that change nothing in what the model computes."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def read(self, theirs: Tree, ours: Tree) -> None:
        for name in self.names:
            theirs.pop(name, None)

    def write(self, ours: Tree, theirs: Tree) -> None: ...


Field = Is | Only | Both | Ignored

# Bookkeeping, generation and training: nothing of what the model computes from its input.
EVERYWHERE = Ignored(
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "eos_token_id", "finetuning_task", "forced_bos_token_id",
    "forced_decoder_ids", "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_std",
    "initializer_factor", "initializer_range", "label2id", "language", "length_penalty", "max_length", "min_length",
    "model_type", "name_or_path", "no_repeat_ngram_size", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "problem_type", "remove_invalid_values", "renormalize_logits", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sbert_ce_default_activation_function", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache", "xla_device",
)  # fmt: skip

# What every family must not ask for.
NOWHERE = (
    Only("add_cross_attention", False),
    Only("chunk_size_feed_forward", 0),
    Only("cross_attention_hidden_size", None),
    Only("encoder_no_repeat_ngram_size", 0),
    Only("is_decoder", False),
    Only("is_encoder_decoder", False),
    Only("pruned_heads", {}),
    Only("tie_encoder_decoder", False),
)


def read(fields: tuple[Field, ...], base: c.ModelConfig, theirs: Tree) -> c.ModelConfig:
    """Our configuration, in its shortest form; what is left of theirs afterwards is refused by name."""
    left, ours = dict(theirs), reader.tree(base)
    for item in (*fields, *NOWHERE, EVERYWHERE):
        item.read(left, ours)
    for name, value in left.items():
        raise ClearheadError(f"its configuration asks for {name} = {value!r:.80}, which clearhead does not know.")
    m = reader.read(c.ModelConfig, ours, "model")
    same: dict[str, Any] = {  # options that say what follows from the others anyway
        "kv_heads": 0 if m.kv_heads == m.attention.heads else m.kv_heads,
        "head_width": 0 if m.head_width * m.attention.heads == m.width else m.head_width,
        "window": m.attention.window if m.attention.window < m.context else 0,
    }
    ffn = replace(m.ffn, width=0 if m.ffn_width == 4 * m.width else m.ffn_width)
    return replace(m, attention=replace(m.attention, **same), ffn=ffn)


def write(fields: tuple[Field, ...], m: c.ModelConfig) -> Tree:
    theirs: Tree = {}
    for item in fields:
        item.write(effective(m), theirs)
    return theirs


def differences(a: c.ModelConfig, b: c.ModelConfig) -> Iterator[tuple[str, Any, Any]]:
    """Options in which two models compute something else: (option, in a, in b)."""
    for option, here, there in apart(effective(a), effective(b), ""):
        # dropout is for training only, and how pixels are prepared is told in a file of its own
        if not re.fullmatch(r"dropout\..*|input\.(mean|deviation|smooth)", option):
            yield option, here, there


def effective(m: c.ModelConfig) -> Tree:
    """The options, with what they stand for written out."""
    tree = reader.tree(m)
    tree["attention"] |= {"kv_heads": m.kv_heads, "head_width": m.head_width}
    tree["attention"]["bias"] = [name for name in ("q", "k", "v", "out") if name in m.attention.bias]
    tree["attention"]["window"] = m.attention.window if m.attention.window < m.context else 0
    tree["ffn"]["width"] = m.ffn_width
    if isinstance(m.position, c.Rotary):
        tree["position"]["width"] = m.position.width or m.head_width
    return tree


def apart(a: Tree, b: Tree, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two trees differ: (path, in a, in b)."""
    if a.get("kind") != b.get("kind"):
        yield path.rstrip("."), a.get("kind"), b.get("kind")
        return
    for key in a:
        if isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from apart(a[key], b[key], f"{path}{key}.")
        elif a[key] != b[key]:
            yield path + key, a[key], b[key]


def _has(tree: Tree, path: str) -> bool:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree.get(key, {})
    return last in tree


def _get(tree: Tree, path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


def _put(tree: Tree, path: str, value: object) -> None:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree[key]
    tree[last] = value
