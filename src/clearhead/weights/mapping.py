"""Two-way tables between our models and published ones: config attributes, and tensors.

Nothing is ignored silently. Each attribute of a published configuration is mapped, known not to
affect what the model computes, or refused by name; each tensor matches one rule or a named pattern
of ignored keys, and each of our parameters is filled. The same tables, applied in reverse, save a
model. A model that a format cannot express is recognized by a failing round trip.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.config.parse import TYPE_NAMES, ConfigDict, dataclass_from_dict
from clearhead.config.serialize import dataclass_to_dict, diff_trees
from clearhead.errors import ClearheadError
from clearhead.model.positions import DEFAULT_THETA
from clearhead.model.transformer import build_transformer
from clearhead.weights.checkpoint import Checkpoint

T = TypeVar("T")
NO_DEFAULT: Any = object()
JSON_TYPE_NAMES: dict[type, str] = {**TYPE_NAMES, dict: "an object", list: "a list"}


# --- attributes
class NotRepresentableError(Exception):
    """Raised when a format cannot represent a model; the message is part of a sentence."""


@dataclass(frozen=True)
class Attr:
    """An attribute of theirs that is one option of ours, or several with the same value."""

    theirs: str
    ours: str  # dotted path; several are separated by a space
    default: Any = NO_DEFAULT  # what a missing attribute means
    values: Mapping[Any, Any] = field(default_factory=dict)  # their values that we name differently
    strict: bool = False  # no other values are allowed

    def read(self, theirs: ConfigDict, ours: ConfigDict) -> None:
        value = theirs.pop(self.theirs, self.default)
        if value is NO_DEFAULT:
            raise ClearheadError(f"the model's configuration has no {self.theirs}.")
        if isinstance(value, Hashable) and value in self.values:
            value = self.values[value]
        elif self.strict:
            raise unsupported_value(self.theirs, value, self.values)
        for option in self.ours.split():
            section, key = _find_option(ours, option)
            if key in section:
                section[key] = value

    def write(self, ours: ConfigDict, theirs: ConfigDict) -> None:
        option = self.ours.split()[0]
        section, key = _find_option(ours, option)
        if key not in section:
            return
        value = section[key]
        names = [name for name, renamed in self.values.items() if renamed == value]
        if self.strict and not names:
            raise NotRepresentableError(f"it has no {option} = {value!r}")
        theirs[self.theirs] = names[0] if names else value


@dataclass(frozen=True)
class Require:
    """An attribute of theirs that must be missing, null, or have this value."""

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
    """Custom conversion between several attributes and options."""

    read: Callable[[ConfigDict, ConfigDict], None]
    write: Callable[[ConfigDict, ConfigDict], None] = lambda ours, theirs: None


class Ignore:
    """Attributes that do not affect what the model computes."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, theirs: ConfigDict, ours: ConfigDict) -> None:
        for name in self.names:
            theirs.pop(name, None)

    def write(self, ours: ConfigDict, theirs: ConfigDict) -> None: ...


AttributeRule = Attr | Require | Custom | Ignore


def pop_typed(
    theirs: ConfigDict, name: str, expected: type[T] | tuple[type[T], ...], default: T
) -> T:
    """Remove and return an attribute; null and a missing one are the default."""
    return check_attribute(name, theirs.pop(name, None), expected, default)


def check_attribute(
    name: str, value: object, expected: type[T] | tuple[type[T], ...], default: T
) -> T:
    """The value, or the default if it is None; another JSON type is an error."""
    if value is None:
        return default
    classes = expected if isinstance(expected, tuple) else (expected,)
    if type(value) not in classes:
        raise ClearheadError(
            f"the model's configuration has {name} = {value!r:.80}, which must be"
            f" {' or '.join(JSON_TYPE_NAMES[cls] for cls in classes)}."
        )
    return cast("T", value)


def unsupported_value(name: str, value: object, supported: Iterable[object]) -> ClearheadError:
    values = ", ".join(map(repr, supported))
    known = f"; supported: {values}" if values else ""
    return ClearheadError(
        f"the model's configuration has {name} = {value!r:.80}, which is not supported{known}."
    )


