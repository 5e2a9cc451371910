"""Edits in all tasks, fingerprints of weights, and limits."""

import gzip
import json

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.serve.explorer.assets import PageAssets
from clearhead.serve.limits import Limits
from clearhead.serve.registry import LoadedModel
from page_models import BYTES, byte_model
from page_site import PageSite
from serving import run_server, send_request

OFF = {"name": "blocks.0.ffn.out", "op": "ablate"}


def test_encoder_is_patched_from_another_source():
    model = byte_model("tiny-encoder-decoder")
    site = PageSite(m=model)
    name = "encoder.blocks.0.attn.z"
    edits = [{"name": name, "op": "patch"}]
    run = site.run("ab", source="the cat", edits=edits, patch_from="the dog")
    other = model.watch(None, name, source="the dog")
    real = model.logits("ab", source="the cat", edits={name: ch.replace(with_=other)})
    assert np.allclose(site.npy(f"/api/runs/{run['id']}/logits")[0], real[-1].numpy(), atol=1e-5)
    code = site.json("GET", f"/api/runs/{run['id']}/explain?name=logits&index=1,5")
    printed = []
    exec(code["python"].replace("ch.load('m')", "model"), {"model": model, "print": printed.append})
    assert printed == [pytest.approx(code["value"], abs=1e-5)]
    body = {"model": "m", "text": "the cat", "edits": edits, "patch_from": "the dog"}
    assert site.json("POST", "/api/translate", body)["tokens"]


def test_suppressed_tokens_may_exceed_the_tokenizer():
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
    assert PageSite(m=model).json("POST", "/api/translate", body)["tokens"]


def test_edits_change_a_classification():
    model = ch.new(
        "tiny-encoder",
        tokenizer=ch.Tokenizer.bytes(),
        vocab_size=256,
        head="classification",
        head__num_labels=3,
    )
    site = PageSite(m=model)
    assert "classify" in site.json("GET", "/api/models/m")["views"]
    plain, edited = (
        site.json("POST", "/api/classify", {"text": "so glad", "edits": edits})["labels"]
        for edits in ([], [OFF])
    )
    real = model.logits("so glad", edits={OFF["name"]: ch.ablate()}).softmax(-1).tolist()
    assert [one["probability"] for one in edited] == pytest.approx(real, abs=1e-6)
    assert plain != edited


def test_cached_responses_of_other_weights_are_rejected():
    first = byte_model(seed=3)
    second = byte_model(seed=4)
    with run_server({"m": first}, page=True) as server:
        body = {"model": "m", "text": "hello"}
        url = "/api/runs"
        fingerprint = response_json(send_request(server.port, "GET", "/api/models/m"))[
            "fingerprint"
        ]
        assert (
            send_request(server.port, "POST", url, body, {"X-Model-Fingerprint": fingerprint})[0]
            == 200
        )
        server.registry.loaded["m"] = LoadedModel("m", "", second, server.registry)
        for path, sent in (
            (url, body),
            ("/api/tokenize", body),
            ("/api/generate", body),
            ("/api/models/m/embedding-rows?ids=1", None),
        ):
            status, _, response = send_request(
                server.port,
                "POST" if sent else "GET",
                path,
                sent,
                {"X-Model-Fingerprint": fingerprint},
            )
            assert status == 410
            assert b"reloaded" in response
        now = response_json(send_request(server.port, "GET", "/api/models/m"))["fingerprint"]
        assert now != fingerprint
        assert send_request(server.port, "POST", url, body, {"X-Model-Fingerprint": now})[0] == 200
        assert send_request(server.port, "POST", url, body)[0] == 200  # without a fingerprint


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/runs", {"text": "a dog"}),
        ("/api/tokenize", {"text": "a dog"}),
        ("/api/translate", {"text": "a dog"}),
        ("/api/classify", {"text": "a dog"}),
        ("/api/fill", {"text": "a dog"}),
        ("/api/generate", {"text": "a dog"}),
        ("/api/models/m/embedding-matrix", None),
    ],
)
def test_models_are_in_use_during_requests(path, body, monkeypatch):
    site = PageSite(m=byte_model())
    executor = site.app.state.explorer
    loaded_model = executor.registry.loaded["m"]
    submit = executor.submit
    in_use = []

    def recording_submit(function, *args):
        if function.__name__ != "to_dict":
            in_use.append(loaded_model.is_busy)
        return submit(function, *args)

    monkeypatch.setattr(executor, "submit", recording_submit)
    site.request("POST" if body else "GET", path, body)
    assert in_use
    assert all(in_use)
    assert not loaded_model.is_busy


def test_runs_longer_than_the_limit_are_refused():
    both = byte_model("tiny-encoder-decoder")
    site = PageSite(Limits(max_context_length=8), m=byte_model(), both=both)
    assert len(site.run("12345678")["tokens"]) == 8
    for body in (
        {"text": "123456789"},
        {"ids": [1] * 9},
        {"model": "both", "text": "1", "source": "123456789"},
        {"text": "1", "edits": [{**OFF, "op": "patch"}], "patch_from": "123456789"},
    ):
        status, _, response = site.request("POST", "/api/runs", body)
        assert status == 400
        assert b"at most 8" in response


def response_json(answer):
    status, _, content = answer
    assert status == 200
    return json.loads(content)


def test_assets_are_gzipped():
    asset = next(asset for asset in PageAssets().assets if asset.name == "style")
    with run_server({"m": byte_model()}, page=True) as server:
        plain = send_request(server.port, "GET", f"/{asset.url}")
        packed = send_request(
            server.port, "GET", f"/{asset.url}", headers={"Accept-Encoding": "gzip, br"}
        )
    assert plain[2] == asset.content == gzip.decompress(packed[2])
    assert packed[1]["content-encoding"] == "gzip"
    assert len(packed[2]) < len(plain[2]) / 2


def test_attention_example_names_its_tokens():
    model = byte_model(context_length=64)
    inputs = PageSite(m=model).json("GET", "/api/models/m")["examples"]
    asks, answers = inputs["attention_tokens"]
    assert inputs["attention_text"][: asks + 1].endswith("creature")
    assert inputs["attention_text"][: answers + 1].endswith("fluffy")
    assert torch.is_tensor(model.logits(inputs["comparison"]))
    assert len(inputs["comparison"].split()) == len(inputs["text"].split())
