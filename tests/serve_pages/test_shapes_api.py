"""What the page shows of a translation, a gap or a verdict is what the model itself says."""

import base64
import io

import pytest
import torch
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from PIL import Image

import clearhead as ch
from clearhead.serve.explorer.routes import media, tasks, tensors, words
from clearhead.serve.explorer.routes import words as meanings
from clearhead.serve.explorer.routes.models import MOVIE_REVIEWS, example_inputs
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry

WORDS = ch.Tokenizer.bytes(("<|end|>", "<|mask|>"))
END = 256
MASK = 257
TEXT = "A dog runs."
LISTENS = {
    "architecture__source_input": "sound",
    "shape__input__rate": 8000,
    "shape__input__frames": 128,
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
        "context": 16,
        "architecture__source_context_length": 64,
    }
    return {
        "translator": shaken(
            ch.new("tiny-encoder-decoder", tokenizer=WORDS, vocab_size=258, **both)
        ),
        "encoder": shaken(
            ch.new("tiny-encoder", tokenizer=WORDS, vocab_size=258, inference__mask_token=[MASK])
        ),
        "pictures": shaken(ch.new("tiny-pictures")),
        "sounds": shaken(ch.new("tiny-sound")),
        "listener": shaken(
            ch.new("tiny-encoder-decoder", tokenizer=WORDS, vocab_size=258, **both, **LISTENS)
        ),
        "decoder": ch.new("tiny-decoder", tokenizer=WORDS, vocab_size=258),
    }


@pytest.fixture(scope="module")
def client(models):
    app = FastAPI()
    desk = ExplorerService(ModelRegistry.from_models(models), Limits())
    for module in (tasks, media, meanings, tensors, words):
        app.include_router(module.routes(desk))

    @app.exception_handler(ch.ClearheadError)
    async def mistaken(request, error):
        return JSONResponse({"error": {"message": str(error)}}, 400)

    with TestClient(app) as client:
        yield client


