"""Classifiers and masked-word models are asked on paths of their own, and answer as the library does, in turns."""

import json
import math
import threading

import pytest

import clearhead as ch
from clearhead.serve import tasks
from clearhead.serve.middleware import Limits
from serving import ask, running, writer

MARKED = ch.Tokenizer.bytes(("<mask>", "<end>"))
READS = {
    "tokenizer": MARKED,
    "vocabulary": 258,
    "context": 24,
    "inference__sep_tokens": [257],
    "seed": 4,
}
JUDGES = {
    "head__kind": "classification",
    "head__num_labels": 3,
    "use__labels": ["good", "bad", "none"],
    "input__token_types": 2,
}


@pytest.fixture(scope="module")
def models():
    return {
        "judge": ch.new("tiny-encoder", **READS, **JUDGES),
        "numbers": ch.new("tiny-encoder", **READS, head__kind="regression"),
        "gaps": ch.new("tiny-encoder", **READS, inference__mask_token=[256]),
        "broken": ch.new("tiny-encoder", **READS, **JUDGES),
        "eye": ch.new("tiny-pictures"),
        "translator": ch.new(
            "tiny-encoder-decoder",
            tokenizer=MARKED,
            vocab_size=258,
            inference__decoder_start_tokens=[257],
        ),
        "writer": writer(),
    }


@pytest.fixture(scope="module")
def served(models):
    next(models["broken"].net.parameters()).data.fill_(math.nan)
    with running(models) as served:
        yield served


def told(served, path, **asked):
    status, _, content = ask(served.port, "POST", path, asked)
    return status, json.loads(content)


@pytest.mark.filterwarnings("ignore::clearhead.errors.ClearheadWarning")  # that a text is cut
@pytest.mark.parametrize(
    "given",
    ["a kind film", ["a kind film", "dull", "x" * 100], [["a film", "kind"], ["dull", "y" * 60]]],
    ids=["one", "several, one cut", "pairs"],
)
def test_classes_are_those_of_the_library(served, models, given):
    status, found = told(served, "/classify", model="judge", input=given)
    assert (status, found["model"]) == (200, "judge")
    texts = (
        [given]
        if isinstance(given, str)
        else [one if isinstance(one, str) else tuple(one) for one in given]
    )
    for one, judged in zip(found["answers"], models["judge"].classify(texts), strict=True):
        assert one["label"] == judged.label
        assert one["all"] == pytest.approx(judged.all, abs=1e-6)
        assert one["probability"] == pytest.approx(judged.probability, abs=1e-6)
    long = [len("".join(text)) > 24 for text in texts]  # letters are tokens
    assert [one["cut"] for one in found["answers"]] == long


def test_an_empty_text_is_not_judged(served, models):
    status, found = told(served, "/classify", model="judge", input=["a", " "])
    assert (status, found["error"]["message"]) == (
        400,
        "text 2 is empty; there must be something to read.",
    )
    assert told(served, "/classify", model="judge", input="")[0] == 400
    with pytest.raises(ch.ClearheadError, match="text 2 is empty"):
        models["judge"].classify(["a", ""])


def test_a_path_that_is_elsewhere_is_named(served):
    status, found = told(served, "/v1/classify", model="judge", input="a")
    assert (status, found["error"]["message"]) == (
        404,
        "there is nothing at /v1/classify; /classify is there.",
    )


def test_a_number_is_told_as_one(served, models):
    _, found = told(served, "/classify", model="numbers", input=["a", "longer"])
    assert [one["number"] for one in found["answers"]] == pytest.approx(
        models["numbers"].classify(["a", "longer"])
    )


def test_words_for_each_gap_are_those_of_the_library(served, models):
    texts = ["a [MASK] b", "[MASK] and [MASK]"]
    status, found = told(served, "/fill", model="gaps", input=texts, top=3)
    assert status == 200
    first, second = (
        [[word["word"] for word in gap] for gap in one["gaps"]] for one in found["answers"]
    )
    assert first == [[word.word for word in models["gaps"].fill(texts[0], 3)]]
    assert second == [[word.word for word in gap] for gap in models["gaps"].fill(texts[1], 3)]
    best = models["gaps"].fill(texts[0])[0]
    assert told(served, "/fill", model="gaps", input=texts[0])[1]["answers"][0]["gaps"][0][0] == {
        "word": best.word, "token": best.token, "probability": pytest.approx(best.probability)
    }  # fmt: skip


