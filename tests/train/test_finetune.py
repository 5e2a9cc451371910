"""Training that starts from a model: its body comes along unchanged, and what does not fit is told in one sentence."""

import pytest
import samples
import torch
from samples import NARROW, QUICK

import clearhead as ch
from clearhead.io import read_json_lines
from clearhead.model.transformer import build_transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.train import build_trainer, describe_run, load_config, load_initial_weights
from clearhead.weights.checkpoint import Checkpoint

ROTARY = {"model.position": "rotary"}
SPECIAL = ("<|start|>", "<|end|>", "<|mask|>")


def saved(folder, preset, around=None, **changes):
    """A fresh model of this shape with a tokenizer, in a folder; `around` names special tokens of `use`."""
    tokenizer = Tokenizer.train_bpe(samples.sentences(100), 300, special_tokens=SPECIAL)
    use = {
        f"use.{name}": [tokenizer.special_tokens[token]] for name, token in (around or {}).items()
    }
    small = {
        **NARROW,
        "model.context_length": 40,
        "model.vocab_size": len(tokenizer),
        **changes,
        **use,
    }
    ch.save(ch.new(ch.presets[preset].replace(**small), seed=7, tokenizer=tokenizer), folder)
    return str(folder)


@pytest.fixture
def reader(tmp_path):
    around = {"begin": "<|start|>", "end": "<|end|>", "mask": "<|mask|>"}
    return saved(tmp_path / "reader", "tiny-encoder", around, **{"model.input.token_types": 2})


@pytest.fixture
def writer(tmp_path):
    return saved(
        tmp_path / "writer", "tiny-decoder", {"begin": "<|end|>", "stop": "<|end|>"}, **ROTARY
    )


@pytest.fixture
def translator(tmp_path):
    around = {"end": "<|end|>", "start": "<|start|>", "stop": "<|end|>", "never": "<|start|>"}
    shape = {"model.architecture.encoder_layers": 1, "model.architecture.source_context_length": 40}
    return saved(tmp_path / "translator", "tiny-encoder-decoder", around, **shape)


def options(start, data, changes):
    given = {
        **QUICK,
        "train.max_steps": 6,
        "train.init_from": start,
        "data.train": data,
        "train.optimizer.lr": 0.01,
    }
    return {**given, **changes}


def begun(preset, start, data, out, **changes):
    """A run that has not taken a step."""
    config = load_config(preset, options(start, data, changes))
    return build_trainer(config, out, resume=True, device="cpu", compile=False)


def tuned(preset, start, data, out, **changes):
    return ch.train(preset, out, quiet=True, device="cpu", **options(start, data, changes))


def body(net):
    return {
        name: p.detach().clone()
        for name, p in net.named_parameters()
        if not name.startswith("head.")
    }


def head(net):
    return {
        name: p.detach().clone() for name, p in net.named_parameters() if name.startswith("head.")
    }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


NUMBER = {"model.head": {"kind": "regression", "pooling": "mean"}, "data.label_column": "score"}


@pytest.mark.parametrize("changes", [{}, NUMBER], ids=["classes", "number"])
def test_a_reader_of_masked_words_becomes_a_judge_with_the_same_body(changes, reader, tmp_path):
    run = begun(
        "finetune-classify", reader, samples.labelled(tmp_path), tmp_path / "run", **changes
    )
    old = ch.load(reader, device="cpu")
    assert same(body(run.net), body(old.net))
    assert run.model.tokenizer.encode("the cat sat") == old.tokenizer.encode("the cat sat")
    assert run.model.config.model.dropout == ch.presets["finetune-classify"].model.dropout
    result = run.train(lambda at: True)
    assert not same(body(run.net), body(old.net))
    model = ch.load(result.checkpoint, device="cpu")
    assert model.config.inference.bos_tokens == old.config.inference.bos_tokens
    assert model.logits("the cat").shape == ((1,) if changes else (2,))


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_where_only_the_head_learns_the_body_stays_to_the_bit(optimizer, reader, tmp_path):
    changes = {"train.trainable": "head", "train.optimizer": {"kind": optimizer}}
    del (given := options(reader, samples.labelled(tmp_path), changes))["train.optimizer.lr"]
    run = build_trainer(
        load_config("finetune-classify", given),
        tmp_path / "run",
        resume=True,
        device="cpu",
        compile=False,
    )
    fresh = head(run.net)
    model = ch.load(run.train(lambda at: True).checkpoint, device="cpu")
    assert same(body(model.net), body(ch.load(reader, device="cpu").net))
    assert not any(torch.equal(fresh[name], value) for name, value in head(model.net).items())


