"""Tables that translate configurations: attributes of a published `config.json` and options of ours, both ways.

No attribute is ignored in silence: each is a field, or known to say nothing about what the model computes, or refused.
What a format cannot express shows by itself: it does not come back when what was written is read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.config import parse
from clearhead.config.model import Config
from clearhead.config.parse import dataclass_to_dict
from clearhead.errors import ClearheadError, suggest
from clearhead.model.transformer import build_transformer
from clearhead.weights.checkpoint import Checkpoint

# ---- fields: Tables that translate configurations: attributes of a published `config.json` and options of ours, both ways.

ConfigDict = parse.ConfigDict
NO_DEFAULT: Any = object()


class NotRepresentableError(Exception):
    """Why a format has no way to say what a model is."""


@dataclass(frozen=True)
class Attr:
    """An attribute that is an option of ours, or several; `absent` is what its absence means to them."""

    theirs: str
    ours: str  # with dots; several with a space between
    default: Any = NO_DEFAULT
    values: Mapping[Any, Any] = field(
        default_factory=dict
    )  # their values that are called otherwise here
    strict: bool = False  # no other values are known

    def read(self, theirs: ConfigDict, ours: ConfigDict) -> None:
        value = theirs.pop(self.theirs, self.default)
        if value is NO_DEFAULT:
            raise ClearheadError(f"its configuration lacks {self.theirs}.")
        try:
            known = value in self.values
        except TypeError:  # a list or a table
            known = False
        if not known and self.strict:
            raise unsupported_value(self.theirs, value, self.values)
        for option in self.ours.split():
            if _has_option(ours, option):
                _set_option(ours, option, self.values[value] if known else value)

    def write(self, ours: ConfigDict, theirs: ConfigDict) -> None:
        option = self.ours.split()[0]
        if not _has_option(ours, option):
            return
        value = _get_option(ours, option)
        known = [k for k, v in self.values.items() if v == value]
        if self.strict and not known:
            raise NotRepresentableError(f"{option} = {value!r} has no name there")
        theirs[self.theirs] = known[0] if known else value


@dataclass(frozen=True)
class Require:
    """An attribute of which we know one value."""

    theirs: str
    value: Any

    def read(self, theirs: ConfigDict, ours: ConfigDict) -> None:
        value = theirs.pop(self.theirs, self.value)
        if value != self.value and value is not None:
            raise unsupported_value(self.theirs, value, [self.value])

    def write(self, ours: ConfigDict, theirs: ConfigDict) -> None:
        theirs[self.theirs] = self.value


@dataclass(frozen=True)
class Custom:
    """What takes more than one attribute, or more than one option."""

    read: Callable[[ConfigDict, ConfigDict], None]
    write: Callable[[ConfigDict, ConfigDict], None] = lambda ours, theirs: None


def unsupported_value(name: str, value: object, known: Any) -> ClearheadError:
    words = ", ".join(map(repr, known))
    return ClearheadError(
        f"its configuration asks for {name} = {value!r}, which clearhead does not do; it knows {words}."
    )


@dataclass(frozen=True, init=False)
class Ignore:
    """Attributes that change nothing in what the model computes."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def read(self, theirs: ConfigDict, ours: ConfigDict) -> None:
        for name in self.names:
            theirs.pop(name, None)

    def write(self, ours: ConfigDict, theirs: ConfigDict) -> None: ...


AttributeRule = Attr | Require | Custom | Ignore

