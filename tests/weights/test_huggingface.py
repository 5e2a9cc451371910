"""Hugging Face folders: nothing is ignored in silence, nothing is run, and every broken file gets a sentence."""

import json
import pickle
import struct

import pytest
import torch
from published_models import CASES, theirs
from safetensors.torch import load_file, save_file

import clearhead as ch
from clearhead.weights.huggingface import FAMILIES
from clearhead.weights.mapping import IGNORED_ATTRIBUTES, Ignore

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def saved(tmp_path):
    """A folder with a tiny Llama in it."""
    theirs("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def edit(folder, name="config.json", **changes):
    path = folder / name
    tree = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in tree.items() if v is not ...}))


def other(value):
    """Some other value of the same kind."""
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
def test_every_attribute_counts_or_is_known_not_to(case, tmp_path):
    """Any other value changes our configuration, is refused, or belongs to an attribute that is listed as ignored."""
    theirs(case).save_pretrained(tmp_path / "m")
    before = ch.load(tmp_path / "m", device="cpu").config
    tree = json.loads((tmp_path / "m" / "config.json").read_text())
    family = next(family for family in FAMILIES if family.name == tree["model_type"])
    harmless = {
        name
        for item in (*family.attributes, IGNORED_ATTRIBUTES)
        if isinstance(item, Ignore)
        for name in item.names
    }
    harmless |= (
        {"max_window_layers", "sliding_window", "use_sliding_window"}
        if "layer_types" in tree
        else set()
    )
    for name, value in tree.items():
        if name in harmless:
            continue
        edit(tmp_path / "m", **{name: other(value)})
        try:
            after = ch.load(tmp_path / "m", device="cpu").config
        except ch.ClearheadError:
            pass
        else:
            assert after != before, f"{name} = {other(value)!r} was ignored"
        edit(tmp_path / "m", **{name: value})


def test_an_attribute_that_is_not_known_is_refused_by_name(saved):
    edit(saved, residual_multiplier=0.22)
    with pytest.raises(
        ch.ClearheadError, match=r"residual_multiplier = 0.22, which clearhead does not know"
    ):
        ch.load(saved)


REFUSED = [
    (
        {"model_type": "gemma3"},
        "model_type 'gemma3' is no family that clearhead knows; it knows gpt2, llama",
    ),
    ({"model_type": ["llama"]}, "cannot be understood"),
    (
        {"architectures": ["LlamaForTokenClassification"]},
        "'LlamaForTokenClassification' is not one",
    ),
    ({"architectures": [[]]}, "cannot be understood"),
    ({"rope_parameters": "yarn"}, "cannot be understood"),
    ({"id2label": [1]}, "cannot be understood"),
    ({"num_hidden_layers": 10**9}, "asks for 1,000,000,000 layers, but there are only 30 tensors"),
    ({"vocab_size": 10**19}, "vocabulary is too large a whole number"),
    ({"auto_map": {"AutoModel": "evil.Model"}}, "asks for code of its own"),
    ({"quantization_config": {"bits": 4}}, "quantised weights"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling = 'yarn'"),
    (
        {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
        "rope_scaling of type llama3 lacks",
    ),
    ({"rope_parameters": {"rope_type": "default", "mystery": 2}}, "rope_scaling.mystery"),
    ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
    ({"hidden_size": "big"}, "must be a whole number"),
    ({"hidden_size": 25}, "does not split|wrong shape|is \\("),
    ({"hidden_size": 10**9}, "does not split|but the model needs|wrong shape"),
    ({"num_hidden_layers": 2}, "holds model.layers.2.*which its configuration does not call for"),
    ({"num_hidden_layers": 4}, "lacks model.layers.3.*which its configuration calls for"),
    ({"num_hidden_layers": -1}, "must be at least 1"),
    ({"vocab_size": ...}, "lacks vocab_size"),
    ({"tie_word_embeddings": "yes"}, "must be true or false"),
    ({"architectures": []}, ""),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(saved, change, words):
    edit(saved, **change)
    if not words:
        ch.load(saved)
        return
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[1]", "must hold a table"),
        ("{", "not valid JSON"),
        ("[" * 100_000, ""),
        ("\xff", ""),
    ],
)
def test_a_broken_config_is_refused(saved, text, words):
    (saved / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved)


def test_pickles_are_refused_with_the_way_out_and_never_opened(saved):
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


def test_a_folder_without_weights_says_so(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ch.ClearheadError, match="holds no weights"):
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


def test_shards_are_one_model(saved):
    whole = ch.load(saved, device="cpu")
    shard(saved)
    parts = ch.load(saved, device="cpu")
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.net.parameters(), parts.net.parameters(), strict=True)
    )


