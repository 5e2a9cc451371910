"""What a film of the microscope shows: what the model computes, of the probes that were asked for."""

import pytest
import torch
from looking import ids, look
from runs import run

import clearhead as ch
from clearhead.data.batch import PackedBatch
from clearhead.train.activation_recorder import ActivationRecorder, align_plane, principal_plane

PACKED = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2] * 3)
BATCHES = {
    "tiny-decoder": PackedBatch(ids(3, 16), ids(3, 16), PACKED),
    "tiny-llama": PackedBatch(ids(3, 16), ids(3, 16)),
    "tiny-encoder": PackedBatch(ids(3, 16), ids(3, 16), token_type_ids=ids(3, 16) % 2),
    "tiny-encoder-decoder": PackedBatch(
        ids(3, 16), ids(3, 16), PACKED, ids(3, 16, 1), PACKED.flip(1).bool() * PACKED
    ),
    "tiny-pictures": PackedBatch(torch.rand(3, 1, 8, 8), torch.arange(3)),
    "tiny-sound": PackedBatch(torch.rand(3, 16, 32), torch.arange(3)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_model_has_a_film_that_agrees_with_the_model(name, tmp_path):
    film, model, _ = look(tmp_path, name, BATCHES[name])
    text = not name.endswith(("pictures", "sound"))
    for n, probe in enumerate(film.probes):
        for part in film.attention_kinds:
            pattern = film.attention(0, n, part)
            torch.testing.assert_close(
                pattern.sum(dim=-1), torch.ones(pattern.shape[:-1]), atol=3e-3, rtol=0
            )
        assert film.attention(0, n).shape == (
            2,
            model.config.model.attention.n_heads,
            len(probe.tokens),
            len(probe.tokens),
        )
        lens = film.logit_lens(0, n)
        batch = BATCHES[name]
        if not text:
            logits = model.net.compute_logits(model.net(batch.tokens))[n][None]
        else:
            x = torch.tensor([[int(token) for token in probe.tokens]])
            source = (
                torch.tensor([[int(token) for token in probe.source_tokens]])
                if probe.source_tokens
                else None
            )
            kinds = (
                batch.token_type_ids[n : n + 1, : x.shape[1]]
                if batch.token_type_ids is not None
                else None
            )
            logits = model.net.compute_logits(model.net(x, source=source, token_type_ids=kinds))[0]
        torch.testing.assert_close(
            lens.probabilities[-1], logits.softmax(dim=-1).topk(5).values, atol=1e-5, rtol=1e-3
        )
    ch.lens.training_trace_figure(film, probe=1)
    assert film.attention_kinds == (
        ["attention", "cross", "encoder"]
        if "decoder" in name and "encoder" in name
        else ["attention"]
    )
    if text:
        e = film.embeddings(0)
        assert len(e.tokens) == len(e.vectors)
        assert e.projection.shape == (64, 2)
        row = model.net.embed.tokens.weight[int(e.tokens[0])]
        torch.testing.assert_close(e.vectors[0], row.detach(), atol=1e-3, rtol=1e-3)


def test_the_lens_of_a_film_calls_a_number_a_number(tmp_path):
    film, _, _ = look(
        tmp_path,
        "tiny-pictures",
        PackedBatch(torch.rand(3, 1, 8, 8), torch.rand(3)),
        head="regression",
    )
    assert film.logit_lens(0).value_name == "number"


def test_a_film_holds_still_where_the_model_does():
    """Axes have no sign and may swap; the plane is turned back, and its distances stay."""
    plane = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for turn in (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])):
        torch.testing.assert_close(align_plane(plane @ turn, plane), plane)
    other = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    turned = align_plane(other, plane)
    torch.testing.assert_close(turned @ turned.mT, other @ other.mT)
    assert (turned - plane).norm() < (other - plane).norm()


def test_looks_are_turned_to_the_one_before(tmp_path):
    made = run(tmp_path)
    scope = ActivationRecorder(made.model, made.data, made.output)
    scope(0)
    with torch.no_grad():
        made.net.embed.tokens.weight.neg_()  # nothing has moved but the signs of the axes
    ActivationRecorder(made.model, made.data, made.output, step=1)(1)
    film = ch.lens.read_training_trace(tmp_path)
    torch.testing.assert_close(
        film.embeddings(1).projection, film.embeddings(0).projection, atol=1e-3, rtol=1e-2
    )


def test_the_plane_is_where_the_rows_differ_most():
    table = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 9.0, 1.0, 4.0, 1.0, 1.0]
    )
    table = table + 100
    plane = principal_plane(table)
    centred = table - table.mean(dim=0)
    most = torch.linalg.svdvals(centred)[:2]
    torch.testing.assert_close(torch.linalg.svdvals(plane), most)
    torch.testing.assert_close(plane.norm(dim=0), most)


