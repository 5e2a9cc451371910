"""Model: text, ids, images and audio in, tensors and texts out; an error for every mistake."""

import pytest
import torch

import clearhead as ch
from clearhead.errors import ClearheadError

UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes())


# ---------------------------------------------------------------- inputs
def test_a_list_of_texts_keeps_the_batch_dimension(model):
    assert model.hidden("abc").shape == (3, 32)
    assert model.logits("abc").shape == (3, 256)
    assert model.logits(["abc", "de"]).shape == (2, 3, 256)
    assert model.logits(torch.tensor([1, 2])).shape == (2, 256)
    assert model.logits(torch.tensor([[1, 2]])).shape == (1, 2, 256)


def test_text_and_its_ids_are_the_same(model):
    assert torch.equal(model.logits("abc"), model.logits([97, 98, 99]))
    assert torch.equal(model.logits("abc"), model.logits(torch.tensor([97, 98, 99])))


@pytest.mark.parametrize("dtype", [*UNSIGNED, torch.int16, torch.int32])
def test_ids_may_have_any_integer_dtype(dtype):
    model = ch.new("tiny-decoder")
    ids = [[3, 1, 4], [1, 5, 9]]
    assert torch.equal(model.logits(torch.tensor(ids).to(dtype)), model.logits(ids))


@pytest.mark.parametrize("dtype", UNSIGNED[1:])
def test_unsigned_ids_out_of_range_are_refused(dtype):
    with pytest.raises(ClearheadError, match="60000"):
        ch.new("tiny-decoder").logits(torch.tensor([60000]).to(dtype))


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder"])
def test_batched_equals_single(name):
    model = ch.new(name, vocab_size=256, tokenizer=ch.Tokenizer.bytes())
    batched = model.logits(["a longer text", "short"])
    assert torch.allclose(batched[0], model.logits("a longer text"), atol=1e-5)
    assert torch.allclose(batched[1, :5], model.logits("short"), atol=1e-5)


def test_batched_equals_single_with_sources():
    model = ch.new("tiny-encoder-decoder")
    targets = [[1, 2, 3], [4]]
    sources = [[5, 6], [7, 8, 9, 10]]
    batched = model.logits(targets, source=sources)
    for logits, target, source in zip(batched, targets, sources, strict=True):
        single = model.logits(target, source=source)
        assert torch.allclose(logits[: len(target)], single, atol=1e-5)


def test_images_and_audio_as_tensors():
    assert ch.new("tiny-images").logits(images=torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert ch.new("tiny-audio").logits(audio=torch.randn(2560)).shape == (10,)
    whisper = ch.new("whisper-tiny", n_layers=1, architecture__encoder_layers=1)
    assert whisper.logits([1, 2], audio=torch.randn(16000)).shape == (2, 51865)


def test_images_and_audio_as_files(tmp_path):
    import soundfile
    from PIL import Image

    image = tmp_path / "a.png"
    recording = tmp_path / "a.wav"
    Image.new("L", (20, 10), 200).save(image)
    soundfile.write(recording, torch.randn(4000).clamp(-1, 1).numpy(), 8000)
    assert ch.new("tiny-images").logits(images=image).shape == (10,)
    assert ch.new("tiny-images").logits(images=[str(image)] * 2).shape == (2, 10)
    assert ch.new("tiny-audio").logits(audio=[recording]).shape == (1, 10)


def test_gradients_only_on_request(model):
    assert not model.logits("ab").requires_grad
    assert model.logits("ab", gradients=True).requires_grad


def test_model_without_a_head_has_hidden_states_but_no_logits():
    model = ch.new("tiny-encoder", head="none")
    assert model.hidden([1, 2]).shape == (2, 32)
    with pytest.raises(ClearheadError, match="no head"):
        model.logits([1, 2])


# ---------------------------------------------------------------- new models
def test_same_seed_same_model():
    one, two = (ch.new("tiny-llama", seed=4).logits([1, 2]) for _ in range(2))
    assert torch.equal(one, two)


def test_new_applies_changes():
    model = ch.new("lecture-lm", vocab_size=512, position="sinusoidal")
    assert model.architecture == "decoder"
    assert model.config.model.vocab_size == 512
    assert model.config.model.position.kind == "sinusoidal"
    assert model.num_parameters() == model.config.num_parameters()
    assert model.num_parameters() == sum(p.numel() for p in model.net.parameters())


# ---------------------------------------------------------------- generation
def test_cached_generation_equals_full_passes(model):
    tokens = model.generate("ab", max_tokens=12, temperature=0).tokens
    ids = model.tokenizer.encode("ab")
    for token in tokens:
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)


def test_same_seed_same_text(model):
    one, two, other = (model.generate("ab", 20, seed=seed).tokens for seed in (1, 1, 2))
    assert one == two != other


def test_top_k_of_one_is_greedy(model):
    greedy = model.generate("ab", 8, temperature=0).tokens
    assert model.generate("ab", 8, top_k=1, seed=5).tokens == greedy


def test_tiny_temperature_is_greedy(model):
    greedy = model.generate("ab", 5, temperature=0).tokens
    assert model.generate("ab", 5, temperature=1e-40).tokens == greedy


