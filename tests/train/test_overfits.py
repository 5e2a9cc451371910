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
from clearhead.data.packed import IGNORE
from clearhead.tokens import pictures
from clearhead.train.begin import begin, read_config

SMALL = {"model.width": 32, "model.layers": 2, "model.attention.heads": 2, "model.ffn.width": 64}
AWAKE = {"model.dropout.embedding": 0.0, "model.dropout.residual": 0.0}
ADAMW = {"train.optimiser": {"kind": "adamw", "rate": 0.01, "decay": 0.0}, "train.schedule": "cosine"}
RARELY = {"train.warmup": 5, "train.report": 10, "train.check": 1000, "train.save": 1000, "train.ema": 0.0}
NONE_HELD = {"data.held_out": 0.0, "train.patience": 0}
WORDS = {"data.vocabulary": 300, "model.context": 32}


class Same:
    """The first batch, every time."""

    def __init__(self, data):
        self.first, self.share, self.epoch, self.report = data.batch(0), data.share, 1, data.report

    def batch(self, step):
        return self.first

    def held_out(self):
        yield self.first


def by_heart(preset, data, out, steps=80, rows=8, **changes):
    """The model after training on one batch, that batch, and the losses on the way."""
    options = {**SMALL, **AWAKE, **ADAMW, **RARELY, "train.steps": steps, "train.rows": rows, "data.train": data}
    run = begin(read_config(preset, {**options, **changes}), out, resume=True, device="cpu", compiled=False)
    assert run.data.epoch <= 1 or changes.get("data.held_out") is None  # the batch is all there is
    run.data, losses = Same(run.data), []
    result = run.train(lambda at: losses.append(at.loss) or True)
    model = ch.load(result.folder, device="cpu")
    return model, run.data.first, losses


def test_the_next_token(tmp_path):
    model, batch, losses = by_heart("lm-small", samples.texts(tmp_path), tmp_path / "run", rows=2, **WORDS)
    assert losses[-1] < 0.1 < 3 < losses[0]
    for row in batch.tokens.tolist():
        assert model.generate(row[:16], 16, temperature=0).tokens == row[16:]


def test_translation_comes_down_to_the_floor_that_smoothing_leaves(tmp_path):
    data = samples.sentence_pairs(tmp_path, 8)
    shape = {"model.shape.layers": 1, "model.shape.context": 64, "model.context": 64, "train.length": 64}
    changes = {"data.vocabulary": 290, "train.smoothing": 0.1, **shape, **NONE_HELD}
    model, _, losses = by_heart("mt-small", data, tmp_path / "run", steps=120, **changes)
    choices, share = len(model.tokenizer), 0.1
    right, wrong = 1 - share + share / choices, share / choices
    floor = -right * math.log(right) - (choices - 1) * wrong * math.log(wrong)
    assert floor < losses[-1] < floor + 0.05 < losses[0]
    sources, targets = (Path(path).read_text().splitlines() for path in data)
    assert [found.text for found in model.translate(sources, beam=1)] == targets
    assert [found.text for found in model.translate(sources, beam=3)] == targets


@pytest.mark.parametrize("preset", ["mlm-small", "roformer-small"])
def test_masked_words(preset, tmp_path):
    model, batch, losses = by_heart(preset, samples.texts(tmp_path), tmp_path / "run", steps=160, **WORDS)
    assert losses[-1] < 0.1 < 3 < losses[0]
    hidden = batch.targets != IGNORE
    assert 0.05 < hidden.float().mean() < 0.3
    assert (batch.tokens[hidden] == model.config.use.mask[0]).float().mean() > 0.6
    assert torch.equal(model.logits(batch.tokens).argmax(dim=-1)[hidden], batch.targets[hidden])


def table(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_classes_of_texts(tmp_path):
    data = samples.labelled(tmp_path, label=lambda i: "abc"[i % 3], count=8)
    model, _, losses = by_heart("finetune-classify", data, tmp_path / "run", **WORDS, **NONE_HELD)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    for row in table(data[0]):
        assert model.config.use.labels[model.logits(row["text"]).argmax()] == row["label"]


def test_numbers_of_texts(tmp_path):
    data = samples.labelled(tmp_path, count=8)
    head = {"model.head": {"kind": "number", "pooling": "mean"}, "data.label": "score"}
    model, _, losses = by_heart("finetune-classify", data, tmp_path / "run", **WORDS, **NONE_HELD, **head)
    assert losses[-1] < 1e-3 < 0.01 < losses[0]
    for row in table(data[0]):
        assert model.logits(row["text"]).item() == pytest.approx(float(row["score"]), abs=0.1)


def test_pictures(tmp_path):
    data = samples.pictures(tmp_path, count=8)
    patches = {"model.input.size": 8, "model.context": 5, "data.shift": 0, **NONE_HELD}
    model, _, losses = by_heart("picture-patches", data, tmp_path / "run", **patches)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    arrays = np.load(data[0])
    read = torch.stack([pictures.read(image, model.config.model.input) for image in arrays["images"]])
    assert model.logits(pictures=read).argmax(dim=-1).tolist() == arrays["labels"].tolist()


def test_sounds(tmp_path):
    data = samples.sounds(tmp_path, count=8)
    patches = {"model.input.mels": 16, "model.input.frames": 8, "model.context": 2, **NONE_HELD}
    model, _, losses = by_heart("sound-patches", data, tmp_path / "run", **patches)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    for number in range(8):
        kind = ("high", "low")[number % 2]
        logits = model.logits(sound=f"{data[0]}/{kind}/{number}.wav")
        assert model.config.use.labels[logits.argmax()] == kind
