"""Training data: standard input, held-out data, tokenizers, and batches without targets."""

import json
import math
import os
from pathlib import Path

import pytest
import sample_data
import torch
from sample_data import SHORT_RUN, TINY_MODEL
from tiny_training import CountingDataset, make_trainer, run

import clearhead as ch
from clearhead.data.packed_batch import IGNORE_INDEX, PackedBatch
from clearhead.tokenizers.tokenizer import END_TOKEN
from clearhead.train.train import build_trainer, load_config
from clearhead.train.training_data import special_token_ids

OPTIONS = {**TINY_MODEL, **SHORT_RUN, "train.max_steps": 4}
TEXT = {"model.context_length": 16, "data.vocab_size": 300}
PAIRS = {
    **TEXT,
    "model.architecture.encoder_layers": 1,
    "model.context_length": 32,
    "model.architecture.source_context_length": 32,
    "train.seq_len": 32,
}
IMAGES = {"model.context_length": 5, "model.input.image_size": 8, "model.input.patch_size": 4}


def start(recipe, output, echo=print, **changes):
    """A trainer that has not taken a step."""
    config = load_config(recipe, {**OPTIONS, **changes})
    return build_trainer(config, output, resume=True, device="cpu", compile=False, echo=echo)


def train(recipe, output, **changes):
    return sample_data.train(recipe, output, {**OPTIONS, **TEXT, **changes})


# --- standard input


@pytest.mark.parametrize("recipe", ["lm-small", "mt-small", "image-patches"])
@pytest.mark.parametrize("option", ["data.train", "data.valid"])
def test_standard_input_and_pipes_are_refused(recipe, option, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("-", str(pipe)):
        with pytest.raises(ch.ClearheadError, match="pipe"):
            start(recipe, tmp_path / "run", **{"data.train": ["a.tsv"], option: [path]})


# --- messages


def write_chat(folder):
    """A text in which the name of a special token occurs four times."""
    path = folder / "chat.txt"
    lines = sample_data.sentences(40)
    path.write_text("\n".join(f"{line} <|end|>" for line in lines[:4]) + "\n".join(lines[4:]))
    return str(path)


def test_names_of_special_tokens_in_the_data_are_reported(tmp_path):
    text = write_chat(tmp_path)
    changes = {**TEXT, "data.train": [text], "data.valid_fraction": 0.0}
    for _ in range(2):  # the second time from the cache
        messages = []
        start("lm-small", tmp_path / "run", messages.append, **changes)
        [message] = [message for message in messages if "special tokens" in message]
        assert "4 times" in message
        assert f"<|end|> at {text}:1" in message
        assert "--data.parse_special_tokens" in message
    messages = []
    parse = {"data.parse_special_tokens": True}
    start("lm-small", tmp_path / "other", messages.append, **changes, **parse)
    assert not messages


def test_names_of_special_tokens_in_pairs_are_reported(tmp_path):
    source, target = sample_data.write_pairs(tmp_path)
    Path(target).write_text(Path(target).read_text() + "<|end|> a\n")
    Path(source).write_text(Path(source).read_text() + "a <|end|>\n")
    changes = {**PAIRS, "data.train": [source, target]}
    messages = []
    start("mt-small", tmp_path / "run", messages.append, **changes)
    assert any(f"2 times, such as <|end|> at {source}:121" in message for message in messages)
    with pytest.raises(ch.ClearheadError, match=r"data\.parse_special_tokens is for language"):
        start("mt-small", tmp_path / "other", **changes, **{"data.parse_special_tokens": True})


@pytest.mark.parametrize("has_columns", [False, True])
def test_header_of_a_table_of_pairs_is_reported_unless_columns_are_named(has_columns, tmp_path):
    lines = [f"{text},{text.upper()}" for text in sample_data.sentences(40)]
    (tmp_path / "a.csv").write_text("\n".join(["en,de", *lines]) + "\n")
    changes = {"data.train": [str(tmp_path / "a.csv")]}
    if has_columns:
        changes |= {"data.source_column": "en", "data.target_column": "de"}
    messages = []
    start("mt-small", tmp_path / "run", messages.append, **PAIRS, **changes)
    assert len(messages) == (0 if has_columns else 1)
    assert all("'en' and 'de'" in message for message in messages)


@pytest.mark.parametrize(
    ("labels", "is_reported"), [("0.5 1 2.25", True), ("0 1 2", False), ("0.5 1 good", False)]
)
def test_fractions_as_classes_are_reported(labels, is_reported, tmp_path):
    sentences = sample_data.sentences(8)
    rows = [f"{text}\t{label}" for label in labels.split() for text in sentences]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    messages = []
    changes = {**TEXT, "data.train": [str(tmp_path / "a.tsv")]}
    start("finetune-classify", tmp_path / "run", messages.append, **changes)
    assert any("--model.head regression" in message for message in messages) == is_reported


# --- validation data

DATA_KINDS = {
    "lm-small": (sample_data.write_text, TEXT),
    "mlm-small": (sample_data.write_text, TEXT),
    "mt-small": (sample_data.write_pairs, PAIRS),
    "finetune-classify": (sample_data.write_labeled, TEXT),
    "image-patches": (sample_data.write_images, IMAGES),
    "audio-patches": (sample_data.write_audio, {}),
}


@pytest.mark.parametrize("recipe", DATA_KINDS)
def test_file_cannot_be_training_and_validation_data(recipe, tmp_path):
    write, changes = DATA_KINDS[recipe]
    files = write(tmp_path)
    with pytest.raises(ch.ClearheadError, match=r"data.train and data.valid"):
        start(recipe, tmp_path / "run", **changes, **{"data.train": files, "data.valid": files})


def test_validation_text_is_excluded_from_its_folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("abc\n" * 100)
    (folder / "valid.txt").write_text("abc\n<|endoftext|>\nxyz\n")
    changes = {
        "data.train": [str(folder)],
        "data.valid": [str(folder / "valid.txt")],
        "data.tokenizer": "characters",
        "data.on_error": "skip",
    }
    trainer = start("lm-small", tmp_path / "run", **TEXT, **changes)
    assert len(trainer.model.tokenizer) == len("abc\n") + 1
    assert [str(folder / "valid.txt")] in trainer.data.report.locations.values()


def test_run_inside_its_data_folder_is_resumed(tmp_path):
    sample_data.write_text(tmp_path)
    for max_steps in (4, 6):
        changes = {"data.train": [str(tmp_path)], "train.max_steps": max_steps}
        train("lm-small", tmp_path / "run", **changes)
    assert (tmp_path / "run/checkpoints/00000006").is_dir()


def test_validation_audio_is_excluded_from_its_folder(tmp_path):
    (folder,) = sample_data.write_audio(tmp_path)
    changes = {
        "data.train": [folder],
        "data.valid": [f"{folder}/low"],
        "data.label_column": "stem",
        "data.on_error": "skip",
    }
    trainer = start("audio-patches", tmp_path / "run", **changes)
    assert trainer.data.labels == tuple(sorted(str(n) for n in range(0, 16, 2)))  # the high ones


def test_tokenizer_is_not_trained_on_held_out_rows(tmp_path):
    rows = [f"{letter} {letter}\t{n % 2}" for n, letter in enumerate("abcdefghijklmnopqrst")]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    changes = {
        "data.train": [str(tmp_path / "rows.tsv")],
        "data.tokenizer": "characters",
        "data.on_error": "skip",
        "train.patience": 0,
    }
    trainer = start("finetune-classify", tmp_path / "run", **TEXT, **changes)
    assert trainer.data.report.skipped.total() == 2
    num_special_tokens = 2
    assert len(trainer.model.tokenizer) == 18 + len(" ") + num_special_tokens


# --- targets


def test_ignore_index_is_a_valid_regression_target(tmp_path):
    def label(i):
        return IGNORE_INDEX if i % 2 else IGNORE_INDEX + 1

    data = sample_data.write_labeled(tmp_path, label=label)
    changes = {"model.head": {"kind": "regression"}, "data.train": data}
    train("finetune-classify", tmp_path / "run", **changes)
    for line in map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines()):
        assert line["loss"] == pytest.approx(100**2, rel=0.1)
        assert line["valid_loss"] == pytest.approx(100**2, rel=0.1)


