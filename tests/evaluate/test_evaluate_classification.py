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
from clearhead.train.strategy import SingleProcess
from clearhead.train.train_step import validation_loss

WORDS = ch.Tokenizer.train_bpe(["the cat sat on the mat"], 300, ("<|end|>",))
TEXTS = ["the cat", "sat on", "the mat sat on the cat", "a", "mat mat"]
LABELS = ["no", "yes", "yes", "no", "yes"]


def model(head, **changes):
    return ch.new(
        "tiny-encoder", vocab_size=len(WORDS), tokenizer=WORDS, seed=1, head=head, **changes
    )


def classifier(**changes):
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
    result = ch.evaluate(classifier(), table())
    predictions = classifier().classify(TEXTS)
    is_correct = [
        prediction.label == label for prediction, label in zip(predictions, LABELS, strict=True)
    ]
    assert [example["predicted"] for example in result.examples] == [
        prediction.label for prediction in predictions
    ]
    assert [example["probability"] for example in result.examples] == pytest.approx(
        [prediction.score for prediction in predictions], rel=1e-5
    )
    assert result.value("accuracy") == pytest.approx(np.mean(is_correct))
    losses = [
        -math.log(prediction.probabilities[label])
        for prediction, label in zip(predictions, LABELS, strict=True)
    ]
    assert result.value("loss") == pytest.approx(np.mean(losses), rel=1e-5)
    true_positives = sum(
        prediction.label == label == "yes"
        for prediction, label in zip(predictions, LABELS, strict=True)
    )
    num_predicted = sum(prediction.label == "yes" for prediction in predictions)
    f1 = 2 * true_positives / (num_predicted + LABELS.count("yes"))
    assert result.value("f1") == pytest.approx(f1)
    assert result["f1"].description.endswith("of yes")
    calibration_error = abs(
        np.mean(is_correct) - np.mean([prediction.score for prediction in predictions])
    )  # all are between 0.5 and 0.6
    assert result.value("calibration_error") == pytest.approx(calibration_error, rel=1e-4)


