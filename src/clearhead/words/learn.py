"""From files of text to vectors of their words: `clearhead train vectors`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clearhead import reader
from clearhead.data.packed import Broken, Report
from clearhead.data.sources import documents
from clearhead.errors import ClearheadError
from clearhead.lens.progress import shown
from clearhead.lens.vectors import Vectors, vectors
from clearhead.variants import say
from clearhead.words.corpus import Corpus, split
from clearhead.words.files import Table, make_place, write_table
from clearhead.words.skip_gram import CHUNK, Learner, SkipGram


@dataclass(frozen=True)
class Texts:
    """What is learned from."""

    train: tuple[str, ...] = say("files, folders or globs of text; .gz, .xz, .zst and .jsonl too", ())
    field: str = say("the field of a JSON line that is the text", "text")
    broken: Broken = say("what becomes of broken lines", "refuse")


@dataclass(frozen=True)
class Lesson:
    """What is learned from, and how."""

    data: Texts = field(default=Texts())
    train: SkipGram = field(default=SkipGram())


def learn_vectors(lesson: Lesson, out: str | Path, tell: Callable[[str], None] = print) -> Vectors:
    """Learns a vector for each frequent word of some texts and saves them.

    `out` is a folder, or a .txt, .vec or .bin in word2vec's format.
    """
    out, how, report = Path(out), lesson.train, Report(lesson.data.broken)
    if not lesson.data.train:
        raise ClearheadError("there is nothing to learn from; give --data.train a file, a folder or a glob.")
    make_place(out)
    texts = documents(lesson.data.train, report, lesson.data.field)
    corpus = Corpus.of((line for text in texts for line in split(text.text)), how.least)
    if report.skipped:
        tell(str(report))
    tell(f"{len(corpus.ids):,} words, {len(corpus.words):,} different ones that occur {how.least} times or more")
    learner = Learner(corpus, how)
    for _ in shown(learner, len(learner), f"learning, {CHUNK:,} words at a time"):
        pass
    table = Table(corpus.words, learner.inner)
    write_table(out, table, reader.tree(how))
    tell(f"saved {out}; clearhead vectors {out} WORD tells what is near it")
    return vectors(table)