def test_an_untied_head_of_words_can_learn_alone(tmp_path):
    around = {"begin": "<|end|>", "stop": "<|end|>"}
    start = saved(
        tmp_path / "untied", "tiny-decoder", around, **{"model.head.tie_embeddings": False}
    )
    made = tuned(
        "lm-small", start, samples.texts(tmp_path), tmp_path / "run", **{"train.trainable": "head"}
    )
    old = ch.load(start, device="cpu")
    assert same(body(made.net), body(old.net))
    assert not same(head(made.net), head(old.net))


def test_a_writer_keeps_its_words_and_its_head(writer, tmp_path):
    run = begun("lm-small", writer, samples.texts(tmp_path), tmp_path / "run")
    old = ch.load(writer, device="cpu")
    assert same(dict(run.net.named_parameters()), dict(old.net.named_parameters()))
    assert run.model.config.model.head == old.config.model.head
    assert run.model.config.model.vocab_size == old.config.model.vocab_size
    before, _ = run.validate()
    result = run.train(lambda at: True)
    assert result.best_loss < before
    model = ch.load(result.checkpoint, device="cpu")
    assert model.tokenizer.encode("a dog") == old.tokenizer.encode("a dog")
    assert model.config.inference == old.config.inference


def test_a_writer_becomes_a_judge(writer, tmp_path):
    model = tuned("finetune-classify", writer, samples.labelled(tmp_path), tmp_path / "run")
    assert model.architecture == "decoder"
    assert model.config.inference.labels == ("bad", "good")


def test_a_translator_goes_on_from_another(translator, tmp_path):
    run = begun(
        "mt-small",
        translator,
        samples.sentence_pairs(tmp_path),
        tmp_path / "run",
        **{"train.seq_len": 0},
    )
    old = ch.load(translator, device="cpu")
    assert same(dict(run.net.named_parameters()), dict(old.net.named_parameters()))
    assert run.model.config.inference == old.config.inference
    before, _ = run.validate()
    result = run.train(lambda at: True)
    assert result.best_loss < before
    assert ch.load(result.checkpoint, device="cpu").translate("the cat", num_beams=1, max_tokens=4)


def test_a_judge_goes_on_with_its_head_and_takes_a_fresh_one_for_other_classes(reader, tmp_path):
    tuned("finetune-classify", reader, samples.labelled(tmp_path), tmp_path / "first")
    first = str(tmp_path / "first" / "best")
    again = begun("finetune-classify", first, samples.labelled(tmp_path), tmp_path / "again")
    assert same(
        dict(again.net.named_parameters()),
        dict(ch.load(first, device="cpu").net.named_parameters()),
    )
    three = samples.labelled(tmp_path, "three.tsv", lambda i: "abc"[i % 3])
    other = begun("finetune-classify", first, three, tmp_path / "three")
    assert other.model.config.inference.labels == ("a", "b", "c")
    assert same(body(other.net), body(again.net))
    number = begun(
        "finetune-classify", first, samples.labelled(tmp_path), tmp_path / "number", **NUMBER
    )
    assert number.model.config.inference.labels == ()


def test_two_sentences_are_two_kinds_where_the_model_has_kinds(reader, tmp_path):
    run = begun(
        "finetune-classify",
        reader,
        samples.labelled(tmp_path),
        tmp_path / "run",
        **{"data.text_pair_column": "other"},
    )
    batch = run.data.batch(0)
    (end,) = run.model.config.inference.sep_tokens
    for tokens, kinds, segment_ids in zip(
        batch.tokens, batch.token_type_ids, batch.segment_ids, strict=True
    ):
        first, last = (tokens == end).nonzero().flatten().tolist()
        assert kinds.tolist() == [0] * (first + 1) + [1] * (last - first) + [0] * (
            len(tokens) - last - 1
        )
        assert segment_ids.sum() == last + 1
    assert run.train(lambda at: True).status == "done"


def test_two_sentences_are_kept_apart_where_the_model_has_no_kinds(writer, tmp_path):
    changes = {"data.text_pair_column": "other"}
    run = begun(
        "finetune-classify", writer, samples.labelled(tmp_path), tmp_path / "run", **changes
    )
    batch = run.data.batch(0)
    end = run.model.config.inference.eos_tokens[0]
    assert batch.token_type_ids is None
    assert run.model.config.inference.sep_tokens == (end,)
    assert ((batch.tokens == end).sum(dim=1) == 3).all()  # before, between and after


