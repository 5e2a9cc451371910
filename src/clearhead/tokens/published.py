"""Tokenizers as published models carry them: found in a folder of any layout, and written for other engines.

Nothing in a folder is ever run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers as tk

from clearhead import reader
from clearhead.config import Encoder, ModelConfig, Tokens, Use
from clearhead.errors import ClearheadError, understood
from clearhead.tokens.layouts import FAMILIES, RULES, Asked, Rule, text_of
from clearhead.tokens.text import Tokenizer

ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
TOKENIZER, CONFIG, ROLE_MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
MORE = ("additional_special_tokens", "extra_special_tokens")
CHAT = "chat_template"
TARGET = "target_tokenizer.json"  # a name of our own, for models whose source is cut by another rule
Added = list[tuple[tk.AddedToken, int | None]]


@dataclass(frozen=True)
class Published:
    """A model's tokenizer, what stands around a text that it reads, its chat template, and each role's token."""

    tokenizer: Tokenizer | None
    source: Tokenizer | None = None  # where the source is cut by another rule
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    chat: str = ""
    special: dict[str, int] = field(default_factory=dict)
    why: str = ""  # the model cannot read text, where there is no tokenizer


def read(folder: Path, family: str, named: str = "") -> Published:
    """What `folder` holds for a model of this family, which is its `model_type`; `named` is a class it may tell of."""
    config = _table(folder / CONFIG)
    named = str(config.get("tokenizer_class") or named).removesuffix("Fast")
    own = config.get("word_tokenizer_type") not in (None, "basic")  # words are cut by another program first
    rule = None if own else RULES.get(named or FAMILIES.get(family, ""))
    new = (folder / TOKENIZER).is_file() and named != "RoFormerTokenizer"  # whose tokenizer.json leaves jieba out
    with understood(f"{folder} holds a tokenizer that cannot be used"):
        chat = _chat(folder, config)
        if not new and not (rule and all((folder / name).is_file() for name in rule.files)):
            return Published(None, chat=chat, why=_why(folder, config, named or FAMILIES.get(family, ""), rule))
        told = config if "added_tokens_decoder" in config else config | _table(folder / ROLE_MAP)
        given = {role: told.get(f"{role}_token", rule.roles.get(role) if rule else None) for role in ROLES}
        roles = {role: _token(value, special=True) for role, value in given.items() if value is not None}
        added = _added(folder, told, list(roles.values()))
        asked = Asked(folder, config, {role: t.content for role, t in roles.items()}, [t.content for t, _ in added])
        if new or rule is None:
            inners = [Tokenizer.load(path)._inner for path in (folder / TARGET, folder / TOKENIZER) if path.is_file()]
        else:
            inners = rule.build(asked)
        for inner in inners:
            _add(inner, added)
        text, reading = inners[0], inners[-1]
        begin, end = _around(reading) if new or rule is None else _by_rule(rule, asked, reading)
        special = {role: i for role, name in asked.roles.items() if (i := text.token_to_id(name)) is not None}
        source = Tokenizer(reading) if len(inners) > 1 else None
        return Published(Tokenizer(text), source, begin, end, chat, special)


def alone(path: Path) -> Published:
    """A tokenizer.json by itself."""
    tokenizer = Tokenizer.load(path)
    return Published(tokenizer, None, *_around(tokenizer._inner))


def _why(folder: Path, config: reader.Tree, kind: str, rule: Rule | None) -> str:
    if kind == "RoFormerTokenizer":
        return f"{folder} cuts words with jieba, which clearhead does not have, so the model cannot read text."
    if "auto_map" in config:
        return f"{folder} has no tokenizer but code of its own, which is never run, so the model cannot read text."
    files = f"neither {TOKENIZER} nor {' with '.join(rule.files)}" if rule else f"no {TOKENIZER}"
    return f"{folder} holds {files}, so the model cannot read text."


def _table(path: Path) -> reader.Tree:
    return reader.load(path) if path.is_file() else {}


def _chat(folder: Path, config: reader.Tree) -> str:
    """The chat template; of several, the one called default."""
    if (folder / f"{CHAT}.jinja").is_file():
        return text_of(folder / f"{CHAT}.jinja")
    given = config.get(CHAT) or _table(folder / f"{CHAT}.json").get(CHAT) or ""
    several = given if isinstance(given, list) else [{"name": "default", "template": given}]
    if not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in several):
        raise ClearheadError(f"{folder}: {CHAT} must be a text, or a list of texts with names.")
    template = next((one["template"] for one in several if one.get("name") == "default"), "")
    if any("\ud800" <= character <= "\udfff" for character in template):
        raise ClearheadError(f"{folder}: {CHAT} holds half a character.")
    return template


def _token(value: object, special: bool) -> tk.AddedToken:
    """A token as the files write it: its text, or a table with its text and how it is found."""
    table = value if isinstance(value, dict) else {"content": value}
    names = ("single_word", "lstrip", "rstrip", "normalized")
    flags = {name: table[name] for name in names if name in table}
    if not isinstance(content := table.get("content"), str) or not all(isinstance(f, bool) for f in flags.values()):
        raise ClearheadError(f"a special token must be a text, or a table with its content, not {value!r:.99}.")
    return tk.AddedToken(content, special=special or table.get("special") is True, **flags)


def _added(folder: Path, told: reader.Tree, roles: list[tk.AddedToken]) -> Added:
    """The tokens that were added to a vocabulary, those with ids of their own first."""
    numbers, more, extra = (told.get(name) or {} for name in ("added_tokens_decoder", *MORE))
    if not isinstance(numbers, dict) or not isinstance(more, dict | list) or not isinstance(extra, dict | list):
        raise ClearheadError(
            f"{folder}/{CONFIG}: added_tokens_decoder must be a table, and {' and '.join(MORE)} lists."
        )
    listed = [value for some in (more, extra) for value in (some.values() if isinstance(some, dict) else some)]
    special = [*roles, *(_token(value, special=True) for value in listed)]
    names = {token.content for token in special}
    pairs = [(_token(value, special=False), int(i)) for i, value in numbers.items()]
    if "added_tokens_decoder" not in told:
        pairs = [(_token(name, special=False), i) for name, i in _table(folder / "added_tokens.json").items()]
    for token, i in pairs:
        if type(i) is not int:
            raise ClearheadError(f"{folder}/added_tokens.json: the id of {token.content!r} is {i!r}, no whole number.")
        token.special = token.special or token.content in names
    return [*sorted(pairs, key=lambda pair: pair[1]), *((token, None) for token in special)]


def _add(inner: tk.Tokenizer, added: Added) -> None:
    """Makes tokens whole. One that the vocabulary lacks gets the id that was asked for, or stays out."""
    there = {token.content for token in inner.get_added_tokens_decoder().values()}
    known = {token.content for token, _ in added if inner.token_to_id(token.content) is not None}
    inner.add_tokens([t for t, i in added if t.content not in there and (i is not None or t.content in known)])
    for token, i in added:
        if i is not None and token.content not in known and inner.token_to_id(token.content) != i:
            raise ClearheadError(f"the token {token.content!r} cannot have the id {i}; ids must follow one another.")


def _around(inner: tk.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a tokenizer puts before and after a text."""
    for i in range(inner.get_vocab_size()):
        try:
            whole = inner.encode(inner.decode([i]))
        except Exception:  # a token that is no text
            continue
        if 0 in (mask := whole.special_tokens_mask):
            return tuple(whole.ids[: mask.index(0)]), tuple(whole.ids[len(mask) - mask[::-1].index(0) :])
    return (), ()


