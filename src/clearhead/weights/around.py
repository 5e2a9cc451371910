"""What stands around a published model: where it stops, names of classes, pooling, how pictures and sounds are read."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead import config as c
from clearhead import reader
from clearhead.config import Use
from clearhead.errors import ClearheadError
from clearhead.tokens.published import Published

Tree = dict[str, Any]
GENERATION, FEATURES, MODULES = "generation_config.json", "preprocessor_config.json", "modules.json"
POOLING = "1_Pooling"
SMOOTH: dict[int, Any] = {2: "bilinear", 3: "bicubic"}  # as pillow numbers them


def labels(theirs: Tree) -> tuple[str, ...]:
    """Names of the classes, where they have real ones, in order."""
    named = theirs.get("id2label") or {}
    try:
        names = tuple(str(named[key]) for key in sorted(named, key=int))
    except (ValueError, TypeError, AttributeError):
        raise ClearheadError("config.json: id2label must map numbers to names.") from None
    return names


def sized(head: c.Head, theirs: Tree, names: tuple[str, ...]) -> c.Head:
    """A head of as many classes as there are names; one class is a number."""
    if not isinstance(head, c.Classes):
        return head
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

    both = isinstance(m.shape, c.EncoderDecoder)
    forced = [pair[1] for pair in said.get("forced_decoder_ids") or [] if isinstance(pair, list) and len(pair) == 2]
    stop = ids(said.get("eos_token_id")) if not isinstance(m.shape, c.Encoder) else ()
    plain = all(name == f"LABEL_{i}" for i, name in enumerate(names)) or not isinstance(m.head, c.Classes)
    pooling, normalised = _pooling(folder)
    return Use(
        begin=words.begin,
        end=words.end,
        start=ids(said.get("decoder_start_token_id"), said.get("forced_bos_token_id"), forced) if both else (),
        stop=stop or (ids(words.special.get("eos")) if not isinstance(m.shape, c.Encoder) else ()),
        never=ids(said.get("suppress_tokens"), said.get("bad_words_ids")),
        never_first=ids(said.get("begin_suppress_tokens")),
        pad=ids(said.get("pad_token_id"), words.special.get("pad"))[:1],
        mask=ids(words.special.get("mask")) if isinstance(m.head, c.MaskedWord) else (),
        pooling=pooling,
        normalised=normalised,
        labels=() if plain else names,
        chat=_own_words(words),
    )


def _own_words(words: Published) -> str:
    """The chat template with the special tokens that it speaks of by role."""
    named = {f"{role}_token": i for role, i in words.special.items() if f"{role}_token" in words.chat}
    spelled = {} if words.tokenizer is None else {name: words.tokenizer.decode([i]) for name, i in named.items()}
    return (
        "".join(f"{{%- set {n} = {json.dumps(t)} -%}}" for n, t in spelled.items() if f"set {n} = " not in words.chat)
        + words.chat
    )


def _pooling(folder: Path) -> tuple[Any, bool]:
    """What sentence-transformers does after the model: pooling, and perhaps scaling to length 1."""
    if not (folder / MODULES).is_file():
        return "mean", False
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
    return known[mode], kinds[2:] == ["Normalize"]


def write(folder: Path, use: Use, m: c.ModelConfig) -> Tree:
    """The files beside config.json; returns the attributes that belong into it."""
    ends: Tree = {
        "bos_token_id": _one(use.begin[:1]),
        "eos_token_id": _one(use.stop),
        "pad_token_id": _one(use.pad[:1]),
    }
    said: Tree = {"suppress_tokens": list(use.never), "begin_suppress_tokens": list(use.never_first)}
    if isinstance(m.shape, c.EncoderDecoder):
        ends["forced_eos_token_id"] = None
        said["decoder_start_token_id"] = _one(use.start[:1])
        said["forced_decoder_ids"] = [[i, token] for i, token in enumerate(use.start[1:], 1)]
    said = ends | {
        name: value for name, value in said.items() if value not in ([], None)
    }  # a missing id would mean their default
    if isinstance(m.head, c.Language):
        _write(folder / GENERATION, said)
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
    _write(folder / MODULES, listed)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": m.context, "do_lower_case": False})
    (folder / POOLING).mkdir()
    modes = {"pooling_mode_cls_token": use.pooling == "first", "pooling_mode_mean_tokens": use.pooling == "mean"}
    _write(folder / POOLING / "config.json", {"word_embedding_dimension": m.width, **modes})


def read_features(folder: Path, m: c.ModelConfig) -> c.ModelConfig:
    """How a picture becomes numbers; for sounds there is one way, and the file must agree."""
    said = reader.load(folder / FEATURES) if (folder / FEATURES).is_file() else {}
    both = isinstance(m.shape, c.EncoderDecoder)
    source = m.shape.input if isinstance(m.shape, c.EncoderDecoder) else m.input
    if isinstance(source, c.Sound):
        for name, value in _heard(source).items():
            if said.get(name, value) != value:
                raise ClearheadError(f"{FEATURES} asks for {name} = {said[name]!r}; clearhead listens with {value}.")
    if not isinstance(source, c.Pictures) or both or not said:
        return m
    means, deviations = said.get("image_mean", 0.5), said.get("image_std", 0.5)
    for name, value in (("do_resize", True), ("do_rescale", True), ("do_normalize", True), ("do_center_crop", False)):
        if said.get(name) not in (value, None):
            raise ClearheadError(f"{FEATURES} asks for {name} = {said[name]!r}; clearhead only knows {value}.")
    smooth = SMOOTH.get(said.get("resample", 2))
    if smooth is None:
        raise ClearheadError(f"{FEATURES} asks for resample = {said['resample']!r}; clearhead knows 2 and 3.")
    return replace(m, input=replace(source, mean=_colours(means), deviation=_colours(deviations), smooth=smooth))


def _colours(values: object) -> tuple[float, ...]:
    """One number for each colour, or one for all."""
    listed = values if isinstance(values, list) else [values]
    if not all(isinstance(value, int | float) for value in listed):
        raise ClearheadError(f"{FEATURES}: {values!r} must be a number for each colour.")
    return tuple(map(float, listed[:1] if len(set(listed)) == 1 else listed))


def _heard(source: c.Sound) -> Tree:
    said = {"sampling_rate": source.rate, "n_fft": source.window, "hop_length": source.hop, "feature_size": source.mels}
    return {**said, "nb_max_frames": source.frames, "n_samples": source.frames * source.hop}


def write_features(folder: Path, m: c.ModelConfig) -> None:
    source = m.shape.input if isinstance(m.shape, c.EncoderDecoder) else m.input
    if isinstance(source, c.Sound):
        length = source.frames * source.hop // source.rate
        extra = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": length, "padding_value": 0.0}
        _write(folder / FEATURES, {**_heard(source), **extra})
    if isinstance(source, c.Pictures):
        said: Tree = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": source.size, "width": source.size},
        }
        said |= {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
        said |= {"image_mean": _each(source.mean, source), "image_std": _each(source.deviation, source)}
        said["resample"] = next(number for number, name in SMOOTH.items() if name == source.smooth)
        _write(folder / FEATURES, said)


def _each(values: tuple[float, ...], source: c.Pictures) -> list[float]:
    return list(values) * (source.channels if len(values) == 1 else 1)


def _one(ids: Iterable[int]) -> int | list[int] | None:
    listed = list(ids)
    return listed if len(listed) > 1 else listed[0] if listed else None


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
