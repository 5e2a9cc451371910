"""Labels, special tokens, pooling and preprocessing survive loading and saving."""

import json

import numpy as np
import pytest
import torch
from huggingface_models import hf_model
from PIL import Image

import clearhead as ch

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def write_json(folder, name, value):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(value))


def edit_json(folder, name, **changes):
    write_json(folder, name, json.loads((folder / name).read_text()) | changes)


def load_and_round_trip(folder, tmp_path):
    """The model of a folder, and the same model after saving and loading."""
    first = ch.load(folder, device="cpu")
    ch.save(first, tmp_path / "again", format="hf")
    return first, ch.load(tmp_path / "again", device="cpu")


def test_label_names_survive(tmp_path):
    hf_model("bert-classification").save_pretrained(tmp_path / "m")
    names = ["sad", "glad", "mad", "bad"]
    edit_json(
        tmp_path / "m",
        "config.json",
        id2label=dict(enumerate(names)),
        label2id={n: i for i, n in enumerate(names)},
    )
    for m in load_and_round_trip(tmp_path / "m", tmp_path):
        assert m.config.inference.labels == tuple(names)


def test_regression_has_no_labels(tmp_path):
    hf_model("bert-regression").save_pretrained(tmp_path / "m")
    for m in load_and_round_trip(tmp_path / "m", tmp_path):
        assert m.config.model.head.kind == "regression"
        assert m.config.inference.labels == ()


def test_generation_config_survives(tmp_path):
    hf_model("whisper").save_pretrained(tmp_path / "m")
    generation_config = {
        "eos_token_id": [7, 9],
        "decoder_start_token_id": 3,
        "forced_decoder_ids": [[1, 4], [2, 8]],
    }
    generation_config |= {
        "suppress_tokens": [11, 12, 99],
        "begin_suppress_tokens": [5],
        "pad_token_id": 7,
    }
    write_json(tmp_path / "m", "generation_config.json", generation_config)
    for m in load_and_round_trip(tmp_path / "m", tmp_path):
        use = m.config.inference
        assert (
            use.eos_tokens,
            use.decoder_start_tokens,
            use.suppress_tokens,
            use.begin_suppress_tokens,
            use.pad_token,
        ) == ((7, 9), (3, 4, 8), (11, 12), (5,), (7,))


def test_open_forced_decoder_id_leaves_the_choice_to_the_model(tmp_path):
    hf_model("whisper").save_pretrained(tmp_path / "m")
    edit_json(tmp_path / "m", "config.json", forced_decoder_ids=[[1, 20], [2, 21], [3, 22]])
    write_json(
        tmp_path / "m",
        "generation_config.json",
        {"decoder_start_token_id": 3, "forced_decoder_ids": [[1, None], [2, 21]]},
    )
    assert ch.load(tmp_path / "m").config.inference.decoder_start_tokens == (3,)


def test_bad_words_of_several_tokens_and_multi_label_are_refused(tmp_path):
    hf_model("marian").save_pretrained(tmp_path / "m")
    generation_config = {"bad_words_ids": [[7], [8]], "renormalize_logits": True}
    write_json(tmp_path / "m", "generation_config.json", generation_config)
    for m in load_and_round_trip(tmp_path / "m", tmp_path):
        assert (m.config.inference.suppress_tokens, m.config.inference.renormalize_logits) == (
            (7, 8),
            True,
        )
    write_json(tmp_path / "m", "generation_config.json", {"bad_words_ids": [[7], [8, 9]]})
    with pytest.raises(ch.ClearheadError, match="bad_words_ids"):
        ch.load(tmp_path / "m")
    hf_model("bert-classification").save_pretrained(tmp_path / "b")
    edit_json(tmp_path / "b", "config.json", problem_type="multi_label_classification")
    with pytest.raises(ch.ClearheadError, match="multi_label_classification"):
        ch.load(tmp_path / "b")


@torch.no_grad()
def test_renormalized_suppression_equals_transformers(tmp_path):
    import transformers

    model = hf_model("marian")
    model.save_pretrained(tmp_path / "m")
    edit_json(
        tmp_path / "m",
        "generation_config.json",
        bad_words_ids=[[i] for i in range(6, 40)],
        renormalize_logits=True,
    )
    m = ch.load(tmp_path / "m", device="cpu")
    torch.manual_seed(0)
    source = torch.randint(6, 53, (3, 9))
    settings = {"num_beams": 3, "max_new_tokens": 8, "bad_words_ids": [[i] for i in range(6, 40)]}
    written = transformers.GenerationMixin.generate(
        model, input_ids=source, **settings, renormalize_logits=True
    )
    for ours, row in zip(
        m.translate(source.tolist(), num_beams=3, max_tokens=8), written, strict=True
    ):
        assert ours.tokens == row[1 : 1 + len(ours.tokens)].tolist()