# Bookkeeping, generation and training. (Generation settings are read elsewhere.)
IGNORED_ATTRIBUTES = Ignore(
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels",
    "architectures", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "eos_token_id", "eos_token_ids", "finetuning_task", "forced_bos_token_id", "forced_decoder_ids",
    "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_std", "initializer_factor",
    "initializer_range", "label2id", "language", "length_penalty", "max_length", "min_length",
    "model_type", "name_or_path", "no_repeat_ngram_size", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_past",
    "output_scores", "pad_token_id", "prefix", "problem_type", "remove_invalid_values",
    "renormalize_logits", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sbert_ce_default_activation_function", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache", "xla_device",
)  # fmt: skip

# Options of other families, accepted everywhere at the value that turns them off.
NEUTRAL_ATTRIBUTES = (
    Require("add_cross_attention", False),
    Require("attention_bias", False),
    Require("attn_logit_softcapping", None),
    Require("chunk_size_feed_forward", 0),
    Require("cross_attention_hidden_size", None),
    Require("encoder_no_repeat_ngram_size", 0),
    Require("final_logit_softcapping", None),
    Require("is_decoder", False),
    Require("is_encoder_decoder", False),
    Require("mlp_bias", False),
    Require("partial_rotary_factor", 1.0),
    Require("pruned_heads", {}),
    Require("sliding_window", None),
    Require("tie_encoder_decoder", False),
    Require("use_qk_norm", False),
    Require("use_sliding_window", False),
)


def read_attributes(
    rules: tuple[AttributeRule, ...], base: c.ModelConfig, theirs: ConfigDict
) -> c.ModelConfig:
    """Our configuration in its shortest form; an attribute that no rule knows is an error."""
    remaining = dict(theirs)
    ours = dataclass_to_dict(base)
    for rule in (*rules, *NEUTRAL_ATTRIBUTES, IGNORED_ATTRIBUTES):
        rule.read(remaining, ours)
    for name, value in remaining.items():
        raise ClearheadError(
            f"the model's configuration has {name} = {value!r:.80}, which is not supported."
        )
    m = dataclass_from_dict(c.ModelConfig, ours, "model")
    # 0 stands for what follows from the other options
    a = m.attention
    attention = replace(
        a,
        n_kv_heads=0 if m.n_kv_heads == a.n_heads else m.n_kv_heads,
        d_head=0 if m.d_head * a.n_heads == m.d_model else m.d_head,
        sliding_window=a.sliding_window if a.sliding_window < m.context_length else 0,
    )
    ffn = replace(m.ffn, d_ff=0 if m.d_ff == 4 * m.d_model else m.d_ff)
    return replace(m, attention=attention, ffn=ffn)


def write_attributes(rules: tuple[AttributeRule, ...], m: c.ModelConfig) -> ConfigDict:
    theirs: ConfigDict = {}
    for rule in rules:
        rule.write(resolve_defaults(m), theirs)
    return theirs


def resolve_defaults(m: c.ModelConfig) -> ConfigDict:
    """All options, with derived defaults (0) resolved."""
    tree = dataclass_to_dict(m)
    window = m.attention.sliding_window
    tree["attention"] |= {
        "n_kv_heads": m.n_kv_heads,
        "d_head": m.d_head,
        "bias": [name for name in ("q", "k", "v", "out") if name in m.attention.bias],
        "sliding_window": window if window < m.context_length else 0,
    }
    tree["ffn"]["d_ff"] = m.d_ff
    if isinstance(m.position, c.Rotary):
        tree["position"]["rotary_dim"] = m.position.rotary_dim or m.d_head
    return tree


def _find_option(tree: ConfigDict, path: str) -> tuple[ConfigDict, str]:
    """The section and the key of an option; other kinds of models have an empty section."""
    *parents, key = path.split(".")
    for parent in parents:
        tree = tree.get(parent, {})
    return tree, key


