"""Read frozen dataclasses from TOML, JSON and --dotted.flags, strictly.

A union of dataclasses is a tagged union: its `kind` selects the class, and the name of the kind
alone means the class with its defaults (`position = "rotary"`). Unknown keys and values are errors
that suggest the closest name.
"""

import dataclasses
import functools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from clearhead.errors import ClearheadError, cannot_read, check_type, suggest

T = TypeVar("T")
ConfigDict = dict[str, Any]
Schema = dict[Any, Any]  # of a file, see `read_json_as`

MAX_INT = 2**63
# Options of Hugging Face's models, Trainer and example scripts, and ours for the same purpose.
HUGGING_FACE_OPTIONS = {
    "adam_beta1": "train.optimizer.beta1",
    "adam_beta2": "train.optimizer.beta2",
    "adam_epsilon": "train.optimizer.eps",
    "bf16": "train.precision",
    "block_size": "train.seq_len",
    "early_stopping_patience": "train.patience",
    "eval_steps": "train.eval_every",
    "fp16": "train.precision",
    "fsdp": "train.strategy",
    "gradient_accumulation_steps": "train.grad_accum",
    "hidden_size": "model.d_model",
    "intermediate_size": "model.ffn.d_ff",
    "label_smoothing_factor": "train.label_smoothing",
    "learning_rate": "train.optimizer.lr",
    "logging_steps": "train.log_every",
    "lr_scheduler_type": "train.schedule",
    "max_grad_norm": "train.grad_clip",
    "max_position_embeddings": "model.context_length",
    "max_seq_length": "train.seq_len",
    "model_name_or_path": "train.init_from",
    "num_attention_heads": "model.attention.n_heads",
    "num_hidden_layers": "model.n_layers",
    "optim": "train.optimizer",
    "per_device_train_batch_size": "train.batch_size",
    "save_steps": "train.save_every",
    "save_total_limit": "train.keep_checkpoints",
    "train_file": "data.train",
    "validation_file": "data.valid",
    "warmup_ratio": "train.warmup_steps",
}
# The same where no option has this purpose.
HUGGING_FACE_HINTS = {
    "num_train_epochs": "epochs are not an option; use train.max_steps.",
    "output_dir": "the folder of a run is its --output.",
    "resume_from_checkpoint": "a run resumes by itself if it has the same --output.",
}
TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


# --- from plain values
type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def dataclass_from_dict(cls: type[T], value: object, path: str = "") -> T:
    """Build a dataclass from nested dictionaries; `path` is its name in error messages."""
    if not isinstance(value, Mapping):
        raise ClearheadError(f"{path or 'the configuration'} must be a table, got {value!r:.60}.")
    hints = type_hints(cls)
    for key in value:
        if key not in hints:
            raise ClearheadError(
                f"{join_path(path, key)} is not an option; {_suggest_option(hints, key, path)}"
            )
    options = {
        key: parse_field(hints[key], item, join_path(path, key)) for key, item in value.items()
    }
    return cls(**options)


def _suggest_option(hints: Mapping[str, Any], key: object, path: str) -> str:
    """Suggest the option of that name one level further down, else the closest name.

    Names of Hugging Face count as ours if this section has the option.
    """
    ours = HUGGING_FACE_OPTIONS.get(str(key), "")
    prefix = join_path(path, "")
    if ours.startswith(prefix) and ours.removeprefix(prefix).split(".")[0] in hints:
        return f"did you mean {ours!r}?"
    if key in HUGGING_FACE_HINTS and path == "train" and "max_steps" in hints:
        return HUGGING_FACE_HINTS[str(key)]
    for name, hint in hints.items():
        for cls in typing.get_args(hint) or (hint,):
            if dataclasses.is_dataclass(cls) and key in type_hints(cls):
                return f"did you mean {join_path(path, f'{name}.{key}')!r}?"
    return suggest(str(key), hints)


