"""Translation, masks, classification and media on the page equal the library."""

import base64
import io

import pytest
import torch
from PIL import Image

import clearhead as ch
from clearhead.serve.explorer.example_inputs import MOVIE_REVIEWS, example_inputs
from page_site import page_client

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>"))
END = 256
MASK = 257
TEXT = "A dog runs."
LISTENS = {
    "architecture__source_input": "audio",
    "architecture__source_input__sample_rate": 8000,
    "architecture__source_input__n_frames": 128,
}


def shaken(model, seed=1):
    """Random weights that are sure of something, so that texts end and differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.net.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def models():
    both = {
        "inference__decoder_start_tokens": [END],
        "inference__eos_tokens": [END],
        "inference__sep_tokens": [END],
        "context_length": 16,
        "architecture__source_context_length": 64,
    }
    return {
        "translator": shaken(
            ch.new("tiny-encoder-decoder", tokenizer=WORDS, vocab_size=258, **both)
        ),
        "encoder": shaken(
            ch.new("tiny-encoder", tokenizer=WORDS, vocab_size=258, inference__mask_token=[MASK])
        ),
        "pictures": shaken(ch.new("tiny-images")),
        "sounds": shaken(ch.new("tiny-audio")),
        "listener": shaken(
            ch.new("tiny-encoder-decoder", tokenizer=WORDS, vocab_size=258, **both, **LISTENS)
        ),
        "decoder": ch.new("tiny-decoder", tokenizer=WORDS, vocab_size=258),
    }


@pytest.fixture(scope="module")
def client(models):
    with page_client(models) as client:
        yield client


def request(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    return answer.json()["error"]["message"]


# ---------------------------------------------------------------- translate
@pytest.mark.parametrize(("num_beams", "length_penalty"), [(1, 1.0), (4, 1.0), (5, 0.0), (3, 2.0)])
def test_the_best_hypothesis_sums_its_tokens_and_has_the_best_score(
    client, models, num_beams, length_penalty
):
    shown = request(
        client,
        "translate",
        model="translator",
        text=TEXT,
        num_beams=num_beams,
        length_penalty=length_penalty,
    )
    nodes = shown["nodes"]
    best = shown["best"][0]
    path = [nodes[number] for number in best["path"]]
    assert [node["id"] for node in path] == best["tokens"]
    assert sum(node["token_logprob"] for node in path) == pytest.approx(best["logprob"], abs=1e-5)
    assert path[-1]["score"] == pytest.approx(best["score"], abs=1e-6)
    assert (
        best["score"] >= max(node["score"] for node in nodes if node["status"] == "finished") - 1e-6
    )
    translation = models["translator"].translate(TEXT, num_beams, length_penalty=length_penalty)
    assert (translation.text, translation.tokens) == (best["text"], best["tokens"])
    assert translation.logprob == pytest.approx(best["logprob"])


def test_parents_in_the_beam_tree_were_kept(client):
    nodes = request(client, "translate", model="translator", text=TEXT, num_beams=3)["nodes"]
    for node in nodes:
        if node["parent"] >= 0:
            parent = nodes[node["parent"]]
            assert parent["status"] == "kept"
            assert parent["step"] == node["step"] - 1
            assert node["logprob"] == pytest.approx(
                parent["logprob"] + node["token_logprob"], abs=1e-6
            )
    assert {node["status"] for node in nodes} >= {"kept", "dropped"}


def test_an_identity_edit_gives_the_greedy_translation(client, models):
    same = [{"name": "blocks.0.cross_attn.z", "op": "scale", "factor": 1.0}]
    edited = request(client, "translate", model="translator", text=TEXT, edits=same)
    greedy = models["translator"].translate(TEXT, 1)
    assert edited["tokens"] == greedy.tokens
    assert edited["text"] == greedy.text
    assert edited["logprob"] == pytest.approx(greedy.logprob, abs=1e-4)


def test_without_cross_attention_all_translations_are_equal(client):
    edits = [{"name": f"blocks.{layer}.cross_attn.out"} for layer in range(2)]
    texts = {
        request(client, "translate", model="translator", text=text, edits=edits)["text"]
        for text in (TEXT, "Two men")
    }
    assert len(texts) == 1


def test_audio_translation_equals_the_library(client, models):
    from clearhead.serve.explorer.requests import decode_audio

    shown = request(client, "translate", model="listener", audio=wav(), num_beams=2)
    samples = decode_audio(wav(), models["listener"].config.model.architecture.source_input)
    translation = models["listener"].translate(None, 2, audio=samples)
    assert shown["best"][0]["tokens"] == translation.tokens
    assert len(shown["source"]) == 64  # two frames a token
    same = [{"name": "blocks.0.cross_attn.z", "op": "scale", "factor": 1.0}]
    greedy = models["listener"].translate(None, 1, audio=samples)
    assert (
        request(client, "translate", model="listener", audio=wav(), edits=same)["tokens"]
        == greedy.tokens
    )


@pytest.mark.parametrize(
    "body", [{"model": "translator", "text": "  "}, {"model": "decoder", "text": TEXT}]
)
def test_invalid_translations_are_refused(client, body):
    assert error(client, "translate", **body).endswith(".")


# ---------------------------------------------------------------- fill
def test_fill_equals_the_library(client, models):
    shown = request(client, "fill", model="encoder", text="The [MASK] sat", top_k=5)
    (gap,) = shown["masks"]
    assert shown["ids"][gap["token"]] == MASK
    assert gap["original"] is None
    predictions = models["encoder"].fill("The [MASK] sat", top_k=5).masks[0]
    assert [(word["id"], word["probability"]) for word in gap["answers"]] == [
        (one.token, pytest.approx(one.probability)) for one in predictions
    ]


def test_masked_tokens_have_probability_and_rank(client, models):
    ids = WORDS.encode("The cat sat")
    shown = request(
        client, "fill", model="encoder", text="The cat sat", mask_positions=[4, 6], top_k=3
    )
    masked = [MASK if place in (4, 6) else token for place, token in enumerate(ids)]
    chances = models["encoder"].logits(masked)[:, : len(WORDS)].softmax(-1)
    assert shown["ids"] == masked
    assert [gap["token"] for gap in shown["masks"]] == [4, 6]
    for gap in shown["masks"]:
        row = chances[gap["token"]]
        was = ids[gap["token"]]
        assert gap["original"]["id"] == was
        assert gap["original"]["probability"] == pytest.approx(float(row[was]))
        assert gap["original"]["rank"] == 1 + row.argsort(descending=True).tolist().index(was)


def test_text_without_masks_has_no_answers(client):
    assert request(client, "fill", model="encoder", text="The cat")["masks"] == []


def test_patching_the_residual_stream_gives_the_other_answers(client, models):
    """Patching the whole stream leaves nothing of the first text."""
    swap = [{"name": "blocks.0.resid_pre", "op": "patch"}]
    one = "The cat sat"
    other = "A bird sang"
    shown = request(
        client,
        "fill",
        model="encoder",
        text=one,
        mask_positions=[4],
        edits=swap,
        patch_from=other,
        top_k=3,
    )
    chances = models["encoder"].logits(other)[4, : len(WORDS)].softmax(-1).topk(3)
    assert [word["id"] for word in shown["masks"][0]["answers"]] == chances.indices.tolist()
    assert "patch_from" in error(
        client, "fill", model="encoder", text=one, mask_positions=[4], edits=swap
    )


def test_masks_are_tokenized_consistently(client):
    for text in ("The [MASK] sat", "The <|mask|> sat"):
        filled = request(client, "fill", model="encoder", text=text)["ids"]
        assert filled.count(MASK) == 1
        for where in ("runs", "tokenize"):
            assert [
                token["id"]
                for token in request(client, where, model="encoder", text=text)["tokens"]
            ] == filled


@pytest.mark.parametrize("edits", [[], [{"name": "blocks.0.ffn.out", "op": "ablate"}]])
def test_the_answer_of_a_run_is_at_the_first_mask(client, edits):
    body = {"model": "encoder", "text": "The [MASK] sat [MASK] a mat", "edits": edits}
    gap, _ = request(client, "fill", **body, top_k=1)["masks"]
    run = request(client, "runs", **body)
    best = run["top"][0]
    assert run["answer_token"] == gap["token"]
    assert (best["id"], best["prob"]) == (
        gap["answers"][0]["id"],
        pytest.approx(gap["answers"][0]["probability"]),
    )
    by_default, there, last = (
        client.get(f"/api/runs/{run['id']}/logits?token={at}").content
        for at in (-1, gap["token"], len(run["tokens"]) - 1)
    )
    assert by_default == there != last
    lens = client.get(f"/api/runs/{run['id']}/lens").json()
    assert lens["start"] + lens["token"] == gap["token"]
    assert lens["layers"][-1][0] == [best["text"], pytest.approx(best["prob"], abs=1e-5)]
    made = client.get(f"/api/runs/{run['id']}/attribution?answer={best['id']}").json()
    assert made["total"] == pytest.approx(best["logit"], rel=1e-4)


@pytest.mark.parametrize(("name", "text"), [("encoder", "The cat sat"), ("decoder", "The cat sat")])
def test_without_masks_the_answer_is_at_the_last_token(client, models, name, text):
    run = request(client, "runs", model=name, text=text)
    assert run["answer_token"] is None
    assert run["top"][0]["id"] == int(models[name].logits(text)[-1].argmax())


def test_masked_language_model_has_examples(models):
    encoder = ch.new(
        "tiny-encoder",
        tokenizer=WORDS,
        vocab_size=258,
        context_length=64,
        inference__mask_token=[MASK],
    )
    assert example_inputs(encoder)["text"] == "The king and the [MASK] had a daughter."
    assert "[MASK]" not in example_inputs(models["decoder"])["text"]


def test_classifier_has_examples():
    inputs = example_inputs(ch.new("finetune-classify", tokenizer=WORDS, vocab_size=258))
    assert (inputs["text"], inputs["comparison"]) == MOVIE_REVIEWS


def test_edits_change_predictions_of_masks(client):
    body = {"model": "encoder", "text": "The [MASK] sat"}
    off = [{"name": f"blocks.{layer}.attn.out"} for layer in range(2)]
    assert request(client, "fill", **body) != request(client, "fill", **body, edits=off)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "encoder", "text": "The", "mask_positions": [9]},
        {"model": "decoder", "text": "The [MASK]"},
    ],
)
def test_invalid_masks_are_refused(client, body):
    assert error(client, "fill", **body).endswith(".")


# ---------------------------------------------------------------- pictures and sounds
def png(size=(20, 12), color=(250, 10, 40), kind="PNG"):
    held = io.BytesIO()
    Image.new("RGB", size, color).save(held, kind)
    return base64.b64encode(held.getvalue()).decode()


def wav(samples=4000, rate=8000):
    soundfile = pytest.importorskip("soundfile")
    held = io.BytesIO()
    soundfile.write(held, torch.sin(torch.arange(samples) * 0.3).numpy(), rate, format="WAV")
    return base64.b64encode(held.getvalue()).decode()


def numbers(view):
    return torch.frombuffer(bytearray(base64.b64decode(view["values"])), dtype=torch.float32).view(
        view["shape"]
    )


def test_image_view_shows_what_the_model_reads(client, models):
    from clearhead.tokenizers.media import read_image

    shown = request(client, "patches", model="pictures", image=png())
    reads = models["pictures"].config.model.input
    image = Image.open(io.BytesIO(base64.b64decode(png())))
    pixels = read_image(image, reads) * torch.tensor(reads.std) + torch.tensor(reads.mean)
    assert torch.allclose(numbers(shown["view"]), pixels, atol=1e-6)
    assert (
        shown["rows"] * shown["cols"] + shown["cls_token"]
        == models["pictures"].config.model.context_length
    )
    assert shown["steps"][0].startswith("20 × 12 pixels")


def test_truncated_audio_is_reported(client, models):
    reads = models["sounds"].config.model.input
    seconds = reads.n_frames * reads.hop_length / reads.sample_rate
    steps = request(client, "patches", model="sounds", audio=wav(int(8000 * (seconds + 3))))[
        "steps"
    ]
    assert steps[0].startswith(f"more than {seconds:.2f} s, mono")


def test_audio_view_shows_the_spectrogram(client, models):
    shown = request(client, "patches", model="sounds", audio=wav())
    reads = models["sounds"].config.model.input
    assert shown["view"]["shape"] == [reads.n_mels, reads.n_frames]
    assert (
        shown["rows"] * shown["cols"] + shown["cls_token"]
        == models["sounds"].config.model.context_length
    )


def test_image_classification_equals_the_library(client, models):
    shown = request(client, "classify", model="pictures", image=png())["labels"]
    result = models["pictures"].classify(images=Image.open(io.BytesIO(base64.b64decode(png()))))
    assert {one["text"]: pytest.approx(one["probability"]) for one in shown} == result.probabilities


def test_only_common_image_formats_are_read(client):
    for kind in ("JPEG", "GIF", "WEBP", "EPS", "PPM", "BMP", "TIFF"):
        body = {"model": "pictures", "image": png(kind=kind)}
        if kind in ("EPS", "PPM", "BMP", "TIFF"):
            assert "the upload is not an image" in error(client, "patches", **body)
        else:
            assert request(client, "patches", **body)["steps"]


def test_uploads_that_take_long_to_decode_are_refused(client):
    def image_error(image):
        return error(client, "patches", model="pictures", image=image)

    assert "per side" in image_error(png(size=(9000, 2)))
    assert "16,000,000 pixels" in image_error(png(size=(4001, 4000)))
    held = io.BytesIO()
    Image.new("L", (16, 16)).save(held, "JPEG", progressive=True)
    start = held.getvalue().rindex(b"\xff\xda")
    scans = 200 * held.getvalue()[start:-2]
    content = held.getvalue()[:start] + scans + held.getvalue()[start:]
    assert "scans" in image_error(base64.b64encode(content).decode())


@pytest.mark.parametrize(
    "body",
    [
        {"model": "pictures", "image": "!!"},
        {"model": "pictures", "image": base64.b64encode(b"no picture").decode()},
        {"model": "pictures", "audio": "UklGRg=="},
        {"model": "sounds", "audio": base64.b64encode(b"no sound").decode()},
        {"model": "pictures"},
        {"model": "decoder", "image": png()},
    ],
)
def test_invalid_uploads_are_refused(client, body):
    assert error(client, "patches", **body).endswith(".")
