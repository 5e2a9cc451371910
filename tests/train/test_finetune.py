"""Fine-tuning: the backbone is copied exactly, and mismatches are refused by name."""

import pytest
import sample_data
import torch
from sample_data import SHORT_RUN, TINY_MODEL
from tiny_training import run, same_tensors

import clearhead as ch
from clearhead.io import read_json_lines
from clearhead.model.transformer import build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.train import build_trainer, describe_run, load_config, load_initial_weights
from clearhead.weights.checkpoint import Checkpoint

SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|mask|>")
REGRESSION = {
    "model.head": {"kind": "regression", "pooling": "mean"},
    "data.label_column": "score",
}
UNCHANGED_HEAD = {"train.trainable": "head"}


def save_model(folder, preset, special_tokens=None, **changes):
    """A random model of this architecture with a tokenizer; `special_tokens` are of `inference`."""
    tokenizer = Tokenizer.train_bpe(sample_data.sentences(100), 300, SPECIAL_TOKENS)
    inference = {
        f"inference.{name}": [tokenizer.special_tokens[token]]
        for name, token in (special_tokens or {}).items()
    }
    options = {
        **TINY_MODEL,
        "model.context_length": 40,
        "model.vocab_size": len(tokenizer),
        **changes,
        **inference,
    }
    model = ch.new(ch.presets[preset].replace(**options), seed=7, tokenizer=tokenizer)
    ch.save(model, folder)
    return str(folder)


@pytest.fixture
def masked_lm(tmp_path):
    special = {"bos_tokens": "<|start|>", "sep_tokens": "<|end|>", "mask_token": "<|mask|>"}
    changes = {"model.input.token_types": 2}
    return save_model(tmp_path / "masked_lm", "tiny-encoder", special, **changes)


@pytest.fixture
def lm(tmp_path):
    special = {"bos_tokens": "<|end|>", "eos_tokens": "<|end|>"}
    changes = {"model.position": "rotary"}
    return save_model(tmp_path / "lm", "tiny-decoder", special, **changes)


@pytest.fixture
def translator(tmp_path):
    special = {
        "sep_tokens": "<|end|>",
        "decoder_start_tokens": "<|start|>",
        "eos_tokens": "<|end|>",
        "suppress_tokens": "<|start|>",
    }
    changes = {
        "model.architecture.encoder_layers": 1,
        "model.architecture.source_context_length": 40,
    }
    return save_model(tmp_path / "translator", "tiny-encoder-decoder", special, **changes)


@pytest.fixture
def labeled(tmp_path):
    return sample_data.write_labeled(tmp_path)


def options(init_from, data, changes):
    return {
        **SHORT_RUN,
        "train.max_steps": 6,
        "train.init_from": init_from,
        "data.train": data,
        "train.optimizer.lr": 0.01,
        **changes,
    }


def start(recipe, init_from, data, output, **changes):
    """A trainer that has not taken a step, or resumes."""
    config = load_config(recipe, options(init_from, data, changes))
    return build_trainer(config, output, resume=True, device="cpu", compile=False)


def finetune(recipe, init_from, data, output, **changes):
    return sample_data.train(recipe, output, options(init_from, data, changes))


def load(folder):
    return ch.load(folder, device="cpu")


def backbone(net):
    parameters = net.named_parameters()
    return {name: p.detach().clone() for name, p in parameters if not name.startswith("head.")}


def head(net):
    parameters = net.named_parameters()
    return {name: p.detach().clone() for name, p in parameters if name.startswith("head.")}


def all_parameters(net):
    return dict(net.named_parameters())


# --- what is copied


@pytest.mark.parametrize("changes", [{}, REGRESSION], ids=["classification", "regression"])
def test_masked_lm_becomes_classifier_with_the_same_backbone(changes, masked_lm, labeled, tmp_path):
    trainer = start("finetune-classify", masked_lm, labeled, tmp_path / "run", **changes)
    initial = load(masked_lm)
    assert same_tensors(backbone(trainer.net), backbone(initial.net))
    text = "the cat sat"
    assert trainer.model.tokenizer.encode(text) == initial.tokenizer.encode(text)
    recipe = ch.presets["finetune-classify"]
    assert trainer.model.config.model.dropout == recipe.model.dropout
    result = run(trainer)
    assert not same_tensors(backbone(trainer.net), backbone(initial.net))
    model = load(result.checkpoint)
    assert model.config.inference.bos_tokens == initial.config.inference.bos_tokens
    assert model.logits("the cat").shape == ((1,) if changes else (2,))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_frozen_backbone_does_not_change(optimizer, masked_lm, labeled, tmp_path):
    changes = {**UNCHANGED_HEAD, "train.optimizer": {"kind": optimizer}}
    overrides = options(masked_lm, labeled, changes)
    del overrides["train.optimizer.lr"]
    config = load_config("finetune-classify", overrides)
    trainer = build_trainer(config, tmp_path / "run", resume=True, device="cpu", compile=False)
    initial_head = head(trainer.net)
    model = load(run(trainer).checkpoint)
    assert same_tensors(backbone(model.net), backbone(load(masked_lm).net))
    trained_head = head(model.net)
    assert not any(torch.equal(initial_head[name], p) for name, p in trained_head.items())


