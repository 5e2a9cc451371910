"""Tokens, positions, word vectors, words in context and the logit lens on the page."""

import base64
import math

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.lens.text_stack import TextStack
from clearhead.model.positions import Sinusoidal
from clearhead.serve import registry
from clearhead.serve.explorer.executor import ExplorerExecutor
from clearhead.serve.explorer.routes import words
from clearhead.serve.explorer.routes.activations import LENS_MAX_TOKENS
from clearhead.serve.registry import ModelRegistry
from clearhead.word_vectors import vectors
from page_site import page_client

MOLES = ["American shrew mole", "one mole of carbon dioxide", "take a biopsy of the mole"]
TEXTS = [*MOLES, "the king and the queen saw a man and a woman eat an apple"]
TOKENIZER = ch.Tokenizer.train_bpe(TEXTS * 3, 380)


def make_model(preset, **changes):
    return ch.new(preset, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER, seed=2, **changes)


MODELS = {
    "decoder": make_model("tiny-decoder", position="learned"),
    "rotary": make_model("tiny-llama"),
    "relative": make_model("tiny-decoder", position="t5"),
    "waves": make_model("tiny-decoder", position="sinusoidal"),
    "encoder": make_model("tiny-encoder"),
    "long": make_model("tiny-decoder", context_length=256),
    "both": make_model("tiny-encoder-decoder"),
    "nowhere": make_model("tiny-decoder", position="none"),
    "number": make_model("tiny-encoder", head="regression"),
    "letters": ch.new(
        "tiny-decoder",
        vocab_size=5,
        tokenizer=ch.Tokenizer.characters("abc ", special_tokens=("<|end|>",)),
    ),
}


def broken():
    made = make_model("tiny-decoder")
    made.net.embed.tokens.weight.data[7:] = float("nan")
    return made


@pytest.fixture(scope="module")
def client():
    with page_client({**MODELS, "broken": broken()}) as client:
        yield client


def request(client, url, **body):
    answer = client.post(url, json=body) if body else client.get(url)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(client, url, **body):
    answer = client.post(url, json=body) if body else client.get(url)
    assert answer.status_code in (400, 500), answer.text
    return answer.json()["error"]["message"]


def numbers(view):
    return np.frombuffer(base64.b64decode(view["values"]), "<f4").reshape(view["shape"])


def test_tokenize_equals_the_tokenizer_and_details_are_complete(client):
    text = "the mole 🦔 naïve"
    response = request(client, "/api/tokenize", model="decoder", text=text)
    ids = [token["id"] for token in response["tokens"] if not token["added"]]
    assert ids == TOKENIZER.encode(text)
    assert (
        bytes(byte for i in ids for byte in response["details"][str(i)]["bytes"]).decode() == text
    )
    assert response["decoded"] is None
    for i in ids:
        steps = response["details"][str(i)]["steps"]
        if steps:
            assert all("".join(step) == "".join(steps[-1]) for step in steps)
            assert [len(step) for step in steps] == list(range(len(steps), 0, -1))


def test_added_tokens_are_marked(client):
    made = make_model("tiny-decoder", inference__bos_tokens=[3], inference__sep_tokens=[4])
    tokens = words.tokenize(made, "the mole")["tokens"]
    assert [token["id"] for token in tokens if token["added"]] == [3, 4]
    assert (tokens[0]["added"], tokens[-1]["added"]) == (True, True)


def test_unknown_characters_are_errors(client):
    assert "not in the vocabulary" in error(client, "/api/tokenize", model="letters", text="abz")
    assert request(client, "/api/tokenize", model="letters", text="")["tokens"] == []


def test_embedding_rows_and_matrix_equal_the_weights(client):
    table = MODELS["decoder"].net.embed.tokens.weight.detach()
    view = request(client, "/api/models/decoder/embedding-rows?ids=5,3,5")
    np.testing.assert_array_equal(numbers(view), table[[5, 3, 5]].numpy())
    assert "must be below" in error(
        client, f"/api/models/decoder/embedding-rows?ids=1,{len(TOKENIZER)}"
    )
    small = request(client, "/api/models/decoder/embedding-matrix")
    assert math.prod(small["shape"]) < table.numel()
    assert abs(numbers(small)).max() == pytest.approx(float(table.abs().max()))
    assert "integers" in error(client, "/api/models/decoder/embedding-rows?ids=a")


