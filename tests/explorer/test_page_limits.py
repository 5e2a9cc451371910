"""Hostile and unlucky requests get an error and affect nobody else."""

import asyncio
import base64
import io
import json
import threading
from urllib.parse import quote

import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.hooks import force_eager
from clearhead.serve.explorer import requests
from clearhead.serve.explorer.executor import ExplorerExecutor, _client
from clearhead.serve.explorer.forward_passes import RunStore
from clearhead.serve.explorer.requests import RunRequest
from clearhead.serve.explorer.routes import activations
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry
from page_models import BYTES, byte_model
from page_site import PageSite
from serving import slow_down

ABLATE = {"name": "blocks.0.attn.z"}


@pytest.fixture(scope="module")
def site():
    picture = ch.new("tiny-images")
    return PageSite(m=byte_model(), both=byte_model("tiny-encoder-decoder"), picture=picture)


def error(site, url, body):
    status, _, content = site.request("POST", url, body)
    assert status == 400, content
    return json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"name": "**" * 14 + "!"}], "one activation"),
        ([{"name": "blocks.*.attn.z"}], "one activation"),
        ([{"name": "x" * 201}], "200 characters"),
        ([ABLATE] * 65, "64 items"),
        ([{**ABLATE, "op": "scale", "factor": float("nan")}], "finite"),
        ([{**ABLATE, "op": "scale", "factor": float("inf")}], "finite"),
    ],
)
@pytest.mark.parametrize("url", ["/api/runs", "/api/generate", "/api/fill", "/api/translate"])
def test_invalid_edits_are_refused(site, url, edits, message):
    assert message in error(site, url, {"text": "a dog", "edits": edits})


@pytest.mark.parametrize(
    ("url", "body", "start"),
    [
        ("/v1/completions", {"prompt": [int("9" * 4000)]}, "token id 999"),
        ("/v1/completions", {"prompt": "a", "max_tokens": int("9" * 4000)}, "max_tokens must"),
        ("/api/vectors", {"words": ["a", "b"], "layer": int("-" + "9" * 4000)}, "there is no"),
        ("/api/runs", {"text": "a", "edits": [{"name": "x" * 190}]}, "'xxx"),
        ("/api/runs", {"text": "a", "edits": [{**ABLATE, "head": int("9" * 4000)}]}, "there is"),
    ],
)
def test_errors_shorten_what_they_repeat(site, url, body, start):
    message = error(site, url, {"model": "m", **body})
    assert message.startswith(start)
    assert "…" in message
    assert max(map(len, message.split())) < 100


@pytest.mark.parametrize("window", ["²:3", "9" * 5000 + ":3", "1:", "-1:3", "1:2:3", "٣:٤"])
def test_invalid_windows_are_refused(site, window):
    run = site.run()["id"]
    status, _, content = site.request(
        "GET", f"/api/runs/{run}/tensor/final_norm?rows={quote(window)}"
    )
    assert status == 400
    assert "Invalid window" in json.loads(content)["error"]["message"]


def test_large_tensors_are_sent_in_windows(site, monkeypatch):
    monkeypatch.setattr(activations, "MAX_WINDOW_VALUES", 3 * 256)
    url = f"/api/runs/{site.run('hello')['id']}/tensor/logits"
    status, _, content = site.request("GET", url)
    assert (status, "rows=START:STOP" in json.loads(content)["error"]["message"]) == (400, True)
    assert site.npy(f"{url}?rows=1:4")[0].shape == (3, 256)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/api/runs", {"text": "\ud800"}),
        ("/api/runs", {"text": "a", "patch_from": "\ud800"}),
        ("/api/runs", {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("/api/runs", {"image": "\ud800"}),
        ("/api/generate", {"text": "a", "stop": ["\ud800"]}),
        ("/api/tokenize", {"text": "\ud800"}),
        ("/api/positions/reverse", {"text": "abc\ud800"}),
        ("/api/chat/tokens", {"messages": [{"role": "user", "content": "\ud800"}]}),
    ],
)
def test_lone_surrogates_are_refused(site, url, body):
    assert "lone surrogate" in error(site, url, body)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/api/runs", {"text": "a" * 300_000}),
        ("/api/runs", {"text": "a", "patch_from": "a" * 300_000}),
        ("/api/tokenize", {"text": "a" * 300_000}),
        ("/api/positions/reverse", {"text": "a" * 300_000}),
        ("/api/positions/shift", {"text": "a" * 300_000}),
        ("/api/generate", {"text": "a" * 300_000}),
        ("/api/translate", {"model": "both", "text": "a" * 300_000}),
        ("/api/chat/tokens", {"messages": [{"role": "user", "content": "a" * 300_000}]}),
    ],
)
def test_long_requests_are_rejected_before_tokenization(site, url, body, monkeypatch):
    monkeypatch.setattr(ch.Tokenizer, "encode", lambda *_: pytest.fail("it was read"))
    assert "the limit is 262,144" in error(site, url, body)