# --- weights
@dataclass(frozen=True)
class WeightOp:
    """How one tensor of theirs becomes one or more of ours, and the inverse."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[..., Tensor]

    def then(self, after: "WeightOp") -> "WeightOp":
        return WeightOp(
            lambda t: after.read(*self.read(t)), lambda *ours: self.write(after.write(*ours))
        )


IDENTITY = WeightOp(lambda t: (t,), lambda t: t)
TRANSPOSE = WeightOp(lambda t: (t.mT,), lambda t: t.mT)


def split_rows(*sizes: int) -> WeightOp:
    """Matrices stacked along the first dimension."""
    return WeightOp(lambda t: t.split(sizes), lambda *ours: torch.cat(ours))


def reshape(theirs: tuple[int, ...], ours: tuple[int, ...]) -> WeightOp:
    return WeightOp(lambda t: (t.reshape(ours),), lambda t: t.reshape(theirs))


def deinterleave_rotary(n_heads: int) -> WeightOp:
    """Rotary pairs of neighboring rows (0, 1), (2, 3) …; ours pair row i with i + d_head / 2."""
    return WeightOp(
        lambda t: (t.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2),),
        lambda t: t.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2),
    )


@dataclass(frozen=True)
class WeightRule:
    """A tensor of theirs and our parameters; applies if the model has all of these parameters.

    `{i}` stands for the index of a block, `{p}` for the file's prefix.
    """

    theirs: str
    ours: tuple[str, ...]
    op: WeightOp = IDENTITY


def rename_layer(
    theirs: str, *ours: str, weight: WeightOp = IDENTITY, bias: WeightOp = IDENTITY
) -> list[WeightRule]:
    """Rules for the weight and the bias of a layer."""
    return [
        WeightRule(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), weight),
        WeightRule(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours), bias),
    ]


def rename_layers(names: Mapping[str, str]) -> list[WeightRule]:
    """Rules for layers that differ in their names only."""
    return [rule for theirs, ours in names.items() for rule in rename_layer(theirs, ours)]


@dataclass(frozen=True)
class WeightMap:
    """The rules for all tensors of a family."""

    rules: Iterable[WeightRule]
    ignored_keys: tuple[str, ...] = ()  # patterns of keys that no output of the model depends on
    prefixes: tuple[str, ...] = ("",)  # prefixes that files have; the first one is written
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)  # old to current names
    duplicates: Mapping[str, str] = field(default_factory=dict)  # keys that must equal another
    # patterns of keys that follow from the configuration, and what checks that they do
    tables: Mapping[str, "TableCheck"] = field(default_factory=dict)


TableCheck = Callable[[Tensor], bool]
TABLE_TOLERANCE = 1e-5  # of tables in float32; in narrower types, their rounding


def is_position_ids(stored: Tensor) -> bool:
    """Whether these are 0, 1, 2, … in every row."""
    return torch.equal(stored, torch.arange(stored.shape[-1]).to(stored).expand_as(stored))


def is_causal_mask(stored: Tensor) -> bool:
    """Whether every token attends to itself and to those before it."""
    return stored.dim() >= 2 and torch.equal(stored.bool(), torch.ones_like(stored).bool().tril())


def equals_table(expected: Callable[[int], Tensor]) -> TableCheck:
    """Compare with a table that is computed for the number of stored rows, to rounding."""

    def check(stored: Tensor) -> bool:
        table = expected(len(stored))
        if stored.shape != table.shape or not stored.is_floating_point():
            return False
        tolerance = max(TABLE_TOLERANCE, torch.finfo(stored.dtype).eps)
        return torch.allclose(stored.double(), table.double(), rtol=tolerance, atol=tolerance)

    return check


def sinusoid_table(d: int) -> TableCheck:
    """Compare with sines and, after them, cosines of positions 0, 1, 2, …"""

    def table(rows: int) -> Tensor:
        # in float64, as transformers computes it
        frequencies = DEFAULT_THETA ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(rows)[:, None] * frequencies
        return torch.cat((angle.sin(), angle.cos()), dim=-1)

    return equals_table(table)


class TensorSource(Protocol):
    """Tensors in files, by name."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get_tensor(self, name: str) -> Tensor: ...


def expand_rules(
    weight_map: WeightMap, net: nn.Module, m: c.ModelConfig, prefix: str
) -> dict[str, WeightRule]:
    """The rules that apply to this model, one for each block, by their key."""
    parameters = {name for name, _ in net.named_parameters()}
    expanded = {}
    for rule in weight_map.rules:
        n_layers = m.n_layers
        if isinstance(m.architecture, c.EncoderDecoder) and rule.ours[0].startswith("encoder."):
            n_layers = m.architecture.encoder_layers
        for i in range(n_layers if "{i}" in rule.ours[0] else 1):
            ours = tuple(name.replace("{i}", str(i)) for name in rule.ours)
            if parameters.issuperset(ours):
                theirs = rule.theirs.replace("{i}", str(i)).replace("{p}", prefix)
                expanded[theirs] = WeightRule(theirs, ours, rule.op)
    return expanded


