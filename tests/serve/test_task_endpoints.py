"""/classify and /fill: same results as the library, and errors."""

import json
import math
import threading

import pytest

import clearhead as ch
from clearhead.serve import tasks
from clearhead.serve.limits import Limits
from serving import run_server, send_request, tiny_writer

TOKENIZER = ch.Tokenizer.bytes(("<mask>", "<end>"))
ENCODER = {
    "tokenizer": TOKENIZER,
    "vocab_size": 258,
    "context_length": 24,
    "inference__sep_tokens": [257],
    "seed": 4,
}
CLASSIFIER = {
    "head__kind": "classification",
    "head__num_labels": 3,
    "inference__labels": ["good", "bad", "none"],
    "input__token_types": 2,
}


@pytest.fixture(scope="module")
def models():
    return {
        "judge": ch.new("tiny-encoder", **ENCODER, **CLASSIFIER),
        "numbers": ch.new("tiny-encoder", **ENCODER, head__kind="regression"),
        "gaps": ch.new("tiny-encoder", **ENCODER, inference__mask_token=[256]),
        "broken": ch.new("tiny-encoder", **ENCODER, **CLASSIFIER),
        "eye": ch.new("tiny-images"),
        "translator": ch.new(
            "tiny-encoder-decoder",
            tokenizer=TOKENIZER,
            vocab_size=258,
            inference__decoder_start_tokens=[257],
        ),
        "writer": tiny_writer(),
    }


@pytest.fixture(scope="module")
def served(models):
    next(models["broken"].net.parameters()).data.fill_(math.nan)
    with run_server(models) as served:
        yield served


def post(served, path, **body):
    status, _, content = send_request(served.port, "POST", path, body)
    return status, json.loads(content)


@pytest.mark.filterwarnings("ignore::clearhead.errors.ClearheadWarning")  # that a text is cut
@pytest.mark.parametrize(
    "given",
    ["a kind film", ["a kind film", "dull", "x" * 100], [["a film", "kind"], ["dull", "y" * 60]]],
    ids=["one", "several, one cut", "pairs"],
)
def test_classify_equals_the_library(served, models, given):
    status, found = post(served, "/classify", model="judge", input=given)
    assert (status, found["model"]) == (200, "judge")
    texts = (
        [given]
        if isinstance(given, str)
        else [one if isinstance(one, str) else tuple(one) for one in given]
    )
    for one, judged in zip(found["results"], models["judge"].classify(texts), strict=True):
        assert one["label"] == judged.label
        assert one["probabilities"] == pytest.approx(judged.probabilities, abs=1e-6)
        assert one["score"] == pytest.approx(judged.score, abs=1e-6)
    long = [len("".join(text)) > 24 for text in texts]  # letters are tokens
    assert [one["truncated"] for one in found["results"]] == long


def test_empty_texts_are_errors(served, models):
    status, found = post(served, "/classify", model="judge", input=["a", " "])
    assert status == 400
    assert "text 2 is empty" in found["error"]["message"]
    assert post(served, "/classify", model="judge", input="")[0] == 400
    with pytest.raises(ch.ClearheadError, match="text 2 is empty"):
        models["judge"].classify(["a", ""])


def test_a_wrong_path_names_the_right_one(served):
    status, found = post(served, "/v1/classify", model="judge", input="a")
    assert status == 404
    assert "Use /classify" in found["error"]["message"]


def test_regression_gives_a_value(served, models):
    _, found = post(served, "/classify", model="numbers", input=["a", "longer"])
    results = models["numbers"].classify(["a", "longer"])
    assert [answer["value"] for answer in found["results"]] == pytest.approx(
        [result.score for result in results]
    )


def test_fill_equals_the_library(served, models):
    texts = ["a [MASK] b", "[MASK] and [MASK]"]
    status, found = post(served, "/fill", model="gaps", input=texts, top_k=3)
    assert status == 200
    first, second = (
        [[word["word"] for word in gap] for gap in one["masks"]] for one in found["results"]
    )
    assert first == [[word.word for word in models["gaps"].fill(texts[0], 3).masks[0]]]
    assert second == [[word.word for word in gap] for gap in models["gaps"].fill(texts[1], 3).masks]
    best = models["gaps"].fill(texts[0]).masks[0][0]
    assert post(served, "/fill", model="gaps", input=texts[0])[1]["results"][0]["masks"][0][0] == {
        "word": best.word,
        "token": best.token,
        "probability": pytest.approx(best.probability),
    }