# ---------------------------------------------------------------- probes
LETTERS = ch.Tokenizer.characters("abcdefghij .|<>mask")
NONE = PackedBatch(ids(1, 4), ids(1, 4))


def test_a_users_texts_are_looked_at_and_what_is_too_much_is_counted(tmp_path):
    texts = ["abc", "a" * 65, *["b"] * 8]
    film, _, scope = look(
        tmp_path,
        "tiny-decoder",
        NONE,
        LETTERS,
        context_length=128,
        **{"train.probe_texts": texts, "inference.bos_tokens": [0]},
    )
    assert [len(probe.tokens) for probe in film.probes] == [4, 64, *[2] * 6]
    assert film.probes[0].tokens == ["·", "a", "b", "c"]
    assert film.probes[0].text == "abc"
    assert scope.note.startswith(
        "3 of the probes cut or left out; there are at most 8, of 64 tokens each"
    )
    assert film.logit_lens(0).top_predictions()[0][0][0] in film.embeddings(0).all_tokens


def test_a_probe_of_a_translator_is_a_source_and_a_target(tmp_path):
    given = {
        "train.probe_texts": ["abc ||| de"],
        "inference.decoder_start_tokens": [1],
        "inference.bos_tokens": [0],
        "inference.sep_tokens": [2],
    }
    film, _, _ = look(tmp_path, "tiny-encoder-decoder", NONE, LETTERS, **given)
    assert film.probes[0].text == "abc ||| de"
    assert film.attention(0, 0, "cross").shape == (2, 4, 3, 5)
    for wrong in ("abc", "||| de", "abc |||"):
        with pytest.raises(ch.ClearheadError, match="must be source"):
            look(
                tmp_path,
                "tiny-encoder-decoder",
                NONE,
                LETTERS,
                **given | {"train.probe_texts": [wrong]},
            )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "train.probe_texts holds an empty text"),
        ("aQ", "train.probe_texts: 'aQ' cannot be looked at: .*'Q'"),
    ],
)
def test_a_probe_that_cannot_be_read_is_told_by_its_option(text, words, tmp_path):
    with pytest.raises(ch.ClearheadError, match=words):
        look(
            tmp_path,
            "tiny-decoder",
            NONE,
            LETTERS,
            **{"train.probe_texts": text, "inference.bos_tokens": [0]},
        )


def test_a_hidden_word_is_what_the_picture_asks_for(tmp_path):
    tokenizer = ch.Tokenizer.train_bpe(["ab ab"], 258, special_tokens=("<|mask|>",))
    hides = {
        "train.probe_texts": ["ab <|mask|> b"],
        "inference.mask_token": [tokenizer.special_tokens["<|mask|>"]],
        "vocabulary": len(tokenizer),
    }
    film, _, _ = look(tmp_path, "tiny-encoder", NONE, tokenizer, **hides)
    assert film.probes[0].tokens[film.probes[0].answer_position] == "<|mask|>"


def test_of_packed_rows_whole_documents_are_taken(tmp_path):
    film, _, _ = look(tmp_path, "tiny-decoder", BATCHES["tiny-decoder"])
    rows = BATCHES["tiny-decoder"].tokens
    assert [probe.tokens for probe in film.probes] == [
        [str(i) for i in row[5:14].tolist()] for row in rows
    ]


def test_pictures_may_be_files(tmp_path):
    from PIL import Image

    Image.new("L", (8, 8), 99).save(tmp_path / "one.png")
    film, _, _ = look(
        tmp_path,
        "tiny-pictures",
        BATCHES["tiny-pictures"],
        **{"train.probe_texts": [str(tmp_path / "one.png")]},
    )
    assert [probe.text for probe in film.probes] == [str(tmp_path / "one.png")]


def test_what_is_not_in_a_film_is_told(tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"there is no film in .*--microscope makes one"):
        ch.lens.read_training_trace(tmp_path)
    film, _, _ = look(tmp_path, "tiny-decoder", BATCHES["tiny-decoder"])
    for ask, sentence in (
        (lambda: film.attention(7), "step 7 was not looked at; step 0 is the nearest"),
        (lambda: film.logit_lens(0, 3), "no probe 3; this film has probes 0 to 2"),
        (lambda: film.attention(0, 0, "cross"), "no cross in this film, only attention"),
        (lambda: film.embeddings(0, source=True), "no embeddings of sources"),
        (
            lambda: ch.lens.training_trace_figure(film, layer=2),
            "no layer 2; this film has layers 0 to 1",
        ),
        (
            lambda: ch.lens.training_trace_figure(film, head=4),
            "no head 4; this film has heads 0 to 3",
        ),
    ):
        with pytest.raises(ch.ClearheadError, match=sentence):
            ask()
