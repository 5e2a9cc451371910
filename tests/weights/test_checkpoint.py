"""Saving and loading clearhead's own format; damaged files are refused."""

import functools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead import io
from clearhead.weights import checkpoint
from clearhead.weights.tensors import SAFETENSORS_DTYPES, SafetensorsReader

load = functools.partial(ch.load, device="cpu")


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


def test_loaded_model_is_trainable(saved):
    model = load(saved)
    total, _ = model.net.loss(model.net(torch.arange(4)[None]), torch.arange(4)[None])
    total.backward()
    assert all(p.grad is not None for p in model.net.parameters())


def test_tied_matrices_are_stored_once_and_tied_again(tmp_path):
    ch.save(ch.new("tiny-encoder-decoder"), tmp_path / "both")
    assert not {"head.unembed.weight", "encoder.embed.tokens.weight"} & set(
        load_file(tmp_path / "both" / checkpoint.WEIGHTS_FILE)
    )
    net = load(tmp_path / "both").net
    assert net.head.unembed.weight is net.embed.tokens.weight is net.encoder.embed.tokens.weight


def test_saving_again_replaces_the_folder(saved):
    (saved / ".card.json.tmp_01234567").touch()  # of a process that was killed
    ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config == ch.presets["tiny-llama"]
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("format", ["clearhead", "hf", "gguf"])
def test_overwritten_and_truncated_files_do_not_change_a_loaded_model(format, tmp_path):
    tokenizer = ch.Tokenizer.train_bpe(["so long"], 257)
    model = ch.new("tiny-llama", tokenizer=tokenizer, vocab_size=257, seed=5)
    ch.save(model, tmp_path / "model", format)
    again = load(tmp_path / "model")
    [weights] = [path for path in (tmp_path / "model").glob("model.*") if "json" not in path.name]
    with weights.open("r+b") as file:  # as cp does, unlike a rename
        file.write(bytes(weights.stat().st_size))
    assert torch.equal(again.logits([7, 8, 9]), model.logits([7, 8, 9]))
    weights.write_bytes(b"")
    assert torch.equal(again.logits([7, 8, 9]), model.logits([7, 8, 9]))


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES.values(), ids=str)
def test_tensors_of_every_dtype_and_shape_are_read(tmp_path, dtype):
    values = torch.arange(24) % 2 if dtype == torch.bool else torch.arange(24)
    tensors = {
        "matrix": values.to(dtype).reshape(4, 6).clone(),
        "empty": torch.empty(0, 3, dtype=dtype),
        "scalar": values[1].to(dtype).clone(),
    }
    save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    reader = SafetensorsReader([tmp_path / "a.safetensors"])
    for name, tensor in tensors.items():
        read = reader.get_tensor(name)
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))
    with (tmp_path / "a.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 1)
    with pytest.raises(ch.ClearheadError, match="truncated"):
        list(map(reader.get_tensor, tensors))


class Adapter(torch.nn.Module):
    """A module that no configuration describes."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)


def replace_feed_forward(net):
    net.blocks[0].ffn = Adapter(net.blocks[0].ffn)


def replace_norm(net):  # with the same parameters
    net.final_norm = torch.nn.GroupNorm(2, net.config.d_model)


def remove_block(net):
    del net.blocks[-1]


def widen_norm(net):
    net.final_norm = torch.nn.LayerNorm(net.config.d_model + 1)


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        (replace_feed_forward, "blocks.0.ffn is a Adapter instead of a FeedForward"),
        (replace_norm, "final_norm is a GroupNorm"),
        (remove_block, "is missing"),
        (widen_norm, "final_norm.weight has shape"),
        (lambda net: net.add_module("probe", torch.nn.Linear(2, 2)), "probe is a Linear"),
    ],
)
def test_network_that_could_not_be_loaded_is_not_saved(saved, change, keyword):
    model = load(saved)
    change(model.net)
    with pytest.raises(ch.ClearheadError, match=keyword):
        ch.save(model, saved.with_name("other"))
    assert not saved.with_name("other").exists()


def test_failed_save_keeps_the_old_model(saved, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    with pytest.raises(ch.ClearheadError, match="No space left on device"):
        ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config.model.vocab_size == 256
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ch.ClearheadError, match=r"chapter\.txt"):
        ch.save(ch.new("tiny-decoder"), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "model.gguf"]
)
def test_foreign_file_with_a_model_file_name_is_not_replaced(name, tmp_path):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / name).write_text("precious")
    for kind in ("clearhead", "hf"):
        with pytest.raises(ch.ClearheadError, match="foreign"):
            ch.save(ch.new("tiny-decoder"), tmp_path / "web", format=kind)
    assert (tmp_path / "web" / name).read_text() == "precious"


def test_model_is_replaced_by_the_same_format_only(tmp_path):
    m = ch.new("tiny-decoder")
    ch.save(m, tmp_path / "hf", format="hf")
    ch.save(m, tmp_path / "hf", format="hf")
    ch.save(
        ch.load(tmp_path / "hf"), tmp_path / "hf", format="hf"
    )  # onto the folder it was loaded from
    for kind in ("clearhead", "onnx"):
        with pytest.raises(ch.ClearheadError, match="contains a model in hf format"):
            ch.save(m, tmp_path / "hf", format=kind)
    ch.save(m, tmp_path / "own")
    with pytest.raises(ch.ClearheadError, match="contains a model in clearhead format"):
        ch.save(m, tmp_path / "own", format="hf")
    assert ch.load(tmp_path / "own").config == ch.load(tmp_path / "hf").config == m.config


def test_saved_files_have_the_permissions_of_the_folder(tmp_path):
    ch.save(ch.new("tiny-decoder"), tmp_path / "m")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "m").iterdir()}
    assert modes == {(tmp_path / "m").stat().st_mode & 0o666}


def test_folders_are_replaced_without_renameat2(saved, monkeypatch):
    monkeypatch.setattr(io.os, "fsencode", lambda path: b"")  # renameat2 fails
    ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config == ch.presets["tiny-llama"]
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_failed_rename_restores_the_old_model(saved, monkeypatch):
    monkeypatch.setattr(io.os, "fsencode", lambda path: b"")
    rename = Path.rename

    def fail_for_new(self, target):
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(ch.ClearheadError, match="Input/output error"):
        ch.save(ch.new("tiny-llama"), saved)
    assert load(saved).config.model.vocab_size == 256
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_file_in_place_of_a_folder_is_named(saved):
    with pytest.raises(ch.ClearheadError, match=r"model\.safetensors is a file"):
        ch.save(ch.new("tiny-llama"), saved / "model.safetensors" / "inner")


def test_saving_to_a_symlink_keeps_the_symlink(saved, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(saved)
    ch.save(ch.new("tiny-llama"), link)
    assert link.is_symlink()
    assert load(saved).config == ch.presets["tiny-llama"]


def test_unwritable_folder_is_an_error():
    with pytest.raises(ch.ClearheadError, match="cannot save to /proc"):
        ch.save(ch.new("tiny-decoder"), "/proc/no/such")


DAMAGE = [
    (lambda t: t.pop("final_norm.weight"), "missing tensor final_norm.weight"),
    (
        lambda t: t.update({"final_norm.wait": torch.ones(3)}),
        "unexpected tensor final_norm.wait.*did you mean 'final_norm.weight'",
    ),
    (
        lambda t: t.update({"final_norm.weight": torch.ones(3)}),
        r"final_norm.weight has shape \(3,\), but the model expects \(32,\)",
    ),
    (lambda t: t["final_norm.weight"].fill_(float("nan")), "NaN or infinity"),
    (
        lambda t: t["blocks.1.ffn.up.weight"][3, 4].fill_(float("inf")),
        "blocks.1.ffn.up.weight contains NaN or infinity",
    ),
    (
        lambda t: t.update({"final_norm.weight": torch.ones(32, dtype=torch.int32)}),
        "is stored as int32",
    ),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_weights_are_refused(saved, damage, message):
    tensors = load_file(saved / checkpoint.WEIGHTS_FILE)
    damage(tensors)
    save_file(tensors, saved / checkpoint.WEIGHTS_FILE)
    with pytest.raises(ch.ClearheadError, match=message):
        load(saved)


def test_truncated_file_is_refused(saved):
    weights = saved / checkpoint.WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ch.ClearheadError, match=r"cannot read .* as safetensors"):
        load(saved)


def test_unknown_config_key_is_refused(saved):
    tree = json.loads((saved / checkpoint.CONFIG_FILE).read_text())
    tree["model"]["moe"] = 8
    (saved / checkpoint.CONFIG_FILE).write_text(json.dumps(tree))
    with pytest.raises(ch.ClearheadError, match=r"model\.moe"):
        load(saved)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("n_layers", 2**31, "2,147,483,648 layers, but the checkpoint has only"),
        ("vocab_size", 2**31, "the model expects"),
        ("vocab_size", 2**62, "no memory can hold"),
        ("d_model", 2**31, "no memory can hold"),
    ],
)
def test_sizes_are_compared_with_the_weights_before_allocation(saved, option, value, message):
    tree = json.loads((saved / checkpoint.CONFIG_FILE).read_text())
    tree["model"][option] = value
    (saved / checkpoint.CONFIG_FILE).write_text(json.dumps(tree))
    with pytest.raises(ch.ClearheadError, match=message):
        load(saved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "is not available"),
        ({"device": "gpu"}, "is not available"),
        ({"device": "meta"}, "cannot hold weights"),
        ({"device": torch.device("meta")}, "cannot hold weights"),
        ({"dtype": torch.int64}, "unknown dtype 'int64'"),
        ({"dtype": "float31"}, "did you mean 'float32'"),
    ],
)
def test_invalid_device_or_dtype_is_refused(saved, options, message):
    with pytest.raises(ch.ClearheadError, match=message):
        ch.load(saved, **options)


def test_dtype_is_applied(saved):
    assert next(ch.load(saved, dtype="bfloat16").net.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_cpu_loads_as_float32(tmp_path, device):
    ch.save(ch.new("tiny-decoder", dtype="bfloat16"), tmp_path / "half")
    assert next(ch.load(tmp_path / "half", device=device).net.parameters()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_dtype_equals_its_name(saved, dtype):
    assert next(ch.load(saved, device="cpu", dtype=dtype).net.parameters()).dtype == dtype


def test_onnx_file_is_refused_as_an_export(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ch.ClearheadError, match="an export to ONNX"):
        ch.load(tmp_path / "model.onnx")
