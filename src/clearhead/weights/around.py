"""What stands around a published model: where it starts and stops, names of classes, pooling, its chat template."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead import config as c
from clearhead import reader
from clearhead.config import Use
from clearhead.errors import ClearheadError
from clearhead.files import write_json
from clearhead.tokens.published import Published
from clearhead.tokens.text import Tokenizer

Tree = dict[str, Any]
GENERATION, MODULES, LENGTH = "generation_config.json", "modules.json", "sentence_bert_config.json"
POOLING = "1_Pooling"


def labels(theirs: Tree) -> tuple[str, ...]:
    """Names of the classes, in order."""
    named = theirs.get("id2label") or {}
    return tuple(str(named[key]) for key in sorted(named, key=int))


def sized(head: c.Head, theirs: Tree, names: tuple[str, ...]) -> c.Head:
    """A head of as many classes as there are names; one class is a number."""
    if not isinstance(head, c.Classes):
        return head
    if theirs.get("problem_type") == "multi_label_classification":
        raise ClearheadError(
            "the classes of this model do not exclude each other (multi_label_classification), ours do."
        )
    count = len(names) or theirs.get("num_labels") or theirs.get("_num_labels") or 2
    if count == 1 or theirs.get("problem_type") == "regression":
        return c.Number(pooling=head.pooling, pooler=head.pooler)
    return replace(head, classes=count)


def read(folder: Path, theirs: Tree, words: Published, m: c.ModelConfig, names: tuple[str, ...]) -> Use:
    """From config.json, generation_config.json, the tokenizer's files and those of sentence-transformers."""
    said = theirs | (reader.load(folder / GENERATION) if (folder / GENERATION).is_file() else {})

    def ids(*values: object) -> tuple[int, ...]:
        """Ids that the model has; a list may hold lists of one."""
        flat = [i for value in values for i in (value if isinstance(value, list) else [value])]
        flat = [i[0] if isinstance(i, list) and len(i) == 1 else i for i in flat]
        return tuple(dict.fromkeys(i for i in flat if type(i) is int and 0 <= i < m.vocabulary))

    words_forbidden = said.get("bad_words_ids") or []
    if any(isinstance(one, list) and len(one) > 1 for one in words_forbidden):
        raise ClearheadError(f"{GENERATION} forbids words of several tokens (bad_words_ids); clearhead forbids tokens.")
    writes, both = not isinstance(m.shape, c.Encoder), isinstance(m.shape, c.EncoderDecoder)
    start = ids(said.get("decoder_start_token_id"), said.get("forced_bos_token_id"), _forced(said))
    stop = (ids(said.get("eos_token_id")) or ids(words.special.get("eos"))) if writes else ()
    plain = all(name == f"LABEL_{i}" for i, name in enumerate(names)) or not isinstance(m.head, c.Classes)
    pooling, normalised, longest = _pooling(folder, m.context)
    return Use(
        begin=words.begin,
        end=words.end,
        start=start if both else (),
        stop=stop,
        closed=bool(stop) and ids(said.get("forced_eos_token_id")) == stop[:1],
        never=ids(said.get("suppress_tokens"), words_forbidden),
        never_first=ids(said.get("begin_suppress_tokens")),
        renormalised=said.get("renormalize_logits") is True,
        pad=ids(said.get("pad_token_id"), words.special.get("pad"))[:1],
        mask=ids(words.special.get("mask")) if isinstance(m.shape, c.Encoder) else (),
        pooling=pooling,
        normalised=normalised,
        longest=longest,
        labels=() if plain else names,
        chat=self_contained(words.chat, words.tokenizer, words.special),
    )


def self_contained(template: str, tokenizer: Tokenizer | None, roles: dict[str, int]) -> str:
    """A chat template with the special tokens that it speaks of by role."""
    named = {f"{role}_token": i for role, i in roles.items() if f"{role}_token" in template}
    spelled = {name: tokenizer.decode([i]) for name, i in named.items()} if tokenizer is not None else {}
    new = {name: token for name, token in spelled.items() if f"set {name} = " not in template}
    return "".join(f"{{%- set {name} = {json.dumps(token)} -%}}" for name, token in new.items()) + template


