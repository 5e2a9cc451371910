"""Configurations: read back what was written, refuse what cannot be."""

import math
import tomllib

import pytest
from hypothesis import given

import clearhead as ch
from clearhead.config.model import Attention, Config, Dropout, ModelConfig, Sinusoidal, TrainConfig
from clearhead.config.training import Adam, Muon
from clearhead.model.transformer import build_transformer
from strategies import models

PUBLISHED = {  # as the model cards or papers give them
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
def test_parameters_are_as_published(name, count):
    assert ch.presets[name].num_parameters() == count


@pytest.mark.parametrize(("name", "millions"), [("vaswani-base", 65), ("vaswani-big", 213)])
def test_the_2017_models_have_the_paper_size(name, millions):
    assert ch.presets[name].num_parameters() == pytest.approx(
        millions * 1e6, rel=0.035
    )  # the paper rounds, and so its vocabulary


@pytest.mark.parametrize("name", ch.presets)
def test_counted_equals_built(name):
    config = ch.presets[name]
    assert (
        sum(p.numel() for p in build_transformer(config.model, seed=None).parameters())
        == config.num_parameters()
    )


@given(models())
def test_counted_equals_built_for_any_model(m):
    assert (
        sum(p.numel() for p in build_transformer(m, seed=None).parameters())
        == Config(m).num_parameters()
    )


@pytest.mark.parametrize("name", ch.presets)
def test_printed_preset_reads_back_to_itself(name):
    text = ch.presets[name].to_toml()
    assert Config.from_dict(tomllib.loads(text)) == ch.presets[name]
    assert all("#" in line for line in text.splitlines() if "=" in line)


@given(models())
def test_any_config_reads_back_to_itself(m):
    config = Config(m)
    assert Config.from_dict(tomllib.loads(config.to_toml())) == config
    assert Config.from_dict(config.to_dict()) == config


def test_a_file_reads_as_it_was_written(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nwidth = 64\nposition = "rotary"\n')
    config = Config.read(path, **{"model.position.theta": "5000"})
    assert (config.model.d_model, config.model.position.theta) == (64, 5000.0)


def test_changes_reach_what_a_file_leaves_out(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[model]\nlayers = 2\n")
    config = Config.read(path, attention__n_heads=2, **{"model.position": "rotary"})
    assert (config.model.n_layers, config.model.attention.n_heads, config.model.position.kind) == (
        2,
        2,
        "rotary",
    )


def test_the_order_of_changes_does_not_matter():
    theta = {"position.theta": 500.0}
    kind = {"position": "rotary"}
    base = ch.presets["tiny-decoder"]
    assert base.replace(**theta, **kind) == base.replace(**kind, **theta)


def test_another_kind_starts_from_its_own_defaults():
    changed = ch.presets["llama-3.2-1b"].replace(position="t5")
    assert changed.model.position.num_buckets == 32
    assert (
        changed.replace(**{"position.kind": "rotary", "position.theta": 7}).model.position.theta
        == 7.0
    )


MISTAKES = [
    ({"widht": 3}, "did you mean 'width'"),
    ({"position": "rotray"}, "did you mean 'rotary'"),
    ({"position.theta": 3}, "model.position.theta is not an option"),
    ({"width": "wide"}, "must be a whole number"),
    ({"width": True}, "must be a whole number"),
    ({"width": 0}, "must be at least 1"),
    ({"width": 33}, "does not split into 4 heads"),
    ({"width": 500_000_003}, "heads among its divisors, such as 1,"),  # at once: it is a prime
    ({"width": 12, "attention.n_heads": 10**12}, "heads among its divisors, such as 12,"),
    ({"width": "9" * 400}, "model.d_model is too large a whole number; it must be less than 2.63"),
    ({"width": "9" * 5000}, "must be a whole number, not '9{59}[.]$"),
    ({"norm.eps": "9" * 400}, "model.norm.eps is too large a whole number"),
    ({"norm.eps": "9" * 5000}, "must be a number, not '9{59}[.]$"),
    ({"input": "[" * 5000}, r"'\[{59} is not a kind"),
    ({"context": "[" * 5000}, r"must be a whole number, not '\[{59}[.]$"),
    ({"attention.bias": "[" * 5000}, r"must be a list, not '\[{59}[.]$"),
    ({"attention.n_kv_heads": 3}, "cannot share 3 kv_heads evenly"),
    ({"attention.bias": ["q", "z"]}, "'z' is not a choice"),
    ({"attention.bias": "q"}, "must be a list"),
    ({"dropout.residual": 1.0}, "less than 1"),
    ({"norm.eps": float("nan")}, "positive number"),
    (
        {"shape": "encoder", "head": "none", "input": {"kind": "images", "mean": [math.nan]}},
        "finite numbers",
    ),
    ({"ffn.activation": "glue"}, "did you mean"),
    ({"position": "rotary", "attention.d_head": 7}, "turn pairs"),
    ({"position": {"kind": "rotary", "width": 10}}, "more than the head's 8"),
    ({"position": "sinusoidal", "width": 33, "attention.n_heads": 3}, "is odd"),
    ({"position": {"kind": "t5", "buckets": 6}}, "multiple of 4"),
    ({"position": {"kind": "t5", "distance": 8}}, "must be more than"),
    ({"shape": "encoder"}, "sees the word it would have to predict"),
    ({"head": "mlm"}, "needs shape encoder"),
    ({"head": "classification"}, "use pooling mean"),
    ({"shape": "encoder-decoder", "head": "regression"}, "needs shape encoder or decoder"),
    ({"input": "images"}, "a decoder reads the tokens it writes"),
    ({"shape": "encoder", "head": "classification", "input": "images"}, "it must be 0"),
    (
        {"shape": "encoder", "head": "classification", "input": "images", "vocabulary": 0},
        "becomes 197 tokens",
    ),
    ({"vocabulary": 0}, "vocabulary"),
    ({"context.more": 1}, "no options below it"),
    ({"position": {"theta": 1}}, "needs a kind"),
    (
        {"shape": "encoder-decoder", "architecture.source_input.scaled": True},
        "architecture.source_input needs a kind",
    ),
    ({"modle.width": 3}, "model.modle is not an option"),
    ({"position": {"kind": ["rotary"]}}, "needs a kind"),
    (
        {
            "shape": {
                "kind": "encoder-decoder",
                "input": {"kind": "audio", "frames": 9},
                "context": 5,
                "vocabulary": 7,
            }
        },
        "must be 0",
    ),
]


def test_options_of_a_new_kind_may_be_tables_of_their_own():
    new = {"train.optimizer": "muon", "train.optimizer.lr": 0.01, "train.optimizer.adam.lr": 0.002}
    assert ch.presets["tiny-decoder"].replace(**new).train.optimizer == Muon(
        lr=0.01, adam=Adam(lr=0.002)
    )


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_what_cannot_be_is_refused_with_the_reason(change, words):
    with pytest.raises(ch.ClearheadError, match=words.replace("?", r"\?")):
        ch.presets["tiny-decoder"].replace(**change)


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
def test_python_is_held_to_the_same_rules(make):
    with pytest.raises(ch.ClearheadError, match=r"is not a choice|whole number|less than 1"):
        make()


@pytest.mark.parametrize("text", ["model = 3", "[model", "[modle]\nwidth = 3"])
def test_a_broken_file_is_refused_with_a_sentence(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ch.ClearheadError, match=r"\.|\?"):
        Config.read(path)


def test_a_missing_file_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(ch.ClearheadError, match="cannot be read"):
        Config.read(tmp_path / "none.toml")
