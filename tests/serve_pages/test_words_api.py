"""Words, places and meanings as the page asks for them: what the library says, and mistakes in a sentence."""

import base64
import math

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

import clearhead as ch
from clearhead.serve.explorer.routes import positions, tensors, words
from clearhead.serve.explorer.routes import words as meanings
from clearhead.serve.explorer.service import ExplorerService
from clearhead.serve.middleware import Limits
from clearhead.serve.registry import ModelRegistry

MOLES = ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"]
TEXTS = [*MOLES, "the king and the queen saw a man and a woman eat an apple"]
TOKENIZER = ch.Tokenizer.train_bpe(TEXTS * 3, 380)


def fresh(preset, **changes):
    return ch.new(preset, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER, seed=2, **changes)


MODELS = {
    "decoder": fresh("tiny-decoder", position="learned"),
    "rotary": fresh("tiny-llama"),
    "relative": fresh("tiny-decoder", position="t5"),
    "waves": fresh("tiny-decoder", position="sinusoidal"),
    "encoder": fresh("tiny-encoder"),
    "long": fresh("tiny-decoder", context_length=256),
    "both": fresh("tiny-encoder-decoder"),
    "nowhere": fresh("tiny-decoder", position="none"),
    "number": fresh("tiny-encoder", head="regression"),
    "letters": ch.new(
        "tiny-decoder",
        vocab_size=5,
        tokenizer=ch.Tokenizer.characters("abc ", special_tokens=("<|end|>",)),
    ),
}


def broken():
    made = fresh("tiny-decoder")
    made.net.embed.tokens.weight.data[7:] = float("nan")
    return made


@pytest.fixture(scope="module")
def client():
    app = FastAPI()
    desk = ExplorerService(ModelRegistry.from_models({**MODELS, "broken": broken()}), Limits())
    for module in (tensors, words, positions, meanings):
        app.include_router(module.routes(desk))

    @app.exception_handler(ch.ClearheadError)
    async def mistaken(request, error):
        return JSONResponse({"error": {"message": str(error)}}, 400)

    with TestClient(app) as client:
        yield client


def asked(client, url, **body):
    answer = client.post(url, json=body) if body else client.get(url)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client, url, **body):
    answer = client.post(url, json=body) if body else client.get(url)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


def numbers(view):
    return np.frombuffer(base64.b64decode(view["values"]), "<f4").reshape(view["shape"])


def test_a_text_is_cut_as_the_tokenizer_cuts_it_and_every_piece_can_be_put_together_again(client):
    text = "the mole 🦔 naïve"
    told = asked(client, "/api/tokens", model="decoder", text=text)
    ids = [token["id"] for token in told["tokens"] if not token["added"]]
    assert ids == TOKENIZER.encode(text)
    assert bytes(byte for i in ids for byte in told["made"][str(i)]["bytes"]).decode() == text
    assert told["back"] is None
    for i in ids:
        steps = told["made"][str(i)]["steps"]
        if steps:
            assert all("".join(step) == "".join(steps[-1]) for step in steps)
            assert [len(step) for step in steps] == list(range(len(steps), 0, -1))


def test_what_stands_around_a_text_is_marked(client):
    made = fresh("tiny-decoder", inference__bos_tokens=[3], inference__sep_tokens=[4])
    tokens = words.tokenize(made, "the mole")["tokens"]
    assert [token["id"] for token in tokens if token["added"]] == [3, 4]
    assert (tokens[0]["added"], tokens[-1]["added"]) == (True, True)


def test_a_letter_that_has_no_token_is_a_sentence(client):
    assert "no token" in refused(client, "/api/tokens", model="letters", text="abz")
    assert asked(client, "/api/tokens", model="letters", text="")["tokens"] == []


def test_rows_are_the_rows_of_the_matrix_and_its_picture_holds_its_largest_values(client):
    table = MODELS["decoder"].net.embed.tokens.weight.detach()
    view = asked(client, "/api/models/decoder/rows?ids=5,3,5")
    np.testing.assert_array_equal(numbers(view), table[[5, 3, 5]].numpy())
    assert "there is no row" in refused(client, f"/api/models/decoder/rows?ids=1,{len(TOKENIZER)}")
    small = asked(client, "/api/models/decoder/matrix")
    assert math.prod(small["shape"]) < table.numel()
    assert abs(numbers(small)).max() == pytest.approx(float(table.abs().max()))
    assert "whole numbers" in refused(client, "/api/models/decoder/rows?ids=a")