def test_python_code_has_the_exact_factor(site):
    edits = [{**ABLATE, "op": "scale", "factor": 0.123456789012}]
    run = site.run(edits=edits)["id"]
    explanation = site.json("GET", f"/api/runs/{run}/explain?name=final_norm&index=0,0")
    assert "ch.scale(0.123456789012)" in explanation["python"]


def test_concurrent_requests_share_word_vectors():
    loaded_model = ModelRegistry.from_models({"m": byte_model()}).loaded["m"]
    found = []
    threads = [
        threading.Thread(target=lambda layer=layer: found.append(loaded_model.word_vectors(layer)))
        for layer in (0, 1, 0, 1, None, 0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)


def test_run_ids_depend_on_the_weights(tmp_path):
    def served():
        registry = ModelRegistry({"m": str(tmp_path / "m")}, max_bytes=1 << 30, device="cpu")
        site = PageSite(m=byte_model())
        site.app.state.explorer.registry = registry
        return site

    ch.save(byte_model(seed=1), tmp_path / "m")
    first = served()
    again = served()
    run = first.run()
    card = first.json("GET", "/api/models/m")
    assert again.run()["id"] == run["id"]
    assert again.json("GET", "/api/models/m")["fingerprint"] == card["fingerprint"]
    ch.save(byte_model(seed=2), tmp_path / "m")
    other = served()
    assert first.run()["id"] == run["id"]  # it has the old ones still
    assert other.run()["id"] != run["id"]
    assert other.json("GET", "/api/models/m")["fingerprint"] != card["fingerprint"]
    assert other.request("GET", f"/api/runs/{run['id']}/patterns")[0] == 410


def png(extra=0):
    held = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 90)).save(held, "PNG")
    return base64.b64encode(held.getvalue() + b"\0" * extra).decode()


def test_runs_keep_images_preprocessed(site):
    sent = png(extra=1 << 20)
    run = site.app.state.explorer.runs.get(
        site.json("POST", "/api/runs", {"model": "picture", "image": sent})["id"]
    )
    assert len(run.request.model_dump_json()) < 1000
    assert (
        'images="image.png"'
        in site.json("GET", f"/api/runs/{run.id}/explain?name=final_norm&index=0,0")["python"]
    )
    model = run.trace.model
    real = model.hidden(images=Image.open(io.BytesIO(base64.b64decode(png()))))
    torch.testing.assert_close(model.hidden(**run.lens_inputs()), real)
    assert site.request("GET", f"/api/runs/{run.id}/residual")[0] == 200


def test_runs_keep_audio_preprocessed():
    soundfile = pytest.importorskip("soundfile")
    held = io.BytesIO()
    soundfile.write(held, torch.sin(torch.arange(4000) * 0.3).numpy(), 8000, format="WAV")
    model = ch.new("tiny-audio")
    sound = base64.b64encode(held.getvalue()).decode()
    run = RunStore().get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", audio=sound)
    )
    assert (run.request.audio, run.nbytes > run.trace.nbytes + 4 * 4000) == ("", True)
    torch.testing.assert_close(
        model.watch(names="final_norm", **run.lens_inputs())["final_norm"],
        run.trace.residuals["final_norm"],
    )


def test_run_bytes_include_inputs_and_patched_values(site):
    runs = site.app.state.explorer.runs
    plain = runs.get(site.run("hello")["id"])
    swapped = runs.get(
        site.run("hello", edits=[{**ABLATE, "op": "patch"}], patch_from="jelly")["id"]
    )
    value = swapped.trace.value("blocks.0.attn.z")
    assert swapped.nbytes >= plain.nbytes + value.nbytes
    assert plain.nbytes >= plain.trace.nbytes + len("hello")
    assert (
        plain.trace.nbytes
        >= sum(v.nbytes for v in plain.trace.residuals.values()) + plain.trace.batch.inputs.nbytes
    )


def test_targets_are_generated_once(site, monkeypatch):
    calls = []
    monkeypatch.setattr(
        requests,
        "generate_target",
        lambda *args, real=requests.generate_target: calls.append(1) or real(*args),
    )
    run = site.json("POST", "/api/runs", {"model": "both", "source": "a dog"})
    for tail in ("residual", "residual?encoder=true", f"attribution?answer={run['top'][0]['id']}"):
        assert site.request("GET", f"/api/runs/{run['id']}/{tail}")[0] == 200
    assert len(calls) == 1
    kept = site.app.state.explorer.runs.get(run["id"])
    real = kept.trace.model.hidden([token["id"] for token in run["tokens"]], source="a dog")
    torch.testing.assert_close(kept.trace.model.hidden(**kept.lens_inputs()), real)


