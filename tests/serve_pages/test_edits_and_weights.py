"""Edits act wherever a model answers, and answers of two weights are never mixed."""

import gzip
import json

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.serve.explorer.assets import PageAssets
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import LoadedModel
from page_models import BYTES, model_of
from page_site import Site
from serving import ask, running

OFF = {"name": "blocks.0.ffn.out", "op": "ablate"}


def test_an_encoders_value_is_swapped_for_that_of_another_source():
    model = model_of("tiny-encoder-decoder")
    site = Site(m=model)
    name = "encoder.blocks.0.attn.z"
    edits = [{"name": name, "op": "swap"}]
    run = site.run("ab", source="the cat", edits=edits, against="the dog")
    other = model.watch(None, name, source="the dog")
    real = model.logits("ab", source="the cat", edits={name: ch.replace(with_=other)})
    assert np.allclose(site.npy(f"/api/runs/{run['id']}/logits")[0], real[-1].numpy(), atol=1e-5)
    code = site.json("GET", f"/api/runs/{run['id']}/why?name=logits&index=1,5")
    told = []
    exec(code["python"].replace("ch.load('m')", "model"), {"model": model, "print": told.append})
    assert told == [pytest.approx(code["value"], abs=1e-5)]
    body = {"model": "m", "text": "the cat", "edits": edits, "against": "the dog"}
    assert site.json("POST", "/api/translate", body)["tokens"]


def test_tokens_beyond_the_tokenizer_that_never_come_break_nothing():
    never = {
        "inference__decoder_start_tokens": [1],
        "inference__eos_tokens": [2],
        "inference__suppress_tokens": [256, 259],
        "inference__begin_suppress_tokens": [258],
    }
    model = ch.new(
        "tiny-encoder-decoder", tokenizer=BYTES, vocab_size=260, context_length=8, **never
    )
    body = {"text": "a dog", "edits": [{"name": "blocks.0.cross_attn.out"}]}
    assert Site(m=model).json("POST", "/api/translate", body)["tokens"]


def test_a_verdict_changes_with_the_edits():
    model = ch.new(
        "tiny-encoder",
        tokenizer=ch.Tokenizer.bytes(),
        vocab_size=256,
        head="classification",
        head__num_labels=3,
    )
    site = Site(m=model)
    assert "classify" in site.json("GET", "/api/models/m")["views"]
    plain, edited = (
        site.json("POST", "/api/classify", {"text": "so glad", "edits": edits})["classes"]
        for edits in ([], [OFF])
    )
    real = model.logits("so glad", edits={OFF["name"]: ch.ablate()}).softmax(-1).tolist()
    assert [one["probability"] for one in edited] == pytest.approx(real, abs=1e-6)
    assert plain != edited


def test_who_has_answers_of_other_weights_is_told_so():
    first = model_of(seed=3)
    second = model_of(seed=4)
    with running({"m": first}, page=True) as server:
        body = {"model": "m", "text": "hello"}
        url = "/api/runs"
        known = told_by(ask(server.port, "GET", "/api/models/m"))["loaded"]
        assert ask(server.port, "POST", url, body, {"X-Loaded": known})[0] == 200
        server.shelf.held["m"] = LoadedModel("m", "", second, server.shelf)
        for path, sent in (
            (url, body),
            ("/api/tokens", body),
            ("/api/generate", body),
            ("/api/models/m/rows?ids=1", None),
        ):
            status, _, said = ask(
                server.port, "POST" if sent else "GET", path, sent, {"X-Loaded": known}
            )
            assert status == 410
            assert b"loaded anew" in said
        now = told_by(ask(server.port, "GET", "/api/models/m"))["loaded"]
        assert now != known
        assert ask(server.port, "POST", url, body, {"X-Loaded": now})[0] == 200
        assert ask(server.port, "POST", url, body)[0] == 200  # who knows nothing is answered


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/runs", {"text": "a dog"}),
        ("/api/tokens", {"text": "a dog"}),
        ("/api/translate", {"text": "a dog"}),
        ("/api/classify", {"text": "a dog"}),
        ("/api/fill", {"text": "a dog"}),
        ("/api/generate", {"text": "a dog"}),
        ("/api/models/m/matrix", None),
    ],
)
def test_while_the_page_asks_a_model_it_is_in_use(path, body, monkeypatch):
    site = Site(m=model_of())
    busy = []
    desk = site.app.state.desk
    work = desk.work
    monkeypatch.setattr(
        desk,
        "work",
        lambda *given: (
            busy.append(desk.shelf.held["m"].busy or given[0].__name__ == "told") or work(*given)
        ),
    )
    site.ask("POST" if body else "GET", path, body)
    assert busy
    assert all(busy)
    assert not desk.shelf.held["m"].busy


def test_a_run_is_no_longer_than_the_server_allows():
    both = model_of("tiny-encoder-decoder")
    site = Site(Limits(max_context_length=8), m=model_of(), both=both)
    assert len(site.run("12345678")["tokens"]) == 8
    for body in (
        {"text": "123456789"},
        {"ids": [1] * 9},
        {"model": "both", "text": "1", "source": "123456789"},
        {"text": "1", "edits": [{**OFF, "op": "swap"}], "against": "123456789"},
    ):
        status, _, said = site.ask("POST", "/api/runs", body)
        assert status == 400
        assert b"tokens are more than the 8 of a text that is shown here." in said


def told_by(answer):
    status, _, content = answer
    assert status == 200
    return json.loads(content)


def test_files_are_packed_for_who_can_unpack_them():
    asset = next(asset for asset in PageAssets().assets if asset.name == "style")
    with running({"m": model_of()}, page=True) as server:
        plain = ask(server.port, "GET", f"/{asset.url}")
        packed = ask(server.port, "GET", f"/{asset.url}", headers={"Accept-Encoding": "gzip, br"})
    assert plain[2] == asset.content == gzip.decompress(packed[2])
    assert packed[1]["content-encoding"] == "gzip"
    assert len(packed[2]) < len(plain[2]) / 2


def test_the_examples_tell_who_asks_for_adjectives():
    model = model_of(context_length=64)
    told = Site(m=model).json("GET", "/api/models/m")["examples"]
    asks, answers = told["asks"]
    assert told["fluffy"][: asks + 1].endswith("creature")
    assert told["fluffy"][: answers + 1].endswith("fluffy")
    assert torch.is_tensor(model.logits(told["beside"]))
    assert len(told["beside"].split()) == len(told["fluffy"].split())