def test_only_tokens_of_the_tokenizer_are_generated():
    model = ch.new("tiny-decoder", vocab_size=2000, tokenizer=ch.Tokenizer.bytes())
    assert max(model.generate("ab", 20, temperature=5.0).tokens) < 256


def test_suppressed_tokens_are_not_generated():
    suppressed = {
        "inference.suppress_tokens": [i for i in range(64) if i not in (7, 9)],
        "inference.begin_suppress_tokens": [7],
    }
    new = ch.new("tiny-decoder")
    model = ch.Model(new.net, new.config.replace(**suppressed))
    for seed in range(5):
        tokens = model.generate([1, 2, 3], max_tokens=8, seed=seed).tokens
        assert set(tokens) <= {7, 9}
        assert tokens[0] == 9


def test_translate_needs_decoder_start_tokens():
    with pytest.raises(ClearheadError, match="decoder_start_tokens"):
        ch.new("tiny-encoder-decoder").translate([[1, 2]])
    tokens = {"inference__decoder_start_tokens": [3], "inference__eos_tokens": [4]}
    model = ch.new("tiny-encoder-decoder", **tokens)
    (translation,) = model.translate([[1, 2]], num_beams=2, max_tokens=5)
    assert 1 <= len(translation.tokens) <= 5
    assert model.logits(source=[1, 2]).shape == (1, 64)


def tiny_whisper(**changes):
    return ch.new(
        "whisper-tiny",
        d_model=32,
        n_layers=1,
        context_length=8,
        attention__n_heads=4,
        architecture__encoder_layers=1,
        architecture__source_input={"kind": "audio", "n_frames": 20, "n_mels": 8},
        architecture__source_context_length=10,
        inference__decoder_start_tokens=[3],
        **changes,
    )


def test_translate_transcribes_audio():
    model = tiny_whisper(vocab_size=64)
    transcript = model.translate(audio=torch.randn(1600), num_beams=2, max_tokens=3)
    assert len(transcript.tokens) == 3
    assert len(model.translate(audio=torch.randn(2, 1600), num_beams=1, max_tokens=3)) == 2


def test_audio_models_refuse_text_and_text_models_audio():
    whisper = tiny_whisper(vocab_size=257, tokenizer=ch.Tokenizer.bytes())
    with pytest.raises(ClearheadError, match="audio"):
        whisper.translate("A dog.")
    translator = ch.new("tiny-encoder-decoder", inference__decoder_start_tokens=[3])
    with pytest.raises(ClearheadError, match="audio"):
        translator.translate([1, 2], audio="none.wav")


