"""Bundled names resolve to their models; local models take precedence."""

import subprocess
import sys

import pytest

import clearhead as ch
from clearhead.serve.registry import parse_model_paths
from clearhead.weights import bundled, hub
from clearhead.word_vectors.io import VectorTable, write_vectors


@pytest.fixture(autouse=True)
def bundled_dir(tmp_path, monkeypatch):
    """Bundled models replaced by a tiny story and two word vectors, in an empty working folder."""
    import torch

    ch.save(
        ch.new("tiny-decoder", vocab_size=256, tokenizer=ch.Tokenizer.bytes()),
        tmp_path / "bundled" / "story",
    )
    write_vectors(tmp_path / "bundled" / "words", VectorTable(["cat", "dog"], torch.eye(2).half()))
    (tmp_path / "bundled" / "fill").mkdir()  # no model
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(bundled, "BUNDLED_DIR", tmp_path / "bundled")
    return tmp_path / "bundled"


def test_only_existing_models_are_listed(bundled_dir):
    assert bundled.bundled_models() == ["story", "words"]
    assert bundled.bundled_path("story") == bundled_dir / "story"
    for name in ("fill", "../bundled/story", ""):
        assert bundled.bundled_path(name) is None


def test_bundled_name_loads():
    assert ch.load("story").config.model.n_layers == ch.presets["tiny-decoder"].model.n_layers
    assert parse_model_paths(["story"]) == {"story": "story"}


def test_word_vectors_load_by_name():
    assert ch.vectors("words")["dog"].tolist() == [0.0, 1.0]
    with pytest.raises(ch.ClearheadError, match="word vectors"):
        ch.load("words")


def test_local_model_takes_precedence(tmp_path):
    ch.save(ch.new("tiny-decoder", n_layers=1), "story")
    assert ch.load("story").config.model.n_layers == 1
    assert hub.find_model("story").absolute() == tmp_path / "here" / "story"


def test_folder_without_a_model_does_not_hide_a_bundled_model(bundled_dir, tmp_path):
    (tmp_path / "here" / "story").mkdir()
    (tmp_path / "here" / "story" / "chapter.txt").write_text("Once")
    assert hub.find_model("story") == bundled_dir / "story"
    with pytest.raises(ch.ClearheadError, match="is not a model"):
        ch.load("./story")


@pytest.mark.parametrize(
    ("name", "suggestion"), [("stori", "story"), ("Story", "story"), ("smollm2", "smollm2-135m")]
)
def test_similar_name_is_suggested(name, suggestion):
    with pytest.raises(ch.ClearheadError, match=f"did you mean '{suggestion}"):
        ch.load(name)
    with pytest.raises(ch.ClearheadError, match="only bundled models have cards"):
        bundled.bundled_card(name)


def test_finding_models_does_not_import_torch():
    code = (
        "import sys; from clearhead.weights import hub; "
        "hub.find_model('story'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_generate_imports_no_plotting_serving_or_hub_libraries(bundled_dir):
    heavy = {"matplotlib", "rich", "fastapi", "huggingface_hub", "transformers", "sacrebleu"}
    code = (
        "import sys; from clearhead.cli.main import app; "
        f"command = ['generate', {str(bundled_dir / 'story')!r}, 'a', '--max-tokens', '1']; "
        "app(command, standalone_mode=False); "
        f"found = {heavy} & {{*sys.modules}}; sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
