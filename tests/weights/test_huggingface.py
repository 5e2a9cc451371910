"""Hugging Face folders: nothing is ignored silently or executed; broken files are refused."""

import json
import pickle
import struct

import pytest
import torch
from huggingface_models import CASES, hf_model
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.weights import huggingface
from clearhead.weights.huggingface import FAMILIES
from clearhead.weights.mapping import IGNORED_ATTRIBUTES, Ignore

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def saved(tmp_path):
    """A folder with a tiny Llama."""
    hf_model("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def edit(folder, name="config.json", **changes):
    path = folder / name
    tree = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in tree.items() if v is not ...}))


def other_value(value):
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 2 + 1
        case str():
            return f"{value}x"
        case list():
            return [*value, "x"]
        case dict():
            return {**value, "x": 1}
        case None:
            return 3


@pytest.mark.parametrize("case", [family.name for family in FAMILIES])
@pytest.mark.slow
def test_every_attribute_is_used_or_listed_as_ignored(case, tmp_path):
    """Another value changes our configuration, is refused, or belongs to an ignored attribute."""
    hf_model(case).save_pretrained(tmp_path / "m")
    before = ch.load(tmp_path / "m", device="cpu").config
    tree = json.loads((tmp_path / "m" / "config.json").read_text())
    family = next(family for family in FAMILIES if family.name == tree["model_type"])
    ignored = {
        name
        for item in (*family.attributes, IGNORED_ATTRIBUTES)
        if isinstance(item, Ignore)
        for name in item.names
    }
    ignored.add("tie_word_embeddings")  # the stored head decides
    ignored |= (
        {"max_window_layers", "sliding_window", "use_sliding_window"}
        if "layer_types" in tree
        else set()
    )
    for name, value in tree.items():
        if name in ignored:
            continue
        edit(tmp_path / "m", **{name: other_value(value)})
        try:
            after = ch.load(tmp_path / "m", device="cpu").config
        except ch.ClearheadError:
            pass
        else:
            assert after != before, f"{name} = {other_value(value)!r} was ignored"
        edit(tmp_path / "m", **{name: value})


def test_unknown_attribute_is_refused_by_name(saved):
    edit(saved, residual_multiplier=0.22)
    with pytest.raises(ch.ClearheadError, match=r"residual_multiplier = 0.22"):
        ch.load(saved)


REFUSED = [
    (
        {"model_type": "gemma3"},
        "model_type 'gemma3' is not supported; supported: gpt2, llama",
    ),
    ({"model_type": ["llama"]}, r"model_type = \['llama'\], which must be a string"),
    (
        {"architectures": ["LlamaForTokenClassification"]},
        "'LlamaForTokenClassification' is not supported",
    ),
    ({"architectures": [[]]}, r"architectures = \[\], which must be a string"),
    ({"rope_parameters": "yarn"}, "rope_parameters = 'yarn', which must be an object"),
    ({"id2label": [1]}, r"id2label = \[1\], which must be an object"),
    ({"num_hidden_layers": 10**9}, "1,000,000,000 layers, but the checkpoint has only 30 tensors"),
    ({"vocab_size": 10**19}, "vocab_size"),
    ({"auto_map": {"AutoModel": "evil.Model"}}, "custom code"),
    ({"quantization_config": {"bits": 4}}, "quantized weights"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling = 'yarn'"),
    (
        {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
        "rope_scaling of type llama3 has no",
    ),
    ({"rope_parameters": {"rope_type": "default", "mystery": 2}}, "rope_scaling.mystery"),
    ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
    ({"hidden_size": "big"}, "model.d_model"),
    ({"hidden_size": 25}, "d_model = 25|shape"),
    ({"hidden_size": 10**9}, "shape"),
    ({"num_hidden_layers": 2}, "unexpected tensor model.layers.2"),
    ({"num_hidden_layers": 4}, "missing tensor model.layers.3"),
    ({"num_hidden_layers": -1}, "n_layers"),
    ({"vocab_size": ...}, "has no vocab_size"),
    ({"tie_word_embeddings": "yes"}, "tie_embeddings"),
    ({"architectures": []}, ""),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_unsupported_config_is_refused(saved, change, message):
    edit(saved, **change)
    if not message:
        ch.load(saved)
        return
    with pytest.raises(ch.ClearheadError, match=message):
        ch.load(saved)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[1]", "must contain"),
        ("{", "not valid JSON"),
        ("[" * 100_000, ""),
        ("\xff", ""),
    ],
)
def test_invalid_json_is_refused(saved, text, words):
    (saved / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved)


def test_pickles_are_never_opened(saved):
    class Evil:
        def __reduce__(self):
            return (open, (str(saved / "opened"), "w"))

    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(
        ch.ClearheadError, match=r"is a pickle.*LlamaForCausalLM.from_pretrained.*save_pretrained"
    ):
        ch.load(saved)
    assert not (saved / "opened").exists()


def test_folder_without_weights_is_refused(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ch.ClearheadError, match="contains no weights"):
        ch.load(saved)


def shard(folder, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {}
    for number, name in enumerate(names):
        part = {key: t for i, (key, t) in enumerate(tensors.items()) if i % len(names) == number}
        save_file(part, folder / name)
        where |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )


def test_shards_equal_a_single_file(saved):
    whole = ch.load(saved, device="cpu")
    shard(saved)
    parts = ch.load(saved, device="cpu")
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.net.parameters(), parts.net.parameters(), strict=True)
    )