def test_missing_tokenizer_is_explained(tmp_path):
    hf_model("roformer").save_pretrained(tmp_path / "m")
    write_json(tmp_path / "m", "tokenizer_config.json", {"tokenizer_class": "RoFormerTokenizer"})
    with pytest.raises(ch.ClearheadError, match="jieba"):
        ch.load(tmp_path / "m").logits("hello")


def test_tokenizer_class_of_the_config_is_used(tmp_path):
    hf_model("bert").save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    )
    assert ch.load(tmp_path / "m").tokenizer is not None
    edit_json(tmp_path / "m", "config.json", tokenizer_class="BertJapaneseTokenizer")
    assert ch.load(tmp_path / "m").tokenizer is None


POOLING = [("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "first")]


@pytest.mark.parametrize("normal", [True, False])
@pytest.mark.parametrize(("theirs_", "ours"), POOLING)
def test_sentence_transformers_pooling_survives(theirs_, ours, normal, tmp_path):
    hf_model("bert-bare").save_pretrained(tmp_path / "m")
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normal else [])]
    write_json(
        tmp_path / "m",
        "modules.json",
        [{"idx": i, "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(kinds)],
    )
    write_json(
        tmp_path / "m", "1_Pooling/config.json", {"word_embedding_dimension": 24, theirs_: True}
    )
    for m in load_and_round_trip(tmp_path / "m", tmp_path):
        assert (m.config.inference.pooling, m.config.inference.normalize) == (ours, normal)
        vectors = m.embed([[1, 2, 3], [4, 5]])
        hidden = m.hidden([4, 5])
        want = hidden.mean(0) if ours == "mean" else hidden[0]
        want = want / want.norm() if normal else want
        torch.testing.assert_close(vectors[1], want, atol=1e-5, rtol=1e-5)


def test_inexpressible_inference_options_survive_in_our_own_file(tmp_path):
    use = {
        "inference__pooling": "first",
        "inference__normalize": True,
        "inference__max_length": 3,
        "inference__eos_tokens": [1],
        "inference__forced_eos": True,
    }
    first = ch.new("tiny-llama", seed=1, **use)
    ch.save(first, tmp_path / "m", format="hf")
    for _ in range(2):  # the second time it replaces itself
        again = ch.load(tmp_path / "m", device="cpu")
        assert again.config.inference == first.config.inference
        torch.testing.assert_close(again.embed([[3, 4]]), first.embed([[3, 4]]))
        ch.save(again, tmp_path / "m", format="hf")
    write_json(
        tmp_path / "m", "clearhead_export.json", {"format": "hf", "inference": {"pooling": "last"}}
    )
    with pytest.raises(ch.ClearheadError, match="pooling"):
        ch.load(tmp_path / "m")
    write_json(tmp_path / "m", "clearhead_export.json", {"format": "hf", "inference": 3})
    with pytest.raises(ch.ClearheadError, match="inference = 3, which must be an object"):
        ch.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        (["Transformer", "Pooling", "Dense"], {}, "Transformer, Pooling, Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "pooling 'max_tokens'"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True},
            "asks for",
        ),
        ("nonsense", {}, "must be a list of modules"),
    ],
)
def test_unsupported_pooling_is_refused(modules, pooling, words, tmp_path):
    hf_model("bert-bare").save_pretrained(tmp_path / "m")
    listed = [{"type": f"x.{kind}"} for kind in modules] if isinstance(modules, list) else modules
    write_json(tmp_path / "m", "modules.json", listed)
    write_json(tmp_path / "m", "1_Pooling/config.json", pooling)
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(tmp_path / "m")