def test_untied_lm_head_can_be_trained_alone(tmp_path):
    special = {"bos_tokens": "<|end|>", "eos_tokens": "<|end|>"}
    changes = {"model.head.tie_embeddings": False}
    untied = save_model(tmp_path / "untied", "tiny-decoder", special, **changes)
    data = sample_data.write_text(tmp_path)
    model = finetune("lm-small", untied, data, tmp_path / "run", **UNCHANGED_HEAD)
    initial = load(untied)
    assert same_tensors(backbone(model.net), backbone(initial.net))
    assert not same_tensors(head(model.net), head(initial.net))


def test_lm_keeps_tokenizer_and_head(lm, tmp_path):
    trainer = start("lm-small", lm, sample_data.write_text(tmp_path), tmp_path / "run")
    initial = load(lm)
    assert same_tensors(all_parameters(trainer.net), all_parameters(initial.net))
    assert trainer.model.config.model.head == initial.config.model.head
    assert trainer.model.config.model.vocab_size == initial.config.model.vocab_size
    initial_loss, _ = trainer.validate()
    result = run(trainer)
    assert result.best_loss < initial_loss
    model = load(result.checkpoint)
    assert model.tokenizer.encode("a dog") == initial.tokenizer.encode("a dog")
    assert model.config.inference == initial.config.inference


def test_lm_becomes_classifier(lm, labeled, tmp_path):
    model = finetune("finetune-classify", lm, labeled, tmp_path / "run")
    assert model.architecture == "decoder"
    assert model.config.inference.labels == ("bad", "good")


def test_translator_is_fine_tuned(translator, tmp_path):
    data = sample_data.write_pairs(tmp_path)
    trainer = start("mt-small", translator, data, tmp_path / "run", **{"train.seq_len": 0})
    initial = load(translator)
    assert same_tensors(all_parameters(trainer.net), all_parameters(initial.net))
    assert trainer.model.config.inference == initial.config.inference
    initial_loss, _ = trainer.validate()
    result = run(trainer)
    assert result.best_loss < initial_loss
    assert load(result.checkpoint).translate("the cat", num_beams=1, max_tokens=4)


def test_classifier_keeps_its_head_unless_labels_differ(masked_lm, labeled, tmp_path):
    finetune("finetune-classify", masked_lm, labeled, tmp_path / "first")
    first = str(tmp_path / "first" / "best")
    same = start("finetune-classify", first, labeled, tmp_path / "same")
    assert same_tensors(all_parameters(same.net), all_parameters(load(first).net))
    three = sample_data.write_labeled(tmp_path, "three.tsv", lambda i: "abc"[i % 3])
    other = start("finetune-classify", first, three, tmp_path / "three")
    assert other.model.config.inference.labels == ("a", "b", "c")
    assert same_tensors(backbone(other.net), backbone(same.net))
    regression = start("finetune-classify", first, labeled, tmp_path / "score", **REGRESSION)
    assert regression.model.config.inference.labels == ()


def test_head_rows_are_matched_by_label(masked_lm, labeled, tmp_path):
    finetune("finetune-classify", masked_lm, labeled, tmp_path / "first")
    first = load(tmp_path / "first" / "best")
    config = first.config.replace(**{"inference.labels": ["good", "bad"]})
    initial = Checkpoint(first.net, config, first.tokenizer)
    net = build_transformer(first.config.model, seed=1)
    load_initial_weights(net, first.config, initial)
    assert torch.equal(net.head.out.weight, first.net.head.out.weight.flip(0))
    assert torch.equal(net.head.out.bias, first.net.head.out.bias.flip(0))
    other = sample_data.write_labeled(tmp_path, "other.tsv", lambda i: ("ham", "spam")[i % 2])
    best = str(tmp_path / "first" / "best")
    trainer = start("finetune-classify", best, other, tmp_path / "other")
    assert same_tensors(backbone(trainer.net), backbone(first.net))
    assert not torch.equal(trainer.net.head.out.weight, first.net.head.out.weight)


