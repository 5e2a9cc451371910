"""--dotted.flags: any option of a configuration, on the command line."""

import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console

from clearhead.data.readers import READ_ERRORS, STDIN, open_compressed, read_lines
from clearhead.errors import ClearheadError, ClearheadWarning, InputTextError, suggest
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.engine import TokenLogprob
    from clearhead.lens.edits import ActivationEdit
    from clearhead.lens.view import View

# ---- flags: --dotted.flags: any option of a configuration, on the command line.

MODEL_ARGUMENT = typer.Argument(
    help="A bundled or fetched name, a clearhead or Hugging Face folder, a .gguf file, or owner/name on the hub.",
    show_default=False,
)

DTYPE_OPTION = typer.Option(
    "",
    help="float32, bfloat16 …, or int8 on a CPU; else as the device likes it.",
    show_default=False,
)
BACKEND_OPTION = typer.Option(
    "", help="Let ctranslate2 or onnxruntime do the work, where installed.", show_default=False
)

OVERFLOW_OPTION = typer.Option(
    "refuse",
    help="refuse, or slide: where the context is full, its newer half is read anew, and it goes on.",
)

ALLOW_CONFIG_FLAGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
}  # for the commands that take them


def parse_config_flags(words: list[str]) -> dict[str, object]:
    """{"model.position": "rotary"} of `--model.position=rotary` or `--model.position rotary`; several values follow on.

    `--data.train a.en a.de` is a list of two.
    """
    found: dict[str, object] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            raise ClearheadError(
                f"{word!r} is not an option; {_suggest_full_name(key.strip('-'), value or '…')}"
            )
        _check_section(key)
        values = [value] if equals else []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        if not values:
            raise ClearheadError(f"{word} needs a value.")
        found[key] = values if len(values) > 1 else values[0]
    return found


def _check_section(key: str) -> None:
    """Refuses a key that begins with no section and, as attention.n_heads may, with no option of the model."""
    from clearhead.config.model import Config

    tree = Config().to_dict()
    first, _, rest = key.partition(".")
    known = [*tree, *tree["model"]]
    if first not in known:
        raise ClearheadError(
            f"--{key} is not an option; {suggest(key, [f'{name}.{rest}' for name in known])}"
        )


def _suggest_full_name(name: str, value: str) -> str:
    """The end of a sentence: how the option of that name is written, whatever its section."""
    from clearhead.config.model import Config

    same = [path for path in _option_paths(Config().to_dict()) if path.endswith(f".{name}")]
    if same:
        return f"did you mean --{min(same, key=lambda path: path.count('.'))}={value}?"
    return "options are written with their section, as in --train.max_steps=100."