# ---------------------------------------------------------------- mistakes
def images(shape=(1, 8, 8), dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


MISTAKES = [
    (lambda m: m.logits(""), "empty"),
    (lambda m: m.logits([]), "empty"),
    (lambda m: m.logits(["a", ""]), "text 2 is empty"),
    (lambda m: m.logits(torch.zeros(0, dtype=torch.long)), "empty"),
    (lambda m: m.logits(), "text"),
    (lambda m: m.logits("x" * 33), "33 tokens.*32"),
    (lambda m: m.logits([256]), "256.*255"),
    (lambda m: m.logits([-1]), "-1"),
    (lambda m: m.logits([2**70]), "out of range"),
    (lambda m: m.logits(torch.tensor([1.0])), "float32"),
    (lambda m: m.logits(torch.zeros(1, 1, 1, dtype=torch.long)), "3"),
    (lambda m: m.logits(7), "int"),
    (lambda m: m.logits([[1], ["a"]]), "ids"),
    (lambda m: m.logits("a", source="b"), "source"),
    (lambda m: m.logits(images=images()), "images"),
    (lambda m: m.watch("a", [3]), "names.*int"),
    (lambda m: m.watch("a", {"embed": 3}), "functions"),
    (lambda m: m.logits("a", edits=[ch.ablate()]), "edits.*list"),
    (lambda m: m.logits("a", edits={"final_norm": torch.ones(3)}), "function"),
    (lambda m: m.hidden("a", edits={"logits": ch.ablate()}), "logits"),
    (lambda m: m.generate("a", max_tokens=40), "32.*31"),
    (lambda m: m.generate("a", max_tokens=2.5), "max_tokens.*2.5"),
    (lambda m: m.generate("a", max_tokens=10**5000), "max_tokens"),
    (lambda m: m.generate("a", temperature=-1.0), "temperature.*-1"),
    (lambda m: m.generate("a", temperature=float("nan")), "temperature.*nan"),
    (lambda m: m.generate("a", top_k=-1), "top_k.*-1"),
    (lambda m: m.generate("a", top_k=10**5000), "top_k"),
    (lambda m: m.generate("a", n=0), "n .*0"),
    (lambda m: m.generate("a", n=1001), "n .*1001"),
    (lambda m: m.generate("a", seed=2**64), "seed"),
    (lambda m: m.beam_search("a", prefix=[[None]]), "prefix.*None"),
    (lambda m: m.beam_search("a", prefix=[1.5]), "prefix.*1.5"),
    (lambda m: m.beam_search("a", alternatives="x"), "alternatives.*'x'"),
    (lambda m: m.tokenizer.encode(5), "int"),
    (lambda m: m.tokenizer.decode(5), "int"),
    (lambda m: m.tokenizer.decode(["a"]), "255"),
    (lambda m: m.tokenizer.encode_batch(["a", None]), "NoneType"),
    (lambda m: ch.new("tiny-decoder", seed=2**70), "seed"),
    (lambda m: ch.new("tiny-decoder", seed="x"), "seed.*'x'"),
    (lambda m: ch.new("tiny-decoder", seed=None), "seed.*None"),
    (lambda m: ch.new("tiny-decoder", tokenizer="x"), "Tokenizer"),
    (lambda m: ch.new("tiny-decoder", tokenizer=m.tokenizer), "256.*vocab_size.*64"),
    (lambda m: ch.new("tiny-decoder", d_modle=3), "d_model"),
    (lambda m: ch.new("tiny-decoder", bias=2), "attention.bias"),
    (lambda m: ch.new("tiny-decoder", device="tpu0"), "tpu0"),
    (lambda m: ch.new("tiny-decoder", dtype="float31"), "float32"),
    (lambda m: ch.new(ch.presets["tiny-decoder"].model), "ModelConfig"),
    (lambda m: ch.new("gpt2-124"), "gpt2-124m"),
    (lambda m: ch.presets["gpt2"], "gpt2-124m"),
    (lambda m: ch.new("tiny-encoder").generate([1]), "encoder"),
    (lambda m: ch.new("tiny-decoder").logits("abc"), "tokenizer"),
    (lambda m: ch.new("tiny-encoder-decoder").logits([1]), "source"),
    (lambda m: ch.new("tiny-encoder-decoder").logits(source=[1]), "target"),
    (lambda m: ch.new("tiny-encoder-decoder").logits([[1], [2]], source=[1]), "2 .*1 "),
    (lambda m: ch.new("tiny-images").logits(images=images((3, 8, 8))), "1 x 8 x 8.*3 x 8 x 8"),
    (lambda m: ch.new("tiny-images").logits(images=images(dtype=torch.long)), "float"),
    (lambda m: ch.new("tiny-images").logits(images="none.png"), "none.png"),
    (lambda m: ch.new("tiny-images").logits(images=7), "int"),
    (lambda m: ch.new("tiny-audio").logits(audio=images((1, 2, 3))), "3"),
    (lambda m: ch.new("tiny-audio").logits(audio=["none.wav"]), "none.wav"),
    (lambda m: ch.new("tiny-audio").logits(audio=[]), "file"),
    (lambda m: ch.new("tiny-audio").logits(audio=7), "int"),
    (lambda m: ch.load("no/such/folder"), "no/such/folder"),
    (lambda m: ch.load("gpt2-124m"), "preset"),
    (lambda m: ch.save(3, "x"), "model.*int"),
    (lambda m: ch.save(m, 5), "folder.*int"),
    (lambda m: ch.verify("demo/model"), "model.*str"),
    (lambda m: ch.evaluate(m, 5), "file.*int"),
    (lambda m: ch.vectors(5), "int"),
    (lambda m: ch.Config.read(5), "file.*int"),
    (lambda m: ch.lens.word_attention(m, "a", 5), "text.*int"),
    (lambda m: ch.lens.word_attention(m, 5, "a"), "word.*int"),
    (lambda m: ch.lens.steering(m, [("a", "b")], 5), "int"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_mistakes_are_reported(model, mistake, message):
    with pytest.raises(ClearheadError, match=message):
        mistake(model)


@pytest.mark.parametrize("name", ["generate", "stream", "chat", "chat_stream", "chat_session"])
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("tempereture", "did you mean 'temperature'"),
        ("max_new_tokens", "use max_tokens"),
        ("do_sample", "use temperature"),
    ],
)
def test_unknown_options_are_refused(model, name, option, hint):
    with pytest.raises(ClearheadError, match=f"{name} has no option '{option}'; {hint}"):
        getattr(model, name)("a", **{option: 1})


def test_options_that_are_other_functions_are_refused(model):
    with pytest.raises(ClearheadError, match=r"use model\.stream\."):
        model.generate("a", streamer=None)
    with pytest.raises(ClearheadError, match=r"use model\.beam_search\."):
        model.generate("a", num_beams=2)


def test_generations_and_chunks_print_their_text(model):
    generation = model.generate("a", 3, seed=1)
    assert str(generation) == generation.text
    assert "".join(map(str, model.stream("a", 3, seed=1))) == generation.text


def test_unknown_options_of_beam_search_are_refused(model):
    with pytest.raises(ClearheadError, match=r"num_return_sequences'; use n_best\."):
        model.beam_search("a", num_return_sequences=2)
    with pytest.raises(ClearheadError, match="did you mean 'length_penalty'"):
        model.translate("a", lenght_penalty=2)


def test_logit_bias_may_be_none(model):
    chunks = model.stream("a", 3, logit_bias=None)
    assert [c.token_logprob.token for c in chunks] == model.generate("a", 3).tokens