@pytest.mark.parametrize("changes", [{}, {"train.trainable": "head"}], ids=["all", "head"])
def test_a_resumed_fine_tuning_equals_one_that_was_not_interrupted(changes, reader, tmp_path):
    data = samples.labelled(tmp_path)
    whole = begun("finetune-classify", reader, data, tmp_path / "whole", **changes).train(
        lambda at: True
    )
    cut = begun("finetune-classify", reader, data, tmp_path / "cut", **changes).train(
        lambda at: at.step < 4
    )
    assert (cut.status, cut.step) == ("stopped", 4)
    again = begun("finetune-classify", reader, data, tmp_path / "cut", **changes)
    assert again.step == 4
    result = again.train(lambda at: True)
    for file in ("model.safetensors", "state.safetensors"):
        assert (result.checkpoint / file).read_bytes() == (whole.checkpoint / file).read_bytes()


def test_a_fine_tuning_goes_on_when_the_model_that_it_started_from_is_gone(reader, tmp_path):
    data = samples.labelled(tmp_path)
    whole = begun("finetune-classify", reader, data, tmp_path / "whole").train(lambda at: True)
    begun("finetune-classify", reader, data, tmp_path / "cut").train(lambda at: at.step < 4)
    (tmp_path / "reader").rename(tmp_path / "elsewhere")
    result = begun("finetune-classify", reader, data, tmp_path / "cut").train(lambda at: True)
    assert (result.checkpoint / "model.safetensors").read_bytes() == (
        whole.checkpoint / "model.safetensors"
    ).read_bytes()
    with pytest.raises(
        ch.ClearheadError, match=r"holds a run with model.dropout.residual = .*, not 0.5"
    ):
        begun(
            "finetune-classify", reader, data, tmp_path / "cut", **{"model.dropout.residual": 0.5}
        )


def test_a_head_is_taken_over_by_the_names_of_its_classes(reader, tmp_path):
    tuned("finetune-classify", reader, samples.labelled(tmp_path), tmp_path / "first")
    first = ch.load(tmp_path / "first" / "best", device="cpu")
    config = first.config.replace(**{"use.labels": ["good", "bad"]})
    start = Checkpoint(first.net, config, first.tokenizer)
    net = build_transformer(first.config.model, seed=1)
    load_initial_weights(net, first.config, start)
    assert torch.equal(net.head.out.weight, first.net.head.out.weight.flip(0))
    assert torch.equal(net.head.out.bias, first.net.head.out.bias.flip(0))
    other = samples.labelled(tmp_path, "other.tsv", lambda i: ("ham", "spam")[i % 2])
    run = begun("finetune-classify", str(tmp_path / "first" / "best"), other, tmp_path / "other")
    assert same(body(run.net), body(first.net))
    assert not torch.equal(run.net.head.out.weight, first.net.head.out.weight)


def test_it_is_said_what_training_starts_from(reader, tmp_path):
    data = samples.labelled(tmp_path)
    run = begun("finetune-classify", reader, data, tmp_path / "run")
    assert describe_run(run, "cpu")[-1].endswith(f"from {reader}")
    line, more = describe_run(begun("finetune-classify", "", data, tmp_path / "fresh"), "cpu")
    assert line.endswith("from random weights")
    assert "it starts from nothing; --train.init_from NAME starts from a model" in more


MISTAKES = [
    (
        "finetune-classify",
        {"data.label_column": "lable"},
        r"rows.tsv:1: there is no column 'lable'; did you mean 'label'\?",
    ),
    (
        "finetune-classify",
        {"data.text_column": "txt"},
        r"there is no column 'txt'; did you mean 'text'\?",
    ),
    ("finetune-classify", {"data.text_pair_column": "third"}, "there is no column 'third'"),
    (
        "finetune-classify",
        {"train.init_from": "no/such/model"},
        "no/such/model is no clearhead model",
    ),
    (
        "finetune-classify",
        {"train.init_from": "tiny-encoder"},
        "tiny-encoder is a preset, not a saved model",
    ),
    (
        "finetune-classify",
        {"train.init_from": "", "train.trainable": "head"},
        "train.trainable = head needs train.init_from",
    ),
    (
        "finetune-classify",
        {**NUMBER, "data.label_column": "label"},
        r"rows.tsv:2 \('bad'\): the label is no number",
    ),
    (
        "finetune-classify",
        {"model.d_model": 96},
        "model.d_model = 96 has no effect: train.init_from says which model it is",
    ),
    (
        "finetune-classify",
        {"model.position": "rotary"},
        "model.position = 'rotary' has no effect: train.init_from says",
    ),
    (
        "lm-small",
        {"data.vocab_size": 500},
        "data.vocab_size = 500 has no effect: train.init_from says which model it is",
    ),
    (
        "lm-small",
        {"train.trainable": "head"},
        "needs a head with weights of its own; this one shares the embedding",
    ),
    ("mlm-small", {}, "a masked-word head reads both sides of the gap; it needs shape encoder"),
    ("mt-small", {}, "is of shape decoder, but what is to be trained is encoder-decoder"),
]