def _option_paths(tree: dict[str, object], before: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield before + name
        if isinstance(value, dict):
            yield from _option_paths(value, f"{before}{name}.")


# ---- lines: Texts for the commands that take many: one on the command line, or a file of lines, or stdin.

INPUT_OPTION = typer.Option(
    "", "--input", help="A file with a text on each line; - is stdin.", show_default=False
)
MAX_INPUT_LINES = 1_000_000  # lines
LINES_PER_BATCH = 256  # lines that are worked on together, and shown when they are done
T = TypeVar("T")


def check_one_input(text: str | None, file: str, what: str = "a text") -> None:
    """Never both, never none, and no text of nothing."""
    if (text is not None) == bool(file):
        raise ClearheadError(
            f"give {what}, or --input with a file that has one on each line, and not both."
        )
    if text is not None and not text.strip():
        raise ClearheadError("the text is empty; there must be something to read.")


def read_stdin() -> str:
    """All of it."""
    with report_invalid_utf8():
        return sys.stdin.buffer.read().decode()


@contextmanager
def report_invalid_utf8() -> Iterator[None]:
    """Standard input that is something else is told in a sentence."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ClearheadError(
            f"standard input is not UTF-8: {error.reason} at byte {error.start}."
        ) from None


def read_input_lines(text: str | None, file: str) -> list[str]:
    """The text, or the lines of the file."""
    check_one_input(text, file)
    if text is not None:
        return [text]
    lines = list(islice(read_lines(file), MAX_INPUT_LINES + 1))
    if not lines or len(lines) > MAX_INPUT_LINES:
        many = f"more than {MAX_INPUT_LINES:,}" if lines else "no"
        raise ClearheadError(
            f"{file} has {many} lines; there must be from 1 to {MAX_INPUT_LINES:,}."
        )
    return lines


def show_line_progress(blocks: Iterator[list[str]], file: str, quiet: bool) -> Iterator[list[str]]:
    """Blocks of a file's lines with a bar of how far they are done; `quiet` where results go to the same terminal."""
    if not Path(file).is_file() or (quiet and sys.stdout.isatty()):  # a pipe can be read once
        return blocks
    from clearhead.progress import progress_bar

    try:
        with open_compressed(file) as source:
            total = sum(part.count(b"\n") for part in iter(lambda: source.read(1 << 20), b""))
    except READ_ERRORS:
        return blocks  # whoever reads it says so
    return progress_bar(blocks, total, "lines", len)


def read_text_batches(text: str | None, file: str) -> Iterator[list[str]]:
    """The same, some lines at a time, for commands to which an empty line says nothing."""
    lines = read_input_lines(text, file)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ClearheadError(
                f"{_line_name(number, file)} is empty; there must be something to read."
            )
    blocks = (
        lines[start : start + LINES_PER_BATCH] for start in range(0, len(lines), LINES_PER_BATCH)
    )
    return show_line_progress(blocks, file, quiet=True) if file else blocks


def map_batches(
    blocks: Iterable[list[str]], file: str, work: Callable[[list[str]], Iterable[T]]
) -> Iterator[tuple[str, T]]:
    """Each line with what `work` gives for it."""
    done = 0
    for some in blocks:
        with with_line_number(file, done):
            found = work(some)
        yield from zip(some, found, strict=True)
        done += len(some)


@contextmanager
def with_line_number(file: str, before: int) -> Iterator[None]:
    """A text that cannot be read is told as the line that it is, of which so many came before."""
    try:
        yield
    except InputTextError as error:
        raise ClearheadError(
            f"{_line_name(before + error.index + 1, file)} {error.problem}"
        ) from None


def _line_name(number: int, file: str) -> str:
    return f"line {number:,}{'' if file == STDIN else f' of {file}'}" if file else "the text"


# ---- hints: Hints on stderr, where something else was probably meant; the answer stays as it is.

FILE_NAME_PATTERN = r"\S+\.(txt|text|md|tsv|csv|jsonl?|gz)"  # what nobody writes but for a file


def warn_if_file_name(text: str | None, instead: str = "--input {} reads its lines") -> None:
    """Where a text is the name of a file, or looks like one: that it was read as a text, and how the file is read."""
    if text is None:
        return
    if _names_a_file(text):
        from clearhead.data.media import AUDIO_SUFFIXES, IMAGE_SUFFIXES

        if text.lower().endswith((*IMAGE_SUFFIXES, *AUDIO_SUFFIXES)):
            raise ClearheadError(f"{text} is a picture or a sound; this model reads texts.")
        how = instead.format(shlex.quote(text))
        typer.echo(f"{text} is the name of a file, and was read as a text; {how}.", err=True)
    elif re.fullmatch(FILE_NAME_PATTERN, text):
        typer.echo(
            f"{text} looks like the name of a file, but there is none; it was read as a text.",
            err=True,
        )


def _names_a_file(text: str) -> bool:
    with suppress(OSError, ValueError):  # of texts that could name none
        return Path(text).is_file()
    return False


def show_warnings_on_stderr() -> None:
    """From now on, our warnings are lines on stderr, as the shell has them."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, ClearheadWarning):
            typer.echo(str(message), err=True)
        else:
            others(message, category, *where, **more)

    warnings.showwarning = show
    warnings.simplefilter("default", ClearheadWarning)


# ---- without: --without LAYER.HEAD: heads that are left out while a model works.

ABLATE_HEAD_OPTION = typer.Option(
    [],
    help="A head to leave out, as layer.head: 0.2; may be given again.",
    metavar="LAYER.HEAD",
    show_default=False,
)


def ablate_heads(model: "Model", heads: list[str]) -> "dict[str, ActivationEdit]":
    """As `edits=` takes them: what each of these heads has gathered becomes 0."""
    from clearhead.lens.edits import ablate, chain_edits

    m = model.config.model
    found: dict[str, list[ActivationEdit]] = {}
    for text in heads:
        layer, _, head = text.partition(".")
        known = (
            layer.isdecimal()
            and head.isdecimal()
            and int(layer) < m.n_layers
            and int(head) < m.attention.n_heads
        )
        if "," in text:
            raise ClearheadError(
                f"--without {text}: a point stands between layer and head, and each has its own --without."
            )
        if not known:
            every = f"0.0 to {m.n_layers - 1}.{m.attention.n_heads - 1}"
            raise ClearheadError(
                f"--without {text}: there is no such head; they are {every}, layer and head."
            )
        found.setdefault(f"blocks.{int(layer)}.attn.z", []).append(ablate(head=int(head)))
    return {name: chain_edits(changes) for name, changes in found.items()}


# ---- chosen: Tokens with their log-probabilities and what else was likely, as a table and as JSON; and where they looked.


def logprobs_to_dicts(
    tokenizer: Tokenizer | None, chosen: Sequence["TokenLogprob"]
) -> list[dict[str, Any]]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "piece": _piece(tokenizer, token), "logprob": logprob}

    return [one(c.token, c.logprob) | {"top": [one(*other) for other in c.top]} for c in chosen]


def logprob_table(tokenizer: Tokenizer | None, chosen: Sequence["TokenLogprob"]) -> str:
    """Each token, its log-probability, and what else was likely there."""

    def others(c: "TokenLogprob") -> str:
        return "  ".join(f"{_piece(tokenizer, token)} {value:.2f}" for token, value in c.top)

    rows = [(_piece(tokenizer, c.token), f"{c.logprob:.2f}", others(c)) for c in chosen]
    return format_table(("token", "log p", "likeliest"), rows)


def format_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of plain text below their names."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*names, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        made.add_row(*map(Text, row))
    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(made)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _piece(tokenizer: Tokenizer | None, token: int) -> str:
    return tokenizer.to_str_tokens([token])[0] if tokenizer else str(token)


# ---- pictures: What becomes of a picture on the command line: it is saved, or drawn here.


def show_or_save(view: "View", out: Path | None) -> None:
    if out is None:
        Console(highlight=False).print(view.terminal(), soft_wrap=True, end="")
    else:
        view.save(out)
        typer.echo(f"saved {out}")
