"""What people hold in their hands: text or ids in, tensors out; a sentence for every mistake."""

import re

import pytest
import torch

import clearhead as ch


@pytest.fixture(scope="module")
def model():
    return ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes())


def test_one_text_drops_the_batch_and_several_keep_it(model):
    assert model.hidden("abc").shape == (3, 32)
    assert model.logits("abc").shape == (3, 256)
    assert model.logits(["abc", "de"]).shape == (2, 3, 256)
    assert model.logits(torch.tensor([1, 2])).shape == (2, 256)
    assert model.logits(torch.tensor([[1, 2]])).shape == (1, 2, 256)


def test_text_and_its_ids_are_the_same(model):
    assert torch.equal(model.logits("abc"), model.logits([97, 98, 99]))
    assert torch.equal(model.logits("abc"), model.logits(torch.tensor([97, 98, 99])))


@pytest.mark.parametrize("name", ["tiny-decoder", "tiny-encoder"])
def test_padded_texts_equal_each_alone(name):
    model = ch.new(name, vocab_size=256, tokenizer=ch.Tokenizer.bytes())
    together = model.logits(["a longer text", "short"])
    assert torch.allclose(together[0], model.logits("a longer text"), atol=1e-5)
    assert torch.allclose(together[1, :5], model.logits("short"), atol=1e-5)


def test_padded_translations_equal_each_alone():
    model = ch.new("tiny-encoder-decoder")
    targets = [[1, 2, 3], [4]]
    sources = [[5, 6], [7, 8, 9, 10]]
    together = model.logits(targets, source=sources)
    for row, (target, source) in enumerate(zip(targets, sources, strict=True)):
        assert torch.allclose(
            together[row, : len(target)], model.logits(target, source=source), atol=1e-5
        )


def test_pictures_and_sound_go_in_like_text():
    assert ch.new("tiny-pictures").logits(images=torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert ch.new("tiny-sound").logits(audio=torch.randn(2560)).shape == (10,)
    assert ch.new("whisper-tiny", n_layers=1, **{"architecture.encoder_layers": 1}).logits(
        [1, 2], audio=torch.randn(16000)
    ).shape == (
        2,
        51865,
    )


def test_files_of_pictures_and_sound_go_in_too(tmp_path):
    import soundfile
    from PIL import Image

    Image.new("L", (20, 10), 200).save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", torch.randn(4000).clamp(-1, 1).numpy(), 8000)
    assert ch.new("tiny-pictures").logits(images=tmp_path / "a.png").shape == (10,)
    assert ch.new("tiny-pictures").logits(images=[str(tmp_path / "a.png")] * 2).shape == (2, 10)
    assert ch.new("tiny-sound").logits(audio=[tmp_path / "a.wav"]).shape == (1, 10)


def test_a_fresh_model_is_the_same_for_the_same_seed():
    assert torch.equal(
        ch.new("tiny-llama", seed=4).logits([1, 2]), ch.new("tiny-llama", seed=4).logits([1, 2])
    )


def test_config_is_what_was_asked_for():
    model = ch.new("lecture-lm", vocab_size=512, position="sinusoidal")
    assert (
        model.architecture,
        model.config.model.vocab_size,
        model.config.model.position.kind,
    ) == (
        "decoder",
        512,
        "sinusoidal",
    )
    assert model.num_parameters() == model.config.num_parameters()


def test_results_carry_gradients_only_when_asked(model):
    assert not model.logits("ab").requires_grad
    assert model.logits("ab", gradients=True).requires_grad


def test_generation_with_a_cache_equals_generation_without(model):
    written = model.generate("ab", max_tokens=12, temperature=0).tokens
    ids = model.tokenizer.encode("ab")
    for token in written:
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)


def test_same_seed_same_text(model):
    one, two, other = (model.generate("ab", 20, seed=seed).tokens for seed in (1, 1, 2))
    assert one == two != other


def test_top_k_of_one_is_greedy(model):
    assert (
        model.generate("ab", 8, top_k=1, seed=5).tokens
        == model.generate("ab", 8, temperature=0).tokens
    )


def test_only_tokens_that_the_tokenizer_knows_are_written():
    roomy = ch.new("tiny-decoder", vocab_size=2000, tokenizer=ch.Tokenizer.bytes())
    assert max(roomy.generate("ab", 20, temperature=5.0).tokens) < 256


def test_no_temperature_overflows(model):
    assert (
        model.generate("ab", 5, temperature=1e-40).tokens
        == model.generate("ab", 5, temperature=0).tokens
    )