def _forced(said: Tree) -> list[object]:
    """The tokens that Whisper's output begins with, of [place, token]; one left open (null) leaves all to the model."""
    tokens = [token for _, token in said.get("forced_decoder_ids") or []]
    return [] if None in tokens else tokens


def _pooling(folder: Path, context: int) -> tuple[Any, bool, int]:
    """What sentence-transformers does around a model: pooling, perhaps scaling to length 1, cutting long texts."""
    if not (folder / MODULES).is_file():
        return "mean", False, 0
    said = reader.load(folder / LENGTH) if (folder / LENGTH).is_file() else {}
    longest = min(said.get("max_seq_length", context) or 0, context)
    try:
        modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        raise ClearheadError(f"{MODULES} must be a list of modules, each with a type.") from None
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ClearheadError(f"{MODULES} asks for {', '.join(kinds)}; clearhead knows Transformer, Pooling, Normalize.")
    said = reader.load(folder / POOLING / "config.json")
    modes = [name for name, value in said.items() if name.startswith("pooling_mode") and value is True]
    mode = said.get("pooling_mode") or (modes[0].removeprefix("pooling_mode_") if len(modes) == 1 else modes)
    known = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}
    if not isinstance(mode, str) or mode not in known:
        raise ClearheadError(f"{POOLING}/config.json asks for pooling {mode!r}; clearhead knows mean and cls.")
    return known[mode], kinds[2:] == ["Normalize"], longest


def write(folder: Path, use: Use, m: c.ModelConfig) -> Tree:
    """The files beside config.json; returns the attributes that belong into it."""
    ends: Tree = {
        "bos_token_id": _one(use.begin[:1]),
        "eos_token_id": _one(use.stop),
        "pad_token_id": _one(use.pad[:1]),
    }
    said: Tree = {"suppress_tokens": list(use.never), "begin_suppress_tokens": list(use.never_first)}
    said["renormalize_logits"] = use.renormalised or None
    if isinstance(m.shape, c.EncoderDecoder):
        ends["forced_eos_token_id"] = _one(use.stop[:1]) if use.closed else None
        said["decoder_start_token_id"] = _one(use.start[:1])
        said["forced_decoder_ids"] = [[i, token] for i, token in enumerate(use.start[1:], 1)]
    said = ends | {
        name: value for name, value in said.items() if value not in ([], None)
    }  # a missing id would mean their default
    if isinstance(m.head, c.Language):
        write_json(folder / GENERATION, said)
    if isinstance(m.head, c.Classes | c.Number):
        count = m.head.classes if isinstance(m.head, c.Classes) else 1
        names = use.labels or tuple(f"LABEL_{i}" for i in range(count))
        said |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        said["problem_type"] = "regression" if isinstance(m.head, c.Number) else "single_label_classification"
    if isinstance(m.head, c.Hidden) and isinstance(m.shape, c.Encoder) and isinstance(m.input, c.Tokens):
        _write_modules(folder, use, m)
    return said


def _write_modules(folder: Path, use: Use, m: c.ModelConfig) -> None:
    parts = [("", "Transformer"), (POOLING, "Pooling"), *([("2_Normalize", "Normalize")] if use.normalised else [])]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(folder / MODULES, listed)
    write_json(folder / LENGTH, {"max_seq_length": use.longest or None, "do_lower_case": False})
    (folder / POOLING).mkdir()
    modes = {"pooling_mode_cls_token": use.pooling == "first", "pooling_mode_mean_tokens": use.pooling == "mean"}
    write_json(folder / POOLING / "config.json", {"word_embedding_dimension": m.width, **modes})


def _one(ids: Iterable[int]) -> int | list[int] | None:
    listed = list(ids)
    return listed if len(listed) > 1 else listed[0] if listed else None
