"""Questions that are made to hurt, or just unlucky: each gets a sentence, and nobody else notices."""

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
from clearhead.serve.explorer import runs as made
from clearhead.serve.explorer.routes.words import cached_vectors
from clearhead.serve.explorer.runs import RunRequest, RunStore
from clearhead.serve.explorer.service import ExplorerService, _client
from clearhead.serve.explorer.snapshot import Requester, asgi_request
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry
from page_models import BYTES, model_of
from page_site import Site
from serving import slow

ABLATE = {"name": "blocks.0.attn.z"}


@pytest.fixture(scope="module")
def site():
    picture = ch.new("tiny-pictures")
    return Site(m=model_of(), both=model_of("tiny-encoder-decoder"), picture=picture)


def refused(site, url, body):
    status, _, content = site.ask("POST", url, body)
    assert status == 400, content
    return json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ([{"name": "**" * 14 + "!"}], "one value"),
        ([{"name": "blocks.*.attn.z"}], "one value"),
        ([{"name": "x" * 201}], "200 characters"),
        ([ABLATE] * 65, "64 items"),
        ([{**ABLATE, "op": "scale", "by": float("nan")}], "finite"),
        ([{**ABLATE, "op": "scale", "by": float("inf")}], "finite"),
    ],
)
@pytest.mark.parametrize("url", ["/api/runs", "/api/generate", "/api/fill", "/api/translate"])
def test_edits_are_few_of_one_value_each_and_by_a_number(site, url, edits, said):
    assert said in refused(site, url, {"text": "a dog", "edits": edits})


@pytest.mark.parametrize("window", ["²:3", "9" * 5000 + ":3", "1:", "-1:3", "1:2:3", "٣:٤"])
def test_what_is_no_window_is_a_sentence(site, window):
    run = site.run()["id"]
    status, _, content = site.ask("GET", f"/api/runs/{run}/tensor/norm?rows={quote(window)}")
    assert status == 400
    assert "no window" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/api/runs", {"text": "\ud800"}),
        ("/api/runs", {"text": "a", "against": "\ud800"}),
        ("/api/runs", {"messages": [{"role": "user", "content": "\ud800"}]}),
        ("/api/runs", {"picture": "\ud800"}),
        ("/api/generate", {"text": "a", "stop": ["\ud800"]}),
        ("/api/tokens", {"text": "\ud800"}),
        ("/api/order", {"text": "abc\ud800"}),
        ("/api/chat/tokens", {"messages": [{"role": "user", "content": "\ud800"}]}),
    ],
)
def test_half_a_character_is_a_sentence(site, url, body):
    assert "half of a character" in refused(site, url, body)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/api/runs", {"text": "a" * 300_000}),
        ("/api/runs", {"text": "a", "against": "a" * 300_000}),
        ("/api/tokens", {"text": "a" * 300_000}),
        ("/api/order", {"text": "a" * 300_000}),
        ("/api/shifted", {"text": "a" * 300_000}),
        ("/api/generate", {"text": "a" * 300_000}),
        ("/api/translate", {"model": "both", "text": "a" * 300_000}),
        ("/api/chat/tokens", {"messages": [{"role": "user", "content": "a" * 300_000}]}),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_cut(site, url, body, monkeypatch):
    monkeypatch.setattr(ch.Tokenizer, "encode", lambda *_: pytest.fail("it was read"))
    assert "more than the 262,144" in refused(site, url, body)


def test_python_to_copy_holds_the_very_factor(site):
    edits = [{**ABLATE, "op": "scale", "by": 0.123456789012}]
    run = site.run(edits=edits)["id"]
    told = site.json("GET", f"/api/runs/{run}/why?name=norm&index=0,0")
    assert "ch.scale(0.123456789012)" in told["python"]


def test_the_vectors_of_two_layers_can_be_asked_for_at_once():
    model = model_of()
    found = []
    threads = [
        threading.Thread(target=lambda layer=layer: found.append(cached_vectors(model, layer)))
        for layer in (0, 1, 0, 1, None, 0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)


def test_other_weights_under_the_same_name_answer_under_other_ids(tmp_path):
    def served():
        shelf = ModelRegistry({"m": str(tmp_path / "m")}, max_bytes=1 << 30, device="cpu")
        site = Site(m=model_of())
        site.app.state.desk.shelf = shelf
        return site

    ch.save(model_of(seed=1), tmp_path / "m")
    first = served()
    again = served()
    run = first.run()
    card = first.json("GET", "/api/models/m")
    assert again.run()["id"] == run["id"]
    assert again.json("GET", "/api/models/m")["loaded"] == card["loaded"]
    ch.save(model_of(seed=2), tmp_path / "m")
    other = served()
    assert first.run()["id"] == run["id"]  # it has the old ones still
    assert other.run()["id"] != run["id"]
    assert other.json("GET", "/api/models/m")["loaded"] != card["loaded"]
    assert other.ask("GET", f"/api/runs/{run['id']}/atlas")[0] == 410


def png(extra=0):
    held = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 90)).save(held, "PNG")
    return base64.b64encode(held.getvalue() + b"\0" * extra).decode()


def test_of_a_picture_only_what_was_read_is_kept_and_read_once(site):
    sent = png(extra=1 << 20)
    run = site.app.state.desk.runs.get(
        site.json("POST", "/api/runs", {"model": "picture", "picture": sent})["id"]
    )
    assert len(run.request.model_dump_json()) < 1000
    assert (
        'pictures="picture.png"'
        in site.json("GET", f"/api/runs/{run.id}/why?name=norm&index=0,0")["python"]
    )
    model = run.trace.model
    real = model.hidden(pictures=Image.open(io.BytesIO(base64.b64decode(png()))))
    torch.testing.assert_close(model.hidden(**run.given()), real)
    assert site.ask("GET", f"/api/runs/{run.id}/residual")[0] == 200