def read_weights(
    weight_map: WeightMap, source: TensorSource, net: nn.Module, m: c.ModelConfig, path: str
) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by name, read one tensor at a time."""
    keys = {_current_name(name, weight_map.legacy_suffixes): name for name in source.shapes}
    candidates = [(p, expand_rules(weight_map, net, m, p)) for p in weight_map.prefixes]
    prefix, rules = max(candidates, key=lambda candidate: len(candidate[1].keys() & keys.keys()))
    if missing := sorted(rules.keys() - keys.keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ClearheadError(
            f"{path}: missing tensor {missing[0]}{more}, which the configuration calls for."
        )
    for name in sorted(keys.keys() - rules.keys()):
        _check_redundant(weight_map, source, keys, prefix, name, path)
    for theirs, rule in rules.items():
        tensor = source.get_tensor(keys[theirs])
        try:
            parts = rule.op.read(tensor)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            raise ClearheadError(
                f"{path}: {theirs} has the unexpected shape {tuple(tensor.shape)}."
            ) from None
        yield from zip(rule.ours, parts, strict=True)


def _check_redundant(
    weight_map: WeightMap,
    source: TensorSource,
    keys: Mapping[str, str],
    prefix: str,
    name: str,
    path: str,
) -> None:
    """Raise unless a tensor that fills no parameter has no effect, or only the one we assume."""
    original = weight_map.duplicates.get(name, "").replace("{p}", prefix)
    if original in keys:
        if not _are_equal(source, keys[name], keys[original]):
            raise ClearheadError(f"{path}: {name} must equal {original}, but differs.")
        return
    base_name = name.removeprefix(prefix)
    for pattern, is_expected in weight_map.tables.items():
        if re.fullmatch(pattern, base_name):
            if not is_expected(source.get_tensor(keys[name])):
                raise ClearheadError(
                    f"{path}: {name} has other values than the configuration implies."
                )
            return
    if not any(re.fullmatch(pattern, base_name) for pattern in weight_map.ignored_keys):
        raise ClearheadError(
            f"{path}: unexpected tensor {name}, for which the model that the configuration"
            " describes has no counterpart."
        )


def _are_equal(source: TensorSource, name: str, other: str) -> bool:
    if source.shapes[name] != source.shapes[other]:
        return False
    a = source.get_tensor(name)
    b = source.get_tensor(other)
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.equal(a.to(dtype), b.to(dtype))


def untie_stored_head(
    weight_map: WeightMap, source: TensorSource, m: c.ModelConfig
) -> c.ModelConfig:
    """Untie the head of a language model if the file has one that differs from the embedding.

    transformers uses a stored head even if the configuration says `tie_word_embeddings`.
    """
    if not isinstance(m.head, c.LMHead) or not m.head.tie_embeddings:
        return m
    names = {rule.ours: rule.theirs for rule in weight_map.rules}
    head = names["head.unembed.weight",]
    for prefix in weight_map.prefixes:
        embedding = names["embed.tokens.weight",].replace("{p}", prefix)
        if {head, embedding} <= source.shapes.keys() and not _are_equal(source, head, embedding):
            return replace(m, head=replace(m.head, tie_embeddings=False))
    return m


def write_weights(
    weight_map: WeightMap, net: nn.Module, m: c.ModelConfig, prefix: str
) -> Iterator[tuple[str, Tensor]]:
    """Their tensors by name; every parameter of ours goes into one."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    rules = expand_rules(weight_map, net, m, prefix)
    if unmapped := parameters.keys() - {name for rule in rules.values() for name in rule.ours}:
        raise ClearheadError(f"this format has no tensor for {min(unmapped)}.")
    for theirs, rule in rules.items():
        yield theirs, rule.op.write(*(parameters[name] for name in rule.ours)).contiguous()


def _current_name(name: str, legacy_suffixes: Mapping[str, str]) -> str:
    for old, new in legacy_suffixes.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


# --- families
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
GATED_ACTIVATIONS = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_new": "geglu-tanh",
}
NONE_IS_ZERO = {None: 0}  # 0: follows from the other options


@dataclass(frozen=True)
class ModelFamily:
    """A published architecture."""

    name: str  # `model_type` in config.json
    base: c.ModelConfig  # everything the attributes do not say
    heads: Mapping[str, c.Head]  # by architecture name, the default first
    attributes: tuple[AttributeRule, ...]
    weight_map: Callable[[c.ModelConfig], WeightMap]


@dataclass(frozen=True)
class FamilyMatch:
    """A family that can express a model, and the model as the family expresses it."""

    family: ModelFamily
    architecture: str  # such as GPT2LMHeadModel
    attributes: ConfigDict
    checkpoint: Checkpoint


