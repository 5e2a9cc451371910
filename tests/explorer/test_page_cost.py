"""The number of tokens that one request may process in one turn is limited on every route."""

import json

import pytest

import clearhead as ch
from clearhead.serve.explorer import cost
from clearhead.serve.explorer.routes import activations
from page_models import BYTES, byte_model
from page_site import PageSite

LONG = "a cat " * 5
PLACES = {
    "runs": ("/api/runs", {"model": "m", "text": LONG}),
    "ids": ("/api/runs", {"model": "m", "ids": [5] * 30}),
    "source": ("/api/runs", {"model": "both", "text": "a", "source": LONG}),
    "generated target": ("/api/runs", {"model": "both", "source": LONG}),
    "translate": ("/api/translate", {"model": "both", "text": LONG}),
    "context": ("/api/context", {"model": "m", "word": "cat", "texts": ["a cat cat cat"] * 3}),
    "substitute": (
        "/api/context/substitute",
        {"model": "m", "word": "cat", "texts": [LONG], "substitutes": ["dog"]},
    ),
    "words": ("/api/vectors", {"model": "m", "layer": 0, "words": ["twelve chars", LONG]}),
    "pairs": (
        "/api/vectors",
        {"model": "m", "layer": 0, "pairs": [("one more", "two more")], "words": ["three more"]},
    ),
    "fill": ("/api/fill", {"model": "masks", "text": LONG}),
    "classify": ("/api/classify", {"model": "classes", "text": LONG}),
    "generate": ("/api/generate", {"model": "m", "text": LONG, "max_tokens": 1}),
    "phrase": ("/api/positions/phrase", {"model": "m", "text": LONG, "other": f"oh{LONG}"[:32]}),
    "patch": (
        "/api/runs",
        {
            "model": "m",
            "text": LONG,
            "patch_from": LONG[::-1],
            "edits": [{"name": "blocks.0.attn.z", "op": "patch"}],
        },
    ),
}


@pytest.fixture(scope="module")
def site():
    encoder = {"tokenizer": BYTES, "vocab_size": 256, "inference__mask_token": [3]}
    return PageSite(
        m=byte_model(),
        both=byte_model("tiny-encoder-decoder"),
        masks=ch.new("tiny-encoder", **encoder),
        classes=ch.new("tiny-encoder", **encoder, head={"kind": "classification"}),
    )


def count_passes(site, monkeypatch):
    """Names of the models that run from now on."""
    passes = []
    for name, loaded_model in site.app.state.explorer.registry.loaded.items():
        net = loaded_model.model.net
        forward = net.forward
        monkeypatch.setattr(
            net,
            "forward",
            lambda *given, name=name, forward=forward, **named: (
                passes.append(name) or forward(*given, **named)
            ),
        )
    return passes


@pytest.mark.parametrize("place", PLACES)
def test_requests_that_cost_too_much_are_refused(site, monkeypatch, place):
    url, body = PLACES[place]
    passes = count_passes(site, monkeypatch)
    monkeypatch.setattr(cost, "MAX_TURN_COST", 1)
    monkeypatch.setattr(cost, "MIN_TOKENS", 20)
    status, _, content = site.request("POST", url, body)
    assert status == 400, content
    assert "at most 20 at once" in json.loads(content)["error"]["message"]
    assert not passes


@pytest.mark.parametrize("place", PLACES)
def test_other_requests_are_not(site, place):
    url, body = PLACES[place]
    status, _, content = site.request("POST", url, body)
    assert status == 200, content


def test_the_limit_depends_on_the_model():
    model = byte_model()
    expected = cost.MAX_TURN_COST // model.num_parameters()
    assert cost.affordable_tokens(model, cost.MAX_TURN_COST) == expected
    cost.check_num_tokens(model, [2000, 2000])
    with pytest.raises(ch.ClearheadError, match="shows at most"):
        cost.check_num_tokens(model, [5000])


def test_simple_attention_needs_no_pass_and_is_limited(site, monkeypatch):
    url = f"/api/runs/{site.run('a cat that sat')['id']}/simple-attention"
    passes = count_passes(site, monkeypatch)
    assert site.json("GET", url)["scores"]
    assert not passes
    monkeypatch.setattr(activations, "MAX_WINDOW_VALUES", 100)
    status, _, content = site.request("GET", url)
    assert (status, "at most 100" in json.loads(content)["error"]["message"]) == (400, True)
