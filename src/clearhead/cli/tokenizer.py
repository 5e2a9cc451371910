"""`clearhead tokenizer`: makes a vocabulary from texts, and shows how one cuts text."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clearhead.cli.common import read_stdin, warn_if_file_name
from clearhead.cli.help_texts import examples
from clearhead.errors import ClearheadError, suggest
from clearhead.tokenizers.tokenizer import END_TOKEN, TOKENIZER_KINDS

if TYPE_CHECKING:
    from clearhead.tokenizers.tokenizer import Tokenizer

# tokens of a bpe; characters of text that tell how well it does
SIZE = 8192
SAMPLE = 2**20

app = typer.Typer(rich_markup_mode=None)

Files = typer.Argument(
    None,
    help="Files, folders or globs of text; .gz, .xz, .zst and .jsonl too; - is standard input.",
    show_default=False,
)
Kind = typer.Option("bpe", help="bpe (byte-level), characters or bytes.")
Size = typer.Option(
    None, help=f"How many tokens a bpe gets; {SIZE} without it.", show_default=False
)
Special = typer.Option(
    [], help=f"A special token beside {END_TOKEN}; may be given several times.", show_default=False
)
Field = typer.Option("text", help="Which field of a JSON line is the text.")
Broken = typer.Option("fail", help="What to do with broken lines: fail or skip.")
Out = typer.Option(Path("tokenizer.json"), help="The file to write.")
Where = typer.Argument(
    help="A tokenizer.json, a model's folder, a .gguf file, a name that was fetched, or owner/name on the hub.",
    show_default=False,
)
Words = typer.Argument(
    None, help="The text to cut; - reads it from standard input.", show_default=False
)


@app.callback(invoke_without_command=True)
def tokenizer(context: typer.Context) -> None:
    """Make a tokenizer from texts, or show how one cuts text."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("train", epilog=examples("tokenizer train"))
def train(
    files: list[str] = Files,
    kind: str = Kind,
    vocab_size: int = Size,
    special_token: list[str] = Special,
    text_column: str = Field,
    on_error: str = Broken,
    output: Path = Out,
) -> None:
    """Make a tokenizer from texts.

    They are read once, a little at a time. The same texts always give the same tokenizer.
    """
    from clearhead.cli.tokenizer_view import summarize
    from clearhead.data.batch import DataReport
    from clearhead.data.readers import read_documents

    if kind not in TOKENIZER_KINDS:
        raise ClearheadError(f"--kind {kind} is unknown; {suggest(kind, TOKENIZER_KINDS)}")
    if on_error not in ("fail", "skip"):
        raise ClearheadError(f"--broken {on_error} is unknown; it is refuse or skip.")
    if vocab_size is not None and kind != "bpe":
        raise ClearheadError(
            f"--size {vocab_size} is for bpe; {kind} come in a number of their own."
        )
    if not files and kind != "bytes":
        raise ClearheadError(
            "there is nothing to learn from; name files, folders or globs of text, or - for stdin."
        )
    _check_free(output)
    report = DataReport("skip" if on_error == "skip" else "fail")
    texts = _Texts(
        (document.text for document in read_documents(files or [], report, text_column)),
        _total(files or []),
    )
    start = time.monotonic()
    try:
        made = _made(
            kind,
            texts,
            SIZE if vocab_size is None else vocab_size,
            tuple(dict.fromkeys((END_TOKEN, *special_token))),
        )
    except ClearheadError as error:  # whose option is called otherwise in training
        raise ClearheadError(str(error).replace("--data.on_error skip", "--broken skip")) from None
    finally:
        _say("")
    made.save(output)
    if report.skipped:
        typer.echo(str(report), err=True)
    typer.echo(f"{output}: {summarize(made)}")
    if texts.size:
        tokens = sum(map(len, made.encode_batch(texts.sample)))
        sample = sum(len(t.encode()) for t in texts.sample)
        share = f"{sample / tokens:.2f} bytes a token on the first {_megabytes(sample)}"
        typer.echo(f"read {_megabytes(texts.size)} in {time.monotonic() - start:.1f} s; {share}")
    if kind == "bpe" and len(made) < (asked := vocab_size or SIZE):
        typer.echo(
            f"there are no more pairs to join in so little text; {asked:,} tokens need more of it"
        )
    typer.echo(f'clearhead tokenizer show {output} "some text" shows how it cuts')