def test_missing_shard_is_named(saved):
    shard(saved)
    (saved / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        ch.ClearheadError, match=r"model-00002-of-00002.safetensors, which is missing"
    ):
        ch.load(saved)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "..", 3, None]
)
def test_index_cannot_point_outside_its_folder(saved, name):
    save_file(load_file(saved / "model.safetensors"), saved.parent / "outside.safetensors")
    shard(saved)
    edit(saved, "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    with pytest.raises(ch.ClearheadError, match=r"not a safetensors file|must have a weight_map"):
        ch.load(saved)


def header(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(tree, rest):
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text + rest


def test_broken_safetensors_are_refused(saved):
    path = saved / "model.safetensors"
    data = path.read_bytes()
    tree, rest = header(data)
    huge = json.loads(json.dumps(tree))
    huge["model.norm.weight"]["shape"] = [2**50]
    past = json.loads(json.dumps(tree))
    past["model.norm.weight"]["data_offsets"] = [0, 2**50]
    broken = [b"", data[:4], data[:1000], data[:-1], b"\xff" * 8 + data[8:], b"PK\x03\x04" + data]
    broken += [with_header(huge, rest), with_header(past, rest)]
    for bad in broken:
        path.write_bytes(bad)
        with pytest.raises(ch.ClearheadError, match=r"cannot read .* as safetensors"):
            ch.load(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing tensor model.norm.weight"),
        (lambda t: t.update(extra=torch.ones(3)), "unexpected tensor extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(25)}),
            r"norm.weight has shape \(25,\)",
        ),
        (lambda t: t["model.norm.weight"].fill_(torch.nan), "NaN or infinity"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(24, dtype=torch.int64)}),
            "is stored as int64",
        ),
    ],
)
def test_wrong_tensors_are_refused(saved, change, words):
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved)


@pytest.mark.parametrize("case", ["gpt2", "vit"])
def test_fused_weights_of_a_wrong_shape_are_refused(case, tmp_path):
    hf_model(case).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if "c_attn.weight" in name or "projection.weight" in name)
    tensors[name] = tensors[name][..., :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match="shape"):
        ch.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_load_from_any_dtype(saved, dtype):
    tensors = {name: t.to(dtype) for name, t in load_file(saved / "model.safetensors").items()}
    save_file(tensors, saved / "model.safetensors")
    loaded = ch.load(saved, device="cpu")
    assert {p.dtype for p in loaded.net.parameters()} == {torch.float32}
    assert torch.equal(loaded.net.final_norm.weight, tensors["model.norm.weight"].float())
    name = str(dtype).removeprefix("torch.")
    assert {p.dtype for p in ch.load(saved, device="cpu", dtype=name).net.parameters()} == {dtype}