def test_classification_takes_turns_in_order(served, models, monkeypatch):
    calls = []
    judged = tasks.classification_results

    def noted(logits, config):
        calls.append((len(logits), threading.current_thread().name))
        return judged(logits, config)

    monkeypatch.setattr(tasks, "classification_results", noted)
    texts = ["x" * (i % 7 + 1) for i in range(20)]
    _, found = post(served, "/classify", model="judge", input=texts)
    assert calls == [
        (count, "model judge") for count in (8, 8, 4)
    ]  # by the worker, between two steps of others
    expected = models["judge"].classify(texts)
    assert [one["probabilities"]["good"] for one in found["results"]] == pytest.approx(
        [one.probabilities["good"] for one in expected]
    )


@pytest.mark.parametrize(
    ("path", "body", "keyword"),
    [
        ("/v1/completions", {"model": "judge", "prompt": "a"}, "use POST /classify"),
        (
            "/v1/chat/completions",
            {"model": "gaps", "messages": [{"role": "user", "content": "a"}]},
            "use POST /fill",
        ),
        (
            "/classify",
            {"model": "writer", "input": "a"},
            "does not classify; use POST /v1/completions",
        ),
        ("/fill", {"model": "judge", "input": "a"}, "does not fill masks"),
        ("/translate", {"model": "gaps", "text": "a"}, "does not translate"),
        ("/v1/embeddings", {"model": "translator", "input": "a"}, "does not produce embeddings"),
        ("/classify", {"model": "eye", "input": "a"}, "reads images"),
        ("/translate", {"model": "translator", "text": "a" * 999}, "the text has a sentence"),
        (
            "/translate",
            {"model": "translator", "text": "a", "length_penalty": 1e300},
            "length_penalty",
        ),
        (
            "/translate",
            {"model": "translator", "text": "a", "length_penalty": -1e6},
            "length_penalty",
        ),
        (
            "/translate",
            {"model": "translator", "text": "a", "length_penalty": float("nan")},
            "length_penalty",
        ),
        ("/fill", {"model": "gaps", "input": "a"}, "the text has no mask"),
        ("/fill", {"model": "gaps", "input": ["[MASK]", "a"]}, "text 2 has no mask"),
        ("/fill", {"model": "gaps", "input": ["[MASK]", "x" * 30]}, "31 tokens"),
        ("/fill", {"model": "gaps", "input": ["[MASK]" * 20] * 4}, "80 masks; the limit is 64"),
        (
            "/fill",
            {"model": "gaps", "input": "[MASK]", "top_k": 0},
            "top_k: should be greater than or equal to 1.",
        ),
        ("/fill", {"input": "[MASK]"}, "model is required; this server has judge, numbers, gaps"),
        ("/v1/completions", {"prompt": "a"}, "model is required; this server has judge"),
        ("/v1/embeddings", {"model": "judge", "input": ""}, "the text is empty"),
        ("/classify", {"model": "judge", "input": []}, "empty"),
        ("/classify", {"model": "judge", "input": ["a"] * 65}, "65 texts; the limit is 64"),
        (
            "/classify",
            {"model": "judge", "input": [["a", "x" * 300_000]]},
            "300001 characters; the limit is 262144",
        ),
    ],
)
def test_invalid_requests_are_errors(served, path, body, keyword):
    status, response = post(served, path, **body)
    assert status == 400
    assert keyword in response["error"]["message"]


def test_a_pair_has_two_texts(served):
    status, found = post(served, "/classify", model="judge", input=[["a", "b", "c"]])
    assert status == 400
    assert "at most 2 items" in found["error"]["message"]


def test_nan_logits_are_a_server_error(served):
    status, found = post(served, "/classify", model="broken", input="a")
    assert (status, found["error"]["type"]) == (500, "server_error")


def test_model_is_optional_if_there_is_only_one(models):
    with run_server({"judge": models["judge"]}, Limits()) as served:
        assert post(served, "/classify", input="a")[1]["model"] == "judge"