def test_patching_needs_another_text(site):
    swap = [{"name": "blocks.0.cross_attn.z", "op": "patch"}]
    for url, model in (("/api/runs", "both"), ("/api/translate", "both"), ("/api/generate", "m")):
        edits = swap if model == "both" else [{**ABLATE, "op": "patch"}]
        body = {
            "model": model,
            "text": "dog",
            "edits": edits,
            **({"source": "a"} if url == "/api/runs" else {}),
        }
        assert "patch_from is required" in error(site, url, body)
    written = {
        "model": "m",
        "text": "dog",
        "edits": [{**ABLATE, "op": "patch"}],
        "patch_from": "cat",
    }
    assert "one token at a time" in error(site, "/api/generate", written)
    assert "tokens" in error(
        site,
        "/api/translate",
        {"model": "both", "text": "dog", "edits": swap, "patch_from": "a cat that sat"},
    )


def test_clients_take_turns_on_the_page():
    executor = ExplorerExecutor(ModelRegistry.from_models({"m": byte_model()}), Limits())
    order = []
    go_on = threading.Event()

    async def asked(client, number):
        _client.set(client)
        await executor.submit(lambda: (order.append((client, number)), go_on.wait(20)))

    async def all_of_them():
        tasks = [asyncio.create_task(asked("greedy", number)) for number in range(6)]
        await asyncio.sleep(0.1)
        tasks.append(asyncio.create_task(asked("late", 0)))
        await asyncio.sleep(0.1)
        tasks.pop(4).cancel()  # who leaves gives up the turn
        await asyncio.sleep(0.1)
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(all_of_them())
    assert order.index(("late", 0)) <= 3
    assert ("greedy", 4) not in order
    assert len(order) == 6


def test_one_client_never_occupies_all_threads():
    """Calls of one client that take long: others have a thread, and its next call waits."""
    executor = ExplorerExecutor(ModelRegistry.from_models({"m": byte_model()}), Limits())
    may_end = threading.Event()
    started = []

    def call(name, *, blocks=False):
        started.append(name)
        assert not blocks or may_end.wait(30)

    async def call_all():
        _client.set("first")
        calls = [asyncio.create_task(executor.submit(lambda: call("a", blocks=True)))]
        calls.append(asyncio.create_task(executor.submit(lambda: call("b"))))
        await asyncio.sleep(0.05)
        _client.set("second")
        try:
            async with asyncio.timeout(30):
                await executor.submit(call, "c")
                await executor.submit(call, "d")
            assert started == ["a", "c", "d"]
        finally:
            may_end.set()
        await asyncio.gather(*calls)

    asyncio.run(call_all())
    assert started == ["a", "c", "d", "b"]


def test_clients_are_told_apart_by_address(site, monkeypatch):
    queue = site.app.state.explorer.queue
    clients = []
    monkeypatch.setattr(
        queue,
        "put",
        lambda client, task, put=queue.put: clients.append(client) or put(client, task),
    )
    site.run()
    site.request("POST", "/api/generate", {"text": "a", "max_tokens": 2})
    assert len(clients) > 3
    assert {*clients} == {"127.0.0.1"}
    clients.clear()
    site.request("POST", "/api/snapshot", {"text": "a"}, address=("10.0.0.7", 5))
    assert {*clients} == {"10.0.0.7"}  # all that a saved page asks for


def test_leaving_stops_an_edited_translation():
    endless = {
        "inference__decoder_start_tokens": [1],
        "inference__eos_tokens": [],
        "context_length": 128,
    }
    model = slow_down(
        ch.new("tiny-encoder-decoder", tokenizer=BYTES, vocab_size=256, **endless), 0.02
    )
    passes = []
    forward = model.net.forward
    model.net.forward = lambda *given, **named: passes.append(1) or forward(*given, **named)
    site = PageSite(m=model)

    async def leave():
        body = {"text": "a dog", "edits": [{"name": "blocks.0.cross_attn.z"}]}
        task = asyncio.create_task(site.send("POST", "/api/translate", body))
        while len(passes) < 3:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        count = len(passes)
        await asyncio.sleep(0.2)
        return count

    count = asyncio.run(leave())
    assert len(passes) <= count + 1


def test_concurrent_force_eager_restores_the_compiler():
    from torch._dynamo import eval_frame

    before, first_in, second_in, first_out = (
        eval_frame._stance,
        *(threading.Event() for _ in range(3)),
    )
    stances = []

    def first():
        with force_eager():
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second():
        first_in.wait(10)
        with force_eager():
            second_in.set()
            first_out.wait(10)
            stances.append(eval_frame._stance.stance)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stances == ["force_eager"]
    assert eval_frame._stance == before


def test_reloaded_models_get_new_runs():
    runs = RunStore()
    request = RunRequest(model="m", text="hello")
    first, second = (
        runs.get_or_create(
            ModelRegistry.from_models({"m": byte_model(seed=seed)}).loaded["m"], request
        )
        for seed in (1, 2)
    )
    assert first.id != second.id
    assert not torch.equal(first.trace.last_logits, second.trace.last_logits)
