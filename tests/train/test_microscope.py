"""The microscope: it changes nothing, keeps to its time, and its film is whole however the run is cut."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import run

import clearhead as ch
from clearhead.data.packed import Packed, Report
from clearhead.train import microscope
from clearhead.train.microscope import Microscope, due_steps
from clearhead.train.sight import aligned, principal_plane
from clearhead.weights.checkpoint import Checkpoint

DROPOUT = {"model.dropout.residual": 0.1, "model.dropout.attention": 0.1, "model.dropout.embedding": 0.1}


@pytest.fixture(autouse=True)
def _always_time(monkeypatch):
    monkeypatch.setattr(microscope, "SHARE", 1e9)  # runs of a few steps have no time to spare


def watched(made):
    """A run with a microscope from where it stands to its end."""
    scope = Microscope(made.model, made.data, made.out, made.step)
    scope(made.step)
    made.train(lambda progress: True, each=scope)
    return scope


def film_of(out):
    return {path.name: path.read_bytes() for path in (out / "microscope").glob("*.safetensors")}


class Rows:
    """Held-out rows of any kind."""

    share, epoch = 1.0, 1

    def __init__(self, batch):
        self.one, self.report = batch, Report()

    def batch(self, step):
        return self.one

    def held_out(self):
        yield self.one


def ids(rows, length, seed=0):
    return torch.randint(64, (rows, length), generator=torch.Generator().manual_seed(seed))


def look(out, name, batch, tokenizer=None, **changes):
    """A film of one look at a fresh model, and the model."""
    model = ch.new(name, seed=1, **changes)
    scope = Microscope(Checkpoint(model.net, model.config, tokenizer), Rows(batch), out)
    scope(0)
    return ch.lens.read_film(out), model, scope


# ---------------------------------------------------------------- it changes nothing
@pytest.mark.parametrize("options", [DROPOUT, {"ema": 0.9}, {"accumulate": 2}], ids=str)
def test_a_run_is_the_same_to_the_bit_with_and_without(options, tmp_path):
    bare, seen = run(tmp_path / "bare", **options), run(tmp_path / "seen", **options)
    bare.train(lambda progress: True)
    assert watched(seen).looked == [0, 1, 2, 3, 5, 7, 10, 12]
    for name in ("model.safetensors", "state.safetensors"):
        one, other = ((tmp_path / x / "steps" / "00000012" / name).read_bytes() for x in ("bare", "seen"))
        assert one == other


@pytest.mark.parametrize("training", [True, False])
def test_a_look_leaves_no_trace(training, tmp_path):
    made = run(tmp_path, **DROPOUT)
    scope, chance = Microscope(made.model, made.data, made.out), torch.random.get_rng_state()
    made.net.train(training)
    scope.look(0)
    assert torch.equal(chance, torch.random.get_rng_state())
    assert all(module.training is training for module in made.net.modules())
    assert all(p.grad is None and p.requires_grad for p in made.net.parameters())


COMPILED = """
import sys, torch
from pathlib import Path
from runs import run
from clearhead.train.microscope import Microscope

made, graphs = run(Path(sys.argv[1])), []
made.net.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward, dynamic=False)
batch = made.data.batch(0)
def loss():
    made.net.zero_grad()
    total, _ = made.net.train().loss(made.net(batch.tokens), batch.targets)
    total.backward()
    return total