def test_the_rows_of_the_unembedding_times_the_last_state_are_the_logits(client):
    run = asked(client, "/api/runs", model="decoder", text=MOLES[0])
    best = run["top"][0]
    row = numbers(asked(client, f"/api/models/decoder/rows?ids={best['id']}&out=true"))[0]
    state = MODELS["decoder"].watch(MOLES[0], "norm")["norm"][0, -1].numpy()
    assert float(row @ state) == pytest.approx(best["logit"], abs=1e-4)


@pytest.mark.parametrize(
    "name", ["decoder", "rotary", "relative", "waves", "nowhere", "encoder", "both"]
)
def test_only_the_models_own_scheme_is_called_its_own(client, name):
    told = asked(client, "/api/positions", model=name, count=16)
    own = {
        "learned": {"own", "similarity"},
        "sinusoidal": {"own", "similarity"},
        "relative": {"bias"},
        "none": set(),
    }
    assert set(told["own"]) == own.get(told["kind"], {"own", "similarity", "angles"})
    assert told["kind"] == MODELS[name].config.model.position.kind
    assert ("waves" in told["compared"]) == (told["kind"] != "sinusoidal")
    assert told["turns"] == (told["kind"] == "rotary")
    bits = numbers(told["compared"]["binary"])
    assert [int(row @ (1 << np.arange(len(row)))) for row in bits] == list(range(16))


def test_pairs_turn_at_the_paces_told(client):
    told = asked(client, "/api/positions", model="rotary", count=8)
    model = MODELS["rotary"]
    seen = model.watch(MOLES[2], ["blocks.1.attn.q", "blocks.1.attn.rot_q"])
    q, turned = (seen[name][0, 0, 5] for name in seen)
    rates = torch.tensor(told["rates"])
    half, (cos, sin) = len(rates), ((5 * rates).cos(), (5 * rates).sin())
    a = q[:half]
    b = q[half : 2 * half]
    torch.testing.assert_close(
        torch.cat((a * cos - b * sin, b * cos + a * sin)), turned[: 2 * half]
    )


def test_a_shift_moves_nothing_where_only_distances_count(client):
    moved = {
        name: numbers(
            asked(client, "/api/shifted", model=name, text=MOLES[0], by=5)["stream"]
        ).max()
        for name in ("decoder", "rotary", "relative")
    }
    assert moved["decoder"] > 1e-3
    assert max(moved["rotary"], moved["relative"]) < 1e-4
    assert "encoders of text" in refused(client, "/api/shifted", model="both", text=MOLES[0])


def test_without_positions_attention_sees_a_set(client):
    moved = {
        name: numbers(asked(client, "/api/order", model=name, text=TEXTS[3])["view"])
        for name in ("decoder", "rotary", "encoder", "nowhere")
    }
    for name in ("decoder", "rotary", "encoder"):
        own, same = moved[name]
        assert own[0] > 1e-3
        assert same[0] < 1e-5  # the first layer cannot tell
    assert moved["encoder"][1].max() < 1e-5  # nor can any other, where all see all
    assert moved["decoder"][1, 1] > 1e-3  # the mask gives the order away
    np.testing.assert_array_equal(moved["nowhere"][0], moved["nowhere"][1])
    assert "two tokens or more" in refused(client, "/api/order", model="letters", text="ab")


def test_a_sum_is_solved_as_the_library_solves_it_and_its_own_words_can_be_let_in(client):
    told = asked(client, "/api/vectors", model="decoder", written="king - man + woman", top=4)
    known = ch.vectors(MODELS["decoder"])
    assert told["view"]["axes"][0]["labels"] == list(
        known.solve("king - man + woman", 4).axes[0].labels
    )
    assert told["size"] == len(known)
    assert [point["role"] for point in told["points"]] == ["own"] * 3 + ["near"] * 4 + ["sum"]
    assert 0 < told["share"] <= 1
    with_own = asked(client, "/api/vectors", model="decoder", written="king", top=1, own=True)
    assert numbers(with_own["view"])[0] == pytest.approx(1.0, abs=1e-5)
    assert "king - man" in refused(client, "/api/vectors", model="decoder", written="king -")
    assert "no layer" in refused(client, "/api/vectors", model="decoder", written="king", layer=9)