def match_family(
    checkpoint: Checkpoint, families: tuple[ModelFamily, ...], format: str
) -> FamilyMatch:
    """The first family that computes the same; the model may gain biases, which are zero."""
    m = checkpoint.config.model
    candidates = []
    for candidate in (with_all_biases(m), m):
        for family in families:
            structural = list(_structural_differences(family, candidate))
            problems = structural or list(_lossy_options(family, candidate))
            rank = (bool(structural), len(problems), candidate is not m)
            candidates.append((rank, family, candidate, problems))
    _, family, candidate, problems = min(candidates, key=lambda item: item[0])
    if problems:
        raise ClearheadError(
            f"{format} cannot express this model. The nearest family is {family.name}, but"
            f" {problems[0]}."
        )
    if candidate is not m:
        checkpoint = add_zero_biases(checkpoint, candidate)
    architecture = next(matching_architectures(family, candidate))
    attributes = write_attributes(family.attributes, candidate)
    return FamilyMatch(family, architecture, attributes, checkpoint)


def _structural_differences(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """Modules of another kind."""
    for option in ("architecture", "input", "position", "norm"):
        ours = getattr(m, option).kind
        theirs = getattr(family.base, option).kind
        if ours != theirs:
            yield f"its {option} is {theirs}, not {ours}"
    if next(matching_architectures(family, m), None) is not None:
        return
    for head in family.heads.values():
        if head.kind != m.head.kind:
            continue
        differences = diff_trees(dataclass_to_dict(m.head), dataclass_to_dict(head), "head.")
        for option, ours, theirs in differences:
            if option != "head.num_labels":
                yield f"its {option} is {theirs!r}, not {ours!r}"
                return
    yield f"it has no {m.head.kind} head"


def _lossy_options(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """Options that a round trip through the family's attributes loses."""
    try:
        attributes = write_attributes(family.attributes, m)
        restored = read_attributes(family.attributes, replace(family.base, head=m.head), attributes)
    except NotRepresentableError as problem:
        yield str(problem)
    except ClearheadError as error:
        yield f"reading it back fails: {str(error).rstrip('.')}"
    else:
        for option, ours, theirs in diff_trees(resolve_defaults(m), resolve_defaults(restored)):
            # dropout matters in training only; a file of its own says how images are normalized
            if not re.fullmatch(r"dropout\..*|input\.(mean|std|resample)", option):
                yield f"its {option} is {theirs!r}, not {ours!r}"


def matching_architectures(family: ModelFamily, m: c.ModelConfig) -> Iterator[str]:
    """Names of the architectures with the model's head, apart from what attributes express."""
    for name, head in family.heads.items():
        match m.head, head:
            case c.RegressionHead(), c.ClassificationHead():
                head = c.RegressionHead(pooling=head.pooling, pooler=head.pooler)
            case c.ClassificationHead(), c.ClassificationHead():
                head = replace(head, num_labels=m.head.num_labels)
            case c.LMHead() as ours, c.LMHead():
                head = replace(
                    head, tie_embeddings=ours.tie_embeddings, scale_logits=ours.scale_logits
                )
        if m.head == head:
            yield name


def with_all_biases(m: c.ModelConfig) -> c.ModelConfig:
    """The configuration with every bias that some family has."""
    bias: tuple[Literal["q", "k", "v", "out"], ...] = ("q", "k", "v", "out")
    head = m.head
    if isinstance(m.architecture, c.EncoderDecoder):
        if isinstance(m.head, c.LMHead):
            head = replace(m.head, bias=True)
        if not isinstance(m.architecture.source_input, c.Tokens):
            bias = ("q", "v", "out")  # Whisper
    return replace(
        m,
        attention=replace(m.attention, bias=bias),
        ffn=replace(m.ffn, bias=True),
        norm=replace(m.norm, bias=True) if isinstance(m.norm, c.LayerNorm) else m.norm,
        head=head,
    )


def add_zero_biases(checkpoint: Checkpoint, m: c.ModelConfig) -> Checkpoint:
    """The same network under a configuration with more biases."""
    net = build_transformer(m, seed=None)
    parameters = dict(checkpoint.net.named_parameters())
    example = next(checkpoint.net.parameters())
    state = {
        name: parameters[name] if name in parameters else torch.zeros(p.shape).to(example)
        for name, p in net.named_parameters()
    }
    net.load_state_dict(state, strict=False, assign=True)
    config = c.Config(m, checkpoint.config.inference)
    return replace(checkpoint, net=net.eval(), config=config)
