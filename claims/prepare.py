"""From public files to what the claims are tried on: python claims/prepare.py DATA [OUT]

DATA holds the public files, OUT (build/claims without it) gets what is made of them:

    text/wiki.txt.xz            articles with <|endoftext|> between them -> text/{train,valid}.txt tokenizer.json
    translation/multi30k/*.gz   train and val of Multi30k, .en and .de -> pairs/{train,valid}.{en,de} tokenizer.json
    labels/glue.tar.xz          SST-2, MRPC, CoLA, RTE, STS-B as GLUE has them -> glue/TASK.{train,dev}.tsv

The articles are of the English Wikipedia (others will do, for other figures), Multi30k is at
github.com/multi30k/dataset, GLUE at gluebenchmark.com. Nothing here is random: the same files give the same result.
"""

import gzip
import io
import lzma
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from clearhead.tokenizers.tokenizer import Tokenizer

WORDS = 8192
SPECIAL = ("<|end|>", "[MASK]")  # one ends a text, one hides a word
COLUMNS = {  # of a task: the text, the second text, the label; CoLA has no line of names
    "SST-2": ("sentence", "", "label"),
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "CoLA": ("3", "", "1"),
    "RTE": ("sentence1", "sentence2", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
}


def write(path: Path, lines: Iterable[str], between: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(between.join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def text(data: Path, out: Path) -> None:
    """Every fiftieth article is held out."""
    with lzma.open(data / "text/wiki.txt.xz", "rt", encoding="utf-8") as file:
        articles = [each.strip() for each in file.read().split("<|endoftext|>") if each.strip()]
    train = [each for number, each in enumerate(articles) if number % 50]
    write(out / "train.txt", train, "\n<|endoftext|>\n")
    write(out / "valid.txt", articles[::50], "\n<|endoftext|>\n")
    Tokenizer.train_bpe((each[:20_000] for each in train), WORDS, SPECIAL).save(
        out / "tokenizer.json"
    )


def pairs(data: Path, out: Path) -> None:
    for name, part in (("train", "train"), ("valid", "val")):
        for side in ("en", "de"):
            with gzip.open(
                data / f"translation/multi30k/{part}.{side}.gz", "rt", encoding="utf-8"
            ) as file:
                write(out / f"{name}.{side}", (line.strip() for line in file))
    sides = (
        line for side in ("en", "de") for line in (out / f"train.{side}").open(encoding="utf-8")
    )
    Tokenizer.train_bpe(sides, WORDS, SPECIAL[:1]).save(out / "tokenizer.json")


def glue(data: Path, out: Path) -> None:
    """One form for all tasks: text, second, label; the test labels are not public, so dev is what is scored."""
    with tarfile.open(data / "labels/glue.tar.xz") as inside:
        for task, columns in COLUMNS.items():
            for part in ("train", "dev"):
                file = inside.extractfile(f"{task}/{part}.tsv")
                assert file is not None
                lines = list(io.TextIOWrapper(file, "utf-8-sig", newline="\n"))
                rows = [line.rstrip("\r\n").split("\t") for line in lines]
                head = [str(i) for i in range(4)] if task == "CoLA" else rows.pop(0)
                told = (
                    [row[head.index(name)].strip() if name else "" for name in columns]
                    for row in rows
                )
                write(out / f"{task}.{part}.tsv", ["text\tsecond\tlabel", *map("\t".join, told)])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    source = Path(sys.argv[1])
    target = Path([*sys.argv, "build/claims"][2])
    for make in (text, pairs, glue):
        (target / make.__name__).mkdir(parents=True, exist_ok=True)
        make(source, target / make.__name__)
