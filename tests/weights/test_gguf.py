"""GGUF files: saving and loading, parity with transformers, quantized tensors, corrupt files."""

import contextlib
import dataclasses
import json

import gguf
import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.weights.families.gguf import LLAMA3_OPTIONS
from clearhead.weights.gguf_file import DEQUANTIZE_ROWS, GGUFFile

TEXTS = [
    "the quick brown fox jumps over the lazy dog 1234 times",
    "what a day! it's 5 o'clock",
    "héllo wörld\n\n  two",
]

# transformers ignores GPT-2's context length and Qwen3's head_dim, so these are its defaults
CASES = {
    "llama": ("tiny-llama", {}),
    "llama-untied": (
        "tiny-llama",
        {"head__tie_embeddings": False, "attention__n_kv_heads": 1, "norm__eps": 1e-3},
    ),
    "qwen2": ("tiny-llama", {"attention__bias": ["q", "k", "v"], "position__theta": 5e5}),
    "qwen3": ("tiny-llama", {"attention__qk_norm": True, "attention__d_head": 128}),
    "gpt2": ("tiny-decoder", {"ffn__activation": "gelu-tanh", "context_length": 1024}),
}
OURS_ONLY = {
    "llama-3": (
        "tiny-llama",
        {
            "position__scaling": {
                "kind": "llama3",
                "factor": 4.0,
                "original_context_length": 8,
                "high_freq_factor": 2.0,
            }
        },
    ),
    "linear": ("tiny-llama", {"position__scaling": {"kind": "linear", "factor": 3.0}}),
    "wide": ("tiny-llama", {"attention__d_head": 6}),
    "bare": ("tiny-decoder", {"ffn__activation": "gelu-tanh", "ffn__d_ff": 50}),
}


