"""Models are loaded on demand, once; the least recently used is evicted, never one in use."""

import asyncio

import pytest
import torch

import clearhead as ch
from clearhead.serve import registry as registry_module
from clearhead.serve.limits import Limits
from clearhead.serve.registry import ModelRegistry, default_memory_limit, parse_model_paths
from clearhead.weights.tensors import Placement
from serving import tiny_writer

MODEL_BYTES = ModelRegistry.from_models({"a": tiny_writer()}).num_bytes


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in "abc":
        ch.save(tiny_writer(), folder / name)
    return {name: str(folder / name) for name in "abc"}


@pytest.fixture
def loads(monkeypatch):
    """Names of loaded models."""
    names = []
    load = registry_module.load

    def recording_load(path, **options):
        names.append(str(path)[-1])
        return load(path, **options)

    monkeypatch.setattr(registry_module, "load", recording_load)
    return names


def test_concurrent_requests_share_one_load(paths, loads):
    async def get_five_times():
        registry = ModelRegistry(paths, 10 * MODEL_BYTES)
        return await asyncio.gather(*(registry.get("a") for _ in range(5)))

    loaded = asyncio.run(get_five_times())
    assert len({id(loaded_model) for loaded_model in loaded}) == 1
    assert loads == ["a"]


def test_a_cancelled_request_does_not_cancel_the_load(paths, loads):
    async def cancel_the_first():
        registry = ModelRegistry(paths, 10 * MODEL_BYTES)
        first = asyncio.create_task(registry.get("a"))
        second = asyncio.create_task(registry.get("a"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(cancel_the_first()).name == "a"
    assert loads == ["a"]


def test_least_recently_used_is_evicted(paths, loads):
    async def get_all():
        registry = ModelRegistry(paths, 2 * MODEL_BYTES)
        for name in "abacb":
            await registry.get(name)
            assert registry.num_bytes <= 2 * MODEL_BYTES
        return list(registry.loaded)

    assert asyncio.run(get_all()) == ["c", "b"]
    assert loads == ["a", "b", "c", "b"]


def test_kv_cache_counts_before_it_is_allocated(paths):
    async def check():
        loaded_model = await ModelRegistry(paths, 10 * MODEL_BYTES).get("a")
        weight_bytes = 4 * loaded_model.model.num_parameters()
        cache = loaded_model.worker.scheduler.engine.runner.cache
        tensors = [value for layer, _ in cache.layers for value in vars(layer).values()]
        cache_bytes = sum(value.nbytes for value in tensors if isinstance(value, torch.Tensor))
        assert loaded_model.num_bytes == weight_bytes + cache_bytes == MODEL_BYTES
        with pytest.raises(ch.ClearheadError, match="KV cache"):
            await ModelRegistry(paths, MODEL_BYTES - 1).get("a")
        small_batches = ModelRegistry(paths, MODEL_BYTES - 1)
        small_batches.limits = Limits(max_batch_size=1)
        assert weight_bytes < (await small_batches.get("a")).num_bytes < MODEL_BYTES

    asyncio.run(check())
    encoder = ch.new("tiny-encoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes())
    registry = ModelRegistry.from_models({"encoder": encoder})
    assert registry.num_bytes == 4 * encoder.num_parameters()  # no KV cache


def test_a_model_in_use_is_not_evicted(paths):
    async def check():
        registry = ModelRegistry(paths, MODEL_BYTES)
        async with registry.using("a") as loaded_model:
            await registry.get("b")
            assert list(registry.loaded) == ["a", "b"]
            assert loaded_model.is_busy
        await registry.get("c")
        assert list(registry.loaded) == ["c"]

    asyncio.run(check())


def test_eviction_ends_the_worker_thread(paths):
    async def check():
        registry = ModelRegistry(paths, MODEL_BYTES)
        worker = (await registry.get("a")).worker
        assert await worker.call("client", lambda: 5) == 5
        await registry.get("b")
        worker.thread.join(5)
        assert not worker.thread.is_alive()
        with pytest.raises(ch.ClearheadError, match="shutting down"):
            await worker.call("client", lambda: 5)

    asyncio.run(check())


def test_a_failed_load_can_be_retried(paths, tmp_path):
    async def check():
        registry = ModelRegistry({"new": str(tmp_path / "new")}, MODEL_BYTES)
        with pytest.raises(ch.ClearheadError, match="Cannot load model 'new'"):
            await registry.get("new")
        ch.save(tiny_writer(), tmp_path / "new")
        assert (await registry.get("new")).name == "new"
        with pytest.raises(ch.ClearheadError, match="did you mean 'new'"):
            await registry.get("now")
        with pytest.raises(ch.ClearheadError, match="--max-memory"):
            await ModelRegistry(paths, MODEL_BYTES - 1).get("a")

    asyncio.run(check())


def test_names_keep_their_order(paths):
    async def check(registry):
        for name in "cab":
            await registry.get(name)
        assert registry.names == list("abc")

    asyncio.run(check(ModelRegistry(paths, 3 * MODEL_BYTES)))
    asyncio.run(check(ModelRegistry.from_models(dict.fromkeys("abc", tiny_writer()))))


def test_load_all_loads_no_model_later(paths, loads):
    async def check():
        registry = ModelRegistry(paths, 3 * MODEL_BYTES)
        await registry.load_all()
        assert list(registry.loaded) == list("abc")
        registry.paths["d"] = paths["a"]
        registry.names.append("d")
        with pytest.raises(ch.ClearheadError, match="not loaded"):
            await registry.get("d")
        assert list(registry.loaded) == list(loads) == list("abc")
        with pytest.raises(ch.ClearheadError, match="do not fit"):
            await ModelRegistry(paths, 2 * MODEL_BYTES).load_all()

    asyncio.run(check())


def test_fingerprint_changes_with_the_files(tmp_path):
    def fingerprint():
        registry = ModelRegistry({"a": str(tmp_path / "a")}, 1 << 40)
        return asyncio.run(registry.get("a")).fingerprint

    ch.save(tiny_writer(), tmp_path / "a")
    first = fingerprint()
    assert fingerprint() == first
    ch.save(tiny_writer(seed=2), tmp_path / "a")
    assert fingerprint() != first


def test_names_are_given_or_the_last_part_of_a_path(tmp_path):
    (tmp_path / "x=y").mkdir()
    arguments = [
        "some/where/model",
        "file.gguf",
        "own=some/where/model",
        "owner/name",
        str(tmp_path / "x=y"),
    ]
    assert parse_model_paths(arguments) == {
        "model": "some/where/model",
        "file": "file.gguf",
        "own": "some/where/model",
        "name": "owner/name",
        "x=y": str(tmp_path / "x=y"),
    }
    with pytest.raises(ch.ClearheadError, match="named 'a'"):
        parse_model_paths(["x/a", "y/a"])
    with pytest.raises(ch.ClearheadError, match="NAME=MODEL"):
        parse_model_paths(["=x"])


def test_checkpoints_of_several_runs_are_named_after_their_runs():
    assert parse_model_paths(["a/model", "b/model/"]) == {"a": "a/model", "b": "b/model/"}
    assert parse_model_paths(["a/best", "b/model"]) == {"best": "a/best", "model": "b/model"}
    assert parse_model_paths(["model=a/model", "b/model"]) == {"model": "a/model", "b": "b/model"}
    with pytest.raises(ch.ClearheadError, match="named 'run'"):
        parse_model_paths(["a/run/model", "b/run/model"])


def test_a_symlink_has_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "long-name-of-a-run").mkdir()
    (tmp_path / "mine").symlink_to("long-name-of-a-run")
    assert parse_model_paths([str(tmp_path / "mine")]) == {"mine": str(tmp_path / "mine")}
    monkeypatch.chdir(tmp_path / "long-name-of-a-run")
    assert parse_model_paths(["."]) == {"long-name-of-a-run": "."}


def test_an_unknown_name_lists_the_models():
    registry = ModelRegistry({"story": "x", "chat": "y"}, 0)
    with pytest.raises(ch.ClearheadError, match=r"did you mean 'story'.*story, chat"):
        registry.check_name("storr")


def test_memory_limit_is_half_of_the_device(monkeypatch):
    monkeypatch.setattr(Placement, "from_names", lambda device, dtype: Placement(device or "cuda"))
    total = {"cuda": 20, "cuda:1": 80}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, total[device]))
    assert (default_memory_limit(""), default_memory_limit("cuda:1")) == (10, 40)


def test_a_missing_device_is_an_error():
    with pytest.raises(ch.ClearheadError, match="cuda:99"):
        default_memory_limit("cuda:99")
