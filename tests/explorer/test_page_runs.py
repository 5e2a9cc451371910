"""Runs: tensors equal those of `model.watch`, caches are limited by bytes, errors."""

import base64
import json

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.cli.main import app
from clearhead.serve.explorer.forward_passes import LRUCache
from page_site import PageSite

WORDS = {"vocab_size": 256, "context_length": 128, "tokenizer": ch.Tokenizer.bytes()}


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", seed=2, **WORDS)


@pytest.fixture(scope="module")
def site(model):
    return PageSite(m=model)


@pytest.mark.parametrize(
    "name", ["tiny-decoder", "tiny-llama", "tiny-encoder", "tiny-encoder-decoder"]
)
def test_tensors_equal_watch(name):
    model = ch.new(name, seed=2, **WORDS)
    both = {"source": "the cat"} if model.architecture == "encoder-decoder" else {}
    site = PageSite(m=model)
    cache = model.watch("hello", **both)
    run = site.run(**both)
    assert set(run["activations"]) == set(cache)
    for path, value in cache.items():
        found, _ = site.npy(f"/api/runs/{run['id']}/tensor/{path}")
        assert found.dtype == np.float32
        assert list(found.shape) == run["activations"][path]["shape"]
        assert np.allclose(found, value[0].numpy(), atol=1e-6), path


def test_tensor_windows_equal_the_activation(site, model):
    run = site.run()
    pattern = model.watch("hello", "blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 2]
    found, _ = site.npy(
        f"/api/runs/{run['id']}/tensor/blocks.1.attn.pattern?head=2&rows=1:4&cols=0:2"
    )
    assert np.allclose(found, pattern[1:4, :2], atol=1e-6)
    half, _ = site.npy(f"/api/runs/{run['id']}/tensor/blocks.1.attn.pattern?head=2&dtype=f2")
    assert half.dtype == np.float16
    assert np.allclose(half, pattern, atol=1e-3)


def test_run_ids_depend_on_the_request(site):
    edits = [{"name": "blocks.0.attn.z", "op": "ablate", "head": 1}]
    assert site.run()["id"] == site.run()["id"] != site.run(edits=edits)["id"]


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        ({"name": "blocks.0.attn.z", "op": "ablate", "head": 1}, ch.ablate(head=1)),
        ({"name": "blocks.0.attn.z", "op": "mean_ablate", "head": 1}, ch.ablate(head=1, mean=True)),
        ({"name": "blocks.1.ffn.out", "op": "scale", "factor": 3.0}, ch.scale(3.0)),
        (
            {"name": "blocks.1.resid_pre", "op": "scale", "factor": 3.0, "token": 2},
            ch.scale(3.0, position=2),
        ),
        ({"name": "logits", "op": "scale", "factor": 2.0, "token": 1}, ch.scale(2.0, position=1)),
    ],
    ids=["head", "mean", "layer", "stream", "logits"],
)
def test_edited_runs_equal_the_edited_model(site, model, edit, change):
    run = site.run(edits=[edit])
    real = model.logits("hello", edits={edit["name"]: change})
    for at in (-1, 1):
        assert np.allclose(
            site.npy(f"/api/runs/{run['id']}/logits?token={at}")[0], real[at].numpy(), atol=1e-5
        )
    cache = model.watch("hello", edits={edit["name"]: change})
    for path in (
        "blocks.1.resid_pre",
        "blocks.1.attn.pattern",
        "blocks.1.resid_post",
        "final_norm",
    ):
        found, _ = site.npy(f"/api/runs/{run['id']}/tensor/{path}")
        assert np.allclose(found, cache[path][0].numpy(), atol=1e-5), path


def test_patching_uses_activations_of_the_other_text(site, model):
    run = site.run(
        edits=[{"name": "blocks.0.attn.z", "op": "patch", "head": 1}], patch_from="jelly"
    )
    other = model.watch("jelly", "blocks.0.attn.z")
    real = model.logits("hello", edits={"blocks.0.attn.z": ch.replace(with_=other, head=1)})
    assert np.allclose(site.npy(f"/api/runs/{run['id']}/logits")[0], real[-1].numpy(), atol=1e-5)


def test_top_predictions_equal_the_softmax(site, model):
    top = site.run()["top"]
    shares = model.logits("hello")[-1].softmax(dim=-1)
    assert [one["id"] for one in top] == shares.topk(10).indices.tolist()
    assert [one["prob"] for one in top] == pytest.approx(shares.topk(10).values.tolist(), rel=1e-5)


def test_thumbnails_are_max_pooled(site, model):
    text = "a" * 100
    run = site.run(text)
    found, headers = site.npy(f"/api/runs/{run['id']}/patterns")
    pattern = torch.stack([v[0] for v in model.watch(text, "blocks.*.attn.pattern").values()])
    assert headers["x-pooled"] == "3"
    assert found.dtype == np.uint8
    assert found.shape == (*pattern.shape[:2], 34, 34)
    assert found[1, 2, 0, 0] == round(float(pattern[1, 2, :3, :3].max()) * 255)


def test_head_scores_equal_the_lens(site, model):
    text = "the cat, the cat"
    found = site.json("GET", f"/api/runs/{site.run(text)['id']}/head-scores")["view"]
    real = ch.lens.head_scores(model, text)
    assert [axis["labels"] for axis in found["axes"]] == [list(axis.labels) for axis in real.axes]
    values = np.frombuffer(base64.b64decode(found["values"]), "<f4").reshape(found["shape"])
    assert np.allclose(values, real.numpy(), atol=1e-5)