# --- data of fine-tuned models


def test_text_pairs_have_token_types_if_the_model_has(masked_lm, labeled, tmp_path):
    changes = {"data.text_pair_column": "other"}
    trainer = start("finetune-classify", masked_lm, labeled, tmp_path / "run", **changes)
    batch = trainer.data.batch(0)
    (separator,) = trainer.model.config.inference.sep_tokens
    for tokens, token_types, segment_ids in zip(
        batch.tokens, batch.token_type_ids, batch.segment_ids, strict=True
    ):
        first_end, second_end = (tokens == separator).nonzero().flatten().tolist()
        num_padding = len(tokens) - second_end - 1
        expected = [0] * (first_end + 1) + [1] * (second_end - first_end) + [0] * num_padding
        assert token_types.tolist() == expected
        assert segment_ids.sum() == second_end + 1
    assert run(trainer).status == "completed"


def test_text_pairs_are_separated_if_the_model_has_no_token_types(lm, labeled, tmp_path):
    changes = {"data.text_pair_column": "other"}
    trainer = start("finetune-classify", lm, labeled, tmp_path / "run", **changes)
    batch = trainer.data.batch(0)
    end = trainer.model.config.inference.eos_tokens[0]
    assert batch.token_type_ids is None
    assert trainer.model.config.inference.sep_tokens == (end,)
    assert ((batch.tokens == end).sum(dim=1) == 3).all()  # before, between and after


def test_model_with_other_bos_and_eos_tokens_learns_its_own_eos_token(tmp_path):
    special = {"bos_tokens": "<|start|>", "eos_tokens": "<|end|>"}
    (tmp_path / "texts.txt").write_text("\n<|endoftext|>\n".join(sample_data.sentences(40)))
    lm = save_model(tmp_path / "lm", "tiny-decoder", special)
    trainer = start("lm-small", lm, [str(tmp_path / "texts.txt")], tmp_path / "run")
    (bos,) = trainer.model.config.inference.bos_tokens
    (eos,) = trainer.model.config.inference.eos_tokens
    targets = torch.cat([trainer.data.batch(step).targets for step in range(20)])
    assert (targets == eos).any()
    assert not (targets == bos).any()


def test_evaluation_truncates_like_training(tmp_path):
    data = sample_data.write_labeled(tmp_path)
    valid = sample_data.write_labeled(tmp_path, "valid.tsv")
    changes = {
        "train.seq_len": 8,
        "data.train": data,
        "data.valid": valid,
        "train.max_steps": 4,
        "data.tokenizer": "bytes",
    }
    output = tmp_path / "run"
    model = sample_data.train("finetune-classify", output, {**SHORT_RUN, **TINY_MODEL, **changes})
    evaluation = ch.evaluate(model, valid)
    lines = read_json_lines(output / "log.jsonl")
    best = min(lines, key=lambda line: line.get("valid_loss", 1e9))
    values = evaluation.value("loss"), evaluation.value("accuracy")
    assert values == pytest.approx((best["valid_loss"], best["accuracy"]), rel=1e-5)
    assert model.classify("the cat sat on the mat") == model.classify("the cat sits there")


def test_validation_labels_missing_in_training_fail_or_are_skipped(masked_lm, labeled, tmp_path):
    labels = ("bad", "good", "ugly")
    valid = sample_data.write_labeled(tmp_path, "valid.tsv", lambda i: labels[i % 3])
    changes = {"data.valid": valid}
    with pytest.raises(ch.ClearheadError, match=r"valid.tsv:4.*ugly"):
        start("finetune-classify", masked_lm, labeled, tmp_path / "run", **changes)
    changes["data.on_error"] = "skip"
    trainer = start("finetune-classify", masked_lm, labeled, tmp_path / "run", **changes)
    assert trainer.data.report.skipped.total() == 13


# --- resuming