def vit_and_image(tmp_path):
    """A ViT with three channels, and an image."""
    import transformers

    options = {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 28,
    }
    config = transformers.ViTConfig(**options, image_size=12, patch_size=3)
    transformers.ViTModel(config).save_pretrained(tmp_path / "m")
    pixels = np.random.default_rng(0).integers(0, 256, (31, 40, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return tmp_path / "m", tmp_path / "a.png"


@pytest.mark.parametrize("resample", [2, 3])
@pytest.mark.parametrize(
    ("mean", "std"), [([0.5] * 3, [0.5] * 3), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)
def test_image_preprocessing_survives(resample, mean, std, tmp_path):
    folder, image = vit_and_image(tmp_path)
    preprocessor_config = {
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
    }
    write_json(
        folder,
        "preprocessor_config.json",
        {**preprocessor_config, "image_mean": mean, "image_std": std, "resample": resample},
    )
    resized = np.asarray(
        Image.open(image).resize((12, 12), resample)
    )  # what transformers does, in its words
    want = torch.tensor(
        (resized / 255 - np.array(mean)) / np.array(std), dtype=torch.float32
    ).permute(2, 0, 1)
    for m in load_and_round_trip(folder, tmp_path):
        read = m.make_batch(None, images=str(image)).inputs[0]
        torch.testing.assert_close(read, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("preprocessor_config", "words"),
    [
        ({"do_center_crop": True}, "do_center_crop = True"),
        ({"do_normalize": False}, "do_normalize = False"),
        ({"resample": 0}, "resample = 0"),
        ({"image_mean": [0.1, 0.2]}, "model.input.mean"),
        ({"image_std": ["a"]}, "one number per channel"),
        ({"image_std": [0.0]}, "model.input.std"),
    ],
)
def test_unsupported_image_preprocessing_is_refused(preprocessor_config, words, tmp_path):
    folder, _ = vit_and_image(tmp_path)
    write_json(folder, "preprocessor_config.json", preprocessor_config)
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(folder)


def test_unsupported_audio_preprocessing_is_refused(tmp_path):
    hf_model("whisper").save_pretrained(tmp_path / "m")
    write_json(
        tmp_path / "m",
        "preprocessor_config.json",
        {"sampling_rate": 16000, "hop_length": 160, "feature_size": 8},
    )
    load_and_round_trip(tmp_path / "m", tmp_path)
    write_json(tmp_path / "m", "preprocessor_config.json", {"sampling_rate": 8000})
    with pytest.raises(ch.ClearheadError, match="sampling_rate = 8000"):
        ch.load(tmp_path / "m")


# ---------------------------------------------------------------- special tokens in chat templates
@pytest.mark.parametrize(
    "template",
    [
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "{%- set bos_token = bos_token or '' -%}{{ bos_token }}!",
        "{% if false %}{% set bos_token = 'x' %}{% endif %}{{ bos_token }}",
        "\n\n  {{ bos_token }}",
        "  {% if true %}{{ bos_token }}{% endif %}\n",
        "{{ pad_token is defined }}{{ bos_token is defined }}",
        "{{ tools is none }}{{ documents is none }}",
    ],
)
def test_chat_templates_know_the_special_tokens_as_in_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    from clearhead.generate.chat_template_process import render_chat_template
    from clearhead.weights.huggingface import inline_special_tokens

    names = {"bos": '<|"b\\n 😀|>', "eos": "</s>"}
    tokenizer = ch.Tokenizer.bytes()
    tokenizer.backend.add_special_tokens(list(names.values()))
    ids = {role: tokenizer.backend.token_to_id(name) for role, name in names.items()}
    inlined = inline_special_tokens(template, tokenizer, ids)
    messages = [{"role": "user", "content": "hi"}]
    [[want], _] = render_jinja_template(
        [messages],
        chat_template=template,
        add_generation_prompt=True,
        **{f"{role}_token": name for role, name in names.items()},
    )
    assert render_chat_template(inlined, messages) == want
    assert inline_special_tokens(inlined, tokenizer, ids) == inlined


@pytest.mark.parametrize(
    "option",
    [
        {"bad_words_ids": 5},
        {"sequence_bias": [[[3], -10.0]]},
        {"stop_strings": ["\n"]},
        {"guidance_scale": 1.5},
        {"return_timestamps": True},
        {"mystery": 3},
    ],
)
def test_generation_options_that_clearhead_lacks_are_refused(option, tmp_path):
    import transformers

    hf_model("llama").save_pretrained(tmp_path)
    neutral = transformers.GenerationConfig(max_new_tokens=3, do_sample=True).to_dict()
    edit_json(tmp_path, "generation_config.json", **neutral)
    ch.load(tmp_path)
    edit_json(tmp_path, "generation_config.json", **option)
    with pytest.raises(ch.ClearheadError, match=next(iter(option))):
        ch.load(tmp_path)


def test_language_and_task_of_whisper_start_the_output(tmp_path):
    hf_model("whisper").save_pretrained(tmp_path)
    ids = {
        "lang_to_id": {"<|en|>": 20, "<|hi|>": 21},
        "task_to_id": {"transcribe": 22, "translate": 23},
        "no_timestamps_token_id": 24,
    }
    start = {"decoder_start_token_id": 3, "forced_decoder_ids": [[1, None], [2, 22]]}
    for language in ("hi", "<|hi|>"):
        options = {**start, **ids, "language": language, "task": "translate"}
        write_json(tmp_path, "generation_config.json", options)
        assert ch.load(tmp_path).config.inference.decoder_start_tokens == (3, 21, 23, 24)
    edit_json(tmp_path, "generation_config.json", language="hindi")
    with pytest.raises(ch.ClearheadError, match="hindi"):
        ch.load(tmp_path)


def test_flags_of_the_tokenizer_class_win_over_tokenizer_json(tmp_path):
    """As in transformers, for BERT's lowercase and GPT-2's space before a text."""
    import tokenizers as tk
    import transformers

    hf_model("bert").save_pretrained(tmp_path / "bert")
    wordpiece = tk.Tokenizer(
        tk.models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "A": 4}, unk_token="[UNK]")
    )
    wordpiece.normalizer = tk.normalizers.BertNormalizer(lowercase=False)
    wordpiece.save(str(tmp_path / "bert" / "tokenizer.json"))
    hf_model("gpt2").save_pretrained(tmp_path / "gpt2")
    byte_level = tk.Tokenizer(tk.models.BPE({"a": 0, "A": 1, "Ġ": 2}, []))
    byte_level.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.save(str(tmp_path / "gpt2" / "tokenizer.json"))
    for name, flag in (("bert", "do_lower_case"), ("gpt2", "add_prefix_space")):
        for value in (True, False):
            folder = tmp_path / name
            tokenizer_class = {"bert": "BertTokenizer", "gpt2": "GPT2TokenizerFast"}[name]
            config = {"tokenizer_class": tokenizer_class, flag: value}
            write_json(folder, "tokenizer_config.json", config)
            theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            ids = ch.load(folder, device="cpu").tokenizer.encode("A")
            assert ids == theirs("A", add_special_tokens=False)["input_ids"]
            assert (ids == [{"bert": 4, "gpt2": 1}[name]]) == (not value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": {"shortest_edge": 12}}, "shortest_edge"),
        ({"size": {"height": 12, "width": 24}}, "'width': 24"),
        ({"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor"),
        ({"do_pad": True}, "do_pad = True"),
        ({"rescale_offset": True}, "rescale_offset"),
    ],
)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_image_options_are_known_or_refused(name, options, words, tmp_path):
    folder, _ = vit_and_image(tmp_path)
    known = {"size": 12, "do_center_crop": False, "crop_size": {"height": 9, "width": 9}}
    for options_, is_known in ((known, True), (options, False)):
        tree = {"image_processor": options_} if name.startswith("processor") else options_
        write_json(folder, name, tree)
        if is_known:
            ch.load(folder)
        else:
            with pytest.raises(ch.ClearheadError, match=words):
                ch.load(folder)


@pytest.mark.parametrize("option", [{"dither": 0.1}, {"padding_value": 1.0}, {"mystery": 1}])
def test_audio_options_are_known_or_refused(option, tmp_path):
    import transformers

    hf_model("whisper").save_pretrained(tmp_path)
    known = transformers.WhisperFeatureExtractor().to_dict()
    sizes = {"feature_size": 8, "nb_max_frames": 20, "n_samples": 3200, "chunk_length": None}
    tree = {"feature_extractor": {**known, **sizes}}
    write_json(tmp_path, "processor_config.json", json.loads(json.dumps(tree, default=list)))
    ch.load(tmp_path)
    write_json(tmp_path, "processor_config.json", {"feature_extractor": option})
    with pytest.raises(ch.ClearheadError, match=next(iter(option))):
        ch.load(tmp_path)


@pytest.mark.parametrize(
    ("case", "options", "words"),
    [
        ("llama", {"forced_eos_token_id": 5}, "forced_eos_token_id"),
        ("llama", {"forced_bos_token_id": 8}, "forced_bos_token_id"),
        ("marian", {"forced_eos_token_id": 9}, "forced_eos_token_id"),
    ],
)
def test_forced_tokens_are_used_or_refused(case, options, words, tmp_path):
    hf_model(case).save_pretrained(tmp_path)
    edit_json(tmp_path, "generation_config.json", **options)
    with pytest.raises(ch.ClearheadError, match=words):
        ch.load(tmp_path)


def test_generation_config_replaces_generation_options_of_config_json(tmp_path):
    hf_model("marian-own-vocab").save_pretrained(tmp_path)
    edit_json(tmp_path, "config.json", forced_eos_token_id=5)
    write_json(tmp_path, "generation_config.json", {"eos_token_id": 5})
    assert not ch.load(tmp_path).config.inference.forced_eos
    (tmp_path / "generation_config.json").unlink()
    assert ch.load(tmp_path).config.inference.forced_eos