def test_expired_runs_have_status_410(site):
    status, _, content = site.request("GET", "/api/runs/0123456789abcdef0123/patterns")
    assert status == 410
    assert "expired" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", "/api/runs", {"text": ""}),
        ("POST", "/api/runs", {"text": "x" * 5000}),
        ("POST", "/api/runs", {"text": "x", "edits": [{"name": "nothing"}]}),
        ("POST", "/api/runs", {"text": "x", "edits": [{"name": "blocks.0.attn.z", "head": 99}]}),
        ("POST", "/api/runs", {"text": "x", "edits": [{"name": "blocks.0.attn.z", "op": "patch"}]}),
        ("POST", "/api/runs", {"text": "x", "image": "no base64!"}),
        ("POST", "/api/runs", {"ids": [9999]}),
        ("POST", "/api/runs", {"text": "x", "wrong": 1}),
        ("POST", "/api/runs", {"messages": [{"role": "user"}]}),
        ("GET", "/api/models/nobody", None),
    ],
)
def test_invalid_requests_are_refused(site, method, url, body):
    status, _, content = site.request(method, url, body)
    assert 400 <= status < 500
    assert len(json.loads(content)["error"]["message"].split()) > 3


@pytest.mark.parametrize(
    "tail",
    [
        "tensor/nothing",
        "tensor/final_norm?head=1",
        "tensor/final_norm?rows=x",
        "explain?name=final_norm&index=1,x",
        "explain?name=final_norm&index=1",
        "logits?token=99",
        "head-scores?part=cross",
    ],
)
def test_invalid_requests_about_a_run_are_refused(site, tail):
    status, _, content = site.request("GET", f"/api/runs/{site.run()['id']}/{tail}")
    assert status == 400, content


def test_nan_is_not_an_error():
    """A model that diverged in training can still be inspected."""
    model = ch.new("tiny-decoder", seed=2, **WORDS)
    with torch.no_grad():
        model.net.blocks[0].ffn.up.weight.fill_(float("nan"))
    site = PageSite(m=model)
    run = site.run()
    assert run["top"][0]["prob"] is None
    assert np.isnan(site.npy(f"/api/runs/{run['id']}/tensor/final_norm")[0]).all()
    for name, index in (
        ("final_norm", "1,1"),
        ("blocks.1.attn.pattern", "0,1,1"),
        ("logits", "1,5"),
    ):
        assert (
            site.json("GET", f"/api/runs/{run['id']}/explain?name={name}&index={index}")[
                "non_finite"
            ]
            == "nan"
        )


def test_lru_cache_is_limited_by_bytes():
    kept = LRUCache(100, len)
    for letter in "abcdef":
        kept.put(letter, letter * 40)
    assert len(kept) == 2
    assert kept.num_bytes == 80
    assert kept.get("e") == "e" * 40
    kept.put("g", "g" * 40)
    assert kept.get("f") is None
    kept.put("h", "h" * 500)  # larger than all, yet the newest stays
    assert len(kept) == 1


def test_runs_keep_only_the_residual_stream(site):
    run = site.app.state.explorer.runs.get(site.run("a" * 64)["id"])
    m = run.trace.config
    stream = 4 * 64 * m.d_model
    ids = 8 * 64
    assert run.trace.nbytes <= stream * (m.n_layers + 2) + 4 * m.vocab_size + ids


def test_model_cards_have_the_size_and_views(site, model):
    (card,) = site.json("GET", "/api/models")
    m = model.config.model
    assert (card["n_layers"], card["n_heads"], card["d_model"]) == (
        m.n_layers,
        m.attention.n_heads,
        m.d_model,
    )
    assert card["num_parameters"] == model.num_parameters()
    assert {"machine", "attention", "predict", "chat"} <= set(card["views"])
    assert card["has_chat"]
    assert "translate" not in card["views"]
    assert len(site.json("GET", "/api/models/m/vocabulary")) == m.vocab_size


def test_saved_pages_contain_the_first_model(model, tmp_path, capsys):
    ch.save(model, tmp_path / "one")
    ch.save(model, tmp_path / "two")
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    page = tmp_path / "page.html"
    app(["explore", *folders, "--output", str(page)], standalone_mode=False)
    assert "it contains only one" in capsys.readouterr().out
    held = json.loads(page.read_text().split('id="snapshot">')[1].split("</script>")[0])
    assert [card["name"] for card in held["GET api/models"]["content"]] == ["one"]
    app(["explore", folders[0], "--output", str(page)], standalone_mode=False)
    assert "it contains only" not in capsys.readouterr().out


@pytest.mark.parametrize("part", ["attention", "encoder"])
def test_simple_attention_is_that_of_the_lens(part):
    both = {"source": "the cat"} if part == "encoder" else {}
    model = ch.new("tiny-encoder-decoder" if both else "tiny-decoder", seed=2, **WORDS)
    site = PageSite(m=model)
    url = f"/api/runs/{site.run(**both)['id']}/simple-attention"
    result = site.json("GET", f"{url}?part={part}")
    view = ch.lens.simple_attention(model, "hello", kind=part, **both)
    for name, expected in (("scores", view.scores.values), ("pattern", view.values)):
        values = np.frombuffer(base64.b64decode(result[name]["values"]), np.float32)
        assert np.allclose(values.reshape(expected.shape), expected.numpy(), atol=1e-5)
    assert site.request("GET", f"{url}?part=cross")[0] == 400