def test_unembedding_rows_give_the_logits(client):
    run = request(client, "/api/runs", model="decoder", text=MOLES[0])
    best = run["top"][0]
    row = numbers(
        request(client, f"/api/models/decoder/embedding-rows?ids={best['id']}&unembedding=true")
    )[0]
    state = MODELS["decoder"].watch(MOLES[0], "final_norm")["final_norm"][0, -1].numpy()
    assert float(row @ state) == pytest.approx(best["logit"], abs=1e-4)


@pytest.mark.parametrize(
    "name", ["decoder", "rotary", "relative", "waves", "nowhere", "encoder", "both"]
)
def test_position_views_fit_the_scheme_of_the_model(client, name):
    response = request(client, "/api/positions", model=name, num_positions=16)
    own = {
        "learned": {"own", "similarity"},
        "sinusoidal": {"own", "similarity"},
        "t5": {"bias"},
        "none": set(),
    }
    assert set(response["own"]) == own.get(response["scheme"], {"own", "similarity", "angles"})
    assert response["scheme"] == MODELS[name].config.model.position.kind
    assert ("sinusoidal" in response["compared"]) == (response["scheme"] != "sinusoidal")
    assert response["is_rotary"] == (response["scheme"] == "rotary")
    bits = numbers(response["compared"]["binary"])
    assert [int(row @ (1 << np.arange(len(row)))) for row in bits] == list(range(16))


def test_rotary_frequencies_rotate_queries(client):
    response = request(client, "/api/positions", model="rotary", num_positions=8)
    model = MODELS["rotary"]
    cache = model.watch(MOLES[2], ["blocks.1.attn.q", "blocks.1.attn.rot_q"])
    q, turned = (cache[name][0, 0, 5] for name in cache)
    rates = torch.tensor(response["inv_freq"])
    half, (cos, sin) = len(rates), ((5 * rates).cos(), (5 * rates).sin())
    a = q[:half]
    b = q[half : 2 * half]
    torch.testing.assert_close(
        torch.cat((a * cos - b * sin, b * cos + a * sin)), turned[: 2 * half]
    )


def test_shift_changes_nothing_with_relative_positions(client):
    moved = {
        name: numbers(
            request(client, "/api/positions/shift", model=name, text=MOLES[0], offset=5)["residual"]
        ).max()
        for name in ("decoder", "rotary", "relative")
    }
    assert moved["decoder"] > 1e-3
    assert max(moved["rotary"], moved["relative"]) < 1e-4
    assert "encoder of text" in error(client, "/api/positions/shift", model="both", text=MOLES[0])


def test_reversing_changes_nothing_without_positions(client):
    moved = {
        name: numbers(request(client, "/api/positions/reverse", model=name, text=TEXTS[3])["view"])
        for name in ("decoder", "rotary", "encoder", "nowhere")
    }
    for name in ("decoder", "rotary", "encoder"):
        own, same = moved[name]
        assert own[0] > 1e-3
        assert same[0] < 1e-5  # the first layer cannot tell
    assert moved["encoder"][1].max() < 1e-5  # nor can any other, where all see all
    assert moved["decoder"][1, 1] > 1e-3  # the mask gives the order away
    np.testing.assert_array_equal(moved["nowhere"][0], moved["nowhere"][1])
    assert "at least two tokens" in error(
        client, "/api/positions/reverse", model="letters", text="ab"
    )


def test_vector_expressions_equal_the_library(client):
    response = request(
        client, "/api/vectors", model="decoder", expression="king - man + woman", top_k=4
    )
    known = ch.vectors(MODELS["decoder"])
    assert response["view"]["axes"][0]["labels"] == list(
        known.solve("king - man + woman", 4).axes[0].labels
    )
    assert response["num_words"] == len(known)
    assert [point["role"] for point in response["points"]] == ["input"] * 3 + ["neighbor"] * 4 + [
        "result"
    ]
    assert 0 < response["explained_variance"] <= 1
    with_own = request(
        client, "/api/vectors", model="decoder", expression="king", top_k=1, include_inputs=True
    )
    assert numbers(with_own["view"])[0] == pytest.approx(1.0, abs=1e-5)
    assert "king - man" in error(client, "/api/vectors", model="decoder", expression="king -")
    assert "no layer" in error(client, "/api/vectors", model="decoder", expression="king", layer=9)