def test_loss_and_accuracy_equal_validation(table):
    rows = [
        LabeledExample(WORDS.encode(text), None, label)
        for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    dataset = LabeledTextDataset(rows, rows, DataReport(), batch_size=2, context_length=32, seed=0)
    loss, accuracy = validation_loss(
        classifier().net, dataset, torch.device("cpu"), SingleProcess()
    )
    result = ch.evaluate(classifier(), table())
    assert (result.value("loss"), result.value("accuracy")) == pytest.approx(
        (loss, accuracy), rel=1e-5
    )


def test_views_of_classification(table):
    result = ch.evaluate(classifier(), table())
    rows = {
        (row["true"], row["predicted"]): row["rows"]
        for row in result.views["confusion_matrix"].table()
    }
    for (true, predicted), count in rows.items():
        assert count == sum(
            example["label"] == true and example["predicted"] == predicted
            for example in result.examples
        )
    reliability = result.views["reliability"].numpy()
    assert np.nansum(reliability[:, 0]) == pytest.approx(1)
    assert reliability[5] == pytest.approx(
        [
            1,
            np.mean([example["probability"] for example in result.examples]),
            result.value("accuracy"),
        ]
    )
    assert "1 × " not in "".join(result.notes)


def test_block_size_changes_nothing(table, monkeypatch):
    first = ch.evaluate(classifier(), table())
    monkeypatch.setattr(classification, "PROGRESS_BLOCK", 2)
    second = ch.evaluate(classifier(), table())
    assert [metric.value for metric in first.metrics] == pytest.approx(
        [metric.value for metric in second.metrics]
    )
    assert [row["input"] for row in second.examples] == TEXTS


def test_labels_may_be_class_indices(table):
    named = ch.evaluate(classifier(), table())
    numbered = ch.evaluate(classifier(), table(["0", "1", "1", "0", "1"]))
    assert named.examples == numbered.examples
    by_stars = model({"kind": "classification", "num_labels": 2}, inference__labels=["1", "2"])
    with pytest.raises(ClearheadError, match=r"\('0'\): the label is unknown"):
        ch.evaluate(by_stars, table(["0", "1", "1", "0", "1"]))


def test_unknown_labels_fail_or_are_skipped(table):
    labels = ["no", "maybe", "yes", "no", "yes"]
    with pytest.raises(
        ClearheadError,
        match=r"rows.tsv:3 \('maybe'\): the label is unknown",
    ):
        ch.evaluate(classifier(), table(labels))
    assert len(ch.evaluate(classifier(), table(labels), on_error="skip").examples) == 4


def test_empty_texts_are_reported_with_their_line(table):
    letters = ch.Tokenizer.characters("the cat")
    head = {"kind": "classification", "num_labels": 2}
    model_of_letters = ch.new(
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
        ch.evaluate(model_of_letters, path)
    assert len(ch.evaluate(model_of_letters, path, on_error="skip").examples) == 1


def test_truncation_is_reported(table):
    result = ch.evaluate(classifier(), table(texts=["the cat " * 100, *TEXTS[1:]]))
    assert any("a text was truncated to" in note for note in result.notes)


def test_missing_columns_and_empty_tables_are_refused(table):
    with pytest.raises(ClearheadError, match="stars"):
        ch.evaluate(classifier(), table(), label_column="stars")
    with pytest.raises(ClearheadError, match="found no row"):
        ch.evaluate(classifier(), table([], []))


def test_columns_default_to_those_of_training(tmp_path):
    (tmp_path / "pairs.csv").write_text("a,b,stars\nthe cat,sat,no\na mat,on,yes\n")
    end = WORDS.special_tokens["<|end|>"]
    columns = {
        "data__text_column": "a",
        "data__text_pair_column": "b",
        "data__label_column": "stars",
    }
    pairs = classifier(inference__sep_tokens=[end], input__token_types=2, **columns)
    result = ch.evaluate(pairs, tmp_path / "pairs.csv")
    predictions = pairs.classify([("the cat", "sat"), ("a mat", "on")])
    assert [example["predicted"] for example in result.examples] == [
        prediction.label for prediction in predictions
    ]
    assert result.examples[0]["input"] == ("the cat", "sat")


def test_regression_metrics_equal_classify(table):
    true = [0.5, 2.0, 1.0, 4.0, 3.5]
    result = ch.evaluate(model({"kind": "regression"}), table(true))
    predictions = [prediction.score for prediction in model({"kind": "regression"}).classify(TEXTS)]
    assert [example["predicted"] for example in result.examples] == pytest.approx(
        predictions, rel=1e-5
    )
    assert result.value("pearson") == pytest.approx(np.corrcoef(true, predictions)[0, 1], rel=1e-4)
    ranks = [np.argsort(np.argsort(x)) for x in (true, predictions)]
    assert result.value("spearman") == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert result.value("rmse") == pytest.approx(
        math.sqrt(np.mean((np.array(predictions) - true) ** 2)), rel=1e-4
    )


def test_images_equal_classify(tmp_path):
    classifier_input = {"kind": "images", "image_size": 8, "patch_size": 4, "num_channels": 1}
    head = {"kind": "classification", "num_labels": 2}
    image_classifier = ch.new(
        "tiny-encoder",
        vocab_size=0,
        context_length=5,
        input=classifier_input,
        head=head,
        inference__labels=["0", "1"],
        seed=1,
    )
    images = np.random.default_rng(0).integers(0, 255, (6, 8, 8), np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.array([0, 1, 0, 1, 1, 0]))
    result = ch.evaluate(image_classifier, tmp_path / "test.npz")
    from PIL import Image

    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    predictions = image_classifier.classify(images=[tmp_path / f"{i}.png" for i in range(6)])
    assert [example["probability"] for example in result.examples] == pytest.approx(
        [prediction.score for prediction in predictions], rel=1e-4
    )
    assert result.metrics[0].unit == "images"
    assert "input" not in result.examples[0]


def test_audio_equals_classify(tmp_path):
    classifier_input = {
        "kind": "spectrogram",
        "n_mels": 8,
        "n_frames": 20,
        "patch_mels": 4,
        "patch_frames": 10,
        "cls_token": False,
    }
    head = {"kind": "classification", "num_labels": 2, "pooling": "mean"}
    audio_classifier = ch.new(
        "tiny-encoder",
        vocab_size=0,
        context_length=4,
        input=classifier_input,
        head=head,
        inference__labels=["a", "b"],
        seed=1,
    )
    files = [tmp_path / f"{'ab'[i % 2]}_{i}.wav" for i in range(4)]
    for i, file in enumerate(files):
        soundfile.write(file, np.sin(np.arange(3200) * (i + 1) / 20) / 2, 16000)
    result = ch.evaluate(audio_classifier, tmp_path, label_column="stem")
    predictions = {str(file): audio_classifier.classify(audio=str(file)) for file in files}
    for example in result.examples:
        assert example["probability"] == pytest.approx(
            predictions[example["location"]].score, rel=1e-4
        )
    assert (result.metrics[0].unit, result.metrics[0].n) == ("recordings", 4)
