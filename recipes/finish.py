"""From a finished run to the model that is shipped: python recipes/finish.py NAME RUN

The best checkpoint in 16 bits, or the 20,000 commonest words, beside the card in src/clearhead/bundled/NAME. A text
that fill reads gets a line's end before it: where it learned, a paragraph seldom opened a row.
"""

import sys
import tempfile
from pathlib import Path

import torch

import clearhead as ch
from clearhead import reader
from clearhead.weights.model_cards import BUNDLED_DIR, BUNDLED_NAMES, update_card
from clearhead.word_vectors.io import Table, read_table, write_table

COMMONEST = 20_000


def finish(name: str, run: Path) -> None:
    folder = BUNDLED_DIR / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as there:
        new = Path(there) / "new"
        if name == "words":
            table = read_table(run)
            made = reader.load(run / "words.json")["made"]
            write_table(
                new,
                Table(table.words[:COMMONEST], table.vectors[:COMMONEST].to(torch.bfloat16)),
                made,
            )
        else:
            model = ch.load(run / "best", device="cpu", dtype="bfloat16")
            if name == "fill":
                model.config = model.config.change(
                    inference__bos_tokens=model.tokenizer.encode("\n")
                )
            ch.save(model, new)
        for file in new.iterdir():
            file.replace(folder / file.name)
    print(update_card(folder))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in BUNDLED_NAMES:
        sys.exit(__doc__)
    finish(sys.argv[1], Path(sys.argv[2]))