def test_a_missing_shard_is_named(saved):
    shard(saved)
    (saved / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        ch.ClearheadError, match=r"model-00002-of-00002.safetensors, which is not there"
    ):
        ch.load(saved)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "..", 3, None]
)
def test_an_index_never_leads_out_of_its_folder(saved, name):
    save_file(load_file(saved / "model.safetensors"), saved.parent / "outside.safetensors")
    shard(saved)
    edit(saved, "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    with pytest.raises(
        ch.ClearheadError, match=r"no safetensors file beside it|must hold a weight_map"
    ):
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
        with pytest.raises(ch.ClearheadError, match="cannot be read as safetensors"):
            ch.load(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), "lacks model.norm.weight"),
        (lambda t: t.update(extra=torch.ones(3)), "holds extra"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(25)}),
            r"norm.weight is \(25,\), but the model needs",
        ),
        (lambda t: t["model.norm.weight"].fill_(torch.nan), "no finite numbers"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(24, dtype=torch.int64)}),
            "is stored as int64",
        ),
    ],
)
def test_weights_must_be_those_that_are_called_for(saved, change, words):
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(saved)


@pytest.mark.parametrize("case", ["gpt2", "vit"])
def test_joined_weights_of_a_wrong_shape_are_refused(case, tmp_path):
    theirs(case).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if "c_attn.weight" in name or "projection.weight" in name)
    tensors[name] = tensors[name][..., :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=r"wrong shape|is \("):
        ch.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_read_in_any_precision(saved, dtype):
    tensors = {name: t.to(dtype) for name, t in load_file(saved / "model.safetensors").items()}
    save_file(tensors, saved / "model.safetensors")
    loaded = ch.load(saved, device="cpu")
    assert {p.dtype for p in loaded.net.parameters()} == {torch.float32}
    assert torch.equal(loaded.net.final_norm.weight, tensors["model.norm.weight"].float())
    name = str(dtype).removeprefix("torch.")
    assert {p.dtype for p in ch.load(saved, device="cpu", dtype=name).net.parameters()} == {dtype}


def test_older_names_of_norms_are_understood(tmp_path):
    theirs("bert").save_pretrained(tmp_path)
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


def test_what_should_repeat_must_repeat(tmp_path):
    theirs("t5").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    ch.load(tmp_path)
    tensors["encoder.embed_tokens.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ch.ClearheadError, match=r"should repeat shared\.weight"):
        ch.load(tmp_path)


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        (
            "tiny-decoder",
            {"position": "shaw"},
            "the nearest is gpt2, but its position is learned, not shaw",
        ),
        (
            "tiny-encoder-decoder",
            {},
            "the nearest is marian, but its position.layout is 'halves', not 'interleaved'",
        ),
        ("tiny-decoder", {"wiring": "post"}, "its wiring is 'pre', not 'post'"),
        ("tiny-sound", {}, "its input"),
        (
            "tiny-pictures",
            {"head": {"kind": "classification", "pooling": "mean"}},
            "its head.pooling is 'first', not 'mean'",
        ),
    ],
)
def test_what_no_published_family_computes_is_refused_with_the_reason(
    preset, changes, words, tmp_path
):
    with pytest.raises(ch.ClearheadError, match=words):
        ch.save(ch.new(preset, **changes), tmp_path / "out", format="hf")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ch.ClearheadError, match="did you mean 'gguf'"):
        ch.save(ch.new("tiny-decoder"), tmp_path / "out", format="ggfu")
    assert not list(tmp_path.iterdir())


def test_every_family_has_a_case():
    covered = {case.split("-")[0] for case in CASES}
    assert covered == {family.name for family in FAMILIES}
