"""Arguments, options, text input and output that several commands share. Does not import torch."""

import difflib
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import typer

from clearhead.errors import (
    ClearheadError,
    ClearheadWarning,
    InputTextError,
    escape_controls,
    suggest,
)

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.engine import TokenLogprob
    from clearhead.lens.edits import ActivationEdit
    from clearhead.lens.view import View
    from clearhead.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")
Overflow = Literal["error", "slide"]
Backend = Literal["ctranslate2", "onnxruntime"]

STDIN = "-"
MAX_INPUT_LINES = 1_000_000
LINES_PER_BATCH = 256
SAMPLE_SEPARATOR = "―――"
TEXT_FILE_NAME = r"\S+\.(txt|text|md|tsv|csv|jsonl?|gz)"

# --- shared arguments and options
MODEL_ARGUMENT = typer.Argument(
    metavar="MODEL",
    help="A bundled or downloaded model, a clearhead or Hugging Face folder, a .gguf file, "
    "or owner/name on the Hugging Face hub.",
    show_default=False,
)
DTYPE_OPTION = typer.Option(
    "",
    help="float32, bfloat16, float16, or int8 (CPU only). Default: best for the device.",
    show_default=False,
)
DEVICE_OPTION = typer.Option(
    "", help="cpu, cuda or cuda:1. Default: a GPU if there is one.", show_default=False
)
BACKEND_OPTION = typer.Option(None, help="Run the model in another engine.", show_default=False)
OVERFLOW_OPTION = typer.Option(
    "error",
    help="When the context is full: fail, or drop its older half and continue.",
)
INPUT_OPTION = typer.Option(
    "",
    "--input",
    metavar="FILE",
    help="Read one text per line from this file; - is stdin.",
    show_default=False,
)
VIEW_OUTPUT_OPTION = typer.Option(
    None,
    "--output",
    metavar="FILE",
    help="Save as .png, .svg, .html, .csv or .npy instead of printing.",
    show_default=False,
)
LOGPROBS_HELP = "Show the log-probabilities of each token and of this many alternatives."
ABLATE_HEAD_OPTION = typer.Option(
    [],
    "--ablate-head",
    help="Zero-ablate an attention head: LAYER.HEAD, such as 0.2. May be repeated.",
    metavar="LAYER.HEAD",
    show_default=False,
)

# Context settings of commands that accept --dotted.flags.
ALLOW_CONFIG_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}


# --- --dotted.flags
def parse_config_flags(words: list[str]) -> dict[str, object]:
    """Parse `--model.position=rotary --data.train a.en a.de`; several values make a list."""
    options: dict[str, object] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ClearheadError(
                f"unexpected argument {word!r}; give NAME first, then options such as "
                "--train.max_steps=100."
            )
        if "." not in name:
            hint = _suggest_full_name(name.strip("-"), value or "…")
            raise ClearheadError(f"{word!r} is not an option; {hint}")
        _check_section(name)
        values = [value] if equals else []
        while remaining and not remaining[0].startswith("--"):
            values.append(remaining.pop(0))
        if not values:
            raise ClearheadError(f"{word} needs a value.")
        options[name] = values if len(values) > 1 else values[0]
    return options


def _check_section(name: str) -> None:
    """Raise unless the name begins with a section, or with one of the model: attention.n_heads."""
    from clearhead.config import Config

    tree = Config().to_dict()
    section, _, rest = name.partition(".")
    sections = [*tree, *tree["model"]]
    if section not in sections:
        hint = suggest(name, [f"{known}.{rest}" for known in sections])
        raise ClearheadError(f"--{name} is not an option; {hint}")


def _suggest_full_name(name: str, value: str) -> str:
    from clearhead.config import Config
    from clearhead.config.parse import HUGGING_FACE_HINTS, HUGGING_FACE_OPTIONS

    their_name = name.replace("-", "_")
    if their_name in HUGGING_FACE_HINTS:
        return HUGGING_FACE_HINTS[their_name]
    ours = HUGGING_FACE_OPTIONS | {"data": "data.train", "train": "data.train"}
    if their_name in ours:
        return f"did you mean --{ours[their_name]}={value}?"
    tree = Config().to_dict()
    paths: dict[str, str] = {}  # option -> its shortest path
    options = [path for path in _option_paths(tree) if path not in tree]
    for path in sorted(options, key=lambda path: path.count(".")):
        paths.setdefault(path.rpartition(".")[2], path)
    matches = [option for option in paths if option == name or option.endswith(f"_{name}")]
    if matches := matches or difflib.get_close_matches(name, paths, n=1):
        return f"did you mean --{paths[matches[0]]}={value}?"
    return "options include their section, as in --train.max_steps=100."


