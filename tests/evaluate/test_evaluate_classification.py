"""Evaluation of classifiers and regression models equals classify and the validation loss."""

import math

import numpy as np
import pytest
import soundfile
import torch

import clearhead as ch
from clearhead.data.classification import LabeledExample, LabeledTextDataset
from clearhead.data.readers import DataReport
from clearhead.errors import ClearheadError
from clearhead.evaluate import classification
from clearhead.train.distributed import SingleProcess
from clearhead.train.train_step import validation_loss

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat"], 300, ("<|end|>",))
TEXTS = ["the cat", "sat on", "the mat sat on the cat", "a", "mat mat"]
LABELS = ["no", "yes", "yes", "no", "yes"]


def model(head, **changes):
    return ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, seed=1, head=head, **changes
    )


def judge(**changes):
    return model(
        {"kind": "classification", "num_labels": 2}, inference__labels=["no", "yes"], **changes
    )


@pytest.fixture
def table(tmp_path):
    def write(labels=LABELS, texts=TEXTS):
        path = tmp_path / "rows.tsv"
        path.write_text(
            "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in zip(texts, labels, strict=True))
        )
        return path

    return write


def test_accuracy_equals_classify(table):
    found = ch.evaluate(judge(), table())
    results = judge().classify(TEXTS)
    right = [one.label == label for one, label in zip(results, LABELS, strict=True)]
    assert [one["predicted"] for one in found.examples] == [one.label for one in results]
    assert [one["probability"] for one in found.examples] == pytest.approx(
        [one.score for one in results], rel=1e-5
    )
    assert found.value("accuracy") == pytest.approx(np.mean(right))
    losses = [
        -math.log(one.probabilities[label]) for one, label in zip(results, LABELS, strict=True)
    ]
    assert found.value("loss") == pytest.approx(np.mean(losses), rel=1e-5)
    hits = sum(one.label == label == "yes" for one, label in zip(results, LABELS, strict=True))
    f1 = 2 * hits / (sum(one.label == "yes" for one in results) + LABELS.count("yes"))
    assert found.value("f1") == pytest.approx(f1)
    assert found["f1"].description.endswith("of yes")
    distance = abs(
        np.mean(right) - np.mean([one.score for one in results])
    )  # all are between 0.5 and 0.6
    assert found.value("calibration_error") == pytest.approx(distance, rel=1e-4)


