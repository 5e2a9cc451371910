"""Where the tokenizers of a run come from, and what its special tokens are called."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from clearhead.config import Config, Use
from clearhead.errors import ClearheadError, nearest
from clearhead.tokens.kinds import END, KINDS
from clearhead.tokens.text import Tokenizer
from clearhead.weights import formats
from clearhead.weights.checkpoint import TOKENIZER

START, MASK = "<|start|>", "<|mask|>"
ALSO = {END: ("<|endoftext|>", "</s>", "[SEP]"), START: ("<s>", "[CLS]"), MASK: ("<mask>", "[MASK]")}  # others' names
SAMPLE = 200_000_000  # characters that a tokenizer learns from


@dataclass(frozen=True)
class Origin:
    """Where tokenizers come from: the model that is started from, the folder of the run, or the texts themselves."""

    config: Config
    out: Path
    ready: bool = False  # whether what is in the folder is this run's, and not of one that never began
    tokenizer: Tokenizer | None = None
    source_tokenizer: Tokenizer | None = None

    def learn(self, texts: Callable[[], Iterable[str]], special: tuple[str, ...], name: str = TOKENIZER) -> Tokenizer:
        kind, path = self.config.data.tokenizer, self.out / name
        if self.ready and path.is_file():
            return Tokenizer.load(path)
        if kind == "bpe":
            made = Tokenizer.train_bpe(_sample(texts()), self.config.data.vocabulary, special)
        elif kind == "characters":
            made = Tokenizer.characters("".join(sorted(set(chain.from_iterable(texts())))), special)
        elif kind == "bytes":
            made = Tokenizer.bytes(special)
        else:
            made = _published(kind, special)
        self.out.mkdir(parents=True, exist_ok=True)
        made.save(path)
        return made


def ids_of(tokenizer: Tokenizer, name: str) -> list[int]:
    """The id of a special token, or of what a published tokenizer has in its place."""
    return [tokenizer.special[n] for n in (name, *ALSO[name]) if n in tokenizer.special][:1]


def opening(use: Use, tokenizer: Tokenizer) -> int | None:
    """The id that opens every document, if there is one."""
    return next(iter((*use.begin, *use.stop, *ids_of(tokenizer, END))), None)


def _published(where: str, special: tuple[str, ...]) -> Tokenizer:
    """That of a tokenizer.json or of any model, with the special tokens that it lacks."""
    try:
        found = formats.tokenizers(where)
    except ClearheadError as error:
        raise ClearheadError(f"data.tokenizer = {where!r} is no kind ({nearest(where, KINDS)}), and {error}") from None
    if found.tokenizer is None:
        raise ClearheadError(f"data.tokenizer = {where!r} cannot be used: {found.why}")
    found.tokenizer._inner.add_special_tokens([name for name in special if not ids_of(found.tokenizer, name)])
    return Tokenizer(found.tokenizer._inner)


def _sample(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, as many as SAMPLE characters."""
    room = SAMPLE
    for text in texts:
        if room <= 0:
            return
        yield text
        room -= len(text)