# Bookkeeping, generation and training: nothing of what the model computes from its input.
IGNORED_ATTRIBUTES = Ignore(
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
REQUIRED_ATTRIBUTES = (
    Require("add_cross_attention", False),
    Require("chunk_size_feed_forward", 0),
    Require("cross_attention_hidden_size", None),
    Require("encoder_no_repeat_ngram_size", 0),
    Require("is_decoder", False),
    Require("is_encoder_decoder", False),
    Require("pruned_heads", {}),
    Require("tie_encoder_decoder", False),
)


def read_attributes(
    fields: tuple[AttributeRule, ...], base: c.ModelConfig, theirs: ConfigDict
) -> c.ModelConfig:
    """Our configuration, in its shortest form; what is left of theirs afterwards is refused by name."""
    left = dict(theirs)
    ours = parse.dataclass_to_dict(base)
    for item in (*fields, *REQUIRED_ATTRIBUTES, IGNORED_ATTRIBUTES):
        item.read(left, ours)
    for name, value in left.items():
        raise ClearheadError(
            f"its configuration asks for {name} = {value!r:.80}, which clearhead does not know."
        )
    m = parse.dataclass_from_dict(c.ModelConfig, ours, "model")
    same: dict[str, Any] = {  # options that say what follows from the others anyway
        "kv_heads": 0 if m.n_kv_heads == m.attention.n_heads else m.n_kv_heads,
        "head_width": 0 if m.d_head * m.attention.n_heads == m.d_model else m.d_head,
        "window": m.attention.sliding_window
        if m.attention.sliding_window < m.context_length
        else 0,
    }
    ffn = replace(m.ffn, d_ff=0 if m.d_ff == 4 * m.d_model else m.d_ff)
    return replace(m, attention=replace(m.attention, **same), ffn=ffn)


def write_attributes(fields: tuple[AttributeRule, ...], m: c.ModelConfig) -> ConfigDict:
    theirs: ConfigDict = {}
    for item in fields:
        item.write(resolve_defaults(m), theirs)
    return theirs


def config_differences(a: c.ModelConfig, b: c.ModelConfig) -> Iterator[tuple[str, Any, Any]]:
    """Options in which two models compute something else: (option, in a, in b)."""
    for option, here, there in diff_trees(resolve_defaults(a), resolve_defaults(b), ""):
        # dropout is for training only, and how pixels are prepared is told in a file of its own
        if not re.fullmatch(r"dropout\..*|input\.(mean|deviation|smooth)", option):
            yield option, here, there


def resolve_defaults(m: c.ModelConfig) -> ConfigDict:
    """The options, with what they stand for written out."""
    tree = parse.dataclass_to_dict(m)
    tree["attention"] |= {"kv_heads": m.n_kv_heads, "head_width": m.d_head}
    tree["attention"]["bias"] = [
        name for name in ("q", "k", "v", "out") if name in m.attention.bias
    ]
    tree["attention"]["window"] = (
        m.attention.sliding_window if m.attention.sliding_window < m.context_length else 0
    )
    tree["ffn"]["width"] = m.d_ff
    if isinstance(m.position, c.Rotary):
        tree["position"]["width"] = m.position.rotary_dim or m.d_head
    return tree


def diff_trees(a: ConfigDict, b: ConfigDict, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two trees differ: (path, in a, in b)."""
    if a.get("kind") != b.get("kind"):
        yield path.rstrip("."), a.get("kind"), b.get("kind")
        return
    for key in a:
        if isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from diff_trees(a[key], b[key], f"{path}{key}.")
        elif a[key] != b[key]:
            yield path + key, a[key], b[key]


def _has_option(tree: ConfigDict, path: str) -> bool:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree.get(key, {})
    return last in tree


def _get_option(tree: ConfigDict, path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


def _set_option(tree: ConfigDict, path: str, value: object) -> None:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree[key]
    tree[last] = value


# ---- rules: Tables that translate weights. A rule is (theirs, ours…, op); every op reads and writes, so a table serves both ways.


@dataclass(frozen=True)
class WeightOp:
    """How a tensor of theirs becomes ours, and ours theirs again."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[..., Tensor]

    def then(self, after: "WeightOp") -> "WeightOp":
        return WeightOp(
            lambda t: after.read(*self.read(t)), lambda *ours: self.write(after.write(*ours))
        )


IDENTITY = WeightOp(lambda t: (t,), lambda t: t)
TRANSPOSE = WeightOp(lambda t: (t.mT,), lambda t: t.mT)


def split_rows(*sizes: int) -> WeightOp:
    """Several matrices, one below the other."""
    return WeightOp(lambda t: t.split(sizes), lambda *ours: torch.cat(ours))


def reshape(theirs: tuple[int, ...], ours: tuple[int, ...]) -> WeightOp:
    return WeightOp(lambda t: (t.reshape(ours),), lambda t: t.reshape(theirs))


def deinterleave_rotary(heads: int) -> WeightOp:
    """Rows of each head in rotary pairs (0, 1), (2, 3) …; ours pair the first half with the second."""
    return WeightOp(
        lambda t: (t.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2),),
        lambda t: t.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2),
    )


@dataclass(frozen=True)
class WeightRule:
    theirs: str
    ours: tuple[str, ...]
    op: WeightOp = IDENTITY


def rename_layer(
    theirs: str, *ours: str, weight: WeightOp = IDENTITY, bias: WeightOp = IDENTITY
) -> list[WeightRule]:
    """The weight and the bias of a layer."""
    return [
        WeightRule(f"{theirs}.{part}", tuple(f"{name}.{part}" for name in ours), op)
        for part, op in (("weight", weight), ("bias", bias))
    ]