def parse_field(hint: Any, value: object, path: str) -> Any:
    """Check one value against its type and convert it."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return _parse_tagged(typing.get_args(hint), value, path)
    if origin is Literal:
        choices = typing.get_args(hint)
        if not isinstance(value, str) or value not in choices:
            hint_text = suggest(str(value), choices)
            raise ClearheadError(f"{path} = {value!r:.60} is not a valid choice; {hint_text}")
        return value
    if origin is tuple:
        item_hint = typing.get_args(hint)[0]
        if isinstance(value, str) and item_hint is str:  # a single string is a list of one
            value = [value]
        if not isinstance(value, list | tuple):
            raise ClearheadError(f"{path} must be a list, got {value!r:.60}.")
        return tuple(parse_field(item_hint, item, path) for item in value)
    if dataclasses.is_dataclass(hint):
        return dataclass_from_dict(typing.cast("type[Any]", hint), value, path)
    return _parse_scalar(hint, value, path)


def _parse_scalar(hint: Any, value: object, path: str) -> Any:
    if hint in (int, float) and isinstance(value, int) and abs(value) >= MAX_INT:
        raise ClearheadError(f"{path} is too large; integers must be less than 2^63.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and type(value) is int:  # a column may be selected by number
        return str(value)
    if type(value) is not hint:
        raise ClearheadError(f"{path} must be {TYPE_NAMES[hint]}, got {value!r:.60}.")
    return value


def _parse_tagged(classes: tuple[type, ...], value: object, path: str) -> Any:
    class_of_kind = {typing.get_args(type_hints(c)["kind"])[0]: c for c in classes}
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ClearheadError(f"{path} needs a kind; known: {', '.join(class_of_kind)}")
    name = table["kind"]
    if name not in class_of_kind:
        raise ClearheadError(
            f"{path} = {name!r:.60} is not a known kind; {suggest(name, class_of_kind)}"
        )
    return dataclass_from_dict(class_of_kind[name], table, path)


def join_path(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def read_config_file(path: str | Path) -> ConfigDict:
    """Read a .toml or .json file."""
    check_type(path, str | Path, "the name of a file")
    path = Path(path)
    is_json = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise cannot_read(path, error) from None
    except (ValueError, RecursionError) as error:  # ValueError: also text that is not UTF-8
        raise ClearheadError(
            f"{path} is not valid {'JSON' if is_json else 'TOML'}: {error}."
        ) from None
    if not isinstance(content, dict):
        raise ClearheadError(f"{path} must contain a table of options.")
    return content


# --- files that the program wrote
def read_json_as(path: Path, schema: Schema) -> ConfigDict:
    """Read a .json file; raise unless it has this structure.

    A schema is a type, a union of types, `[schema]` for lists, `{str: schema}` for tables of any
    names, or a table of names that must exist and their schemas.
    """
    content = read_config_file(path)
    check_structure(content, schema, path)
    return content


def check_structure(value: object, schema: Any, path: Path, name: str = "the file") -> None:
    """Raise unless the content of a file has this structure."""
    if isinstance(schema, dict) and isinstance(value, dict):
        schemas = dict.fromkeys(value, schema[str]) if str in schema else schema
        for key, inner in schemas.items():
            if key not in value:
                raise ClearheadError(f"{path} is damaged: {key} is missing.")
            check_structure(value[key], inner, path, key)
    elif isinstance(schema, list) and isinstance(value, list):
        for item in value:
            check_structure(item, schema[0], path, name)
    elif (
        isinstance(schema, dict | list)
        or not isinstance(value, schema)
        or (isinstance(value, bool) and schema is not bool)
    ):
        raise ClearheadError(f"{path} is damaged: {name} cannot be {value!r:.60}.")


# --- changing options
def apply_overrides(base: ConfigDict, changes: Mapping[str, object]) -> ConfigDict:
    """Replace options by dotted name: {"model.position.kind": "rotary"}. Strings are read as TOML.

    A new kind starts from its own defaults. One level may be omitted if only one section has the
    option: model.n_heads means model.attention.n_heads.
    """
    result: ConfigDict = json.loads(json.dumps(base))
    full_names = {name: _expand_short_path(base, name) for name in changes}
    for name, full_name in full_names.items():
        if name != full_name and full_name in changes:
            raise ClearheadError(f"{name} is short for {full_name}; give only one of them.")
    ordered = sorted(
        ((full_names[name], value) for name, value in changes.items()), key=_kinds_first
    )
    for name, value in ordered:
        _set_option(result, name, value)
    return result


def _set_option(tree: ConfigDict, name: str, value: object) -> None:
    *parents, last = name.split(".")
    table = tree
    for depth, key in enumerate(parents):
        if isinstance(table.get(key), str):  # `position = "rotary"` is short for a table
            table[key] = {"kind": table[key]}
        elif key not in table and "kind" in table:  # may be an option of the new kind
            table[key] = {}
        section = table.get(key)
        if not isinstance(section, dict):
            path = ".".join(parents[: depth + 1])
            if key in table:
                raise ClearheadError(f"{path} is a value, so it has no options below it.")
            raise ClearheadError(f"{path} is not an option; {suggest(key, table)}")
        table = section
    if isinstance(value, list):
        value = [parse_flag_value(item) for item in value]
    else:
        value = parse_flag_value(value)
    old = table.get(last)
    if last == "kind" and table.get("kind") != value:
        table.clear()
    if isinstance(value, str) and isinstance(old, dict):
        table[last] = old if old.get("kind") == value else {"kind": value}
    else:
        table[last] = value


def _expand_short_path(base: ConfigDict, name: str) -> str:
    """Insert the omitted section if exactly one section has the option."""
    *parents, last = name.split(".")
    table: Any = base
    for key in parents:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or last in table:
        return name
    sections = [key for key, inner in table.items() if isinstance(inner, dict) and last in inner]
    return ".".join([*parents, *sections, last]) if len(sections) == 1 else name


def _kinds_first(change: tuple[str, object]) -> tuple[int, bool]:
    """Sort key that sets a kind before its options, in whatever order they were given."""
    name = change[0]
    return name.removesuffix(".kind").count("."), not name.endswith(".kind")


def parse_flag_value(text: object) -> object:
    """Read a flag as one TOML value, but no date and no comment; else keep the text."""
    if not isinstance(text, str):
        return text
    try:
        # in brackets, so that neither a comment nor a second line is valid
        values = tomllib.loads(f"x = [{text}]")["x"]
    except (ValueError, RecursionError):  # ValueError: not TOML, or thousands of digits
        return text
    if len(values) == 1 and isinstance(values[0], bool | int | float | str | list | dict):
        return values[0]
    return text