def test_of_a_sound_too():
    soundfile = pytest.importorskip("soundfile")
    held = io.BytesIO()
    soundfile.write(held, torch.sin(torch.arange(4000) * 0.3).numpy(), 8000, format="WAV")
    model = ch.new("tiny-sound")
    sound = base64.b64encode(held.getvalue()).decode()
    run = RunStore().get_or_create(
        ModelRegistry.from_models({"m": model}).loaded["m"], RunRequest(model="m", audio=sound)
    )
    assert (run.request.audio, run.nbytes > run.trace.nbytes + 4 * 4000) == ("", True)
    torch.testing.assert_close(
        model.watch(names="norm", **run.lens_inputs())["norm"], run.trace.residuals["norm"]
    )


def test_what_a_run_keeps_is_counted_with_what_it_read_and_what_was_swapped_in(site):
    runs = site.app.state.desk.runs
    plain = runs.get(site.run("hello")["id"])
    swapped = runs.get(site.run("hello", edits=[{**ABLATE, "op": "swap"}], against="jelly")["id"])
    value = swapped.trace.value("blocks.0.attn.z")
    assert swapped.nbytes >= plain.nbytes + value.nbytes
    assert plain.nbytes >= plain.trace.nbytes + len("hello")
    assert (
        plain.trace.nbytes
        >= sum(v.nbytes for v in plain.trace.streams.values()) + plain.trace.batch.ids.nbytes
    )


def test_what_a_translator_writes_itself_it_writes_once(site, monkeypatch):
    calls = []
    monkeypatch.setattr(
        made, "written", lambda *given, real=made.generate_target: calls.append(1) or real(*given)
    )
    run = site.json("POST", "/api/runs", {"model": "both", "source": "a dog"})
    for tail in ("residual", "residual?encoder=true", f"attribution?token={run['top'][0]['id']}"):
        assert site.ask("GET", f"/api/runs/{run['id']}/{tail}")[0] == 200
    assert len(calls) == 1
    kept = site.app.state.desk.runs.get(run["id"])
    real = kept.trace.model.hidden([token["id"] for token in run["tokens"]], source="a dog")
    torch.testing.assert_close(kept.trace.model.hidden(**kept.given()), real)


def test_a_swap_takes_the_other_text_wherever_texts_are_edited(site):
    swap = [{"name": "blocks.0.cross_attn.z", "op": "swap"}]
    for url, model in (("/api/runs", "both"), ("/api/translate", "both"), ("/api/generate", "m")):
        edits = swap if model == "both" else [{**ABLATE, "op": "swap"}]
        body = {
            "model": model,
            "text": "dog",
            "edits": edits,
            **({"source": "a"} if url == "/api/runs" else {}),
        }
        assert "give the other text" in refused(site, url, body)
    written = {"model": "m", "text": "dog", "edits": [{**ABLATE, "op": "swap"}], "against": "cat"}
    assert "one at a time" in refused(site, "/api/generate", written)
    assert "they need as many" in refused(
        site,
        "/api/translate",
        {"model": "both", "text": "dog", "edits": swap, "against": "a cat that sat"},
    )


def test_clients_take_turns_however_much_each_of_them_asks_for():
    desk = ExplorerService(ModelRegistry.from_models({"m": model_of()}), Limits())
    order = []
    go_on = threading.Event()

    async def asked(client, number):
        _client.set(client)
        await desk.submit(lambda: (go_on.wait(20), order.append((client, number))))

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


def test_turns_are_counted_by_address(site, monkeypatch):
    line = site.app.state.desk._line
    seen = []
    monkeypatch.setattr(
        line, "add", lambda client, job, add=line.add: seen.append(client) or add(client, job)
    )
    site.run()
    site.ask("POST", "/api/generate", {"text": "a", "max_tokens": 2})
    assert len(seen) > 3
    assert {*seen} == {"127.0.0.1"}
    seen.clear()
    far = Requester(address=("10.0.0.7", 5))
    asyncio.run(asgi_request(site.app, "POST", "/api/page", {"text": "a"}, far))
    assert {*seen} == {"10.0.0.7"}  # all that a saved page asks for


def test_a_translation_with_edits_ends_when_its_reader_leaves():
    endless = {"inference__decoder_start_tokens": [1], "inference__eos_tokens": [], "context": 128}
    model = slow(ch.new("tiny-encoder-decoder", tokenizer=BYTES, vocab_size=256, **endless), 0.02)
    passes = []
    forward = model.net.forward
    model.net.forward = lambda *given, **named: passes.append(1) or forward(*given, **named)
    site = Site(m=model)

    async def leave():
        body = {"text": "a dog", "edits": [{"name": "blocks.0.cross_attn.z"}]}
        task = asyncio.create_task(asgi_request(site.app, "POST", "/api/translate", body))
        while len(passes) < 3:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        count = len(passes)
        await asyncio.sleep(0.2)
        return count

    count = asyncio.run(leave())
    assert len(passes) <= count + 1


def test_threads_that_watch_at_once_leave_the_compiler_as_it_was():
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


def test_runs_of_a_model_that_is_loaded_anew_are_made_anew():
    runs = RunStore()
    request = RunRequest(model="m", text="hello")
    first, second = (
        runs.get_or_create(
            ModelRegistry.from_models({"m": model_of(seed=seed)}).loaded["m"], request
        )
        for seed in (1, 2)
    )
    assert first.id != second.id
    assert not torch.equal(first.trace.last_logits, second.trace.last_logits)