def rename_layers(pairs: Mapping[str, str]) -> list[WeightRule]:
    """Layers that are the same as ours under other names."""
    return [rule for theirs, ours in pairs.items() for rule in rename_layer(theirs, ours)]


@dataclass(frozen=True)
class WeightMap:
    rules: Iterable[WeightRule]
    ignored_keys: tuple[
        str, ...
    ] = ()  # patterns of keys that hold nothing new, each with its reason beside it
    prefixes: tuple[str, ...] = ("",)  # as files have them; the first is written
    legacy_suffixes: Mapping[str, str] = field(
        default_factory=dict
    )  # older names of the ends of keys
    duplicates: Mapping[str, str] = field(default_factory=dict)  # keys that must repeat another


class TensorSource(Protocol):
    """Named tensors somewhere."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get_tensor(self, name: str) -> Tensor: ...


def expand_rules(
    table: WeightMap, net: nn.Module, m: c.ModelConfig, prefix: str
) -> dict[str, WeightRule]:
    """Each rule that holds for this model, block by block, by the key of theirs."""
    names = {name for name, _ in net.named_parameters()}
    found = {}
    for rule in table.rules:
        deep = (
            m.architecture.encoder_layers
            if rule.ours[0].startswith("encoder.") and isinstance(m.architecture, c.EncoderDecoder)
            else m.n_layers
        )
        for i in range(deep if "{i}" in rule.ours[0] else 1):
            ours = tuple(name.replace("{i}", str(i)) for name in rule.ours)
            if names.issuperset(ours):
                theirs = rule.theirs.replace("{i}", str(i)).replace("{p}", prefix)
                found[theirs] = WeightRule(theirs, ours, rule.op)
    return found


def read_weights(
    table: WeightMap, stored: TensorSource, net: nn.Module, m: c.ModelConfig, where: str
) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by name, one tensor of theirs after the other."""
    known = {_modern_name(name, table.legacy_suffixes): name for name in stored.shapes}
    for prefix in table.prefixes:
        rules = expand_rules(table, net, m, prefix)
        if rules.keys() <= known.keys():
            break
    else:
        rules = max(
            (expand_rules(table, net, m, p) for p in table.prefixes),
            key=lambda r: len(r.keys() & known.keys()),
        )
        lacking = sorted(rules.keys() - known.keys())
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise ClearheadError(
            f"{where} lacks {lacking[0]}{more}, which its configuration calls for."
        )
    for name in known.keys() - rules.keys():
        if name in table.duplicates:
            if not torch.equal(
                stored.get_tensor(known[name]), stored.get_tensor(known[table.duplicates[name]])
            ):
                raise ClearheadError(
                    f"{where}: {name} should repeat {table.duplicates[name]}, but it differs."
                )
        elif not any(re.fullmatch(skip, name.removeprefix(prefix)) for skip in table.ignored_keys):
            offer = suggest(name, rules)
            raise ClearheadError(
                f"{where} holds {name}, which its configuration does not call for; {offer}"
            )
    for theirs, rule in rules.items():
        tensor = stored.get_tensor(known[theirs])
        try:
            parts = rule.op.read(tensor)
            yield from zip(rule.ours, parts, strict=True)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ClearheadError):
                raise
            raise ClearheadError(
                f"{where}: {theirs} has the wrong shape, {tuple(tensor.shape)}."
            ) from None