@pytest.mark.parametrize("layer", [None, 1])
def test_equations_equal_the_library(client, layer):
    equation = "E(queen) - E(king) = woman - man"
    response = request(client, "/api/vectors", model="decoder", equation=equation, layer=layer)
    expected = ch.vectors(MODELS["decoder"], layer).compare(equation)
    np.testing.assert_allclose(numbers(response["view"]), expected.values, atol=1e-5)
    assert [side["is_difference"] for side in response["sides"]] == [True, True]
    assert [point["text"] for point in response["points"]] == ["queen", "king", "woman", "man"]
    for view, known in zip(response["neighbors"], expected.neighbors, strict=True):
        assert view["axes"][0]["labels"] == list(known.axes[0].labels)
    response = request(client, "/api/vectors", model="decoder", equation="a + b = c - d - e")
    assert [side["is_difference"] for side in response["sides"]] == [False, False]
    assert "two sides" in error(client, "/api/vectors", model="decoder", equation="king - man")


def test_alternating_requests_read_each_layer_once(monkeypatch):
    monkeypatch.setattr(vectors, "TOKENS_PER_BATCH", 128)
    read_next = vectors.LayerSource._read_next
    calls = []
    monkeypatch.setattr(
        vectors.LayerSource, "_read_next", lambda source: calls.append(1) or read_next(source)
    )
    loaded_model = ModelRegistry.from_models({"m": make_model("tiny-decoder")}).loaded["m"]

    def steps(layer):
        request = words.VectorsRequest(model="m", expression="king - man", layer=layer)
        return words.query_vectors(loaded_model, request)

    pending = [steps(layer) for layer in (0, 1, 0, 1, 0, 1)]
    while pending:
        pending = [one for one in pending if next(one) is None]
    assert all(next(steps(layer)) is not None for layer in (0, 1))
    assert len(calls) == 2 * -(-len(loaded_model.word_vectors(0)) // 128)


def test_the_layers_kept_are_those_last_used(monkeypatch):
    loaded_model = ModelRegistry.from_models({"m": make_model("tiny-decoder")}).loaded["m"]
    embeddings = loaded_model.word_vectors()
    tables = [loaded_model.word_vectors(layer) for layer in (0, 1, 0)]
    assert tables[0] is tables[2]
    monkeypatch.setattr(registry, "MAX_LAYER_BYTES", 1)
    assert loaded_model.word_vectors(0) is tables[0]
    assert loaded_model.word_vectors(1) is not tables[1]
    assert loaded_model.word_vectors() is embeddings


def test_vectors_of_a_layer_are_read_in_steps_between_other_requests(client, monkeypatch):
    monkeypatch.setattr(vectors, "TOKENS_PER_BATCH", 64)
    tokens_read = []  # in each turn of the request
    submit = ExplorerExecutor.submit
    read = vectors.LayerSource._read

    def submit_and_count(self, *args):
        tokens_read.append(0)
        return submit(self, *args)

    def read_and_count(self, rows):
        tokens_read[-1] += len(rows)
        return read(self, rows)

    monkeypatch.setattr(ExplorerExecutor, "submit", submit_and_count)
    monkeypatch.setattr(vectors.LayerSource, "_read", read_and_count)
    response = request(client, "/api/vectors", model="rotary", expression="king - man", layer=0)
    assert sum(tokens_read) > len(TOKENIZER) - 2
    assert max(tokens_read) < 80
    expected = ch.vectors(MODELS["rotary"], layer=0).solve("king - man")
    assert response["view"]["axes"][0]["labels"] == list(expected.axes[0].labels)


def test_cached_vectors_count_as_memory():
    model = make_model("tiny-decoder")
    loaded_model = ModelRegistry.from_models({"one": model}).loaded["one"]
    before = loaded_model.num_bytes
    tables = [loaded_model.word_vectors(layer) for layer in (None, 1)]
    expected = sum(table.source.matrix.nbytes + table.normalized.nbytes for table in tables)
    assert loaded_model.num_bytes - before == expected


def test_projection_keeps_distances_in_a_plane():
    plane = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(1)) @ plane
    flat, share = words.project_to_plane(points)
    torch.testing.assert_close(
        torch.cdist(flat, flat), torch.cdist(points, points), atol=1e-3, rtol=1e-3
    )
    assert share == pytest.approx(1.0)


