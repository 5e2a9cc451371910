"""Prepare the training data of the recipes: python recipes/prepare.py NAME DATA OUTPUT

NAME is story, en-de, fill, mood, digits or spoken-digits. DATA contains the public files:

    story          text/tinystories.txt.xz, and stories/*.txt.xz written by teacher.py
                   -> train.txt valid.txt
    en-de          translation/tatoeba/*.tsv.xz, translation/europarl.tar.xz
                   -> train, dev and test, each .en and .de
    fill           text/books.txt.xz, text/wiki.txt.xz
                   -> train.txt valid.txt tokenizer.json, also used for words
    mood           labels/glue.tar.xz -> train.tsv valid.tsv dev.tsv
    digits         pictures/mnist.tar.xz -> the four idx files
    spoken-digits  sound/spoken-digits.tar.xz
                   -> takes/{train,test}, and SPEAKER/{train,test} for each speaker

The result is deterministic.
"""

import json
import lzma
import random
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from clearhead.tokenizers.tokenizer import END_TOKEN, Tokenizer

SEPARATOR = "<|endoftext|>"  # between documents
LANGUAGES = ("en", "de")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
LABELS = {"0": "negative", "1": "positive"}
VOCAB_SIZE = 8192
MIN_STORY_CHARS = 150
MAX_TOKENIZER_CHARS = 40_000  # of each document