@pytest.mark.parametrize(("preset", "changes", "sentence"), MISTAKES)
def test_what_cannot_be_started_from_is_told_in_one_sentence(
    preset, changes, sentence, writer, tmp_path
):
    data = samples.labelled(tmp_path) if preset == "finetune-classify" else samples.texts(tmp_path)
    with pytest.raises(ch.ClearheadError, match=sentence) as told:
        tuned(preset, writer, data, tmp_path / "run", **changes)
    assert "\n" not in str(told.value)


def test_a_model_that_begins_and_stops_with_other_tokens_learns_its_own_stop(tmp_path):
    around = {"begin": "<|start|>", "stop": "<|end|>"}
    (tmp_path / "texts.txt").write_text("\n<|endoftext|>\n".join(samples.sentences(40)))
    writer = saved(tmp_path / "writer", "tiny-decoder", around)
    run = begun("lm-small", writer, [str(tmp_path / "texts.txt")], tmp_path / "run")
    (begin,), (stop,) = run.model.config.inference.bos_tokens, run.model.config.inference.eos_tokens
    batches = [run.data.batch(step) for step in range(20)]
    assert any((batch.targets == stop).any() for batch in batches)
    assert not any((batch.targets == begin).any() for batch in batches)


def test_changes_of_a_configuration_must_have_an_effect_too(reader, tmp_path):
    config = ch.presets["finetune-classify"].replace(train__init_from=str(reader))
    with pytest.raises(
        ch.ClearheadError, match=r"width = 96 has no effect: train.init_from says which model it is"
    ):
        ch.train(config, tmp_path / "run", quiet=True, d_model=96)


def test_as_many_tokens_are_judged_as_were_learned_from(tmp_path):
    rows = samples.labelled(tmp_path)
    valid = samples.labelled(tmp_path, "valid.tsv")
    changes = {
        "train.seq_len": 8,
        "data.train": rows,
        "data.valid": valid,
        "train.max_steps": 4,
        "data.tokenizer": "bytes",
    }
    model = ch.train(
        "finetune-classify", tmp_path / "run", quiet=True, **{**QUICK, **NARROW, **changes}
    )
    found = ch.evaluate(model, valid)
    best = min(
        read_json_lines(tmp_path / "run" / "log.jsonl"), key=lambda line: line.get("valid", 1e9)
    )
    assert (found.value("loss"), found.value("accuracy")) == pytest.approx(
        (best["valid"], best["accuracy"]), rel=1e-5
    )
    assert model.classify("the cat sat on the mat") == model.classify("the cat sits there")


def test_labels_that_training_never_saw_are_told_or_left_out(reader, tmp_path):
    train = samples.labelled(tmp_path)
    valid = samples.labelled(tmp_path, "valid.tsv", lambda i: ("bad", "good", "ugly")[i % 3])
    changes = {"data.valid": valid}
    with pytest.raises(
        ch.ClearheadError, match=r"valid.tsv:4 \('ugly'\): the label does not occur in training"
    ):
        begun("finetune-classify", reader, train, tmp_path / "run", **changes)
    run = begun(
        "finetune-classify", reader, train, tmp_path / "run", **changes, **{"data.on_error": "skip"}
    )
    assert run.data.report.skipped == {"the label does not occur in training": 13}


def test_a_model_without_a_tokenizer_cannot_be_started_from(tmp_path):
    ch.save(ch.new("tiny-encoder"), tmp_path / "mute")
    with pytest.raises(ch.ClearheadError, match="mute has no tokenizer"):
        begun(
            "finetune-classify",
            str(tmp_path / "mute"),
            samples.labelled(tmp_path),
            tmp_path / "run",
        )