def make_model(preset, changes, dtype="float32"):
    text = ch.Tokenizer.train_bpe(TEXTS, 300)
    m = ch.new(
        preset, tokenizer=text, dtype=dtype, **({"vocab_size": 320, "d_model": 32} | changes)
    )
    with torch.no_grad():
        for p in m.net.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).to(
                p.dtype
            )
    eos = m.tokenizer.special_tokens["<|end|>"]
    inference = {
        "eos_tokens": [eos],
        "pad_token": [eos],
        "chat_template": "{{ messages[0].content }}",
    }
    return ch.Model(
        m.net, ch.Config.from_dict({**m.config.to_dict(), "inference": inference}), text
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES | OURS_ONLY)
def test_round_trip_is_exact(case, dtype, tmp_path):
    m = make_model(*(CASES | OURS_ONLY)[case], dtype)
    ch.save(m, tmp_path / "out", format="gguf")
    back = ch.load(tmp_path / "out" / "model.gguf", device="cpu", dtype=dtype)
    assert back.config == m.config
    for (name, a), (_, b) in zip(
        m.net.named_parameters(), back.net.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    for text in TEXTS:
        assert back.tokenizer.encode(text) == m.tokenizer.encode(text)
        assert back.tokenizer.decode(back.tokenizer.encode(text)) == text
    assert back.tokenizer.special_tokens == m.tokenizer.special_tokens


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_logits_equal_transformers(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    m = make_model(*CASES[case])
    ch.save(m, tmp_path / "out", format="gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", gguf_file="model.gguf"
    ).eval()
    ids = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(m.logits(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)


def write(path, tensors, values=()):
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values:
        writer.add_string(name, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


QUANTIZED = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
]


@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantization_equals_the_gguf_package(name, tmp_path):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = DEQUANTIZE_ROWS + 3  # more than one chunk
    raw = np.random.default_rng(0).integers(0, 60, (rows, 2 * size), np.uint8)
    write(tmp_path / "a.gguf", {"w": (raw, kind)})
    file = GGUFFile(tmp_path / "a.gguf")
    assert file.shapes["w"] == (rows, 2 * block)
    assert np.array_equal(file.get_tensor("w").numpy(), gguf.dequantize(raw, kind), equal_nan=True)


def test_metadata_equals_the_gguf_package(tmp_path):
    m = make_model(*CASES["llama"])
    ch.save(m, tmp_path / "out", format="gguf")
    path = tmp_path / "out" / "model.gguf"
    theirs = gguf.GGUFReader(path)
    ours = GGUFFile(path).metadata
    assert ours == {
        name: f.contents() for name, f in theirs.fields.items() if not name.startswith("GGUF.")
    }


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("tiny-decoder", {}, r"ffn.activation is 'gelu-tanh', not 'relu'"),
        ("tiny-llama", {"attention__sliding_window": 4}, r"attention.sliding_window is 0, not 4"),
        ("tiny-llama", {"position": "alibi"}, "position is rotary, not alibi"),
        ("tiny-encoder", {}, "architecture is decoder, not encoder"),
        ("tiny-encoder-decoder", {}, "architecture is decoder, not encoder-decoder"),
    ],
)
def test_inexpressible_model_is_refused(preset, changes, message, tmp_path):
    with pytest.raises(ch.ClearheadError, match=message):
        ch.save(ch.new(preset, **changes), tmp_path / "out", format="gguf")
    assert not list(tmp_path.iterdir())


def test_unsupported_tokenizer_is_refused(tmp_path):
    characters = ch.Tokenizer.characters("abc")
    with pytest.raises(ch.ClearheadError, match="WordLevel"):
        ch.save(ch.new("tiny-llama", tokenizer=characters), tmp_path / "out", format="gguf")
    assert not list(tmp_path.iterdir())


def valid_file(tmp_path):
    ch.save(make_model(*CASES["llama"]), tmp_path / "good", format="gguf")
    return (tmp_path / "good" / "model.gguf").read_bytes()


@pytest.mark.slow
def test_corrupt_files_raise_clearhead_errors_only(tmp_path):
    data = valid_file(tmp_path)
    head = len(data) - sum(p.numel() * 4 for p in make_model(*CASES["llama"]).net.parameters())
    draw = np.random.default_rng(0)
    broken = [
        b"",
        b"GGUF",
        b"GGML" + data[4:],
        data[:100],
        data[: head // 2],
        data[:-5],
        data[:4] + b"\x09" + data[5:],
    ]
    for _ in range(150):  # most bytes of the header are lengths
        changed = bytearray(data)
        for place in draw.integers(4, head, 2):
            changed[place] = draw.choice([0, 1, 127, 255])
        broken.append(bytes(changed))
    for number, bad in enumerate(broken):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(bad)
        with contextlib.suppress(ch.ClearheadError):
            ch.load(path, device="cpu")
        path.unlink()


def test_oversized_tensor_is_refused_before_allocation(tmp_path):
    data = valid_file(tmp_path)
    shape = np.array([32, 320], np.uint64).tobytes()
    assert data.count(shape) == 1
    (tmp_path / "huge.gguf").write_bytes(
        data.replace(shape, np.array([32, 2**40], np.uint64).tobytes())
    )
    with pytest.raises(ch.ClearheadError, match=r"ends within token_embd\.weight"):
        ch.load(tmp_path / "huge.gguf", device="cpu")


def test_overlapping_tensors_are_refused(tmp_path):
    data = valid_file(tmp_path)
    name = b"blk.1.ffn_norm.weight"
    offset = data.index(name) + len(name) + 4 + 8 + 4  # after the dimensions, the size and the type
    assert int.from_bytes(data[offset : offset + 8], "little") > 0
    (tmp_path / "overlapping.gguf").write_bytes(data[:offset] + bytes(8) + data[offset + 8 :])
    with pytest.raises(ch.ClearheadError, match="overlaps another tensor"):
        ch.load(tmp_path / "overlapping.gguf", device="cpu")


def test_folder_with_a_single_file_loads(tmp_path):
    m = make_model(*CASES["llama"])
    ch.save(m, tmp_path / "out", format="gguf")
    assert ch.load(tmp_path / "out", device="cpu").config == m.config
    (tmp_path / "out" / "more.gguf").write_bytes(b"")
    with pytest.raises(ch.ClearheadError, match=r"2 \.gguf files"):
        ch.load(tmp_path / "out")


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_pre_tokenizers_survive(name, tmp_path):
    from clearhead.tokenizers.gguf import read_gguf_tokenizer, write_gguf_tokenizer

    trained = json.loads(ch.Tokenizer.train_bpe(TEXTS, 290).backend.to_str())
    tokens = sorted(trained["model"]["vocab"], key=trained["model"]["vocab"].get)
    values = {
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in trained["model"]["merges"]],
        "pre": name,
    }
    read = read_gguf_tokenizer(
        {f"tokenizer.ggml.{key}": value for key, value in {**values, "model": "gpt2"}.items()}
    )
    written = write_gguf_tokenizer(read.tokenizer, len(tokens))
    assert {key: written[key] for key in values} == values


def test_sentencepiece_survives(tmp_path):
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    (tmp_path / "text").write_text("\n".join(TEXTS * 20))
    options = {"vocab_size": 310, "model_type": "bpe", "byte_fallback": True, "minloglevel": 2}
    trainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "m"),
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        **options,
    )
    from clearhead.tokenizers.gguf import read_gguf_tokenizer, write_gguf_tokenizer
    from clearhead.tokenizers.sentencepiece import read_sentencepiece

    first = ch.Tokenizer(read_sentencepiece(tmp_path / "m.model"))
    written = write_gguf_tokenizer(first, 320)
    assert written["model"] == "llama"
    assert len(written["tokens"]) == len(written["scores"]) == 320
    read = read_gguf_tokenizer(
        {f"tokenizer.ggml.{k}": v for k, v in {**written, "bos_token_id": 1}.items()}
    )
    back = read.tokenizer
    assert read.bos_tokens == (1,)
    for text in [*TEXTS, "", " a  b ", "unseen: Ωмега 🙂", "<s>"]:
        assert back.encode(text) == first.encode(text)
        assert back.decode(back.encode(text)) == text