@app.command("show", epilog=examples("tokenizer show"))
def show(model: str = Where, text: str = Words) -> None:
    """Show how a text is cut, and how each piece was merged.

    Without a text: what kind of tokenizer it is. No weights are read.
    """
    from rich.console import Console

    from clearhead.cli.tokenizer_view import print_description, print_tokens
    from clearhead.weights.load import load_tokenizers

    found = load_tokenizers(model)
    if found.tokenizer is None:
        raise ClearheadError(found.missing_reason)
    warn_if_file_name(text or "", "- < {} in its place reads what it holds")
    if text is not None and not (text := read_stdin() if text == "-" else text):
        raise ClearheadError("the text is empty; there is nothing to cut.")
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    reads = found.source_tokenizer or found.tokenizer
    sides = (
        {"what it reads": reads, "what it writes": found.tokenizer}
        if found.source_tokenizer
        else {"": reads}
    )
    for number, (name, side) in enumerate(sides.items()):
        if name:
            console.print("\n" * (number > 0) + name, style="bold")
        if text is not None:
            print_tokens(console, side, text)
        else:
            print_description(
                console, side, (found.begin, found.end) if side is reads else ((), ())
            )


def _check_free(out: Path) -> None:
    """A tokenizer may take the place of nothing, or of a tokenizer. Better told now than after an hour's work."""
    from clearhead.tokenizers.tokenizer import Tokenizer

    if out.is_dir():
        raise ClearheadError(f"{out} is a folder; name a file, such as {out / 'tokenizer.json'}.")
    if out.exists():
        try:
            Tokenizer.load(out)
        except ClearheadError:
            raise ClearheadError(
                f"{out} is there and is no tokenizer; choose another name."
            ) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise ClearheadError(
            f"{out} cannot be written: nothing may be written to {out.absolute().parent}."
        )


def _made(kind: str, texts: "_Texts", size: int, special: tuple[str, ...]) -> "Tokenizer":
    from clearhead.tokenizers.tokenizer import Tokenizer

    if kind == "bytes":
        return Tokenizer.bytes(special)
    if kind == "bpe":
        with _stoppable():
            made = Tokenizer.train_bpe(texts, size, special)
    else:
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        made = Tokenizer.characters("".join(seen), special)
    if not texts.size:
        raise ClearheadError("there is no text in what was given.")
    return made


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C ends the program at once: while the library counts and joins, Python would hear of it only afterwards."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Texts:
    """Texts as they stream by: how many bytes there were, and how they began; on a terminal it says how far it is."""

    def __init__(self, texts: Iterable[str], total: int) -> None:
        self._texts = texts
        self._total = total
        self._told = 0.0
        self.size = 0
        self.sample = list[str]()

    def __iter__(self) -> Iterator[str]:
        kept = 0
        for text in self._texts:
            self.size += len(text.encode())
            if kept < SAMPLE:
                self.sample.append(text)
                kept += len(text)
            if time.monotonic() > self._told + 0.2:
                self._told = time.monotonic()
                share = f" ({min(self.size / self._total, 1):.0%})" if self._total else ""
                _say(f"read {_megabytes(self.size)}{share}")
            yield text
        _say(f"read {_megabytes(self.size)}; joining frequent pairs …")


def _total(files: Sequence[str]) -> int:
    """The bytes of all files; 0 where they cannot be known before."""
    from clearhead.data.batch import DataReport
    from clearhead.data.readers import COMPRESSED_SUFFIXES, STDIN, find_files

    found = find_files(files, DataReport("skip"))
    if any(file == STDIN or file.endswith(COMPRESSED_SUFFIXES) for file in found):
        return 0
    return sum(Path(file).stat().st_size for file in found)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[K{line}", err=True, nl=False)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
