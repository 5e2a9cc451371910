"""A tiny model learns one batch by heart, whatever the objective, and then does with it what the objective means.

The loss alone would not tell: a model can also learn wrong targets by heart. So each is asked through the front door.
"""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import samples
import torch

import clearhead as ch
from clearhead.data.batch import IGNORE_INDEX
from clearhead.tokenizers.media import read_image
from clearhead.train.train import build_trainer, load_config

SMALL = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.attention.n_heads": 2,
    "model.ffn.d_ff": 64,
}
AWAKE = {"model.dropout.embedding": 0.0, "model.dropout.residual": 0.0}
ADAMW = {
    "train.optimizer": {"kind": "adamw", "rate": 0.01, "decay": 0.0},
    "train.schedule": "cosine",
}
RARELY = {
    "train.warmup_steps": 5,
    "train.log_every": 10,
    "train.eval_every": 1000,
    "train.save_every": 1000,
    "train.ema_decay": 0.0,
}
NONE_HELD = {"data.valid_fraction": 0.0, "train.patience": 0}
WORDS = {"data.vocab_size": 300, "model.context_length": 32}


class Same:
    """The first batch, every time."""

    def __init__(self, data):
        self.first = data.batch(0)
        self.packing_efficiency = data.share
        self.batches_per_epoch = 1
        self.report = data.report

    def batch(self, step):
        return self.first

    def valid_batches(self):
        yield self.first


def by_heart(preset, data, out, steps=80, rows=8, **changes):
    """The model after training on one batch, that batch, and the losses on the way."""
    options = {
        **SMALL,
        **AWAKE,
        **ADAMW,
        **RARELY,
        "train.max_steps": steps,
        "train.batch_size": rows,
        "data.train": data,
    }
    run = build_trainer(
        load_config(preset, {**options, **changes}), out, resume=True, device="cpu", compile=False
    )
    assert (
        run.data.batches_per_epoch <= 1 or changes.get("data.valid_fraction") is None
    )  # the batch is all there is
    run.data = Same(run.data)
    losses = []
    result = run.train(lambda at: losses.append(at.loss) or True)
    model = ch.load(result.checkpoint, device="cpu")
    return model, run.data.first, losses


def test_the_next_token(tmp_path):
    model, batch, losses = by_heart(
        "lm-small", samples.texts(tmp_path), tmp_path / "run", rows=2, **WORDS
    )
    assert losses[-1] < 0.1 < 3 < losses[0]
    for row in batch.tokens.tolist():
        assert model.generate(row[:16], 16, temperature=0).tokens == row[16:]


def test_translation_comes_down_to_the_floor_that_smoothing_leaves(tmp_path):
    data = samples.sentence_pairs(tmp_path, 8)
    shape = {
        "model.architecture.encoder_layers": 1,
        "model.architecture.source_context_length": 64,
        "model.context_length": 64,
        "train.seq_len": 64,
    }
    changes = {"data.vocab_size": 290, "train.label_smoothing": 0.1, **shape, **NONE_HELD}
    model, _, losses = by_heart("mt-small", data, tmp_path / "run", steps=120, **changes)
    choices = len(model.tokenizer)
    share = 0.1
    right = 1 - share + share / choices
    wrong = share / choices
    floor = -right * math.log(right) - (choices - 1) * wrong * math.log(wrong)
    assert floor < losses[-1] < floor + 0.05 < losses[0]
    sources, targets = (Path(path).read_text().splitlines() for path in data)
    assert [found.text for found in model.translate(sources, num_beams=1)] == targets
    assert [found.text for found in model.translate(sources, num_beams=3)] == targets


@pytest.mark.parametrize("preset", ["mlm-small", "roformer-small"])
def test_masked_words(preset, tmp_path):
    model, batch, losses = by_heart(
        preset, samples.texts(tmp_path), tmp_path / "run", steps=160, **WORDS
    )
    assert losses[-1] < 0.1 < 3 < losses[0]
    hidden = batch.targets != IGNORE_INDEX
    assert 0.05 < hidden.float().mean() < 0.3
    assert (batch.tokens[hidden] == model.config.inference.mask_token[0]).float().mean() > 0.6
    assert torch.equal(model.logits(batch.tokens).argmax(dim=-1)[hidden], batch.targets[hidden])


def table(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_classes_of_texts(tmp_path):
    data = samples.labelled(tmp_path, label=lambda i: "abc"[i % 3], count=8)
    model, _, losses = by_heart("finetune-classify", data, tmp_path / "run", **WORDS, **NONE_HELD)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    for row in table(data[0]):
        assert model.config.inference.labels[model.logits(row["text"]).argmax()] == row["label"]


def test_numbers_of_texts(tmp_path):
    data = samples.labelled(tmp_path, count=8)
    head = {"model.head": {"kind": "regression", "pooling": "mean"}, "data.label_column": "score"}
    model, _, losses = by_heart(
        "finetune-classify", data, tmp_path / "run", **WORDS, **NONE_HELD, **head
    )
    assert losses[-1] < 1e-3 < 0.01 < losses[0]
    for row in table(data[0]):
        assert model.logits(row["text"]).item() == pytest.approx(float(row["score"]), abs=0.1)


def test_pictures(tmp_path):
    data = samples.pictures(tmp_path, count=8)
    patches = {
        "model.input.image_size": 8,
        "model.context_length": 5,
        "data.random_shift": 0,
        **NONE_HELD,
    }
    model, _, losses = by_heart("picture-patches", data, tmp_path / "run", **patches)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    arrays = np.load(data[0])
    read = torch.stack([read_image(image, model.config.model.input) for image in arrays["images"]])
    assert model.logits(images=read).argmax(dim=-1).tolist() == arrays["labels"].tolist()


def test_sounds(tmp_path):
    data = samples.sounds(tmp_path, count=8)
    patches = {
        "model.input.n_mels": 16,
        "model.input.n_frames": 8,
        "model.context_length": 2,
        **NONE_HELD,
    }
    model, _, losses = by_heart("sound-patches", data, tmp_path / "run", **patches)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    for number in range(8):
        kind = ("high", "low")[number % 2]
        logits = model.logits(audio=f"{data[0]}/{kind}/{number}.wav")
        assert model.config.inference.labels[logits.argmax()] == kind