MISTAKES = [
    (lambda m: m.logits(""), "the text is empty"),
    (lambda m: m.logits([]), "the text is empty"),
    (lambda m: m.logits(["a", ""]), "text 2 is empty"),
    (lambda m: m.logits(torch.zeros(0, dtype=torch.long)), "the text is empty"),
    (lambda m: m.logits(), "none was given"),
    (lambda m: m.logits("x" * 33), "33 tokens are more than this model's context of 32"),
    (lambda m: m.logits([256]), "token id 256 is out of range; the vocabulary has ids 0 to 255"),
    (lambda m: m.logits([-1]), "token id -1 is out of range"),
    (lambda m: m.logits(torch.tensor([1.0])), "whole numbers, not 1-D torch.float32"),
    (lambda m: m.logits(torch.zeros(1, 1, 1, dtype=torch.long)), "not 3-D"),
    (lambda m: m.logits(7), "not int"),
    (lambda m: m.logits([[1], ["a"]]), "a text or a list of token ids"),
    (lambda m: m.logits("a", source="b"), "reads text, not source"),
    (lambda m: m.logits(pictures=torch.rand(3, 8, 8)), "reads text, not pictures"),
    (lambda m: m.generate("a", max_tokens=40), "exceed the context of 32; ask for at most 31"),
    (lambda m: m.generate("a", temperature=-1.0), "of at least 0"),
    (lambda m: m.generate("a", n=0), "n = 0 must be a whole number from 1 to 1,000"),
    (lambda m: m.generate("a", n=1001), "n = 1001 must be a whole number from 1 to 1,000"),
    (
        lambda m: m.generate("a", seed=2**64),
        "seed = 18446744073709551616 must be a whole number from 0 to",
    ),
    (
        lambda m: ch.new("tiny-decoder", seed=2**70),
        "seed = 1180591620717411303424 must be a whole number",
    ),
    (lambda m: ch.new("tiny-decoder", seed="x"), "seed = 'x' must be a whole number"),
    (lambda m: ch.new("tiny-decoder", seed=None), "seed = None must be a whole number"),
    (lambda m: ch.new("tiny-decoder", tokenizer="x"), "a Tokenizer is needed, not str"),
    (
        lambda m: m.beams("a", prefix=[[None]]),
        "prefix = [[None]] must be a text, ids, or a list of them",
    ),
    (lambda m: m.beams("a", prefix=[1.5]), "prefix = [1.5] must be a text, ids, or a list of them"),
    (lambda m: m.beams("a", alternatives="x"), "alternatives = 'x' must be a whole number"),
    (lambda m: m.tokenizer.encode(5), "a text is needed, not int"),
    (lambda m: m.tokenizer.decode(5), "a list of ids is needed, not int"),
    (lambda m: m.tokenizer.decode(["a"]), "there is no token a; ids run from 0 to 255"),
    (
        lambda m: m.tokenizer.encode_batch(["a", None]),
        "text 2 of 2: a text is needed, not NoneType",
    ),
    (lambda m: ch.evaluate(m, 5), "the name of a file, or a list of them, is needed, not int"),
    (lambda m: ch.vectors(5), "a model is needed, not int"),
    (lambda m: ch.save(m, 5), "the name of a folder or file is needed, not int"),
    (lambda m: ch.Config.read(5), "the name of a file is needed, not int"),
    (lambda m: ch.lens.word_attention(m, "a", 5), "a text is needed, not int"),
    (lambda m: ch.lens.word_attention(m, 5, "a"), "a word is needed, not int"),
    (lambda m: ch.lens.steering(m, [("a", "b")], 5), "the name of a value is needed, not int"),
    (lambda m: m.generate("a", tempereture=1), "did you mean 'temperature'"),
    (lambda m: m.generate("a", top_k=-1), "from 0 to"),
    (lambda m: m.generate("a", temperature=float("nan")), "of at least 0"),
    (lambda m: m.logits([2**70]), "is out of range"),
    (
        lambda m: ch.new(ch.presets["tiny-decoder"].model),
        "a preset's name or a Config is needed, not ModelConfig",
    ),
    (
        lambda m: ch.new("tiny-decoder", tokenizer=m.tokenizer),
        "the tokenizer has 256 tokens, the model only 64",
    ),
    (lambda m: ch.new("tiny-encoder").generate([1]), "does not write text"),
    (lambda m: ch.new("tiny-decoder").logits("abc"), "has no tokenizer"),
    (lambda m: ch.new("tiny-encoder-decoder").logits([1]), "none was given"),
    (
        lambda m: ch.new("tiny-encoder-decoder").logits([[1], [2]], source=[1]),
        "2 targets for 1 sources",
    ),
    (
        lambda m: ch.new("tiny-pictures").logits(images=torch.rand(3, 8, 8)),
        "of 1 x 8 x 8, not 3 x 8 x 8",
    ),
    (
        lambda m: ch.new("tiny-pictures").logits(images=torch.zeros(1, 8, 8, dtype=torch.long)),
        "floating-point",
    ),
    (
        lambda m: ch.new("tiny-sound").logits(audio=torch.rand(1, 2, 3)),
        "1 dimensions, or 2 for a batch, not 3-D",
    ),
    (lambda m: ch.new("tiny-pictures").logits(images="none.png"), "none.png cannot be read"),
    (lambda m: ch.new("tiny-sound").logits(audio=["none.wav"]), "none.wav cannot be read"),
    (lambda m: ch.new("tiny-sound").logits(audio=[]), "at least one file"),
    (lambda m: ch.new("tiny-sound").logits(audio=7), "a tensor of samples or the name of a file"),
    (lambda m: ch.new("tiny-pictures").logits(images=7), "an image or an array is needed, not int"),
    (lambda m: ch.new("gpt2-124"), "did you mean 'gpt2-124m'?"),
    (lambda m: ch.new("tiny-decoder", widht=3), "did you mean 'width'?"),
    (lambda m: ch.new("tiny-decoder", device="tpu0"), "there is no device 'tpu0' here"),
    (lambda m: ch.new("tiny-decoder", dtype="float31"), "did you mean 'float32'?"),
    (lambda m: ch.load("no/such/folder"), "is no clearhead model"),
    (lambda m: ch.load("gpt2-124m"), "is a preset, not a saved model"),
    (lambda m: ch.presets["gpt2"], "did you mean 'gpt2-124m'?"),
    (lambda m: ch.verify("demo/model"), "a model is needed, not str"),
    (lambda m: ch.save(3, "x"), "a model is needed, not int"),
    (lambda m: ch.new("tiny-decoder", bias=2), "did you mean 'model.attention.bias'?"),
    (lambda m: m.generate("a", max_tokens=2.5), "max_tokens = 2.5 must be a whole number"),
    (lambda m: m.watch("a", [3]), "asked for by name"),
    (lambda m: m.logits("a", edits=[ch.ablate()]), "edits are {name: change}"),
    (lambda m: m.logits("a", edits={"norm": torch.ones(3)}), "an edit is a function"),
    (lambda m: ch.new("tiny-encoder-decoder").logits(source=[1]), "also needs the target"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_gets_a_sentence(model, mistake, words):
    with pytest.raises(ch.ClearheadError, match=re.escape(words)):
        mistake(model)


def test_tokens_that_are_never_to_be_written_are_not():
    made = ch.new("tiny-decoder")
    only = {7: True, 9: True}
    use = {
        "inference.suppress_tokens": [i for i in range(64) if i not in only],
        "inference.begin_suppress_tokens": [7],
    }
    model = ch.Model(made.net, made.config.replace(**use))
    for seed in range(5):
        written = model.generate([1, 2, 3], max_tokens=8, seed=seed).tokens
        assert set(written) <= only.keys()
        assert written[0] == 9


def test_a_model_without_a_head_has_hidden_states_and_no_logits():
    bare = ch.new("tiny-encoder", head="none")
    assert bare.hidden([1, 2]).shape == (2, 32)
    with pytest.raises(ch.ClearheadError, match=r"hidden\(…\) gives its hidden states"):
        bare.logits([1, 2])


def test_a_translator_needs_to_know_what_its_output_starts_with():
    bare = ch.new("tiny-encoder-decoder")
    with pytest.raises(ch.ClearheadError, match=r"use\.start"):
        bare.translate([[1, 2]])
    model = ch.new(
        "tiny-encoder-decoder", inference__decoder_start_tokens=[3], inference__eos_tokens=[4]
    )
    (best,) = model.translate([[1, 2]], num_beams=2, max_tokens=5)
    assert 1 <= len(best.tokens) <= 5
    assert model.logits(source=[1, 2]).shape == (1, 64)


@pytest.mark.parametrize("option", ["max_tokens", "top_k"])
def test_a_number_of_thousands_of_digits_gets_a_sentence(option):
    with pytest.raises(ch.ClearheadError, match=f"{option} = … must be a whole number"):
        ch.new("tiny-decoder").generate([1], **{"max_tokens": 2, option: 10**5000})


def test_a_model_that_listens_writes_what_it_heard():
    tiny = {
        "width": 32,
        "layers": 1,
        "architecture.encoder_layers": 1,
        "vocabulary": 64,
        "attention.n_heads": 4,
        "context": 8,
    }
    ear = {"kind": "sound", "frames": 20, "mels": 8}
    model = ch.new(
        "whisper-tiny",
        **tiny,
        **{
            "architecture.source_input": ear,
            "architecture.source_context_length": 10,
            "inference.decoder_start_tokens": [3],
        },
    )
    (best,) = model.translate(audio=torch.randn(1600), num_beams=2, max_tokens=3)
    assert len(best.tokens) == 3
    assert len(model.translate(audio=torch.randn(2, 1600), num_beams=1, max_tokens=3)) == 2
    tiny |= {
        "vocabulary": 257,
        "architecture.source_input": ear,
        "architecture.source_context_length": 10,
        "inference.decoder_start_tokens": [3],
    }
    heard = ch.new("whisper-tiny", tokenizer=ch.Tokenizer.bytes(), **tiny)
    with pytest.raises(ch.ClearheadError, match="this model reads sound"):
        heard.translate("A dog.")
    with pytest.raises(ch.ClearheadError, match="not sound"):
        ch.load("en-de").translate("A dog.", audio="nowhere.wav")