def _option_paths(tree: dict[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _option_paths(value, f"{prefix}{name}.")


# --- text input
def check_one_input(text: str | None, file: str) -> None:
    """Raise unless there is either a non-empty text or a file."""
    if text is None and not file:
        raise ClearheadError("no input; give TEXT, or --input FILE with one text per line.")
    if text is not None and file:
        raise ClearheadError("TEXT and --input cannot be combined; give one of them.")
    if text is not None and not text.strip():
        raise ClearheadError("the text is empty.")


def read_stdin() -> str:
    with report_invalid_utf8():
        return sys.stdin.buffer.read().decode()


@contextmanager
def report_invalid_utf8() -> Iterator[None]:
    """Turn a decoding error of standard input into a ClearheadError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ClearheadError(
            f"standard input is not valid UTF-8: {error.reason} at byte {error.start}."
        ) from None


def read_input_lines(text: str | None, file: str) -> list[str]:
    """The text, or the lines of the file."""
    from clearhead.data.readers import read_lines

    check_one_input(text, file)
    if text is not None:
        return [text]
    lines = list(islice(read_lines(file), MAX_INPUT_LINES + 1))
    if not lines:
        raise ClearheadError(f"{file} is empty.")
    if len(lines) > MAX_INPUT_LINES:
        raise ClearheadError(f"{file} has more than {MAX_INPUT_LINES:,} lines; split the file.")
    return lines


def show_line_progress(
    batches: Iterator[list[str]], file: str, prints_results: bool
) -> Iterator[list[str]]:
    """Show a progress bar for batches of a file's lines, unless results go to the same terminal."""
    from clearhead.data.readers import READ_ERRORS, open_compressed
    from clearhead.progress_bar import progress_bar

    if not Path(file).is_file() or (prints_results and sys.stdout.isatty()):
        return batches
    try:
        with open_compressed(file) as source:
            total = sum(part.count(b"\n") for part in iter(lambda: source.read(1 << 20), b""))
    except READ_ERRORS:
        return batches  # reading the batches raises a better error
    return progress_bar(batches, total, "lines", len)


def read_text_batches(text: str | None, file: str) -> Iterator[list[str]]:
    """The text or the non-empty lines of the file, in batches, with a progress bar."""
    lines = read_input_lines(text, file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ClearheadError(f"{_line_name(number, file)} is empty.")
    batches = (
        lines[start : start + LINES_PER_BATCH] for start in range(0, len(lines), LINES_PER_BATCH)
    )
    return show_line_progress(batches, file, prints_results=True) if file else batches


def map_batches(
    batches: Iterable[list[str]], file: str, function: Callable[[list[str]], Iterable[T]]
) -> Iterator[tuple[str, T]]:
    """Each line with its result; errors about a text name its line."""
    lines_before = 0
    for batch in batches:
        with with_line_number(file, lines_before):
            results = function(batch)
        yield from zip(batch, results, strict=True)
        lines_before += len(batch)


@contextmanager
def with_line_number(file: str, lines_before: int) -> Iterator[None]:
    """Re-raise an InputTextError with the number of the line in the file."""
    try:
        yield
    except InputTextError as error:
        name = _line_name(lines_before + error.index + 1, file)
        raise ClearheadError(f"{name} {error.problem}") from None


def _line_name(number: int, file: str) -> str:
    if not file:
        return "the text"
    return f"line {number:,}" if file == STDIN else f"line {number:,} of {file}"


# --- addresses of servers
def show_qr_code(url: str) -> None:
    """Print a QR code in a terminal, for the phones and tablets of a class."""
    if sys.stdout.isatty():
        import segno

        segno.make(url, micro=False).terminal(compact=True)


# --- hints and warnings
def warn_if_file_name(text: str | None, usage: str = "use --input {} to read its lines") -> None:
    """Print a hint to stderr if a text looks like the name of a file."""
    if text is None:
        return
    if _is_file(text):
        from clearhead.data.media_dataset import AUDIO_SUFFIXES, IMAGE_SUFFIXES

        if text.lower().endswith((*IMAGE_SUFFIXES, *AUDIO_SUFFIXES)):
            raise ClearheadError(f"{text} is an image or audio file; this model reads text.")
        hint = usage.format(shlex.quote(text))
        echo(f"{text} is a file, but was read as text; {hint}.", err=True)
    elif re.fullmatch(TEXT_FILE_NAME, text):
        echo(f"{text} was read as text; there is no such file.", err=True)


def _is_file(text: str) -> bool:
    with suppress(OSError, ValueError):  # not a valid path
        return Path(text).is_file()
    return False


def show_warnings_on_stderr() -> None:
    """Print our warnings as plain lines from now on."""
    original = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, ClearheadWarning):
            echo(str(message), err=True)
        else:
            original(message, category, *args, **kwargs)

    warnings.showwarning = show
    warnings.simplefilter("default", ClearheadWarning)


# --- ablation
def ablate_heads(model: "Model", heads: list[str]) -> "dict[str, ActivationEdit]":
    """Edits that zero-ablate the heads of --ablate-head."""
    from clearhead.lens.edits import ablate, chain_edits

    m = model.config.model
    edits: dict[str, list[ActivationEdit]] = {}
    for text in heads:
        layer, _, head = text.partition(".")
        if "," in text:
            raise ClearheadError(
                f"--ablate-head must be LAYER.HEAD, got {text}; repeat it for each head."
            )
        is_valid = layer.isdecimal() and head.isdecimal()
        if not is_valid or int(layer) >= m.n_layers or int(head) >= m.attention.n_heads:
            last = f"{m.n_layers - 1}.{m.attention.n_heads - 1}"
            raise ClearheadError(
                f"--ablate-head must be LAYER.HEAD from 0.0 to {last}, got {text}."
            )
        edits.setdefault(f"blocks.{int(layer)}.attn.z", []).append(ablate(head=int(head)))
    return {name: chain_edits(changes) for name, changes in edits.items()}


# --- output
def echo(message: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a line; a terminal gets it without control characters."""
    typer.echo(for_stream(message, sys.stderr if err else sys.stdout), nl=nl, err=err)


def for_stream(text: str, stream: IO[str]) -> str:
    """The text, for a terminal without control characters of models and data."""
    return escape_controls(text) if stream.isatty() else text


def count_of(number: int, noun: str) -> str:
    """1 token, 2 tokens."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def logprobs_to_dicts(
    tokenizer: "Tokenizer | None", logprobs: Sequence["TokenLogprob"]
) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, and the most likely tokens in their place, for JSON."""
    from clearhead.lens.tokens import token_labels

    def to_dict(token: int, logprob: float) -> dict[str, Any]:
        [label] = token_labels(tokenizer, [token])
        return {"id": token, "token": label, "logprob": logprob}

    return [
        to_dict(item.token, item.logprob)
        | {"top_logprobs": [to_dict(token, logprob) for token, logprob in item.top]}
        for item in logprobs
    ]


def logprob_table(tokenizer: "Tokenizer | None", logprobs: Sequence["TokenLogprob"]) -> str:
    """A table of tokens, their log-probabilities, and the most likely tokens in their place."""
    from clearhead.lens.tokens import token_labels

    rows = []
    for item in logprobs:
        label, *others = token_labels(tokenizer, [item.token, *(token for token, _ in item.top)])
        most_likely = zip(others, item.top, strict=True)
        top = "  ".join(f"{other} {logprob:.2f}" for other, (_, logprob) in most_likely)
        rows.append((label, f"{item.logprob:.2f}", top))
    return format_table(("token", "logprob", "most likely"), rows)


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain-text columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def show_or_save(view: "View", output: Path | None) -> None:
    """Print a view to the terminal, or save it."""
    if output is None:
        from rich.console import Console

        Console(highlight=False).print(view.terminal(), soft_wrap=True, end="")
    else:
        view.save(output)
        echo(f"saved {output}")