def test_loss_and_accuracy_equal_validation(table):
    rows = [
        LabeledExample(WORDS.encode(text), None, label)
        for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    held = LabeledTextDataset(rows, rows, DataReport(), batch_size=2, context_length=32, seed=0)
    loss, accuracy = validation_loss(judge().net, held, torch.device("cpu"), SingleProcess())
    found = ch.evaluate(judge(), table())
    assert (found.value("loss"), found.value("accuracy")) == pytest.approx(
        (loss, accuracy), rel=1e-5
    )


def test_views_of_classification(table):
    found = ch.evaluate(judge(), table())
    rows = {
        (row["true"], row["predicted"]): row["rows"]
        for row in found.views["confusion_matrix"].table()
    }
    for (true, predicted), count in rows.items():
        assert count == sum(
            one["label"] == true and one["predicted"] == predicted for one in found.examples
        )
    reliability = found.views["reliability"].numpy()
    assert np.nansum(reliability[:, 0]) == pytest.approx(1)
    assert reliability[5] == pytest.approx(
        [1, np.mean([one["probability"] for one in found.examples]), found.value("accuracy")]
    )
    assert "1 × " not in "".join(found.notes)


def test_block_size_changes_nothing(table, monkeypatch):
    one = ch.evaluate(judge(), table())
    monkeypatch.setattr(classification, "PROGRESS_BLOCK", 2)
    other = ch.evaluate(judge(), table())
    assert [figure.value for figure in one.metrics] == pytest.approx(
        [figure.value for figure in other.metrics]
    )
    assert [row["input"] for row in other.examples] == TEXTS


def test_labels_may_be_class_indices(table):
    named = ch.evaluate(judge(), table())
    numbered = ch.evaluate(judge(), table(["0", "1", "1", "0", "1"]))
    assert named.examples == numbered.examples
    stars = model({"kind": "classification", "num_labels": 2}, inference__labels=["1", "2"])
    with pytest.raises(ClearheadError, match=r"\('0'\): the label is unknown"):
        ch.evaluate(stars, table(["0", "1", "1", "0", "1"]))


def test_unknown_labels_fail_or_are_skipped(table):
    labels = ["no", "maybe", "yes", "no", "yes"]
    with pytest.raises(
        ClearheadError,
        match=r"rows.tsv:3 \('maybe'\): the label is unknown",
    ):
        ch.evaluate(judge(), table(labels))
    assert len(ch.evaluate(judge(), table(labels), on_error="skip").examples) == 4


def test_empty_texts_are_reported_with_their_line(table):
    letters = ch.Tokenizer.characters("the cat")
    head = {"kind": "classification", "num_labels": 2}
    reads = ch.new(
        "tiny-encoder",
        vocab_size=len(letters),
        tokenizer=letters,
        head=head,
        inference__labels=["no", "yes"],
    )
    path = table(["no", "yes"], ["the cat", "a dog"])
    with pytest.raises(
        ClearheadError,
        match=r"rows.tsv:3: the text contains 'd' \(U\+0064\)",
    ):
        ch.evaluate(reads, path)
    assert len(ch.evaluate(reads, path, on_error="skip").examples) == 1


def test_truncation_is_reported(table):
    found = ch.evaluate(judge(), table(texts=["the cat " * 100, *TEXTS[1:]]))
    assert any("a text was truncated to" in note for note in found.notes)


def test_missing_columns_and_empty_tables_are_refused(table):
    with pytest.raises(ClearheadError, match="stars"):
        ch.evaluate(judge(), table(), label_column="stars")
    with pytest.raises(ClearheadError, match="found no row"):
        ch.evaluate(judge(), table([], []))


def test_columns_default_to_those_of_training(tmp_path):
    (tmp_path / "pairs.csv").write_text("a,b,stars\nthe cat,sat,no\na mat,on,yes\n")
    end = WORDS.special_tokens["<|end|>"]
    columns = {
        "data__text_column": "a",
        "data__text_pair_column": "b",
        "data__label_column": "stars",
    }
    pairs = judge(inference__sep_tokens=[end], input__token_types=2, **columns)
    found = ch.evaluate(pairs, tmp_path / "pairs.csv")
    results = pairs.classify([("the cat", "sat"), ("a mat", "on")])
    assert [one["predicted"] for one in found.examples] == [one.label for one in results]
    assert found.examples[0]["input"] == ("the cat", "sat")


def test_regression_metrics_equal_classify(table):
    true = [0.5, 2.0, 1.0, 4.0, 3.5]
    found = ch.evaluate(model({"kind": "regression"}), table(true))
    predicted = [one.score for one in model({"kind": "regression"}).classify(TEXTS)]
    assert [one["predicted"] for one in found.examples] == pytest.approx(predicted, rel=1e-5)
    assert found.value("pearson") == pytest.approx(np.corrcoef(true, predicted)[0, 1], rel=1e-4)
    ranks = [np.argsort(np.argsort(x)) for x in (true, predicted)]
    assert found.value("spearman") == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert found.value("rmse") == pytest.approx(
        math.sqrt(np.mean((np.array(predicted) - true) ** 2)), rel=1e-4
    )


def test_images_equal_classify(tmp_path):
    reads = {"kind": "images", "image_size": 8, "patch_size": 4, "num_channels": 1}
    head = {"kind": "classification", "num_labels": 2}
    sees = ch.new(
        "tiny-encoder",
        vocab_size=0,
        context_length=5,
        input=reads,
        head=head,
        inference__labels=["0", "1"],
        seed=1,
    )
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8), np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.array([0, 1, 0, 1, 1, 0]))
    found = ch.evaluate(sees, tmp_path / "test.npz")
    from PIL import Image

    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    results = sees.classify(images=[tmp_path / f"{i}.png" for i in range(6)])
    assert [one["probability"] for one in found.examples] == pytest.approx(
        [one.score for one in results], rel=1e-4
    )
    assert found.metrics[0].unit == "images"
    assert "input" not in found.examples[0]


def test_audio_equals_classify(tmp_path):
    reads = {
        "kind": "spectrogram",
        "n_mels": 8,
        "n_frames": 20,
        "patch_mels": 4,
        "patch_frames": 10,
        "cls_token": False,
    }
    head = {"kind": "classification", "num_labels": 2, "pooling": "mean"}
    hears = ch.new(
        "tiny-encoder",
        vocab_size=0,
        context_length=4,
        input=reads,
        head=head,
        inference__labels=["a", "b"],
        seed=1,
    )
    files = [tmp_path / f"{'ab'[i % 2]}_{i}.wav" for i in range(4)]
    for i, file in enumerate(files):
        soundfile.write(file, np.sin(np.arange(3200) * (i + 1) / 20) / 2, 16000)
    found = ch.evaluate(hears, tmp_path, label_column="stem")
    results = {str(file): hears.classify(audio=str(file)) for file in files}
    for one in found.examples:
        assert one["probability"] == pytest.approx(results[one["location"]].score, rel=1e-4)
    assert (found.metrics[0].unit, found.metrics[0].n) == ("recordings", 4)