def test_legacy_norm_names_are_loaded(tmp_path):
    hf_model("bert").save_pretrained(tmp_path)
    before = ch.load(tmp_path, device="cpu")
    tensors = load_file(tmp_path / "model.safetensors")
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in older.items():
        tensors = {name.replace(new, old): t for name, t in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    after = ch.load(tmp_path, device="cpu")
    assert all(
        torch.equal(a, b)
        for a, b in zip(before.net.parameters(), after.net.parameters(), strict=True)
    )


def test_duplicate_tensors_must_be_equal(tmp_path):
    hf_model("t5").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    ch.load(tmp_path)
    tensors["encoder.embed_tokens.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=r"must equal shared\.weight"):
        ch.load(tmp_path)


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        (
            "tiny-decoder",
            {"position": "shaw"},
            "nearest family is gpt2, but its position is learned, not shaw",
        ),
        (
            "tiny-encoder-decoder",
            {},
            "nearest family is marian, but its position.layout is 'halves', not 'interleaved'",
        ),
        ("tiny-decoder", {"norm_position": "post"}, "its norm_position is 'pre', not 'post'"),
        ("tiny-audio", {}, "its input"),
        (
            "tiny-images",
            {"head": {"kind": "classification", "pooling": "mean"}},
            "its head.pooling is 'first', not 'mean'",
        ),
    ],
)
def test_model_outside_all_families_is_refused(preset, changes, words, tmp_path):
    with pytest.raises(ch.ClearheadError, match=words):
        ch.save(ch.new(preset, **changes), tmp_path / "out", format="hf")
    assert not list(tmp_path.iterdir())


def test_unknown_format_is_refused(tmp_path):
    with pytest.raises(ch.ClearheadError, match="did you mean 'gguf'"):
        ch.save(ch.new("tiny-decoder"), tmp_path / "out", format="ggfu")
    assert not list(tmp_path.iterdir())


def test_every_family_has_a_case():
    covered = {case.split("-")[0] for case in CASES}
    assert covered == {family.name for family in FAMILIES}


@pytest.mark.parametrize("case", ["mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "attribute",
    [
        {"attention_bias": False},
        {"mlp_bias": False},
        {"head_dim": None},
        {"final_logit_softcapping": None},
    ],
)
def test_neutral_attributes_of_other_families_are_accepted(case, attribute, tmp_path):
    hf_model(case).save_pretrained(tmp_path)
    before = ch.load(tmp_path, device="cpu").config
    tree = json.loads((tmp_path / "config.json").read_text())
    if not tree.keys() & attribute.keys():
        edit(tmp_path, **attribute)
        assert ch.load(tmp_path, device="cpu").config == before


def test_implied_head_dim_is_accepted_in_qwen2(tmp_path):
    hf_model("qwen2").save_pretrained(tmp_path)
    m = ch.load(tmp_path, device="cpu").config.model
    edit(tmp_path, head_dim=m.d_head)
    assert ch.load(tmp_path, device="cpu").config.model == m
    edit(tmp_path, head_dim=m.d_head + 2)
    with pytest.raises(ch.ClearheadError, match="head_dim"):
        ch.load(tmp_path)


def test_llama_gate_and_up_have_the_same_names(saved):
    """`ffn.gate` is the branch under the activation, as in Llama."""
    tensors = load_file(saved / "model.safetensors")
    ffn = ch.load(saved, device="cpu").net.blocks[0].ffn
    assert torch.equal(ffn.gate.weight, tensors["model.layers.0.mlp.gate_proj.weight"])
    assert torch.equal(ffn.up.weight, tensors["model.layers.0.mlp.up_proj.weight"])


def test_errors_outside_the_files_pass_through(saved, monkeypatch):
    """Running out of memory is not reported as a broken file."""

    def out_of_memory(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(huggingface, "load_weights", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        ch.load(saved)


def test_refusals_do_not_suggest_unrelated_names(saved):
    edit(saved, rope_parameters={"rope_type": "default", "mystery": 2})
    with pytest.raises(ch.ClearheadError, match=r"mystery = 2, which is not supported\.$"):
        ch.load(saved)
    hf_model("llama").save_pretrained(saved)
    tensors = load_file(saved / "model.safetensors")
    tensors["lm_head.bias"] = torch.ones(53)
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=r"unexpected tensor lm_head\.bias") as refused:
        ch.load(saved)
    assert "lm_head.weight" not in str(refused.value)


def test_attributes_that_transformers_ignores_are_accepted(saved):
    config = ch.load(saved, device="cpu").config
    edit(saved, eos_token_ids=[5])
    assert ch.load(saved, device="cpu").config == config


def test_adapters_are_refused(saved):
    """transformers would apply them to another model."""
    (saved / "adapter_config.json").write_text("{}")
    with pytest.raises(ch.ClearheadError, match="adapter"):
        ch.load(saved)