def test_three_eos_tokens_survive_and_other_options_are_refused(tmp_path):
    m = make_model(*CASES["llama"])

    def with_inference(**options):
        return ch.Model(
            m.net,
            m.config.replace(**{f"inference.{name}": value for name, value in options.items()}),
            m.tokenizer,
        )

    ch.save(with_inference(eos_tokens=[7, 8, 9]), tmp_path / "out", format="gguf")
    assert ch.load(tmp_path / "out").config.inference.eos_tokens == (7, 8, 9)
    refused = [
        ({"eos_tokens": [1, 2, 3, 4]}, "at most 3 tokens"),
        ({"suppress_tokens": [3]}, r"inference.suppress_tokens = \[3\]"),
    ]
    for options, message in (
        *refused,
        ({"pooling": "first"}, "inference.pooling"),
        ({"forced_eos": True}, "inference.forced_eos"),
    ):
        with pytest.raises(ch.ClearheadError, match=message):
            ch.save(with_inference(**options), tmp_path / "other", format="gguf")


def test_chat_template_gets_its_special_tokens(tmp_path):
    m = make_model(*CASES["llama"])
    end = m.tokenizer.special_tokens["<|end|>"]
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    config = m.config.replace(
        **{"inference.bos_tokens": [end], "inference.chat_template": template}
    )
    ch.save(ch.Model(m.net, config, m.tokenizer), tmp_path / "out", format="gguf")
    back = ch.load(tmp_path / "out")
    from clearhead.generate.chat_template_process import render_chat_template

    assert (
        render_chat_template(
            back.config.inference.chat_template, [{"role": "user", "content": "hi"}]
        )
        == "<|end|>hi<|end|>"
    )


def test_file_without_pre_tokenizer_is_refused():
    from clearhead.tokenizers.gguf import read_gguf_tokenizer

    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a"],
        "general.architecture": "llama",
    }
    with pytest.raises(ch.ClearheadError, match=r"tokenizer\.ggml\.pre"):
        read_gguf_tokenizer(values)
    assert read_gguf_tokenizer({**values, "general.architecture": "gpt2"}).tokenizer is not None


@pytest.fixture
def load_with(tmp_path, monkeypatch):
    """Save a model and load it as if the file had other metadata; None removes a value."""

    def load(values, preset="tiny-llama", **changes):
        class ChangedFile(GGUFFile):
            def __init__(self, path):
                super().__init__(path)
                self.metadata |= values
                for name in [name for name, value in values.items() if value is None]:
                    del self.metadata[name]

        ch.save(ch.new(preset, **changes), tmp_path / "out", format="gguf")
        monkeypatch.setattr("clearhead.weights.gguf.GGUFFile", ChangedFile)
        return ch.load(tmp_path / "out", device="cpu").config.model

    return load


@pytest.mark.parametrize(
    ("scaling_type", "factor", "expected"),
    [
        (None, 4.0, {"kind": "linear", "factor": 4.0}),
        ("linear", 4.0, {"kind": "linear", "factor": 4.0}),
        ("none", 4.0, {"kind": "none"}),
        ("linear", 0.0, {"kind": "none"}),
        ("linear", None, {"kind": "none"}),
    ],
)
def test_rope_scaling_is_read_as_llama_cpp_reads_it(scaling_type, factor, expected, load_with):
    values = {"llama.rope.scaling.type": scaling_type, "llama.rope.scaling.factor": factor}
    scaling = {"kind": "linear", "factor": 2.0}
    m = load_with(values, position__scaling=scaling)
    assert dataclasses.asdict(m.position.scaling) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("llama.attention.causal", False),
        ("llama.rope.scaling.type", "yarn"),
        ("llama.expert_count", 8),
        ("general.type", "adapter"),
    ],
)
def test_values_that_would_change_results_are_refused(name, value, load_with):
    with pytest.raises(ch.ClearheadError, match=name.removeprefix("llama.")):
        load_with({name: value})


def test_two_kinds_of_rope_scaling_are_refused(load_with):
    changes = {"position__theta": 5e5, "position__scaling": {"kind": "llama3", "factor": 4.0}}
    removed = {f"llama.rope.llama3.{name}": None for name in LLAMA3_OPTIONS}
    factor = {"llama.rope.scaling.factor": 2.0}
    assert load_with(removed, **changes).position.scaling.factor == 4
    for values in (factor, removed | factor):
        with pytest.raises(ch.ClearheadError, match="rope"):
            load_with(values, **changes)
