"""Copy a finished run to the bundled models: python recipes/finish.py NAME RUN

Saves the best checkpoint in bfloat16 (of `words`, the 20,000 most frequent ones; `sentences` as
distill.py saved it) beside the card in src/clearhead/bundled/NAME. For `fill`, a newline is
prepended to every text, because most training rows do not start with a new paragraph.
"""

import sys
import tempfile
from pathlib import Path

import torch

import clearhead as ch
from clearhead.config.parse import read_config_file
from clearhead.weights.bundled import BUNDLED_DIR, BUNDLED_NAMES
from clearhead.weights.model_cards import update_card
from clearhead.word_vectors.io import WORDS_FILE, VectorTable, read_vectors, write_vectors

MAX_WORDS = 20_000


def finish(name: str, run: Path) -> None:
    folder = BUNDLED_DIR / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary) / "new"
        if name == "words":
            _save_vectors(run, new)
        else:
            _save_model(name, run, new)
        for file in new.iterdir():
            file.replace(folder / file.name)
    print(update_card(folder))


def _save_vectors(run: Path, new: Path) -> None:
    table = read_vectors(run)
    vectors = table.vectors[:MAX_WORDS].to(torch.bfloat16)
    config = read_config_file(run / WORDS_FILE)["config"]
    write_vectors(new, VectorTable(table.words[:MAX_WORDS], vectors), config)


def _save_model(name: str, run: Path, new: Path) -> None:
    if name == "sentences":
        model = ch.load(run, device="cpu", dtype="stored")
    else:
        model = ch.load(run / "best", device="cpu", dtype="bfloat16")
    if name == "fill":
        assert model.tokenizer is not None
        newline = model.tokenizer.encode("\n")
        model.config = model.config.replace(inference__bos_tokens=newline)
    ch.save(model, new)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in BUNDLED_NAMES:
        sys.exit(__doc__)
    finish(sys.argv[1], Path(sys.argv[2]))