def _by_rule(rule: Rule, asked: Asked, inner: tk.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    begin, end = rule.begin, rule.end
    if rule.asks:
        begin = ("bos",) if asked.flag("add_bos_token", bool(begin)) else ()
        end = ("eos",) if asked.flag("add_eos_token", False) else ()
    ids = [[inner.token_to_id(asked.roles.get(name, name)) for name in names] for names in (begin, end)]
    return tuple(i for i in ids[0] if i is not None), tuple(i for i in ids[1] if i is not None)


def write(folder: Path, tokenizer: Tokenizer, source: Tokenizer | None, use: Use, m: ModelConfig) -> None:
    """For `AutoTokenizer`, which then encodes and decodes as ours do. Of two it knows the one that reads sources."""
    reading = source or tokenizer
    tree = json.loads(reading._inner.to_str())
    roles = _roles(tokenizer, reading, use, tree["model"], isinstance(m.shape, Encoder))
    framing(reading, use).save(folder / TOKENIZER)
    if source is not None:
        tokenizer.save(folder / TARGET)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": m.context, **roles}
    if isinstance(m.input, Tokens) and m.input.kinds > 1:  # which of two texts a token is of
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    config |= {"clean_up_tokenization_spaces": False}  # older versions would take spaces away
    config |= {CHAT: use.chat} if use.chat else {}
    for name, table in ((CONFIG, config), (ROLE_MAP, roles)):
        (folder / name).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if use.chat:
        (folder / f"{CHAT}.jinja").write_text(use.chat, encoding="utf-8")


def _roles(tokenizer: Tokenizer, reading: Tokenizer, use: Use, model: reader.Tree, encoder: bool) -> dict[str, str]:
    begin, end = ("cls", "sep") if encoder else ("bos", "eos")
    ids = {begin: (reading, use.begin), end: (reading, use.end), "pad": (tokenizer, use.pad)}
    ids |= {"mask": (tokenizer, use.mask)} | ({"eos": (tokenizer, use.stop)} if use.stop else {})
    names = {role: owner._token(some[0]) for role, (owner, some) in ids.items() if some}
    unknown = model.get("unk_token") or (model["vocab"][i][0] if (i := model.get("unk_id")) is not None else None)
    # A token that plain text may become is left out: a role would make it special.
    return {f"{role}_token": name for role, name in {**names, "unk": unknown}.items() if name in reading.special}


def framing(tokenizer: Tokenizer, use: Use) -> Tokenizer:
    """The tokenizer for others, who have it put around a text what the model reads there."""
    if _around(tokenizer._inner) == (use.begin, use.end):
        return tokenizer
    tree = json.loads(tokenizer._inner.to_str())
    return Tokenizer(tk.Tokenizer.from_str(json.dumps(tree | {"post_processor": _template(tokenizer, use)})))


def _template(tokenizer: Tokenizer, use: Use) -> reader.Tree:
    """The post-processor that puts `begin` and `end` around a text; a second text has its own end."""

    def special(ids: Sequence[int], place: int) -> list[reader.Tree]:
        return [{"SpecialToken": {"id": tokenizer._token(i), "type_id": place}} for i in ids]

    first, second = ({"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB"))
    single = [*special(use.begin, 0), first, *special(use.end, 0)]
    names = {tokenizer._token(i): i for i in (*use.begin, *use.end)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *special(use.end, 1)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in names.items()},
    }