def test_texts_are_judged_some_at_a_time_and_come_in_order(served, models, monkeypatch):
    seen = []
    judged = tasks.classification_results

    def noted(logits, config):
        seen.append((len(logits), threading.current_thread().name))
        return judged(logits, config)

    monkeypatch.setattr(tasks, "judged", noted)
    texts = ["x" * (i % 7 + 1) for i in range(20)]
    _, found = told(served, "/classify", model="judge", input=texts)
    assert seen == [
        (count, "model judge") for count in (8, 8, 4)
    ]  # by the worker, between two steps of others
    expected = models["judge"].classify(texts)
    assert [one["all"]["good"] for one in found["answers"]] == pytest.approx(
        [one.all["good"] for one in expected]
    )


@pytest.mark.parametrize(
    ("path", "asked", "sentence"),
    [
        ("/v1/completions", {"model": "judge", "prompt": "a"},
         "judge does not write text after a prompt; POST /classify asks it."),
        ("/v1/chat/completions", {"model": "gaps", "messages": [{"role": "user", "content": "a"}]},
         "gaps does not write text after a prompt; POST /fill asks it."),
        ("/classify", {"model": "writer", "input": "a"}, "writer tells no classes; POST /v1/completions asks it."),
        ("/fill", {"model": "judge", "input": "a"}, "judge fills no gaps; POST /classify asks it."),
        ("/translate", {"model": "gaps", "text": "a"}, "gaps does not translate; POST /fill asks it."),
        ("/v1/embeddings", {"model": "translator", "input": "a"},
         "translator gives no vectors; POST /translate asks it."),
        ("/classify", {"model": "eye", "input": "a"}, "eye reads pictures, but only texts are read here."),
        ("/fill", {"model": "gaps", "input": "a"}, "the text has no gap; write [MASK] where a word is missing."),
        ("/fill", {"model": "gaps", "input": ["[MASK]", "a"]},
         "text 2 has no gap; write [MASK] where a word is missing."),
        ("/fill", {"model": "gaps", "input": ["[MASK]", "x" * 30]},
         "text 2 is too long: 31 tokens are more than this model's context of 24."),
        ("/fill", {"model": "gaps", "input": ["[MASK]" * 20] * 4}, "80 gaps are more than the 64 of one request here."),
        ("/fill", {"model": "gaps", "input": "[MASK]", "top": 0}, "top: should be greater than or equal to 1."),
        ("/fill", {"input": "[MASK]"},
         "several models are served; say which: judge, numbers, gaps, broken, eye, translator, writer."),
        ("/classify", {"model": "judge", "input": []}, "the text is empty; give at least one."),
        ("/classify", {"model": "judge", "input": ["a"] * 65}, "65 texts are more than the 64 of one request here."),
        ("/classify", {"model": "judge", "input": [["a", "x" * 300_000]]},
         "300001 characters are more than the 262144 of one request here."),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_told_in_a_sentence(served, path, asked, sentence):
    status, found = told(served, path, **asked)
    assert (status, found["error"]["message"]) == (400, sentence)


def test_a_pair_has_two_texts(served):
    status, found = told(served, "/classify", model="judge", input=[["a", "b", "c"]])
    assert status == 400
    assert "at most 2 items" in found["error"]["message"]


def test_that_a_model_is_broken_is_no_mistake_of_the_client(served):
    status, found = told(served, "/classify", model="broken", input="a")
    assert (status, found["error"]["type"]) == (500, "server_error")


def test_one_model_needs_no_name(models):
    with running({"judge": models["judge"]}, Limits()) as served:
        assert told(served, "/classify", input="a")[1]["model"] == "judge"