@pytest.mark.parametrize("changes", [{}, UNCHANGED_HEAD], ids=["all", "head"])
def test_resumed_fine_tuning_equals_uninterrupted(changes, masked_lm, labeled, tmp_path):
    uninterrupted = run(
        start("finetune-classify", masked_lm, labeled, tmp_path / "uninterrupted", **changes)
    )
    output = tmp_path / "resumed"
    first = run(start("finetune-classify", masked_lm, labeled, output, **changes), until=4)
    assert (first.status, first.step) == ("interrupted", 4)
    trainer = start("finetune-classify", masked_lm, labeled, output, **changes)
    assert trainer.step == 4
    result = run(trainer)
    for file in ("model.safetensors", "training_state.safetensors"):
        assert (result.checkpoint / file).read_bytes() == (
            uninterrupted.checkpoint / file
        ).read_bytes()


def test_fine_tuning_resumes_without_the_initial_model(masked_lm, labeled, tmp_path):
    uninterrupted = run(start("finetune-classify", masked_lm, labeled, tmp_path / "uninterrupted"))
    output = tmp_path / "resumed"
    run(start("finetune-classify", masked_lm, labeled, output), until=4)
    (tmp_path / "masked_lm").rename(tmp_path / "moved")
    result = run(start("finetune-classify", masked_lm, labeled, output))
    weights = [
        (each.checkpoint / "model.safetensors").read_bytes() for each in (uninterrupted, result)
    ]
    assert weights[0] == weights[1]
    changes = {"model.dropout.residual": 0.5}
    with pytest.raises(ch.ClearheadError, match=r"model.dropout.residual = 0.1 → 0.5"):
        start("finetune-classify", masked_lm, labeled, output, **changes)


# --- messages


def test_description_names_the_initial_model(masked_lm, labeled, tmp_path):
    trainer = start("finetune-classify", masked_lm, labeled, tmp_path / "run")
    assert describe_run(trainer, "cpu")[-1].endswith(f"from {masked_lm}")
    fresh = start("finetune-classify", "", labeled, tmp_path / "fresh")
    line, hint = describe_run(fresh, "cpu")
    assert line.endswith("from random weights")
    assert "train.init_from" in hint


MISTAKES = [
    ("finetune-classify", {"data.label_column": "lable"}, "did you mean 'label'"),
    ("finetune-classify", {"data.text_column": "txt"}, "did you mean 'text'"),
    ("finetune-classify", {"data.text_pair_column": "third"}, "'third'"),
    ("finetune-classify", {"train.init_from": "no/such/model"}, "no/such/model"),
    ("finetune-classify", {"train.init_from": "tiny-encoder"}, "tiny-encoder"),
    ("finetune-classify", {"train.init_from": "", **UNCHANGED_HEAD}, "needs train.init_from"),
    ("finetune-classify", {**REGRESSION, "data.label_column": "label"}, "rows.tsv:2.*bad"),
    ("finetune-classify", {"model.d_model": 96}, "model.d_model = 96 has no effect"),
    ("finetune-classify", {"model.position": "rotary"}, "model.position = 'rotary' has no effect"),
    ("lm-small", {"data.vocab_size": 500}, "data.vocab_size = 500 has no effect"),
    ("lm-small", UNCHANGED_HEAD, "tie_embeddings"),
    ("mlm-small", {}, "encoder"),
    ("mt-small", {}, "architecture decoder.*architecture encoder-decoder"),
]


@pytest.mark.parametrize(("recipe", "changes", "keyword"), MISTAKES)
def test_invalid_fine_tuning_is_refused_in_one_line(recipe, changes, keyword, lm, tmp_path):
    is_labeled = recipe == "finetune-classify"
    write = sample_data.write_labeled if is_labeled else sample_data.write_text
    with pytest.raises(ch.ClearheadError, match=keyword) as error:
        finetune(recipe, lm, write(tmp_path), tmp_path / "run", **changes)
    assert "\n" not in str(error.value)


def test_override_without_effect_is_refused_for_configurations_too(masked_lm, tmp_path):
    config = ch.presets["finetune-classify"].replace(train__init_from=masked_lm)
    with pytest.raises(ch.ClearheadError, match="d_model = 96 has no effect"):
        ch.train(config, tmp_path / "run", quiet=True, model={"d_model": 96})


def test_initial_model_without_tokenizer_is_refused(labeled, tmp_path):
    ch.save(ch.new("tiny-encoder"), tmp_path / "mute")
    with pytest.raises(ch.ClearheadError, match="tokenizer"):
        start("finetune-classify", str(tmp_path / "mute"), labeled, tmp_path / "run")
