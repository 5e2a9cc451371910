"""A tiny model memorizes one batch, for every kind of model, and then reproduces it.

The loss alone is not enough: a model can also memorize wrong targets. So each model is used.
"""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import sample_data
import torch

import clearhead as ch
from clearhead.data.packed_batch import IGNORE_INDEX
from clearhead.tokenizers import media
from clearhead.train.train import build_trainer, load_config

OPTIONS = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.attention.n_heads": 2,
    "model.ffn.d_ff": 64,
    "model.dropout.embedding": 0.0,
    "model.dropout.residual": 0.0,
    "train.optimizer": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.0},
    "train.schedule": "cosine",
    "train.warmup_steps": 5,
    "train.log_every": 10,
    "train.eval_every": 1000,
    "train.save_every": 1000,
    "train.ema_decay": 0.0,
}
NO_VALIDATION = {"data.valid_fraction": 0.0, "train.patience": 0}
TEXT = {"data.vocab_size": 300, "model.context_length": 32}


class FirstBatch:
    """The first batch of a dataset, at every step."""

    batches_per_epoch = 1

    def __init__(self, data):
        self.only_batch = data.batch(0)
        self.packing_efficiency = data.packing_efficiency
        self.report = data.report

    def batch(self, step):
        return self.only_batch

    def valid_batches(self):
        yield self.only_batch


def overfit(recipe, data, output, max_steps=80, batch_size=8, **changes):
    """The model after training on one batch, that batch, and the losses."""
    options = {
        **OPTIONS,
        "train.max_steps": max_steps,
        "train.batch_size": batch_size,
        "data.train": data,
        **changes,
    }
    config = load_config(recipe, options)
    trainer = build_trainer(config, output, resume=True, device="cpu", compile=False)
    if "data.valid_fraction" in changes:
        assert trainer.data.batches_per_epoch <= 1  # the batch is all there is
    trainer.data = FirstBatch(trainer.data)
    losses = []
    result = trainer.train(lambda progress: losses.append(progress.loss) or True)
    model = ch.load(result.checkpoint, device="cpu")
    return model, trainer.data.only_batch, losses


def test_language_model_memorizes_a_batch(tmp_path):
    data = sample_data.write_text(tmp_path)
    model, batch, losses = overfit("lm-small", data, tmp_path / "run", batch_size=2, **TEXT)
    assert losses[-1] < 0.1 < 3 < losses[0]
    for row in batch.tokens.tolist():
        assert model.generate(row[:16], 16, temperature=0).tokens == row[16:]


@pytest.mark.slow
def test_translation_reaches_the_entropy_of_label_smoothing(tmp_path):
    data = sample_data.write_pairs(tmp_path, 8)
    smoothing = 0.1
    changes = {
        "data.vocab_size": 290,
        "train.label_smoothing": smoothing,
        "model.architecture.encoder_layers": 1,
        "model.architecture.source_context_length": 64,
        "model.context_length": 64,
        "train.seq_len": 64,
        **NO_VALIDATION,
    }
    model, _, losses = overfit("mt-small", data, tmp_path / "run", max_steps=120, **changes)
    vocab_size = len(model.tokenizer)
    p_other = smoothing / vocab_size
    p_target = 1 - smoothing + p_other
    entropy = -p_target * math.log(p_target) - (vocab_size - 1) * p_other * math.log(p_other)
    assert entropy < losses[-1] < entropy + 0.05 < losses[0]
    sources, targets = (Path(path).read_text().splitlines() for path in data)
    for num_beams in (1, 3):
        translations = model.translate(sources, num_beams=num_beams)
        assert [translation.text for translation in translations] == targets


@pytest.mark.parametrize("recipe", ["mlm-small", "roformer-small"])
@pytest.mark.slow
def test_masked_language_model_memorizes_a_batch(recipe, tmp_path):
    data = sample_data.write_text(tmp_path)
    model, batch, losses = overfit(recipe, data, tmp_path / "run", max_steps=160, **TEXT)
    assert losses[-1] < 0.1 < 3 < losses[0]
    is_target = batch.targets != IGNORE_INDEX
    assert 0.05 < is_target.float().mean() < 0.3
    (mask_token,) = model.config.inference.mask_token
    assert (batch.tokens[is_target] == mask_token).float().mean() > 0.6
    predictions = model.logits(batch.tokens).argmax(dim=-1)
    assert torch.equal(predictions[is_target], batch.targets[is_target])


def read_table(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_text_classifier_memorizes_a_batch(tmp_path):
    data = sample_data.write_labeled(tmp_path, label=lambda i: "abc"[i % 3], count=8)
    changes = {**TEXT, **NO_VALIDATION}
    model, _, losses = overfit("finetune-classify", data, tmp_path / "run", **changes)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    labels = model.config.inference.labels
    for row in read_table(data[0]):
        assert labels[model.logits(row["text"]).argmax()] == row["label"]


def test_text_regression_memorizes_a_batch(tmp_path):
    data = sample_data.write_labeled(tmp_path, count=8)
    head = {"kind": "regression", "pooling": "mean"}
    changes = {**TEXT, **NO_VALIDATION, "model.head": head, "data.label_column": "score"}
    model, _, losses = overfit("finetune-classify", data, tmp_path / "run", **changes)
    assert losses[-1] < 1e-3 < 0.01 < losses[0]
    for row in read_table(data[0]):
        assert model.logits(row["text"]).item() == pytest.approx(float(row["score"]), abs=0.1)


def test_image_classifier_memorizes_a_batch(tmp_path):
    data = sample_data.write_images(tmp_path, count=8)
    changes = {
        "model.input.image_size": 8,
        "model.context_length": 5,
        "data.random_shift": 0,
        **NO_VALIDATION,
    }
    model, _, losses = overfit("image-patches", data, tmp_path / "run", **changes)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    arrays = np.load(data[0])
    images = [media.read_image(image, model.config.model.input) for image in arrays["images"]]
    predictions = model.logits(images=torch.stack(images)).argmax(dim=-1)
    assert predictions.tolist() == arrays["labels"].tolist()


@pytest.mark.slow
def test_audio_classifier_memorizes_a_batch(tmp_path):
    data = sample_data.write_audio(tmp_path, count=8)
    changes = {
        "model.input.n_mels": 16,
        "model.input.n_frames": 8,
        "model.context_length": 2,
        **NO_VALIDATION,
    }
    model, _, losses = overfit("audio-patches", data, tmp_path / "run", **changes)
    assert losses[-1] < 0.02 < 0.2 < losses[0]
    labels = model.config.inference.labels
    for number in range(8):
        label = ("high", "low")[number % 2]
        logits = model.logits(audio=f"{data[0]}/{label}/{number}.wav")
        assert labels[logits.argmax()] == label
