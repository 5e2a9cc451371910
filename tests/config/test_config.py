"""Configurations: round trips through TOML, overrides, and validation."""

import dataclasses
import math
import tomllib

import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.config.model import Attention, Config, Dropout, ModelConfig, Sinusoidal
from clearhead.config.parse import HUGGING_FACE_OPTIONS
from clearhead.config.serialize import diff_trees
from clearhead.config.training import Adam, Muon, TrainConfig
from clearhead.model.transformer import build_transformer
from strategies import models

PUBLISHED = {  # parameter counts in model cards and papers
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1558m": 1_557_611_200,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "whisper-tiny": 37_760_640,
    "whisper-base": 72_593_920,
    "vit-tiny": 5_717_416,
    "vit-small": 22_050_664,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_presets_have_the_published_parameter_counts(name, count):
    assert ch.presets[name].num_parameters() == count


@pytest.mark.parametrize(("name", "millions"), [("vaswani-base", 65), ("vaswani-big", 213)])
def test_vaswani_presets_have_the_published_parameter_counts(name, millions):
    # the paper rounds its vocabulary size
    assert ch.presets[name].num_parameters() == pytest.approx(millions * 1e6, rel=0.035)


@pytest.mark.parametrize("name", ch.presets)
def test_num_parameters_equals_built_model(name):
    config = ch.presets[name]
    with torch.device("meta"):
        net = build_transformer(config.model, seed=None)
    assert sum(p.numel() for p in net.parameters()) == config.num_parameters()


@given(models())
def test_num_parameters_equals_built_random_model(m):
    net = build_transformer(m, seed=None)
    assert sum(p.numel() for p in net.parameters()) == Config(m).num_parameters()


@pytest.mark.parametrize("name", ch.presets)
def test_preset_toml_round_trip(name):
    text = ch.presets[name].to_toml()
    assert Config.from_dict(tomllib.loads(text)) == ch.presets[name]
    assert all("#" in line for line in text.splitlines() if "=" in line)


@given(models())
def test_random_config_round_trip(m):
    config = Config(m)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    assert Config.from_dict(config.to_dict()) == config


def test_kind_is_the_first_option_in_toml():
    section = ch.presets["gpt2-124m"].to_toml().split("[train.optimizer]")[1]
    assert section.strip().startswith("kind = ")


def test_file_is_read_with_changes(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nd_model = 64\nposition = "rotary"\n')
    config = Config.read(path, **{"model.position.theta": "5000"})
    assert config.model.d_model == 64
    assert config.model.position.theta == 5000.0


def test_changes_may_set_options_missing_in_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[model]\nn_layers = 2\n")
    config = Config.read(path, attention__n_heads=2, **{"model.position": "rotary"})
    assert config.model.n_layers == 2
    assert config.model.attention.n_heads == 2
    assert config.model.position.kind == "rotary"


def test_order_of_changes_does_not_matter():
    theta = {"position.theta": 500.0}
    kind = {"position": "rotary"}
    base = ch.presets["tiny-decoder"]
    assert base.replace(**theta, **kind) == base.replace(**kind, **theta)


def test_new_kind_starts_from_its_defaults():
    changed = ch.presets["llama-3.2-1b"].replace(position="t5")
    assert changed.model.position.num_buckets == 32
    rotary = changed.replace(**{"position.kind": "rotary", "position.theta": 7})
    assert rotary.model.position.theta == 7.0


def test_dictionary_changes_only_its_options():
    base = ch.presets["shakespeare-char"]
    changed = base.replace(train={"max_steps": 3}, data={"train": ["a.txt"]}, model={"n_layers": 1})
    assert changed.train == dataclasses.replace(base.train, max_steps=3)
    assert changed.data == dataclasses.replace(base.data, train=("a.txt",))
    assert changed.model == dataclasses.replace(base.model, n_layers=1)


def test_nested_options_of_a_new_kind_are_set():
    changes = {
        "train.optimizer": "muon",
        "train.optimizer.lr": 0.01,
        "train.optimizer.adam.lr": 0.002,
    }
    config = ch.presets["tiny-decoder"].replace(**changes)
    assert config.train.optimizer == Muon(lr=0.01, adam=Adam(lr=0.002))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", 1, 2)]),
        ({"a": 1}, {"a": 1, "new": 2}, [("new", None, 2)]),
        ({"a": 1, "old": {"b": 1}}, {"a": 1}, [("old", {"b": 1}, None)]),
        ({"p": {"kind": "x", "b": 1}}, {"p": {"kind": "y"}}, [("p", "x", "y")]),
    ],
)
def test_diff_trees_lists_differences(left, right, expected):
    assert list(diff_trees(left, right, "")) == expected