def asked(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    return answer.json()["error"]["message"]


# ---------------------------------------------------------------- translate
@pytest.mark.parametrize(("beam", "length_penalty"), [(1, 1.0), (4, 1.0), (5, 0.0), (3, 2.0)])
def test_the_winner_is_the_sum_of_its_steps_and_no_text_that_ended_beats_it(
    client, models, beam, length_penalty
):
    shown = asked(
        client, "translate", model="translator", text=TEXT, beam=beam, length_penalty=length_penalty
    )
    nodes = shown["nodes"]
    best = shown["best"][0]
    path = [nodes[number] for number in best["path"]]
    assert [node["id"] for node in path] == best["tokens"]
    assert sum(node["own"] for node in path) == pytest.approx(best["logprob"], abs=1e-5)
    assert path[-1]["score"] == pytest.approx(best["score"], abs=1e-6)
    assert (
        best["score"] >= max(node["score"] for node in nodes if node["fate"] == "finished") - 1e-6
    )
    told = models["translator"].translate([TEXT], beam=beam, length_penalty=length_penalty)[0]
    assert (told.text, told.tokens) == (best["text"], best["tokens"])
    assert told.logprob == pytest.approx(best["logprob"])


def test_every_node_follows_a_text_that_was_kept(client):
    nodes = asked(client, "translate", model="translator", text=TEXT, beam=3)["nodes"]
    for node in nodes:
        if node["parent"] >= 0:
            parent = nodes[node["parent"]]
            assert parent["fate"] == "kept"
            assert parent["step"] == node["step"] - 1
            assert node["logprob"] == pytest.approx(parent["logprob"] + node["own"], abs=1e-6)
    assert {node["fate"] for node in nodes} >= {"kept", "dropped"}


def test_an_edit_that_changes_nothing_writes_what_one_beam_writes(client, models):
    same = [{"name": "blocks.0.cross_attn.z", "op": "scale", "by": 1.0}]
    edited = asked(client, "translate", model="translator", text=TEXT, edits=same)
    greedy = models["translator"].translate([TEXT], beam=1)[0]
    assert edited["tokens"] == greedy.tokens
    assert edited["text"] == greedy.text
    assert edited["logprob"] == pytest.approx(greedy.logprob, abs=1e-4)


def test_a_decoder_that_cannot_look_at_its_source_writes_the_same_for_all(client):
    blind = [{"name": f"blocks.{layer}.cross_attn.out"} for layer in range(2)]
    texts = {
        asked(client, "translate", model="translator", text=text, edits=blind)["text"]
        for text in (TEXT, "Two men")
    }
    assert len(texts) == 1


def test_a_sound_is_written_down_as_the_model_writes_it_down(client, models):
    from clearhead.serve.explorer.runs import decode_audio

    shown = asked(client, "translate", model="listener", sound=wav(), beam=2)
    samples = decode_audio(wav(), models["listener"].config.model.architecture.source_input)
    told = models["listener"].translate(None, sound=samples, beam=2)[0]
    assert shown["best"][0]["tokens"] == told.tokens
    assert len(shown["source"]) == 64  # two frames a token
    same = [{"name": "blocks.0.cross_attn.z", "op": "scale", "by": 1.0}]
    greedy = models["listener"].translate(None, sound=samples, beam=1)[0]
    assert (
        asked(client, "translate", model="listener", sound=wav(), edits=same)["tokens"]
        == greedy.tokens
    )


@pytest.mark.parametrize(
    "body", [{"model": "translator", "text": "  "}, {"model": "decoder", "text": TEXT}]
)
def test_what_cannot_be_translated_is_told_in_a_sentence(client, body):
    assert refused(client, "translate", **body).endswith(".")


# ---------------------------------------------------------------- fill
def test_gaps_are_filled_as_the_model_fills_them(client, models):
    shown = asked(client, "fill", model="encoder", text="The [MASK] sat", top=5)
    (gap,) = shown["gaps"]
    assert shown["ids"][gap["at"]] == MASK
    assert gap["was"] is None
    told = models["encoder"].fill("The [MASK] sat", top=5)
    assert [(word["id"], word["probability"]) for word in gap["words"]] == [
        (one.token, pytest.approx(one.probability)) for one in told
    ]


def test_a_hidden_token_is_told_with_its_chance_and_rank(client, models):
    ids = WORDS.encode("The cat sat")
    shown = asked(client, "fill", model="encoder", text="The cat sat", hide=[4, 6], top=3)
    masked = [MASK if place in (4, 6) else token for place, token in enumerate(ids)]
    chances = models["encoder"].logits(masked)[:, : len(WORDS)].softmax(-1)
    assert shown["ids"] == masked
    assert [gap["at"] for gap in shown["gaps"]] == [4, 6]
    for gap in shown["gaps"]:
        row = chances[gap["at"]]
        was = ids[gap["at"]]
        assert gap["was"]["id"] == was
        assert gap["was"]["probability"] == pytest.approx(float(row[was]))
        assert gap["was"]["rank"] == 1 + row.argsort(descending=True).tolist().index(was)


def test_a_text_without_gaps_has_none(client):
    assert asked(client, "fill", model="encoder", text="The cat")["gaps"] == []


def test_what_another_text_had_can_be_swapped_in(client, models):
    """The whole stream of the other text: then its own answers come out."""
    swap = [{"name": "blocks.0.resid_pre", "op": "swap"}]
    one = "The cat sat"
    other = "A bird sang"
    shown = asked(
        client, "fill", model="encoder", text=one, hide=[4], edits=swap, against=other, top=3
    )
    chances = models["encoder"].logits(other)[4, : len(WORDS)].softmax(-1).topk(3)
    assert [word["id"] for word in shown["gaps"][0]["words"]] == chances.indices.tolist()
    assert "against" in refused(client, "fill", model="encoder", text=one, hide=[4], edits=swap)


def test_a_run_and_the_tokens_read_a_gap_as_filling_does(client):
    for text in ("The [MASK] sat", "The <|mask|> sat"):
        filled = asked(client, "fill", model="encoder", text=text)["ids"]
        assert filled.count(MASK) == 1
        for where in ("runs", "tokens"):
            assert [
                token["id"] for token in asked(client, where, model="encoder", text=text)["tokens"]
            ] == filled


@pytest.mark.parametrize("edits", [[], [{"name": "blocks.0.ffn.out", "op": "ablate"}]])
def test_the_answer_of_a_run_with_a_gap_is_that_of_the_first_gap(client, edits):
    body = {"model": "encoder", "text": "The [MASK] sat [MASK] a mat", "edits": edits}
    gap, _ = asked(client, "fill", **body, top=1)["gaps"]
    run = asked(client, "runs", **body)
    best = run["top"][0]
    assert run["gap"] == gap["at"]
    assert (best["id"], best["prob"]) == (
        gap["words"][0]["id"],
        pytest.approx(gap["words"][0]["probability"]),
    )
    by_default, there, last = (
        client.get(f"/api/runs/{run['id']}/logits?at={at}").content
        for at in (-1, gap["at"], len(run["tokens"]) - 1)
    )
    assert by_default == there != last
    lens = client.get(f"/api/runs/{run['id']}/lens").json()
    assert lens["start"] + lens["at"] == gap["at"]
    assert lens["layers"][-1][0] == [best["text"], pytest.approx(best["prob"], abs=1e-5)]
    made = client.get(f"/api/runs/{run['id']}/attribution?token={best['id']}").json()
    assert made["total"] == pytest.approx(best["logit"], rel=1e-4)


@pytest.mark.parametrize(("name", "text"), [("encoder", "The cat sat"), ("decoder", "The cat sat")])
def test_without_a_gap_the_answer_is_that_of_the_last_token(client, models, name, text):
    run = asked(client, "runs", model=name, text=text)
    assert run["gap"] is None
    assert run["top"][0]["id"] == int(models[name].logits(text)[-1].argmax())


def test_a_model_that_fills_gaps_opens_on_a_sentence_with_one(models):
    encoder = ch.new(
        "tiny-encoder",
        tokenizer=WORDS,
        vocab_size=258,
        context_length=64,
        inference__mask_token=[MASK],
    )
    assert example_inputs(encoder)["text"] == "The king and the [MASK] had a daughter."
    assert "[MASK]" not in example_inputs(models["decoder"])["text"]


def test_a_model_that_judges_opens_on_what_can_be_judged():
    told = example_inputs(ch.new("finetune-classify", tokenizer=WORDS, vocab_size=258))
    assert (told["text"], told["beside"]) == MOVIE_REVIEWS


def test_an_edit_changes_what_fills_a_gap(client):
    body = {"model": "encoder", "text": "The [MASK] sat"}
    off = [{"name": f"blocks.{layer}.attn.out"} for layer in range(2)]
    assert asked(client, "fill", **body) != asked(client, "fill", **body, edits=off)


@pytest.mark.parametrize(
    "body",
    [{"model": "encoder", "text": "The", "hide": [9]}, {"model": "decoder", "text": "The [MASK]"}],
)
def test_what_cannot_be_filled_is_told_in_a_sentence(client, body):
    assert refused(client, "fill", **body).endswith(".")


# ---------------------------------------------------------------- pictures and sounds
def png(size=(20, 12), colour=(250, 10, 40), kind="PNG"):
    held = io.BytesIO()
    Image.new("RGB", size, colour).save(held, kind)
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


def test_a_picture_is_shown_as_the_model_sees_it(client, models):
    from clearhead.tokenizers.media import read_image

    shown = asked(client, "patches", model="pictures", picture=png())
    reads = models["pictures"].config.model.input
    image = Image.open(io.BytesIO(base64.b64decode(png())))
    seen = read_image(image, reads) * torch.tensor(reads.deviation) + torch.tensor(reads.mean)
    assert torch.allclose(numbers(shown["view"]), seen, atol=1e-6)
    assert (
        shown["rows"] * shown["columns"] + shown["first"]
        == models["pictures"].config.model.context_length
    )
    assert shown["steps"][0].startswith("20 × 12 pixels")


def test_of_a_sound_that_is_too_long_it_is_not_told_how_long_it_is(client, models):
    reads = models["sounds"].config.model.input
    seconds = reads.frames * reads.hop / reads.rate
    steps = asked(client, "patches", model="sounds", sound=wav(int(8000 * (seconds + 3))))["steps"]
    assert steps[0].startswith(f"more than {seconds:.2f} s, channels mixed")


def test_a_sound_is_shown_as_the_model_hears_it(client, models):
    shown = asked(client, "patches", model="sounds", sound=wav())
    reads = models["sounds"].config.model.input
    assert shown["view"]["shape"] == [reads.mels, reads.frames]
    assert (
        shown["rows"] * shown["columns"] + shown["first"]
        == models["sounds"].config.model.context_length
    )


def test_a_picture_is_judged_as_the_model_judges_it(client, models):
    shown = asked(client, "classify", model="pictures", picture=png())["classes"]
    told = models["pictures"].classify(pictures=Image.open(io.BytesIO(base64.b64decode(png()))))
    assert {one["text"]: pytest.approx(one["probability"]) for one in shown} == told.all


def test_only_the_formats_that_are_promised_are_opened(client):
    for kind in ("JPEG", "GIF", "WEBP", "EPS", "BMP"):
        body = {"model": "pictures", "picture": png(kind=kind)}
        if kind in ("EPS", "BMP"):
            assert "a PNG, JPEG, GIF or WebP is needed" in refused(client, "patches", **body)
        else:
            assert asked(client, "patches", **body)["steps"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "pictures", "picture": "!!"},
        {"model": "pictures", "picture": base64.b64encode(b"no picture").decode()},
        {"model": "pictures", "sound": "UklGRg=="},
        {"model": "sounds", "sound": base64.b64encode(b"no sound").decode()},
        {"model": "pictures"},
        {"model": "decoder", "picture": png()},
    ],
)
def test_what_is_no_picture_or_sound_is_told_in_a_sentence(client, body):
    assert refused(client, "patches", **body).endswith(".")