def test_vectors_that_are_kept_count_as_memory_of_the_model():
    model = fresh("tiny-decoder")
    known = words.cached_vectors
    held = ModelRegistry.from_models({"one": model}).loaded["one"]
    before = held.num_bytes
    known(model).normalized, known(model, 1).normalized  # which makes them
    assert held.num_bytes - before == sum(
        known(model, layer).source.matrix.nbytes + known(model, layer).normalized.nbytes
        for layer in (None, 1)
    )


def test_a_projection_keeps_the_distances_of_points_that_lie_in_a_plane():
    plane = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(1)) @ plane
    flat, share = words.project_to_plane(points)
    torch.testing.assert_close(
        torch.cdist(flat, flat), torch.cdist(points, points), atol=1e-3, rtol=1e-3
    )
    assert share == pytest.approx(1.0)


def test_a_direction_is_told_with_the_pieces_of_its_words(client):
    told = asked(
        client, "/api/vectors", model="decoder", pairs=[["man", "woman"]], words=["king", "zebra"]
    )
    known = ch.vectors(MODELS["decoder"])
    expected = known.direction([("man", "woman")]).scores(["king", "zebra"])
    np.testing.assert_allclose(numbers(told["view"]), expected.numpy(), rtol=1e-5)
    assert numbers(told["agreement"])[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert len(next(word for word in told["words"] if word["text"] == "zebra")["pieces"]) > 1


@pytest.mark.parametrize("name", ["decoder", "rotary", "encoder", "both"])
def test_mole_is_one_vector_as_a_token_and_others_in_sentences(client, name):
    told = asked(client, "/api/context", model=name, word="mole", texts=MOLES)
    values = numbers(told["view"])
    np.testing.assert_allclose(values[0], 1.0, atol=1e-5)
    model = MODELS[name]
    expected = ch.context(model, "mole", MOLES).numpy()
    np.testing.assert_allclose(values[1:], expected, atol=1e-6)
    assert values[-1].max() < 0.9999
    for reading, text in zip(told["readings"], MOLES, strict=True):
        assert reading["text"] == text
        assert "".join(reading["tokens"][i] for i in reading["word"]).strip("·") == "mole"


def test_the_cosine_of_a_layer_is_that_of_the_streams_themselves(client):
    told = asked(client, "/api/context", model="rotary", word="mole", texts=MOLES[:2])
    model = MODELS["rotary"]
    for layer in range(model.config.model.n_layers):
        name = f"blocks.{layer}.resid_post"
        found = [
            model.watch(reading["text"], name)[name][0, reading["word"]].mean(dim=0).numpy()
            for reading in told["readings"]
        ]
        a, b = (vector / np.linalg.norm(vector) for vector in found)
        assert numbers(told["view"])[layer + 2, 0] == pytest.approx(float(a @ b), abs=1e-5)


def test_a_word_that_is_not_there_and_a_layer_that_is_not_are_sentences(client):
    assert "is not in" in refused(client, "/api/context", model="decoder", word="vole", texts=MOLES)
    asked_for = {"model": "decoder", "word": "mole", "texts": MOLES}
    assert "no layer 9" in refused(client, "/api/instead", **asked_for, others=["king"], layer=9)
    assert "some words" in refused(client, "/api/instead", **asked_for, others=[" "])


@pytest.mark.parametrize("name", ["decoder", "encoder", "both"])
def test_another_word_in_its_place_is_compared_at_that_place(client, name):
    told = asked(
        client,
        "/api/instead",
        model=name,
        word="mole",
        texts=MOLES[1:],
        others=["mole", "king", "dioxide"],
    )
    values = numbers(told)
    assert told["axes"][0]["labels"] == ["alone", *MOLES[1:]]
    np.testing.assert_allclose(values[:, 0], 1.0, atol=1e-5)
    if name == "decoder":
        # the dioxide that comes later is not meant
        texts = ["one mole", "one dioxide"]
        stream = "blocks.1.resid_post"
        a, b = (
            MODELS[name].watch(text, stream)[stream][0, len(TOKENIZER.encode("one")) :].mean(dim=0)
            for text in texts
        )
        assert values[1, 2] == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), abs=1e-5)