def write_weights(
    table: WeightMap, net: nn.Module, m: c.ModelConfig, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of theirs by name; every parameter of ours goes into one."""
    ours = {name: p.detach() for name, p in net.named_parameters()}
    rules = expand_rules(table, net, m, prefix)
    if left := ours.keys() - {name for rule in rules.values() for name in rule.ours}:
        raise ClearheadError(f"there is no place for {min(left)} in this format.")
    for theirs, rule in rules.items():
        yield theirs, rule.op.write(*(ours[name] for name in rule.ours)).contiguous()


def _modern_name(name: str, older: Mapping[str, str]) -> str:
    for old, new in older.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


# ---- family: What a published family is: attributes, architectures and weights, as tables.

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "silu": "silu", "swish": "silu", "relu2": "relu2",
}  # fmt: skip
GATED_ACTIVATIONS = {
    "silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu-tanh", "gelu_new": "geglu-tanh",
}  # fmt: skip
NONE_IS_ZERO = {None: 0}  # no value of its own: what follows from the others


@dataclass(frozen=True)
class ModelFamily:
    name: str  # the `model_type` of a config.json
    base: c.ModelConfig  # what the attributes do not say
    heads: Mapping[str, c.Head]  # by the name of the architecture, the usual one first
    attributes: tuple[AttributeRule, ...]
    weight_map: Callable[[c.ModelConfig], WeightMap]


# ---- express: Which published family computes the same as a model of ours; or why none does.

FamilyMatch = tuple[ModelFamily, str, dict[str, Any], Checkpoint]


def match_family(model: Checkpoint, families: tuple[ModelFamily, ...], where: str) -> FamilyMatch:
    """The family, its architecture, its attributes, and the model with what the family wants written out."""
    m = model.config.model
    tried = []
    for wider in (with_all_biases(m), m):
        for family in families:
            apart = list(_structural_differences(family, wider))
            reasons = apart or list(_lossy_options(family, wider))
            tried.append((bool(apart), len(reasons), wider is not m, family, wider, reasons))
    *_, family, wider, reasons = min(tried, key=lambda t: t[:3])
    if reasons:
        raise ClearheadError(
            f"{where} has no model that computes the same; the nearest is {family.name}, but {reasons[0]}."
        )
    same = model if wider is m else add_zero_biases(model, wider)
    return (
        family,
        next(matching_architectures(family, wider)),
        write_attributes(family.attributes, wider),
        same,
    )


def _structural_differences(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """The larger parts that a family has of another kind."""
    for option in ("shape", "input", "position", "norm"):
        here = getattr(m, option).kind
        there = getattr(family.base, option).kind
        if here != there:
            yield f"its {option} is {there}, not {here}"
    if next(matching_architectures(family, m), None) is None:
        alike = [
            dataclass_to_dict(head) for head in family.heads.values() if head.kind == m.head.kind
        ]
        found = [
            d for other in alike[:1] for d in diff_trees(dataclass_to_dict(m.head), other, "head.")
        ]
        wanted = [
            f"its {option} is {there!r}, not {here!r}"
            for option, here, there in found
            if option != "head.num_labels"
        ]
        yield wanted[0] if wanted else f"it has no head {m.head.kind}"


def _lossy_options(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """What does not come back when a model is written as this family and read again."""
    try:
        written = write_attributes(family.attributes, m)
        back = read_attributes(family.attributes, replace(family.base, head=m.head), written)
    except NotRepresentableError as reason:
        yield str(reason)
    except ClearheadError as error:
        yield str(error).rstrip(".")
    else:
        for option, here, there in config_differences(m, back):
            yield f"its {option} is {there!r}, not {here!r}"


def matching_architectures(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """Those with the model's head; how many classes, and whether it is tied, are attributes."""
    for name, head in family.heads.items():
        if isinstance(m.head, c.RegressionHead) and isinstance(head, c.ClassificationHead):
            head = c.RegressionHead(pooling=head.pooling, pooler=head.pooler)
        if isinstance(m.head, c.ClassificationHead) and isinstance(head, c.ClassificationHead):
            head = replace(head, num_labels=m.head.num_labels)
        if isinstance(m.head, c.LMHead) and isinstance(head, c.LMHead):
            head = replace(
                head, tie_embeddings=m.head.tie_embeddings, scale_logits=m.head.scale_logits
            )
        if m.head == head:
            yield name


def with_all_biases(m: c.ModelConfig) -> c.ModelConfig:
    """The same model with the biases it does without, which are then zero."""
    norm = replace(m.norm, bias=True) if isinstance(m.norm, c.LayerNorm) else m.norm
    head = (
        replace(m.head, bias=True)
        if isinstance(m.architecture, c.EncoderDecoder) and isinstance(m.head, c.LMHead)
        else m.head
    )
    whisper = isinstance(m.architecture, c.EncoderDecoder) and not isinstance(
        m.architecture.source_input, c.Tokens
    )
    bias: tuple[Any, ...] = ("q", "v", "out") if whisper else ("q", "k", "v", "out")
    return replace(
        m,
        attention=replace(m.attention, bias=bias),
        ffn=replace(m.ffn, bias=True),
        norm=norm,
        head=head,
    )


def add_zero_biases(model: Checkpoint, wider: c.ModelConfig) -> Checkpoint:
    """The same network with zeros where the wider model has a bias."""
    net = build_transformer(wider, seed=None)
    like = next(model.net.parameters())
    held = dict(model.net.named_parameters())
    state = {
        n: held[n] if n in held else torch.zeros(p.shape).to(like)
        for n, p in net.named_parameters()
    }
    net.load_state_dict(state, strict=False, assign=True)
    return replace(model, net=net.eval(), config=Config(wider, model.config.inference))