def test_directions_equal_the_library(client):
    response = request(
        client, "/api/vectors", model="decoder", pairs=[["man", "woman"]], words=["king", "zebra"]
    )
    known = ch.vectors(MODELS["decoder"])
    expected = known.direction([("man", "woman")]).scores(["king", "zebra"])
    np.testing.assert_allclose(numbers(response["view"]), expected.numpy(), rtol=1e-5)
    assert numbers(response["agreement"])[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert len(next(word for word in response["words"] if word["text"] == "zebra")["pieces"]) > 1


@pytest.mark.parametrize("name", ["decoder", "rotary", "encoder", "both"])
def test_context_equals_the_library(client, name):
    response = request(client, "/api/context", model=name, word="mole", texts=MOLES)
    values = numbers(response["view"])
    np.testing.assert_allclose(values[0], 1.0, atol=1e-5)
    model = MODELS[name]
    expected = ch.context(model, "mole", MOLES).numpy()
    np.testing.assert_allclose(values[1:], expected, atol=1e-6)
    assert values[-1].max() < 0.9999
    for reading, text in zip(response["occurrences"], MOLES, strict=True):
        assert reading["text"] == text
        assert "".join(reading["tokens"][i] for i in reading["word"]).strip("·") == "mole"


def test_context_cosines_are_those_of_the_residual_stream(client):
    response = request(client, "/api/context", model="rotary", word="mole", texts=MOLES[:2])
    model = MODELS["rotary"]
    for layer in range(model.config.model.n_layers):
        name = f"blocks.{layer}.resid_post"
        found = [
            model.watch(reading["text"], name)[name][0, reading["word"]].mean(dim=0).numpy()
            for reading in response["occurrences"]
        ]
        a, b = (vector / np.linalg.norm(vector) for vector in found)
        assert numbers(response["view"])[layer + 2, 0] == pytest.approx(float(a @ b), abs=1e-5)


def test_invalid_context_requests_are_refused(client):
    assert "is not in" in error(client, "/api/context", model="decoder", word="vole", texts=MOLES)
    asked_for = {"model": "decoder", "word": "mole", "texts": MOLES}
    assert "no layer 9" in error(
        client, "/api/context/substitute", **asked_for, substitutes=["king"], layer=9
    )
    assert "at least one word" in error(
        client, "/api/context/substitute", **asked_for, substitutes=[" "]
    )


@pytest.mark.parametrize("name", ["decoder", "encoder", "both"])
def test_substitutes_are_compared_in_place(client, name):
    response = request(
        client,
        "/api/context/substitute",
        model=name,
        word="mole",
        texts=MOLES[1:],
        substitutes=["mole", "king", "dioxide"],
    )
    values = numbers(response)
    assert response["axes"][0]["labels"] == ["alone", *MOLES[1:]]
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


def test_substitutes_are_read_in_steps(client, monkeypatch):
    sizes = []
    watch = TextStack.watch

    def record(stack, rows, names):
        sizes.append(sum(map(len, rows)))
        return watch(stack, rows, names)

    monkeypatch.setattr(TextStack, "watch", record)
    text = "the mole " * 20
    substitutes = ["king", "queen", "man", "woman"]
    body = {"model": "long", "word": "mole", "texts": [text], "substitutes": substitutes}
    whole = numbers(request(client, "/api/context/substitute", **body))
    num_steps = len(sizes)
    monkeypatch.setattr(words, "MAX_STEP_COST", 1)
    parts = numbers(request(client, "/api/context/substitute", **body))
    assert len(sizes) - num_steps > num_steps
    np.testing.assert_allclose(parts, whole, atol=1e-5)


@pytest.mark.parametrize("name", ["decoder", "rotary", "both"])
def test_logit_lens_equals_the_library(client, name):
    given = {"source": MOLES[1], "text": MOLES[0]} if name == "both" else {"text": MOLES[0]}
    run = request(client, "/api/runs", model=name, **given)
    response = request(client, f"/api/runs/{run['id']}/lens?token=-1")
    source = {"source": MOLES[1]} if name == "both" else {}
    expected = ch.lens.logit_lens(MODELS[name], MOLES[0], **source)
    np.testing.assert_allclose(
        numbers(response["view"]), expected.numpy()[:, -LENS_MAX_TOKENS:], atol=1e-5
    )
    assert response["layers"][-1][0][0] == run["top"][0]["text"]
    assert response["layers"][-1][0][1] == pytest.approx(run["top"][0]["prob"], abs=1e-5)


def test_logit_lens_of_a_regression_model_shows_numbers(client):
    run = request(client, "/api/runs", model="number", text=MOLES[0])
    view = request(client, f"/api/runs/{run['id']}/lens")["view"]
    expected = ch.lens.logit_lens(MODELS["number"], MOLES[0])
    assert (view["value_name"], view["signed"], view["note"]) == ("number", True, expected.note)
    np.testing.assert_allclose(numbers(view), expected.numpy(), atol=1e-5)


def test_logit_lens_of_a_long_text_is_a_window(client):
    ids = (TOKENIZER.encode(TEXTS[3]) * 20)[:200]
    run = request(client, "/api/runs", model="long", ids=ids)
    response = request(client, f"/api/runs/{run['id']}/lens?token=100")
    expected = ch.lens.logit_lens(MODELS["long"], ids).numpy()
    start = response["start"]
    assert start <= 100 == start + response["token"]
    np.testing.assert_allclose(
        numbers(response["view"]), expected[:, start : start + LENS_MAX_TOKENS], atol=1e-5
    )
    assert response["num_tokens"] == 200


def test_edits_change_the_lens_from_their_layer_on(client):
    plain, edited = (
        request(client, "/api/runs", model="decoder", text=MOLES[0], edits=edits)["id"]
        for edits in ([], [{"name": "blocks.1.attn.out", "op": "ablate"}])
    )
    a, b = (numbers(request(client, f"/api/runs/{run}/lens")["view"]) for run in (plain, edited))
    np.testing.assert_array_equal(a[:2], b[:2])
    assert not np.allclose(a[2], b[2], atol=1e-6)


def test_attribution_sums_to_the_logit(client):
    run = request(client, "/api/runs", model="decoder", text=MOLES[0])
    best, second = run["top"][:2]
    response = request(client, f"/api/runs/{run['id']}/attribution?answer={best['id']}")
    assert numbers(response["view"]).sum() == pytest.approx(best["logit"], abs=1e-3)
    assert response["heads"]["attention"]["shape"] == [
        2,
        MODELS["decoder"].config.model.attention.n_heads,
    ]
    two = request(
        client, f"/api/runs/{run['id']}/attribution?answer={best['id']}&contrast={second['id']}"
    )
    assert two["total"] == pytest.approx(best["logit"] - second["logit"], abs=1e-3)


def test_nan_weights_are_reported(client):
    run = request(client, "/api/runs", model="broken", text=MOLES[0])
    assert client.get(f"/api/runs/{run['id']}/lens").status_code == 200
    assert (
        "contain NaN or infinity" in client.get(f"/api/runs/{run['id']}/attribution?answer=3").text
    )
    assert client.get("/api/models/broken/embedding-matrix").status_code == 200
    assert "contain NaN or infinity" in error(
        client, "/api/context", model="broken", word="mole", texts=MOLES
    )
    assert "weights" in error(
        client, "/api/vectors", model="broken", expression="king - man + woman"
    )


def test_positions_2_and_50_as_curves(client):
    curves = request(client, "/api/positions", model="rotary", num_positions=8)["curves"]
    expected = Sinusoidal(32, "interleaved").embed(torch.tensor([[2, 50]]), torch.float32)[0]
    assert list(curves) == ["sinusoidal"]
    np.testing.assert_allclose(numbers(curves["sinusoidal"]), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["decoder", "rotary"])
def test_scores_of_a_phrase_that_stands_later(client, name):
    texts = {"text": "I walk my dog every day", "other": "every single day I walk my dog"}
    response = request(client, "/api/positions/phrase", model=name, layer=0, head=1, **texts)
    expected = ch.lens.phrase_shift(MODELS[name], *texts.values(), layer=0, head=1)
    for view, values in zip(response["texts"], expected.values, strict=True):
        np.testing.assert_allclose(numbers(view), values, atol=1e-5)
    assert (response["largest_difference"] < 1e-4) == (name == "rotary")


def test_parameters_are_counted_part_by_part(client):
    groups = client.get("/api/models/decoder/parameters").json()
    assert sum(group["count"] for group in groups) == MODELS["decoder"].num_parameters()
    assert groups[0]["formula"] == "|V| × d"
