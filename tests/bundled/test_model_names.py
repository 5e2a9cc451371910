"""A bundled name stands for its model everywhere; what somebody made themselves goes first."""

import subprocess
import sys

import pytest

import clearhead as ch
from clearhead.serve.registry import parse_model_paths
from clearhead.weights import hub, model_cards
from clearhead.word_vectors.io import VectorTable, write_vectors


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """A small story and two words, in place of those that are bundled; and somewhere else to stand."""
    import torch

    ch.save(
        ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()),
        tmp_path / "bundled" / "story",
    )
    write_vectors(tmp_path / "bundled" / "words", VectorTable(["cat", "dog"], torch.eye(2).half()))
    (tmp_path / "bundled" / "fill").mkdir()  # a card, perhaps, but no model
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(model_cards, "ROOT", tmp_path / "bundled")
    return tmp_path / "bundled"


def test_only_what_is_there_is_named(shelf):
    assert model_cards.bundled_models() == ["story", "words"]
    assert model_cards.bundled_path("story") == shelf / "story"
    assert (
        model_cards.bundled_path("fill")
        is model_cards.bundled_path("../bundled/story")
        is model_cards.bundled_path("")
        is None
    )


def test_a_bundled_name_is_a_model():
    assert ch.load("story").config.model.n_layers == ch.presets["tiny-decoder"].model.n_layers
    assert parse_model_paths(["story"]) == {"story": "story"}


def test_vectors_have_their_name_too():
    assert ch.vectors("words").vector("dog").tolist() == [0.0, 1.0]
    with pytest.raises(ch.ClearheadError, match="words holds vectors of words, no model"):
        ch.load("words")


def test_what_somebody_made_goes_first(tmp_path):
    ch.save(ch.new("tiny-decoder", n_layers=1), "story")
    assert ch.load("story").config.model.n_layers == 1
    assert hub.find_model("story").absolute() == tmp_path / "here" / "story"


def test_a_folder_without_a_model_hides_nothing(shelf, tmp_path):
    (tmp_path / "here" / "story").mkdir()
    (tmp_path / "here" / "story" / "chapter.txt").write_text("Once")
    assert hub.find_model("story") == shelf / "story"
    with pytest.raises(ch.ClearheadError, match="is no clearhead model"):
        ch.load("./story")


@pytest.mark.parametrize(
    ("name", "near"), [("stori", "story"), ("Story", "story"), ("smollm2", "smollm2-135m")]
)
def test_the_nearest_name_is_offered(name, near):
    with pytest.raises(ch.ClearheadError, match=f"did you mean '{near}"):
        ch.load(name)
    with pytest.raises(ch.ClearheadError, match="is no bundled model, and only those have cards"):
        model_cards.bundled_card(name)


def test_names_are_found_without_torch():
    code = "import sys; from clearhead.weights import hub; hub.find('story'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_writing_a_text_imports_nothing_that_draws_serves_or_fetches(shelf):
    heavy = {"matplotlib", "rich", "fastapi", "huggingface_hub", "transformers", "sacrebleu"}
    code = (
        "import sys; from clearhead.cli.main import app; "
        f"app(['generate', {str(shelf / 'story')!r}, 'a', '--max-tokens', '1'], standalone_mode=False); "
        f"found = {heavy} & {{*sys.modules}}; sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
