"""From options to lessons: nothing is trained on that is held out, whatever is read, and every batch teaches."""

import io
import json
import math
import sys
from types import SimpleNamespace

import pytest
import samples
import torch
from runs import Counting, run
from samples import NARROW, QUICK

import clearhead as ch
from clearhead.data.batch import IGNORE_INDEX, PackedBatch
from clearhead.tokenizers.tokenizer import END_TOKEN
from clearhead.train.datasets import special_token_ids
from clearhead.train.train import build_trainer, load_config

SMALL = {**NARROW, **QUICK, "train.max_steps": 4}
TEXTS = {"model.context_length": 16, "data.vocab_size": 300}
PAIRS = {
    **TEXTS,
    "model.architecture.encoder_layers": 1,
    "model.context_length": 32,
    "model.architecture.source_context_length": 32,
    "train.seq_len": 32,
}
PICTURE = {"model.context_length": 5, "model.input.image_size": 8, "model.input.patch_size": 4}


def begun(recipe, out, **changes):
    """A run that has not taken a step."""
    config = load_config(recipe, {**SMALL, **changes})
    return build_trainer(config, out, resume=True, device="cpu", compile=False)


def trained(recipe, out, **changes):
    return ch.train(recipe, out, quiet=True, device="cpu", **{**SMALL, **TEXTS, **changes})


def piped(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))


# ---------------------------------------------------------------- standard input
@pytest.mark.parametrize("tokenizer", ["bpe", "characters", "bytes"])
def test_a_pipe_is_learned_from_as_a_file_is_and_gone_on_with(tokenizer, tmp_path, monkeypatch):
    trained(
        "lm-small",
        tmp_path / "file",
        **{"data.tokenizer": tokenizer, "data.train": samples.texts(tmp_path)},
    )
    piped(monkeypatch, (tmp_path / "text.txt").read_text())
    trained("lm-small", tmp_path / "pipe", **{"data.tokenizer": tokenizer, "data.train": ["-"]})
    one, other = (
        (tmp_path / name / "steps/00000004/model.safetensors").read_bytes()
        for name in ("file", "pipe")
    )
    assert one == other
    piped(monkeypatch, "")
    trained(
        "lm-small",
        tmp_path / "pipe",
        **{"data.tokenizer": tokenizer, "data.train": ["-"], "train.max_steps": 6},
    )
    assert (tmp_path / "pipe/steps/00000006").is_dir()


@pytest.mark.parametrize(
    "change", [lambda text: "x" + text[1:], lambda text: text[:-1], lambda text: text + "x"]
)
def test_another_text_in_the_pipe_is_not_gone_on_with(change, tmp_path, monkeypatch):
    samples.texts(tmp_path)
    text = (tmp_path / "text.txt").read_text()
    out = tmp_path / "run"
    for again in (text, text):
        piped(monkeypatch, again)
        trained("lm-small", out, **{"data.train": ["-"]})
    piped(monkeypatch, change(text))
    with pytest.raises(
        ch.ClearheadError, match=r"standard input is not the text that this run learns from"
    ):
        trained("lm-small", out, **{"data.train": ["-"], "train.max_steps": 6})
    assert (out / "piped/train-0.txt").read_text() == text


def test_an_empty_pipe_is_called_by_its_name(tmp_path, monkeypatch):
    piped(monkeypatch, "")
    with pytest.raises(ch.ClearheadError, match=r"standard input \(-\) is empty"):
        begun("lm-small", tmp_path / "run", **TEXTS, **{"data.train": ["-"]})


def test_a_table_of_pairs_tells_that_its_first_line_is_one(tmp_path):
    lines = [f"{text},{text.upper()}" for text in samples.sentences(40)]
    (tmp_path / "a.csv").write_text("\n".join(["en,de", *lines]) + "\n")
    for sides, told in (([], ["'en' and 'de'"]), (["en", "de"], [])):
        said = []
        data = {"data.train": [str(tmp_path / "a.csv")], "data.sides": sides}
        config = load_config("mt-small", {**SMALL, **PAIRS, **data})
        build_trainer(
            config,
            tmp_path / "-".join(["run", *sides]),
            resume=True,
            device="cpu",
            compile=False,
            echo=said.append,
        )
        assert len(said) == len(told)
        assert all(words in line for words, line in zip(told, said, strict=True))


