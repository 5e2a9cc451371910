"""A model saved is a model loaded; a damaged one is refused with a sentence."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.io import Path, os
from clearhead.weights import checkpoint

load = functools.partial(ch.load, device="cpu")  # to compare with what was saved from there


@pytest.fixture
def saved(tmp_path):
    ch.save(
        ch.new("tiny-decoder", seed=5, vocab_size=256, tokenizer=ch.Tokenizer.bytes()),
        tmp_path / "model",
    )
    return tmp_path / "model"


def test_loaded_equals_saved_with_its_tokenizer(saved):
    model = ch.new("tiny-decoder", seed=5, vocab_size=256)
    again = load(saved)
    assert torch.equal(model.logits([7, 8, 9]), again.logits([7, 8, 9]))
    assert again.tokenizer.encode("ab") == [97, 98]
    assert again.config == model.config


def test_a_loaded_model_learns(saved):
    model = load(saved)
    total, _ = model.net.loss(model.net(torch.arange(4)[None]), torch.arange(4)[None])
    total.backward()
    assert all(p.grad is not None for p in model.net.parameters())


def test_shared_matrices_are_stored_once_and_shared_again(tmp_path):
    ch.save(ch.new("tiny-encoder-decoder"), tmp_path / "both")
    assert not {"head.unembed.weight", "encoder.embed.tokens.weight"} & set(
        load_file(tmp_path / "both" / checkpoint.WEIGHTS_FILE)
    )
    net = load(tmp_path / "both").net
    assert net.head.unembed.weight is net.embed.tokens.weight is net.encoder.embed.tokens.weight


def test_saving_again_replaces_and_leaves_nothing_behind(saved):
    ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config == ch.presets["tiny-llama"]
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_model(saved, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(ch.ClearheadError, match="cannot be saved: No space left on device"):
        ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config.model.vocab_size == 256
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ch.ClearheadError, match=r"holds chapter\.txt, which is no part of a model"):
        ch.save(ch.new("tiny-decoder"), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "model.gguf"]
)
def test_a_file_that_is_only_called_like_a_part_is_not_overwritten(name, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / name).write_text("precious")
    for kind in ("clearhead", "hf"):
        with pytest.raises(ch.ClearheadError, match="holds a foreign model, which is not replaced"):
            ch.save(ch.new("tiny-decoder"), tmp_path / "web", format=kind)
    assert (tmp_path / "web" / name).read_text() == "precious"


def test_a_model_is_replaced_by_the_same_format_only(tmp_path):
    m = ch.new("tiny-decoder")
    ch.save(m, tmp_path / "hf", format="hf")
    ch.save(m, tmp_path / "hf", format="hf")
    ch.save(ch.load(tmp_path / "hf"), tmp_path / "hf", format="hf")  # onto what it was read from
    for kind in ("clearhead", "onnx"):
        with pytest.raises(ch.ClearheadError, match="holds a hf model, which is not replaced"):
            ch.save(m, tmp_path / "hf", format=kind)
    ch.save(m, tmp_path / "own")
    with pytest.raises(ch.ClearheadError, match="holds a clearhead model, which is not replaced"):
        ch.save(m, tmp_path / "own", format="hf")
    assert ch.load(tmp_path / "own").config == ch.load(tmp_path / "hf").config == m.config


def test_whoever_may_read_the_folder_may_read_its_files(tmp_path):
    ch.save(ch.new("tiny-decoder"), tmp_path / "m")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "m").iterdir()}
    assert modes == {(tmp_path / "m").stat().st_mode & 0o666}


def test_a_system_that_cannot_exchange_folders_moves_them_one_by_one(saved, monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda path: b"")  # the system refuses to exchange the two
    ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config == ch.presets["tiny-llama"]
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_second_move_that_fails_puts_the_old_model_back(saved, monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda path: b"")
    rename = Path.rename

    def fails_for_the_new(self, target):
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    with pytest.raises(ch.ClearheadError, match="Input/output error"):
        ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config.model.vocab_size == 256
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_file_in_the_way_is_named(saved):
    with pytest.raises(
        ch.ClearheadError, match=r"model\.safetensors is a file; choose another name"
    ):
        ch.save(ch.new("tiny-llama"), saved / "model.safetensors" / "inner")


def test_saving_through_a_link_keeps_the_link(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    ch.save(ch.new("tiny-llama"), link)
    assert link.is_symlink()
    assert load(saved).config == ch.presets["tiny-llama"]


def test_an_unwritable_place_gets_a_sentence():
    with pytest.raises(ch.ClearheadError, match="cannot be saved"):
        ch.save(ch.new("tiny-decoder"), "/proc/no/such")


def damage(saved, change):
    tensors = load_file(saved / checkpoint.WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, saved / checkpoint.WEIGHTS_FILE)


DAMAGE = [
    (lambda t: t.pop("norm.weight"), "lacks norm.weight"),
    (
        lambda t: t.update({"norm.wait": torch.ones(3)}),
        "holds norm.wait, which this model does not have; did you mean 'norm.weight'",
    ),
    (
        lambda t: t.update({"norm.weight": torch.ones(3)}),
        r"norm.weight is \(3,\), but the model needs \(32,\)",
    ),
    (lambda t: t["norm.weight"].fill_(float("nan")), "no finite numbers"),
    (
        lambda t: t["blocks.1.ffn.up.weight"][3, 4].fill_(float("inf")),
        "blocks.1.ffn.up.weight holds values",
    ),
    (lambda t: t.update({"norm.weight": torch.ones(32, dtype=torch.int32)}), "is stored as int32"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGE)
def test_damaged_weights_are_refused(saved, change, words):
    damage(saved, change)
    with pytest.raises(ch.ClearheadError, match=words):
        load(saved)


def test_a_truncated_file_is_refused(saved):
    weights = saved / checkpoint.WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ch.ClearheadError, match="cannot be read as safetensors"):
        load(saved)


def test_a_configuration_with_unknown_keys_is_refused(saved):
    tree = json.loads((saved / checkpoint.CONFIG_FILE).read_text())
    tree["model"]["moe"] = 8
    (saved / checkpoint.CONFIG_FILE).write_text(json.dumps(tree))
    with pytest.raises(ch.ClearheadError, match=r"model\.moe is not an option"):
        load(saved)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda:99"}, "there is no device"),
        ({"device": "gpu"}, "there is no device"),
        ({"device": "meta"}, "'meta' holds no weights"),
        ({"device": torch.device("meta")}, "'meta' holds no weights"),
        ({"dtype": torch.int64}, "dtype 'int64' is unknown"),
        ({"dtype": "float31"}, "did you mean 'float32'"),
    ],
)
def test_a_wrong_device_or_dtype_gets_a_sentence(saved, options, words):
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved, **options)


def test_dtype_is_what_was_asked_for(saved):
    assert next(ch.load(saved, dtype="bfloat16").net.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_every_name_of_the_cpu_means_32_bits(tmp_path, device):
    ch.save(ch.new("tiny-decoder", dtype="bfloat16"), tmp_path / "half")
    assert next(ch.load(tmp_path / "half", device=device).net.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_dtype_of_torch_is_as_good_as_its_name(saved, dtype):
    assert next(ch.load(saved, device="cpu", dtype=dtype).net.parameters()).dtype == dtype
