"""`clearhead tokenizer`: train and inspect tokenizers."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from clearhead.cli.common import STDIN, echo, read_stdin, warn_if_file_name
from clearhead.cli.examples import example_text
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.tokenizers.tokenizer import Tokenizer

DEFAULT_VOCAB_SIZE = 8192
SAMPLE_CHARS = 2**20  # of text on which the compression is measured
PROGRESS_INTERVAL = 0.2  # seconds

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def tokenizer(context: typer.Context) -> None:
    """Train a tokenizer, or show how one splits text."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("train", epilog=example_text("tokenizer train"))
def train(
    files: list[str] = typer.Argument(
        None,
        metavar="FILE",
        help="Text files, folders or globs, also .gz, .xz, .zst and .jsonl; - is stdin.",
        show_default=False,
    ),
    kind: Literal["bpe", "characters", "bytes"] = typer.Option(
        "bpe", help="Kind of tokenizer; bpe is byte-level."
    ),
    vocab_size: int | None = typer.Option(
        None, help=f"Vocabulary size of bpe. Default: {DEFAULT_VOCAB_SIZE}.", show_default=False
    ),
    special_token: list[str] = typer.Option(
        [],
        metavar="TOKEN",
        help="A special token besides <|end|>. May be repeated.",
        show_default=False,
    ),
    text_column: str = typer.Option("text", help="The text field of JSON lines."),
    on_error: Literal["fail", "skip"] = typer.Option(
        "fail", help="What to do with malformed lines."
    ),
    output: Path = typer.Option(Path("tokenizer.json"), metavar="FILE", help="Output file."),
) -> None:
    """Train a tokenizer on texts.

    The texts are streamed. The same texts always give the same tokenizer.
    """
    from clearhead.cli.tokenizer_view import summarize
    from clearhead.data.readers import DataReport, read_documents
    from clearhead.tokenizers.tokenizer import END_TOKEN

    if vocab_size is not None and kind != "bpe":
        raise ClearheadError(f"--vocab-size applies only to bpe, not to {kind}.")
    if not files and kind != "bytes":
        raise ClearheadError("no training data; give files, folders or globs, or - for stdin.")
    _check_replaceable(output)
    report = DataReport(on_error)
    documents = read_documents(files or [], report, text_column)
    texts = _TextStream((document.text for document in documents), _total_bytes(files or []))
    special_tokens = tuple(dict.fromkeys((END_TOKEN, *special_token)))
    size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    start = time.monotonic()
    try:
        trained = _train(kind, texts, size, special_tokens)
    except ClearheadError as error:  # the option has another name in `clearhead train`
        message = str(error).replace("--data.on_error", "--on-error")
        raise ClearheadError(message) from None
    finally:
        _show_progress("")
    trained.save(output)
    if report.skipped:
        echo(str(report), err=True)
    echo(f"{output}: {summarize(trained)}")
    if texts.num_bytes:
        num_tokens = sum(map(len, trained.encode_batch(texts.sample)))
        sample_bytes = sum(len(text.encode()) for text in texts.sample)
        echo(
            f"read {_format_bytes(texts.num_bytes)} in {time.monotonic() - start:.1f} s; "
            f"{sample_bytes / num_tokens:.2f} bytes per token on the first "
            f"{_format_bytes(sample_bytes)}"
        )
    if kind == "bpe" and len(trained) < size:
        echo(f"the text has too few distinct pairs for {size:,} tokens; use more text")
    echo(f'clearhead tokenizer show {output} "some text" shows how it splits text')