before, count = loss(), len(graphs)
Microscope(made.model, made.data, made.out).look(0)
print(count > 0, bool(loss() == before), len(graphs) == count)
"""


def test_what_was_compiled_stays_as_it_was(tmp_path):
    # In a process of its own: the checks of shapes that these tests switch on are no part of the model.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    call = [sys.executable, "-c", COMPILED, str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["True"] * 3, done.stderr[-2000:]


def test_it_sees_the_weights_that_are_trained_and_not_their_average(tmp_path):
    made = run(tmp_path, ema=0.99)
    watched(made)
    ids = json.loads((tmp_path / "microscope" / "index.json").read_text())["embedded"]["tokens"]
    torch.testing.assert_close(
        ch.lens.read_film(tmp_path).embeddings(12).vectors,
        made.net.embed.tokens.weight[ids].detach(),
        atol=1e-3,
        rtol=1e-3,
    )


# ---------------------------------------------------------------- when
def test_steps_are_spaced_by_the_logarithm_about_six_a_decade():
    assert sorted(due_steps(1000)) == [0, 1, 2, 3, 5, 7, 10, 15, 22, 32, 46, 68, 100, 147, 215, 316, 464, 681, 1000]
    assert sorted(due_steps(4)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("cost", "looks"), [(0.1, 19), (2, 15), (10, 3), (100, 2)])
def test_looks_keep_to_their_share_of_the_time_but_the_first_and_the_last_are_taken(cost, looks, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(microscope, "SHARE", 0.03)
    monkeypatch.setattr(microscope, "monotonic", lambda: now[0])
    made = run(tmp_path, steps=1000)
    scope = Microscope(made.model, made.data, made.out)
    see = scope.sight.see
    monkeypatch.setattr(scope.sight, "see", lambda before: now.__setitem__(0, now[0] + cost) or see(before))
    for step in range(1001):
        now[0] += step > 0
        scope(step)
    assert len(scope.looked) == looks
    assert (scope.looked[0], scope.looked[-1]) == (0, 1000)
    assert looks == 2 or looks * cost <= 30


# ---------------------------------------------------------------- whole, however the run is cut
def test_a_film_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path):
    watched(run(tmp_path / "whole", keep=9))
    watched(run(tmp_path / "cut", keep=9))
    for place in (tmp_path / "cut" / "steps").iterdir():
        if int(place.name) > 5:
            shutil.rmtree(place)
    made = run(tmp_path / "cut", keep=9)
    assert made.resume()
    assert made.step == 5
    Microscope(made.model, made.data, made.out, made.step)
    assert ch.lens.read_film(tmp_path / "cut").steps == [0, 1, 2, 3, 5]
    assert len(film_of(tmp_path / "cut")) == 5
    watched(made)
    assert film_of(tmp_path / "cut") == film_of(tmp_path / "whole")
    assert ch.lens.read_film(tmp_path / "cut").steps == [0, 1, 2, 3, 5, 7, 10, 12]


def test_a_microscope_may_come_to_a_run_that_has_begun(tmp_path):
    made = run(tmp_path)
    made.train(lambda progress: progress.step < 6)
    again = run(tmp_path)
    again.resume()
    assert watched(again).looked == [6, 7, 10, 12]


def test_a_fresh_run_in_the_same_folder_starts_a_new_film(tmp_path):
    watched(run(tmp_path, steps=5, save=100))
    shutil.rmtree(tmp_path / "steps")
    made = run(tmp_path, steps=5, seed=7)
    Microscope(made.model, made.data, made.out)
    assert film_of(tmp_path) == {}


@pytest.mark.parametrize("at", ["save_file", "place", "_write"])
def test_a_look_that_is_killed_is_not_there(at, tmp_path, monkeypatch):
    made = run(tmp_path)
    scope = Microscope(made.model, made.data, made.out)
    scope(0)

    def killed(*args):
        if at == "save_file":
            args[1].write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(microscope, at, killed)
        with pytest.raises(KeyboardInterrupt):
            scope(1)
    film = ch.lens.read_film(tmp_path)
    assert film.steps == [0]
    film.attention(0)
    again = Microscope(made.model, made.data, made.out, step=1)
    assert sorted(path.name for path in (tmp_path / "microscope").iterdir()) == [
        "00000000.safetensors",
        "index.json",
        "tokens.json",
    ]
    again(1)
    assert ch.lens.read_film(tmp_path).steps == [0, 1]


def test_a_full_disk_ends_the_film_and_not_the_run(tmp_path, monkeypatch, capsys):
    def full(*args):
        raise OSError(28, "No space left on device")

    made = run(tmp_path)
    scope = Microscope(made.model, made.data, made.out)
    scope(0)
    monkeypatch.setattr(microscope, "save_file", full)
    assert made.train(lambda progress: True, each=scope).end == "done"
    assert capsys.readouterr().out.count("No space left on device") == 1
    assert "looks no more" in scope.finish(12)
    assert ch.lens.read_film(tmp_path).steps == [0]


def test_weights_that_are_no_numbers_show_nothing(tmp_path):
    made = run(tmp_path)
    scope = Microscope(made.model, made.data, made.out)
    scope(0)
    with torch.no_grad():
        made.net.embed.tokens.weight.fill_(torch.nan)
    scope(1)
    assert ch.lens.read_film(tmp_path).steps == [0]


def test_a_run_that_ends_early_is_seen_at_its_end(tmp_path):
    made = run(tmp_path, steps=100)
    scope = Microscope(made.model, made.data, made.out)
    scope(0)
    result = made.train(lambda progress: progress.step < 8, each=scope)
    assert "film.png" in scope.finish(result.step)
    film = ch.lens.read_film(tmp_path)
    assert film.steps == [0, 1, 2, 3, 5, 7, 8]
    assert film.losses[0] is None
    assert all(loss > 0 for loss in film.losses[1:])
    assert (tmp_path / "microscope" / "film.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- what is seen
PACKED = torch.tensor([[1] * 5 + [2] * 9 + [0] * 2] * 3)
BATCHES = {
    "tiny-decoder": Packed(ids(3, 16), ids(3, 16), PACKED),
    "tiny-llama": Packed(ids(3, 16), ids(3, 16)),
    "tiny-encoder": Packed(ids(3, 16), ids(3, 16), kinds=ids(3, 16) % 2),
    "tiny-encoder-decoder": Packed(ids(3, 16), ids(3, 16), PACKED, ids(3, 16, 1), PACKED.flip(1).bool() * PACKED),
    "tiny-pictures": Packed(torch.rand(3, 1, 8, 8), torch.arange(3)),
    "tiny-sound": Packed(torch.rand(3, 16, 32), torch.arange(3)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_model_has_a_film_that_agrees_with_the_model(name, tmp_path):
    film, model, _ = look(tmp_path, name, BATCHES[name])
    text = not name.endswith(("pictures", "sound"))
    for n, probe in enumerate(film.probes):
        for part in film.parts:
            pattern = film.attention(0, n, part)
            torch.testing.assert_close(pattern.sum(dim=-1), torch.ones(pattern.shape[:-1]), atol=3e-3, rtol=0)
        assert film.attention(0, n).shape == (
            2,
            model.config.model.attention.heads,
            len(probe.tokens),
            len(probe.tokens),
        )
        lens = film.lens(0, n)
        batch = BATCHES[name]
        if not text:
            logits = model.net.predict(model.net(batch.tokens))[n][None]
        else:
            x = torch.tensor([[int(token) for token in probe.tokens]])
            source = torch.tensor([[int(token) for token in probe.source_tokens]]) if probe.source_tokens else None
            kinds = batch.kinds[n : n + 1, : x.shape[1]] if batch.kinds is not None else None
            logits = model.net.predict(model.net(x, source=source, kinds=kinds))[0]
        torch.testing.assert_close(lens.probabilities[-1], logits.softmax(dim=-1).topk(5).values, atol=1e-5, rtol=1e-3)
    ch.lens.film_figure(film, probe=1)
    assert film.parts == (
        ["attention", "cross", "encoder"] if "decoder" in name and "encoder" in name else ["attention"]
    )
    if text:
        e = film.embeddings(0)
        assert len(e.tokens) == len(e.vectors)
        assert e.plane.shape == (64, 2)
        row = model.net.embed.tokens.weight[int(e.tokens[0])]
        torch.testing.assert_close(e.vectors[0], row.detach(), atol=1e-3, rtol=1e-3)


def test_the_lens_of_a_film_calls_a_number_a_number(tmp_path):
    film, _, _ = look(tmp_path, "tiny-pictures", Packed(torch.rand(3, 1, 8, 8), torch.rand(3)), head="number")
    assert film.lens(0).measure == "number"


def test_a_film_holds_still_where_the_model_does():
    """Axes have no sign and may swap; the plane is turned back, and its distances stay."""
    plane = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    for turn in (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])):
        torch.testing.assert_close(aligned(plane @ turn, plane), plane)
    other = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    turned = aligned(other, plane)
    torch.testing.assert_close(turned @ turned.mT, other @ other.mT)
    assert (turned - plane).norm() < (other - plane).norm()


def test_looks_are_turned_to_the_one_before(tmp_path):
    made = run(tmp_path)
    scope = Microscope(made.model, made.data, made.out)
    scope(0)
    with torch.no_grad():
        made.net.embed.tokens.weight.neg_()  # nothing has moved but the signs of the axes
    Microscope(made.model, made.data, made.out, step=1)(1)
    film = ch.lens.read_film(tmp_path)
    torch.testing.assert_close(film.embeddings(1).plane, film.embeddings(0).plane, atol=1e-3, rtol=1e-2)


def test_the_plane_is_where_the_rows_differ_most():
    table = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 9.0, 1.0, 4.0, 1.0, 1.0]
    )
    table = table + 100
    plane, centred = principal_plane(table), table - table.mean(dim=0)
    most = torch.linalg.svdvals(centred)[:2]
    torch.testing.assert_close(torch.linalg.svdvals(plane), most)
    torch.testing.assert_close(plane.norm(dim=0), most)


# ---------------------------------------------------------------- probes
LETTERS = ch.Tokenizer.characters("abcdefghij .|<>mask")
NONE = Packed(ids(1, 4), ids(1, 4))


def test_a_users_texts_are_looked_at_and_what_is_too_much_is_counted(tmp_path):
    texts = ["abc", "a" * 65, *["b"] * 8]
    film, _, scope = look(
        tmp_path, "tiny-decoder", NONE, LETTERS, context=128, **{"train.probes": texts, "use.begin": [0]}
    )
    assert [len(probe.tokens) for probe in film.probes] == [4, 64, *[2] * 6]
    assert film.probes[0].tokens == ["·", "a", "b", "c"]
    assert film.probes[0].text == "abc"
    assert scope.note.startswith("3 of the probes cut or left out; there are at most 8, of 64 tokens each")
    assert film.lens(0).likeliest()[0][0][0] in film.embeddings(0).all_tokens


def test_a_probe_of_a_translator_is_a_source_and_a_target(tmp_path):
    given = {"train.probes": ["abc ||| de"], "use.start": [1], "use.begin": [0], "use.end": [2]}
    film, _, _ = look(tmp_path, "tiny-encoder-decoder", NONE, LETTERS, **given)
    assert film.probes[0].text == "abc ||| de"
    assert film.attention(0, 0, "cross").shape == (2, 4, 3, 5)
    for wrong in ("abc", "||| de", "abc |||"):
        with pytest.raises(ch.ClearheadError, match="must be source"):
            look(tmp_path, "tiny-encoder-decoder", NONE, LETTERS, **given | {"train.probes": [wrong]})


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "train.probes holds an empty text"), ("aQ", "train.probes: 'aQ' cannot be looked at: .*'Q'")],
)
def test_a_probe_that_cannot_be_read_is_told_by_its_option(text, words, tmp_path):
    with pytest.raises(ch.ClearheadError, match=words):
        look(tmp_path, "tiny-decoder", NONE, LETTERS, **{"train.probes": text, "use.begin": [0]})


def test_a_hidden_word_is_what_the_picture_asks_for(tmp_path):
    tokenizer = ch.Tokenizer.train_bpe(["ab ab"], 258, special=("<|mask|>",))
    hides = {
        "train.probes": ["ab <|mask|> b"],
        "use.mask": [tokenizer.special["<|mask|>"]],
        "vocabulary": len(tokenizer),
    }
    film, _, _ = look(tmp_path, "tiny-encoder", NONE, tokenizer, **hides)
    assert film.probes[0].tokens[film.probes[0].asked] == "<|mask|>"


def test_of_packed_rows_whole_documents_are_taken(tmp_path):
    film, _, _ = look(tmp_path, "tiny-decoder", BATCHES["tiny-decoder"])
    rows = BATCHES["tiny-decoder"].tokens
    assert [probe.tokens for probe in film.probes] == [[str(i) for i in row[5:14].tolist()] for row in rows]


def test_pictures_may_be_files(tmp_path):
    from PIL import Image

    Image.new("L", (8, 8), 99).save(tmp_path / "one.png")
    film, _, _ = look(
        tmp_path, "tiny-pictures", BATCHES["tiny-pictures"], **{"train.probes": [str(tmp_path / "one.png")]}
    )
    assert [probe.text for probe in film.probes] == [str(tmp_path / "one.png")]


def test_what_is_not_in_a_film_is_told(tmp_path):
    with pytest.raises(ch.ClearheadError, match=r"there is no film in .*--microscope makes one"):
        ch.lens.read_film(tmp_path)
    film, _, _ = look(tmp_path, "tiny-decoder", BATCHES["tiny-decoder"])
    for ask, sentence in (
        (lambda: film.attention(7), "step 7 was not looked at; step 0 is the nearest"),
        (lambda: film.lens(0, 3), "no probe 3; this film has probes 0 to 2"),
        (lambda: film.attention(0, 0, "cross"), "no cross in this film, only attention"),
        (lambda: film.embeddings(0, source=True), "no embeddings of sources"),
        (lambda: ch.lens.film_figure(film, layer=2), "no layer 2; this film has layers 0 to 1"),
        (lambda: ch.lens.film_figure(film, head=4), "no head 4; this film has heads 0 to 3"),
    ):
        with pytest.raises(ch.ClearheadError, match=sentence):
            ask()
