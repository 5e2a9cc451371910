"""Models are loaded when asked for, once, and the one unused longest makes room, never one in use."""

import asyncio

import pytest
import torch

import clearhead as ch
from clearhead import api
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
from clearhead.weights.checkpoint import Placement
from serving import writer


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name in "abc":
        ch.save(writer(), place / name)
    return {name: str(place / name) for name in "abc"}


@pytest.fixture
def loads(monkeypatch):
    counted = []
    load = api.load

    def counting(where, **options):
        counted.append(str(where)[-1])
        return load(where, **options)

    monkeypatch.setattr(api, "load", counting)
    return counted


BYTES = ModelRegistry.from_models({"a": writer()}).num_bytes


def test_those_who_come_together_wait_for_one_load(paths, loads):
    async def many():
        shelf = ModelRegistry(paths, 10 * BYTES)
        return await asyncio.gather(*(shelf.get("a") for _ in range(5)))

    held = asyncio.run(many())
    assert len({id(one) for one in held}) == 1
    assert loads == ["a"]


def test_who_goes_away_does_not_end_a_load_for_the_others(paths, loads):
    async def some():
        shelf = ModelRegistry(paths, 10 * BYTES)
        first, second = (asyncio.create_task(shelf.get("a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(some()).name == "a"
    assert loads == ["a"]


def test_the_one_unused_longest_makes_room(paths, loads):
    async def some():
        shelf = ModelRegistry(paths, 2 * BYTES)
        for name in "abacb":
            await shelf.get(name)
            assert shelf.num_bytes <= 2 * BYTES
        return list(shelf.loaded)

    assert asyncio.run(some()) == ["c", "b"]
    assert loads == ["a", "b", "c", "b"]


def test_rows_count_before_they_are_made(paths):
    async def some():
        shelf = ModelRegistry(paths, 10 * BYTES)
        held = await shelf.get("a")
        weights = 4 * held.model.num_parameters()
        rows = [
            side
            for growing, _ in held.worker.scheduler.engine.runner.cache.layers
            for side in vars(growing).values()
        ]
        assert (
            held.num_bytes
            == weights + sum(side.nbytes for side in rows if isinstance(side, torch.Tensor))
            == BYTES
        )
        with pytest.raises(ch.ClearheadError, match="with the rows of its texts"):
            await ModelRegistry(paths, BYTES - 1).get("a")
        few = ModelRegistry(paths, BYTES - 1)
        few.limits = Limits(max_batch_size=1)
        assert weights < (await few.get("a")).num_bytes < BYTES

    asyncio.run(some())
    reader = ch.new("tiny-encoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes())
    assert (
        ModelRegistry.from_models({"reader": reader}).num_bytes == 4 * reader.num_parameters()
    )  # it has no rows


def test_who_is_in_use_stays(paths):
    async def some():
        shelf = ModelRegistry(paths, BYTES)
        async with shelf.using("a") as held:
            await shelf.get("b")
            assert list(shelf.loaded) == ["a", "b"]
            assert held.is_busy
        await shelf.get("c")
        assert list(shelf.loaded) == ["c"]

    asyncio.run(some())


def test_what_is_put_away_leaves_no_thread(paths):
    async def some():
        shelf = ModelRegistry(paths, BYTES)
        worker = (await shelf.get("a")).worker
        assert await worker.call("me", lambda: 5) == 5
        await shelf.get("b")
        worker.thread.join(5)
        assert not worker.thread.is_alive()
        with pytest.raises(ch.ClearheadError, match="stopping"):
            await worker.call("me", lambda: 5)

    asyncio.run(some())


def test_what_cannot_be_loaded_is_told_and_can_be_tried_again(paths, tmp_path):
    async def some():
        shelf = ModelRegistry({"new": str(tmp_path / "new")}, BYTES)
        with pytest.raises(ch.ClearheadError, match="no such folder"):
            await shelf.get("new")
        ch.save(writer(), tmp_path / "new")
        assert (await shelf.get("new")).name == "new"
        with pytest.raises(ch.ClearheadError, match="did you mean 'new'"):
            await shelf.get("now")
        small = ModelRegistry(paths, BYTES - 1)
        with pytest.raises(ch.ClearheadError, match="--memory"):
            await small.get("a")

    asyncio.run(some())


def test_names_stay_in_the_order_in_which_they_were_given(paths):
    async def some(shelf):
        for name in "cab":
            await shelf.get(name)
        assert shelf.names == list("abc")

    asyncio.run(some(ModelRegistry(paths, 3 * BYTES)))
    asyncio.run(some(ModelRegistry.from_models(dict.fromkeys("abc", writer()))))


def test_a_class_has_all_models_and_loads_none(paths, loads):
    async def some():
        shelf = ModelRegistry(paths, 3 * BYTES)
        await shelf.load_all()
        assert list(shelf.loaded) == list("abc")
        shelf.paths["d"] = paths["a"]
        shelf.names.append("d")
        with pytest.raises(ch.ClearheadError, match="this server loads none"):
            await shelf.get("d")
        assert list(shelf.loaded) == list(loads) == list("abc")
        small = ModelRegistry(paths, 2 * BYTES)
        with pytest.raises(ch.ClearheadError, match="not all models at once"):
            await small.load_all()

    asyncio.run(some())


def test_names_are_the_last_part_of_a_path_or_given(tmp_path):
    (tmp_path / "x=y").mkdir()
    words = [
        "some/where/model",
        "file.gguf",
        "own=some/where/model",
        "owner/name",
        str(tmp_path / "x=y"),
    ]
    assert parse_model_paths(words) == {
        "model": "some/where/model",
        "file": "file.gguf",
        "own": "some/where/model",
        "name": "owner/name",
        "x=y": str(tmp_path / "x=y"),
    }
    with pytest.raises(ch.ClearheadError, match="two models are called 'a'"):
        parse_model_paths(["x/a", "y/a"])
    with pytest.raises(ch.ClearheadError, match="names no model"):
        parse_model_paths(["=x"])


def test_models_of_several_runs_are_called_as_their_runs():
    assert parse_model_paths(["a/model", "b/model/"]) == {"a": "a/model", "b": "b/model/"}
    assert parse_model_paths(["a/best", "b/model"]) == {
        "best": "a/best",
        "model": "b/model",
    }  # which are apart already
    assert parse_model_paths(["model=a/model", "b/model"]) == {"model": "a/model", "b": "b/model"}
    with pytest.raises(ch.ClearheadError, match="two models are called 'run'"):
        parse_model_paths(["a/run/model", "b/run/model"])


def test_a_link_has_a_name_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "long-name-of-a-run").mkdir()
    (tmp_path / "mine").symlink_to("long-name-of-a-run")
    assert parse_model_paths([str(tmp_path / "mine")]) == {"mine": str(tmp_path / "mine")}
    monkeypatch.chdir(tmp_path / "long-name-of-a-run")
    assert parse_model_paths(["."]) == {"long-name-of-a-run": "."}


def test_who_asks_for_no_model_is_told_all_of_a_few():
    with pytest.raises(ch.ClearheadError, match="did you mean 'story'\\? Served are story, chat"):
        ModelRegistry({"story": "x", "chat": "y"}, 0).check_name("storr")


def test_the_memory_is_that_of_the_device_that_was_named(monkeypatch):
    monkeypatch.setattr(Placement, "of", lambda device, dtype: Placement(device or "cuda"))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device=None: (0, {"cuda": 20, "cuda:1": 80}[device])
    )
    assert (default_memory_limit(""), default_memory_limit("cuda:1")) == (10, 40)


def test_a_device_that_is_not_there_is_told_in_a_sentence():
    with pytest.raises(ch.ClearheadError, match="there is no device 'cuda:99' here"):
        default_memory_limit("cuda:99")
