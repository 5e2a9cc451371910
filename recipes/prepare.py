"""From public files to what the recipes train on: python recipes/prepare.py NAME DATA OUT

NAME is story, en-de, fill, mood, digits or spoken-digits. DATA holds the public files, OUT gets what is made of them:

    story          text/tinystories.txt.xz, stories/*.txt.xz (what teacher.py wrote) -> train.txt valid.txt
    en-de          translation/tatoeba/*.tsv.xz, translation/europarl.tar.xz -> train, dev and test, .en and .de
    fill           text/books.txt.xz, text/wiki.txt.xz -> train.txt valid.txt tokenizer.json; words has the same
    mood           labels/glue.tar.xz -> train.tsv valid.tsv dev.tsv
    digits         pictures/mnist.tar.xz -> the four idx files
    spoken-digits  sound/spoken-digits.tar.xz -> takes/{train,test}, and for each speaker SPEAKER/{train,test}

Nothing here is random: the same files give the same result.
"""

import lzma
import random
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

END = "\n<|endoftext|>\n"  # between two documents, as `clearhead train` reads them
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")


def read(path: Path) -> str:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def documents(path: Path) -> list[str]:
    return [text.strip() for text in read(path).split("<|endoftext|>") if text.strip()]


def finished(path: Path) -> list[str]:
    """Stories that do not break off."""
    return [text for text in documents(path) if text[-1] in '.!?"”']


def write(path: Path, lines: Iterable[str], between: str = "\n") -> None:
    path.write_text(between.join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def story(data: Path, out: Path) -> None:
    """Stories that have an end: one in forty of the original ones is held out, the teacher's are only learned from."""
    own = finished(data / "text/tinystories.txt.xz")
    made = [text for file in sorted(data.glob("stories/*.xz")) for text in documents(file)]
    kept = dict.fromkeys(
        text for text in made if len(text) > 150 and text[-1] in '.!?"' and text[0].isupper()
    )
    held = len(own) // 40
    print(
        f"{len(own):,} stories, {held:,} of them held out; of {len(made):,} that the teacher wrote {len(kept):,}"
    )
    write(out / "valid.txt", own[:held], END)
    write(out / "train.txt", [*own[held:], *kept], END)


def en_de(data: Path, out: Path) -> None:
    """Tatoeba twice, without any sentence of the challenge's dev and test sets, and Europarl once, as it is."""

    def table(name: str, english: int, german: int) -> list[tuple[str, str]]:
        rows = [line.split("\t") for line in read(data / "translation/tatoeba" / name).splitlines()]
        return [(row[english].strip(), row[german].strip()) for row in rows]

    test = table("challenge-test-v2020-05-31.tsv.xz", 3, 2)
    dev = table("challenge-dev-v2020-11-09.tsv.xz", 3, 2)
    held = {side for pair in (*test, *dev) for side in pair}
    tatoeba = [pair for pair in table("deu-eng.tsv.xz", 0, 1) if not held.intersection(pair)]
    with tarfile.open(data / "translation/europarl.tar.xz") as inside:
        sides = (inside.extractfile(f"europarl/train.{language}") for language in ("en", "de"))
        europarl = list(
            zip(*(side.read().decode().splitlines() for side in sides if side), strict=True)
        )
    print(f"{len(tatoeba):,} pairs of Tatoeba, {len(europarl):,} of Europarl")
    train = tatoeba * 2 + europarl
    random.Random(0).shuffle(train)
    for name, pairs in (("train", train), ("dev", dev[:2000]), ("test", test)):
        for side, language in enumerate(("en", "de")):
            write(out / f"{name}.{language}", (" ".join(pair[side].split()) for pair in pairs))


def fill(data: Path, out: Path) -> None:
    """Paragraphs of books and of an encyclopedia, in lower case; one document in a hundred is held out."""
    import json

    from clearhead.tokenizers.tokenizer import Tokenizer

    texts = [
        text.lower()
        for name in ("books", "wiki")
        for text in documents(data / f"text/{name}.txt.xz")
    ]
    write(out / "valid.txt", texts[::100], END)
    train = [text for number, text in enumerate(texts) if number % 100]
    write(out / "train.txt", train, END)
    Tokenizer.train_bpe((text[:40_000] for text in train), 8192, ("<|end|>", "[MASK]")).save(
        out / "tokenizer.json"
    )
    rules = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    write(out / "tokenizer.json", [json.dumps(rules | {"normalizer": {"type": "Lowercase"}})])


def mood(data: Path, out: Path) -> None:
    """SST-2, whose training rows are sentences and parts of them: every tenth sentence chooses among runs, and its
    parts are left out unless another sentence has them too; its dev set is only scored."""
    with tarfile.open(data / "labels/glue.tar.xz") as inside:
        files = {name: inside.extractfile(f"SST-2/{name}.tsv") for name in ("train", "dev")}
        rows = {name: file.read().decode().splitlines()[1:] for name, file in files.items() if file}
    named = {"0": "negative", "1": "positive"}

    def labelled(some: Iterable[str]) -> list[tuple[str, str]]:
        pairs = (line.rstrip("\n").split("\t") for line in some)
        return [(text.strip(), named[label]) for text, label in pairs]

    train = labelled(rows["train"])
    dev = labelled(rows["dev"])
    wholes = whole(text for text, _ in train)
    held = {
        text
        for text, homes in wholes.items()
        if homes == {text} and zlib.crc32(text.encode()) % 10 == 0
    }
    parts = {
        "train": [row for row in train if not held.issuperset(wholes[row[0]])],
        "valid": [row for row in train if row[0] in held],
        "dev": dev,
    }
    for name, part in parts.items():
        write(out / f"{name}.tsv", ["sentence\tlabel", *("\t".join(row) for row in part)])


def whole(texts: Iterable[str]) -> dict[str, set[str]]:
    """Of each text the longest ones that it is a part of; itself, where it is none."""
    found: dict[str, set[str]] = {}
    by_word: dict[str, set[str]] = {}
    for text in sorted(set(texts), key=lambda text: (-len(text), text)):
        with_word = min((by_word.get(word, set()) for word in text.split()), key=len)
        homes = {home for home in with_word if f" {text} " in f" {home} "}
        found[text] = homes or {text}
        if not homes:
            for word in text.split():
                by_word.setdefault(word, set()).add(text)
    return found


def digits(data: Path, out: Path) -> None:
    with tarfile.open(data / "pictures/mnist.tar.xz") as inside:
        inside.extractall(out, filter="data")


def spoken_digits(data: Path, out: Path) -> None:
    """Takes 0 to 4 of each digit and speaker are held out; and, apart, all takes of one speaker."""
    with tarfile.open(data / "sound/spoken-digits.tar.xz") as inside:
        inside.extractall(out, filter="data")
    held: dict[str, Callable[[str, int], bool]] = {"takes": lambda speaker, take: take < 5}
    held |= {name: lambda speaker, take, name=name: speaker == name for name in SPEAKERS}  # type: ignore[misc]
    for file in sorted((out / "fsdd").glob("*.wav")):
        _, speaker, take = file.stem.split("_")
        for name, apart in held.items():
            folder = out / name / ("test" if apart(speaker, int(take)) else "train")
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder)


MAKE = {
    "story": story,
    "en-de": en_de,
    "fill": fill,
    "mood": mood,
    "digits": digits,
    "spoken-digits": spoken_digits,
}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in MAKE:
        sys.exit(__doc__)
    target = Path(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    MAKE[sys.argv[1]](Path(sys.argv[2]), target)