def read_documents(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        texts = file.read().split(SEPARATOR)
    return [text.strip() for text in texts if text.strip()]


def read_complete_stories(path: Path) -> list[str]:
    """Stories that end with a sentence."""
    return [text for text in read_documents(path) if text[-1] in '.!?"”']


def write_lines(path: Path, lines: Iterable[str], separator: str = "\n") -> None:
    path.write_text(separator.join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def write_documents(path: Path, texts: Iterable[str]) -> None:
    write_lines(path, texts, f"\n{SEPARATOR}\n")


def prepare_story(data: Path, output: Path) -> None:
    """Complete stories; one in forty of TinyStories is held out, generated ones only train."""
    original = read_complete_stories(data / "text/tinystories.txt.xz")
    generated = [
        text for file in sorted(data.glob("stories/*.xz")) for text in read_documents(file)
    ]
    complete = dict.fromkeys(
        text
        for text in generated
        if len(text) > MIN_STORY_CHARS and text[-1] in '.!?"' and text[0].isupper()
    )
    num_valid = len(original) // 40
    print(f"{len(original):,} stories, {num_valid:,} of them held out")
    print(f"{len(complete):,} of {len(generated):,} generated stories are complete and unique")
    write_documents(output / "valid.txt", original[:num_valid])
    write_documents(output / "train.txt", [*original[num_valid:], *complete])


def prepare_en_de(data: Path, output: Path) -> None:
    """Tatoeba twice, without sentences of the challenge's dev and test sets, and Europarl once."""

    def read_pairs(name: str, english: int, german: int) -> list[tuple[str, str]]:
        with lzma.open(data / "translation/tatoeba" / name, "rt", encoding="utf-8") as file:
            rows = [line.split("\t") for line in file.read().splitlines()]
        return [(row[english].strip(), row[german].strip()) for row in rows]

    test = read_pairs("challenge-test-v2020-05-31.tsv.xz", 3, 2)
    dev = read_pairs("challenge-dev-v2020-11-09.tsv.xz", 3, 2)
    held_out = {sentence for pair in (*test, *dev) for sentence in pair}
    tatoeba = [
        pair for pair in read_pairs("deu-eng.tsv.xz", 0, 1) if not held_out.intersection(pair)
    ]
    with tarfile.open(data / "translation/europarl.tar.xz") as archive:
        files = [archive.extractfile(f"europarl/train.{language}") for language in LANGUAGES]
        lines = [file.read().decode().splitlines() for file in files if file]
    europarl = list(zip(*lines, strict=True))
    print(f"{len(tatoeba):,} pairs of Tatoeba, {len(europarl):,} of Europarl")
    train = tatoeba * 2 + europarl
    random.Random(0).shuffle(train)
    for name, pairs in (("train", train), ("dev", dev[:2000]), ("test", test)):
        for side, language in enumerate(LANGUAGES):
            sentences = (" ".join(pair[side].split()) for pair in pairs)
            write_lines(output / f"{name}.{language}", sentences)


def prepare_fill(data: Path, output: Path) -> None:
    """Books and Wikipedia in lower case; one document in a hundred is held out."""
    texts = [
        text.lower()
        for name in ("books", "wiki")
        for text in read_documents(data / f"text/{name}.txt.xz")
    ]
    train = [text for number, text in enumerate(texts) if number % 100]
    write_documents(output / "valid.txt", texts[::100])
    write_documents(output / "train.txt", train)
    path = output / "tokenizer.json"
    beginnings = (text[:MAX_TOKENIZER_CHARS] for text in train)
    Tokenizer.train_bpe(beginnings, VOCAB_SIZE, (END_TOKEN, "[MASK]")).save(path)
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    write_lines(path, [json.dumps(tokenizer | {"normalizer": {"type": "Lowercase"}})])


def prepare_mood(data: Path, output: Path) -> None:
    """SST-2, whose training rows are sentences and phrases of them; its dev set is the test set.

    Every tenth sentence is for validation; its phrases are left out of the training data, unless
    they also occur in another sentence.
    """
    with tarfile.open(data / "labels/glue.tar.xz") as archive:
        files = {name: archive.extractfile(f"SST-2/{name}.tsv") for name in ("train", "dev")}
        lines = {
            name: file.read().decode().splitlines()[1:] for name, file in files.items() if file
        }

    def parse(lines: Iterable[str]) -> list[tuple[str, str]]:
        rows = (line.rstrip("\n").split("\t") for line in lines)
        return [(text.strip(), LABELS[label]) for text, label in rows]

    rows = parse(lines["train"])
    sentences_of = find_sentences(text for text, _ in rows)
    valid = {
        text
        for text, sentences in sentences_of.items()
        if sentences == {text} and zlib.crc32(text.encode()) % 10 == 0
    }
    splits = {
        "train": [row for row in rows if not valid.issuperset(sentences_of[row[0]])],
        "valid": [row for row in rows if row[0] in valid],
        "dev": parse(lines["dev"]),
    }
    for name, split in splits.items():
        tsv_rows = ("\t".join(row) for row in split)
        write_lines(output / f"{name}.tsv", ["sentence\tlabel", *tsv_rows])


def find_sentences(texts: Iterable[str]) -> dict[str, set[str]]:
    """For each text, the longest texts that contain it; itself if there are none."""
    sentences_of: dict[str, set[str]] = {}
    by_word: dict[str, set[str]] = {}
    for text in sorted(set(texts), key=lambda text: (-len(text), text)):
        candidates = min((by_word.get(word, set()) for word in text.split()), key=len)
        sentences = {sentence for sentence in candidates if f" {text} " in f" {sentence} "}
        sentences_of[text] = sentences or {text}
        if not sentences:
            for word in text.split():
                by_word.setdefault(word, set()).add(text)
    return sentences_of


def prepare_digits(data: Path, output: Path) -> None:
    with tarfile.open(data / "pictures/mnist.tar.xz") as archive:
        archive.extractall(output, filter="data")


def prepare_spoken_digits(data: Path, output: Path) -> None:
    """Two kinds of splits: takes 0 to 4 of each digit and speaker, or all takes of one speaker."""
    with tarfile.open(data / "sound/spoken-digits.tar.xz") as archive:
        archive.extractall(output, filter="data")
    for file in sorted((output / "fsdd").glob("*.wav")):
        _, speaker, take = file.stem.split("_")
        is_test = {name: name == speaker for name in SPEAKERS}
        is_test["takes"] = int(take) < 5
        for name, test in is_test.items():
            folder = output / name / ("test" if test else "train")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder)


PREPARE: dict[str, Callable[[Path, Path], None]] = {
    "story": prepare_story,
    "en-de": prepare_en_de,
    "fill": prepare_fill,
    "mood": prepare_mood,
    "digits": prepare_digits,
    "spoken-digits": prepare_spoken_digits,
}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in PREPARE:
        sys.exit(__doc__)
    folder = Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    PREPARE[sys.argv[1]](Path(sys.argv[2]), folder)
