"""Prepare the data of the experiments from public files: python claims/prepare.py DATA [OUTPUT]

Reads from DATA and writes to OUTPUT (default: build/claims):

    text/wiki.txt.xz            articles separated by <|endoftext|>
                                -> text/{train,valid}.txt tokenizer.json
    translation/multi30k/*.gz   train and val of Multi30k, .en and .de
                                -> pairs/{train,valid}.{en,de} tokenizer.json
    labels/glue.tar.xz          SST-2, MRPC, CoLA, RTE and STS-B as published by GLUE
                                -> glue/TASK.{train,dev}.tsv

The articles are from the English Wikipedia (others give other numbers), Multi30k is from
github.com/multi30k/dataset, GLUE from gluebenchmark.com. Nothing here is random.
"""

import gzip
import io
import lzma
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from clearhead.tokenizers.tokenizer import Tokenizer

VOCAB_SIZE = 8192
SPECIAL_TOKENS = ("<|end|>", "[MASK]")
COLUMNS = {  # text, second text and label of each task; CoLA has no header
    "SST-2": ("sentence", "", "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "CoLA": ("3", "", "1"),
    "RTE": ("sentence1", "sentence2", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
}


def write_lines(path: Path, lines: Iterable[str], separator: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(separator.join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def text(data: Path, output: Path) -> None:
    """Articles, every fiftieth of them for validation."""
    with lzma.open(data / "text/wiki.txt.xz", "rt", encoding="utf-8") as file:
        texts = (text.strip() for text in file.read().split("<|endoftext|>"))
        articles = [text for text in texts if text]
    train = [article for i, article in enumerate(articles) if i % 50]
    write_lines(output / "train.txt", train, "\n<|endoftext|>\n")
    write_lines(output / "valid.txt", articles[::50], "\n<|endoftext|>\n")
    starts = (article[:20_000] for article in train)
    tokenizer = Tokenizer.train_bpe(starts, VOCAB_SIZE, SPECIAL_TOKENS)
    tokenizer.save(output / "tokenizer.json")


def pairs(data: Path, output: Path) -> None:
    """Sentence pairs, with one tokenizer for both languages."""
    for name, part in (("train", "train"), ("valid", "val")):
        for language in ("en", "de"):
            source = data / f"translation/multi30k/{part}.{language}.gz"
            with gzip.open(source, "rt", encoding="utf-8") as file:
                write_lines(output / f"{name}.{language}", (line.strip() for line in file))
    files = (output / f"train.{language}" for language in ("en", "de"))
    lines = (line for file in files for line in file.open(encoding="utf-8"))
    tokenizer = Tokenizer.train_bpe(lines, VOCAB_SIZE, SPECIAL_TOKENS[:1])
    tokenizer.save(output / "tokenizer.json")


def glue(data: Path, output: Path) -> None:
    """Tables with the same columns for all tasks; labels of the test sets are not public."""
    with tarfile.open(data / "labels/glue.tar.xz") as archive:
        for task, columns in COLUMNS.items():
            for part in ("train", "dev"):
                file = archive.extractfile(f"{task}/{part}.tsv")
                assert file is not None
                lines = list(io.TextIOWrapper(file, "utf-8-sig", newline="\n"))
                rows = [line.rstrip("\r\n").split("\t") for line in lines]
                header = [str(i) for i in range(4)] if task == "CoLA" else rows.pop(0)
                selected = (
                    [row[header.index(name)].strip() if name else "" for name in columns]
                    for row in rows
                )
                table = ["text\tsecond\tlabel", *map("\t".join, selected)]
                write_lines(output / f"{task}.{part}.tsv", table)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    data_folder = Path(sys.argv[1])
    output_folder = Path([*sys.argv, "build/claims"][2])
    for prepare in (text, pairs, glue):
        (output_folder / prepare.__name__).mkdir(parents=True, exist_ok=True)
        prepare(data_folder, output_folder / prepare.__name__)