@pytest.mark.parametrize("name", ["decoder", "rotary", "both"])
def test_the_lens_of_a_run_is_the_lens_of_its_text(client, name):
    given = {"source": MOLES[1], "text": MOLES[0]} if name == "both" else {"text": MOLES[0]}
    run = asked(client, "/api/runs", model=name, **given)
    told = asked(client, f"/api/runs/{run['id']}/lens?at=-1")
    source = {"source": MOLES[1]} if name == "both" else {}
    expected = ch.lens.logit_lens(MODELS[name], MOLES[0], **source)
    np.testing.assert_allclose(
        numbers(told["view"]), expected.numpy()[:, -meanings.LENS_MAX_TOKENS :], atol=1e-5
    )
    assert told["layers"][-1][0][0] == run["top"][0]["text"]
    assert told["layers"][-1][0][1] == pytest.approx(run["top"][0]["prob"], abs=1e-5)


def test_the_lens_calls_a_number_a_number(client):
    run = asked(client, "/api/runs", model="number", text=MOLES[0])
    view = asked(client, f"/api/runs/{run['id']}/lens")["view"]
    expected = ch.lens.logit_lens(MODELS["number"], MOLES[0])
    assert (view["measure"], view["signed"], view["note"]) == ("number", True, expected.note)
    np.testing.assert_allclose(numbers(view), expected.numpy(), atol=1e-5)


def test_of_a_long_text_the_lens_shows_the_tokens_around_one(client):
    ids = (TOKENIZER.encode(TEXTS[3]) * 20)[:200]
    run = asked(client, "/api/runs", model="long", ids=ids)
    told = asked(client, f"/api/runs/{run['id']}/lens?at=100")
    expected = ch.lens.logit_lens(MODELS["long"], ids).numpy()
    start = told["start"]
    assert start <= 100 == start + told["at"]
    np.testing.assert_allclose(
        numbers(told["view"]), expected[:, start : start + meanings.LENS_MAX_TOKENS], atol=1e-5
    )
    assert told["count"] == 200


def test_an_edit_changes_the_lens_from_its_layer_on(client):
    plain, edited = (
        asked(client, "/api/runs", model="decoder", text=MOLES[0], edits=edits)["id"]
        for edits in ([], [{"name": "blocks.1.attn.out", "op": "ablate"}])
    )
    a, b = (numbers(asked(client, f"/api/runs/{run}/lens")["view"]) for run in (plain, edited))
    np.testing.assert_array_equal(a[:2], b[:2])
    assert not np.allclose(a[2], b[2], atol=1e-6)


def test_the_parts_of_a_logit_add_up_to_it(client):
    run = asked(client, "/api/runs", model="decoder", text=MOLES[0])
    best, second = run["top"][:2]
    told = asked(client, f"/api/runs/{run['id']}/attribution?token={best['id']}")
    assert numbers(told["view"]).sum() == pytest.approx(best["logit"], abs=1e-3)
    assert told["heads"]["attention"]["shape"] == [
        2,
        MODELS["decoder"].config.model.attention.n_heads,
    ]
    two = asked(
        client, f"/api/runs/{run['id']}/attribution?token={best['id']}&against={second['id']}"
    )
    assert two["total"] == pytest.approx(best["logit"] - second["logit"], abs=1e-3)


def test_a_broken_model_is_told_without_an_error_of_the_server(client):
    run = asked(client, "/api/runs", model="broken", text=MOLES[0])
    assert client.get(f"/api/runs/{run['id']}/lens").status_code == 200
    assert "hold no numbers" in client.get(f"/api/runs/{run['id']}/attribution?token=3").text
    assert client.get("/api/models/broken/matrix").status_code == 200
    assert "hold no numbers" in refused(
        client, "/api/context", model="broken", word="mole", texts=MOLES
    )
    assert "weights" in refused(
        client, "/api/vectors", model="broken", written="king - man + woman"
    )