def test_masked_lm_learns_from_single_short_rows(tmp_path):
    changes = {
        "data.train": sample_data.write_text(tmp_path),
        "train.batch_size": 1,
        "train.seq_len": 8,
        "train.max_steps": 20,
        "train.eval_every": 20,
    }
    train("mlm-small", tmp_path / "run", **changes)
    assert (tmp_path / "run/checkpoints/00000020").is_dir()


@pytest.mark.parametrize("recipe", ["mlm-small", "lecture-lm"])
def test_prompts_start_like_training_documents(recipe, tmp_path):
    changes = {**TEXT, "data.train": sample_data.write_text(tmp_path), "train.max_steps": 1}
    trainer = start(recipe, tmp_path / "run", **changes)
    end_ids = special_token_ids(trainer.model.tokenizer, END_TOKEN)
    assert trainer.model.config.inference.bos_tokens == tuple(end_ids)


class EverySecondBatchWithoutTargets(CountingDataset):
    def batch(self, step):
        batch = super().batch(step)
        if step % 2:
            return batch
        return PackedBatch(batch.tokens, torch.full_like(batch.targets, IGNORE_INDEX))


def test_batch_without_targets_is_no_error(tmp_path):
    result = run(make_trainer(tmp_path, EverySecondBatchWithoutTargets(), max_steps=4))
    assert result.status == "completed"
    assert math.isfinite(result.best_loss)


# --- tokenizers


@pytest.mark.parametrize(
    ("tokenizer", "keyword"),
    [
        ("charcters", "data.tokenizer = 'charcters'.*did you mean 'characters'"),
        ("nosuch", "data.tokenizer = 'nosuch'.*bpe, characters, bytes"),
        ("TEXT", "data.tokenizer = .*text.txt"),
    ],
)
def test_unknown_tokenizer_is_refused_by_its_option(tokenizer, keyword, tmp_path):
    (text,) = sample_data.write_text(tmp_path)
    changes = {"data.train": [text], "data.tokenizer": text if tokenizer == "TEXT" else tokenizer}
    with pytest.raises(ch.ClearheadError, match=keyword):
        start("lm-small", tmp_path / "run", **TEXT, **changes)