@pytest.mark.parametrize(("labels", "told"), [("0.5 1 2.25", 1), ("0 1 2", 0), ("0.5 1 good", 0)])
def test_classes_that_are_numbers_are_remarked_on(labels, told, tmp_path):
    rows = [f"{text}\t{label}" for label in labels.split() for text in samples.sentences(8)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    config = load_config(
        "finetune-classify", {**SMALL, **TEXTS, "data.train": [str(tmp_path / "a.tsv")]}
    )
    said = []
    build_trainer(
        config, tmp_path / "run", resume=True, device="cpu", compile=False, echo=said.append
    )
    assert sum("--model.head number learns how large they are" in line for line in said) == told


@pytest.mark.parametrize(
    "recipe", ["mt-small", "finetune-classify", "picture-patches", "sound-patches"]
)
@pytest.mark.parametrize("option", ["data.train", "data.valid"])
def test_what_is_no_text_does_not_come_through_a_pipe(recipe, option, tmp_path):
    with pytest.raises(ch.ClearheadError, match="standard input"):
        begun(recipe, tmp_path / "run", **{"data.train": ["a.tsv"], option: ["-"]})


# ---------------------------------------------------------------- what is held out
KINDS = {
    "lm-small": (samples.texts, TEXTS),
    "mlm-small": (samples.texts, TEXTS),
    "mt-small": (samples.sentence_pairs, PAIRS),
    "finetune-classify": (samples.labelled, TEXTS),
    "picture-patches": (samples.pictures, PICTURE),
    "sound-patches": (samples.sounds, {}),
}


@pytest.mark.parametrize("recipe", KINDS)
def test_the_same_file_cannot_be_trained_on_and_held_out(recipe, tmp_path):
    make, changes = KINDS[recipe]
    files = make(tmp_path)
    with pytest.raises(ch.ClearheadError, match=f"{files[0]} is in data.train and in data.valid"):
        begun(recipe, tmp_path / "run", **changes, **{"data.train": files, "data.valid": files})


def test_a_text_that_is_held_out_is_not_read_with_its_folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("abc\n" * 100)
    (folder / "valid.txt").write_text("abc\n<|endoftext|>\nxyz\n")
    data = {
        "data.train": [str(folder)],
        "data.valid": [str(folder / "valid.txt")],
        "data.tokenizer": "characters",
    }
    made = begun("lm-small", tmp_path / "run", **TEXTS, **data, **{"data.on_error": "skip"})
    assert len(made.model.tokenizer) == len("abc\n") + 1
    assert made.data.report.locations["the file is one of data.valid"] == [
        str(folder / "valid.txt")
    ]


def test_a_run_inside_the_folder_that_it_learns_from_goes_on(tmp_path):
    samples.texts(tmp_path)
    for steps in (4, 6):
        trained(
            "lm-small",
            tmp_path / "run",
            **{"data.train": [str(tmp_path)], "train.max_steps": steps},
        )
    assert (tmp_path / "run/steps/00000006").is_dir()


def test_a_sound_that_is_held_out_is_not_heard_with_its_folder(tmp_path):
    (folder,) = samples.sounds(tmp_path)
    data = {
        "data.train": [folder],
        "data.valid": [f"{folder}/low"],
        "data.label_column": "stem",
        "data.on_error": "skip",
    }
    made = begun("sound-patches", tmp_path / "run", **data)
    assert made.data.labels == tuple(sorted(str(n) for n in range(0, 16, 2)))  # the high ones


def test_a_tokenizer_of_rows_has_not_seen_what_is_held_out(tmp_path):
    rows = [f"{letter} {letter}\t{n % 2}" for n, letter in enumerate("abcdefghijklmnopqrst")]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    data = {
        "data.train": [str(tmp_path / "rows.tsv")],
        "data.tokenizer": "characters",
        "data.on_error": "skip",
    }
    made = begun("finetune-classify", tmp_path / "run", **TEXTS, **data, **{"train.patience": 0})
    assert made.data.report.skipped.total() == 2
    assert len(made.model.tokenizer) == 18 + 1 + 2


# ---------------------------------------------------------------- every batch teaches
def test_the_number_that_marks_a_word_not_learned_is_learned_like_others(tmp_path):
    rows = samples.labelled(tmp_path, label=lambda i: IGNORE_INDEX if i % 2 else IGNORE_INDEX + 1)
    trained(
        "finetune-classify",
        tmp_path / "run",
        **{"model.head": {"kind": "regression"}, "data.train": rows},
    )
    for line in map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines()):
        assert line["loss"] == pytest.approx(100**2, rel=0.1)
        assert line["valid"] == pytest.approx(100**2, rel=0.1)


def test_a_single_short_row_of_masked_words_teaches(tmp_path):
    data = {
        "data.train": samples.texts(tmp_path),
        "train.batch_size": 1,
        "train.seq_len": 8,
        "train.max_steps": 20,
    }
    trained("mlm-small", tmp_path / "run", **data, **{"train.eval_every": 20})
    assert (tmp_path / "run/steps/00000020").is_dir()


@pytest.mark.parametrize("name", ["mlm-small", "lecture-lm"])
def test_a_text_begins_as_documents_did_where_it_was_learned(name, tmp_path):
    made = begun(
        name,
        tmp_path / "run",
        **TEXTS,
        **{"data.train": samples.texts(tmp_path), "train.max_steps": 1},
    )
    assert made.model.config.inference.bos_tokens == tuple(
        special_token_ids(made.model.tokenizer, END_TOKEN)
    )


class Nothing(Counting):
    """Every second batch teaches nothing."""

    def batch(self, step):
        packed = super().batch(step)
        return (
            packed
            if step % 2
            else PackedBatch(packed.tokens, torch.full_like(packed.targets, IGNORE_INDEX))
        )


def test_a_batch_that_teaches_nothing_is_no_end(tmp_path):
    result = run(tmp_path, Nothing(), steps=4).train(lambda at: True)
    assert (result.status, math.isfinite(result.best_loss)) == ("done", True)


# ---------------------------------------------------------------- tokenizers
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "charcters",
            r"data.tokenizer = 'charcters' is no kind \(did you mean 'characters'\?\), and charcters is no",
        ),
        (
            "nosuch",
            r"data.tokenizer = 'nosuch' is no kind \(known: bpe, characters, bytes\), and nosuch is no",
        ),
        ("TEXT", r"data.tokenizer = .*text.txt is no tokenizer; name a tokenizer.json"),
    ],
)
def test_a_tokenizer_that_is_none_is_told_by_its_option(name, words, tmp_path):
    (text,) = samples.texts(tmp_path)
    data = {"data.train": [text], "data.tokenizer": text if name == "TEXT" else name}
    with pytest.raises(ch.ClearheadError, match=words):
        begun("lm-small", tmp_path / "run", **TEXTS, **data)