MISTAKES = [
    ({"d_modle": 3}, "did you mean 'd_model'"),
    ({"position": "rotray"}, "did you mean 'rotary'"),
    ({"position.theta": 3}, "model.position.theta is not an option"),
    ({"n_heads": 3, "attention.n_heads": 3}, "give only one"),
    ({"d_model": "wide"}, "must be an integer, got 'wide'"),
    ({"d_model": True}, "must be an integer"),
    ({"d_model": 0}, "must be a positive integer, got 0"),
    ({"d_model": 33}, "not divisible by model.attention.n_heads = 4"),
    ({"d_model": 500_000_003}, "a divisor such as 1,"),  # a prime, found at once
    ({"d_model": 12, "attention.n_heads": 10**12}, "a divisor such as 12,"),
    ({"d_model": "9" * 400}, "model.d_model is too large"),
    ({"d_model": "9" * 5000}, "must be an integer, got '9{59}[.]$"),
    ({"norm.eps": "9" * 400}, "model.norm.eps is too large"),
    ({"norm.eps": "9" * 5000}, "must be a number, got '9{59}[.]$"),
    ({"input": "[" * 5000}, r"'\[{59} is not a known kind"),
    ({"context_length": "[" * 5000}, r"must be an integer, got '\[{59}[.]$"),
    ({"attention.bias": "[" * 5000}, r"must be a list, got '\[{59}[.]$"),
    ({"attention.n_kv_heads": 3}, "must be divisible by model.attention.n_kv_heads"),
    ({"attention.bias": ["q", "z"]}, "'z' is not a valid choice"),
    ({"attention.bias": "q"}, "must be a list"),
    ({"dropout.residual": 1.0}, "less than 1"),
    ({"norm.eps": float("nan")}, "positive number"),
    (
        {
            "architecture": "encoder",
            "head": "none",
            "input": {"kind": "images", "mean": [math.nan]},
        },
        "finite numbers",
    ),
    ({"ffn.activation": "glue"}, "did you mean"),
    ({"position": "rotary", "attention.d_head": 7}, "pairs of dimensions"),
    ({"position": {"kind": "rotary", "rotary_dim": 10}}, "must not exceed the 8"),
    ({"position": "sinusoidal", "d_model": 33, "attention.n_heads": 3}, "even model.d_model"),
    ({"position": {"kind": "t5", "num_buckets": 6}}, "multiple of 4"),
    ({"position": {"kind": "t5", "max_distance": 8}}, "must exceed"),
    ({"architecture": "encoder"}, "attends to the token that head lm predicts"),
    ({"head": "mlm"}, "needs architecture encoder"),
    ({"head": "classification"}, "use pooling mean"),
    ({"architecture": "encoder-decoder", "head": "regression"}, "needs architecture encoder or"),
    ({"input": "images"}, "a decoder reads tokens"),
    (
        {"architecture": "encoder", "head": "classification", "input": "images"},
        "vocab_size must be 0",
    ),
    (
        {
            "architecture": "encoder",
            "head": "classification",
            "input": "images",
            "vocab_size": 0,
        },
        "context_length must be 197",
    ),
    ({"vocab_size": 0}, "vocab_size"),
    ({"context_length.more": 1}, "no options below it"),
    ({"position": {"theta": 1}}, "needs a kind"),
    (
        {"architecture": "encoder-decoder", "architecture.source_input.scale_embeddings": True},
        "architecture.source_input needs a kind",
    ),
    ({"train": {"learning_rate": 0.1}}, "did you mean 'train.optimizer.lr'"),
    ({"train": {"num_train_epochs": 3}}, "epochs are not an option; use train.max_steps"),
    ({"hidden_size": 8}, "did you mean 'model.d_model'"),
    ({"modle.d_model": 3}, "model.modle is not an option"),
    ({"position": {"kind": ["rotary"]}}, "needs a kind"),
    (
        {
            "architecture": {
                "kind": "encoder-decoder",
                "source_input": {"kind": "audio", "n_frames": 9},
                "source_context_length": 5,
                "source_vocab_size": 7,
            }
        },
        "source_vocab_size must be 0",
    ),
]


@pytest.mark.parametrize("name", HUGGING_FACE_OPTIONS)
def test_hugging_face_names_stand_for_an_option(name):
    *sections, option = HUGGING_FACE_OPTIONS[name].split(".")
    table = ch.presets["gpt2-124m"].to_dict()
    for section in sections:
        table = table[section]
    assert option in table
    with pytest.raises(ch.ClearheadError, match=HUGGING_FACE_OPTIONS[name]):
        ch.presets["gpt2-124m"].replace(**{f"{sections[0]}.{name}": 1})


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_invalid_options_are_errors(changes, message):
    with pytest.raises(ch.ClearheadError, match=message.replace("?", r"\?")):
        ch.presets["tiny-decoder"].replace(**changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModelConfig(norm_position="sandwich"),
        lambda: ModelConfig(position=Sinusoidal(layout="spiral")),
        lambda: ModelConfig(attention=Attention(4, bias=("x",))),
        lambda: ModelConfig(d_model=64.0),
        lambda: ModelConfig(dropout=Dropout(residual=1)),
        lambda: Config(train=TrainConfig(ema_decay=1)),
    ],
)
def test_constructors_validate(make):
    with pytest.raises(ch.ClearheadError, match=r"not a valid choice|an integer|less than 1"):
        make()


@pytest.mark.parametrize("values", [(1, 2), (1, 3, 2), (2, 1, 2, 1, 1, 2)])
def test_malformed_expected_loss_is_refused(values):
    with pytest.raises(ch.ClearheadError, match="expected_loss"):
        TrainConfig(expected_loss=values)


def test_special_tokens_must_be_in_the_vocabulary():
    with pytest.raises(ch.ClearheadError, match="eos_tokens contains 64"):
        ch.presets["tiny-decoder"].replace(**{"inference.eos_tokens": [64]})


@pytest.mark.parametrize("text", ["model = 3", "[model", "[modle]\nd_model = 3"])
def test_malformed_file_is_refused(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ch.ClearheadError, match=r"\.|\?"):
        Config.read(path)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ch.ClearheadError, match="cannot be read"):
        Config.read(tmp_path / "none.toml")


def test_unknown_preset_gets_a_suggestion():
    with pytest.raises(KeyError, match="did you mean 'gpt2-124m'"):
        ch.presets["gpt2-124"]