@app.command("show", epilog=example_text("tokenizer show"))
def show(
    model: str = typer.Argument(
        metavar="MODEL",
        help="A tokenizer.json, or a model as in other commands.",
        show_default=False,
    ),
    text: str = typer.Argument(
        None, metavar="TEXT", help="The text; - is stdin.", show_default=False
    ),
) -> None:
    """Show the tokens of a text and how they were merged.

    Without a text, describes the tokenizer. Does not load the model's weights.
    """
    from rich.console import Console

    from clearhead.cli.tokenizer_view import print_description, print_tokens
    from clearhead.weights.load import load_tokenizers

    loaded = load_tokenizers(model)
    if loaded.tokenizer is None:
        raise ClearheadError(loaded.missing_reason)
    warn_if_file_name(text, "use - < {} to read its content")
    if text == STDIN:
        text = read_stdin()
    if text == "":
        raise ClearheadError("the text is empty.")
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    input_tokenizer = loaded.source_tokenizer or loaded.tokenizer
    sides = {"": input_tokenizer}
    if loaded.source_tokenizer:
        sides = {"source": loaded.source_tokenizer, "target": loaded.tokenizer}
    for number, (name, side) in enumerate(sides.items()):
        if name:
            console.print("\n" * (number > 0) + name, style="bold")
        if text is not None:
            print_tokens(console, side, text)
        elif side is input_tokenizer:
            print_description(console, side, loaded.bos_tokens, loaded.sep_tokens)
        else:
            print_description(console, side)


def _check_replaceable(path: Path) -> None:
    """Raise early if the output cannot be written, or is a file other than a tokenizer."""
    from clearhead.tokenizers.tokenizer import Tokenizer

    if path.is_dir():
        raise ClearheadError(f"{path} is a folder; name a file such as {path / 'tokenizer.json'}.")
    if path.exists():
        try:
            Tokenizer.load(path)
        except ClearheadError:
            raise ClearheadError(
                f"{path} exists and is not a tokenizer; choose another name."
            ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise ClearheadError(f"cannot write {path}: {path.absolute().parent} is not writable.")


def _train(
    kind: str, texts: "_TextStream", vocab_size: int, special_tokens: tuple[str, ...]
) -> "Tokenizer":
    from clearhead.tokenizers.tokenizer import Tokenizer

    if kind == "bytes":
        return Tokenizer.bytes(special_tokens)
    if kind == "bpe":
        with _default_sigint():
            trained = Tokenizer.train_bpe(texts, vocab_size, special_tokens)
    else:
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        trained = Tokenizer.characters("".join(characters), special_tokens)
    if not texts.num_bytes:
        raise ClearheadError("the files contain no text.")
    return trained


@contextmanager
def _default_sigint() -> Iterator[None]:
    """Let Ctrl-C end the process at once; Python would handle it only after the Rust code."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class _TextStream:
    """Texts with progress display, that counts their bytes and keeps a sample from the start."""

    def __init__(self, texts: Iterable[str], total_bytes: int) -> None:
        self._texts = texts
        self._total_bytes = total_bytes
        self._last_update = 0.0
        self.num_bytes = 0
        self.sample: list[str] = []

    def __iter__(self) -> Iterator[str]:
        sample_chars = 0
        for text in self._texts:
            self.num_bytes += len(text.encode())
            if sample_chars < SAMPLE_CHARS:
                self.sample.append(text)
                sample_chars += len(text)
            if time.monotonic() > self._last_update + PROGRESS_INTERVAL:
                self._last_update = time.monotonic()
                percent = ""
                if self._total_bytes:
                    percent = f" ({min(self.num_bytes / self._total_bytes, 1):.0%})"
                _show_progress(f"read {_format_bytes(self.num_bytes)}{percent}")
            yield text
        _show_progress(f"read {_format_bytes(self.num_bytes)}; merging pairs …")


def _total_bytes(paths: Sequence[str]) -> int:
    """The size of all files, or 0 if it is unknown."""
    from clearhead.data.readers import COMPRESSED_SUFFIXES, DataReport, find_files

    files = find_files(paths, DataReport("skip"))
    if any(file == STDIN or file.endswith(COMPRESSED_SUFFIXES) for file in files):
        return 0
    return sum(Path(file).stat().st_size for file in files)


def _show_progress(line: str) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[K{line}", err=True, nl=False)


def _format_bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
