"""`clearhead`: the commands, and how mistakes are told. Nothing here imports torch."""

import os
import re
import sys
from typing import Any

import typer

from clearhead.cli import (
    bench,
    chat,
    classify,
    compare,
    demo,
    embed,
    evaluate,
    explore,
    export,
    fill,
    generate,
    get,
    models,
    presets,
    score,
    see,
    serve,
    tokenizer,
    train,
    translate,
    vectors,
    verify,  # fmt: skip
)
from clearhead.cli.common import ALLOW_CONFIG_FLAGS, show_warnings_on_stderr
from clearhead.cli.help_texts import examples
from clearhead.errors import ClearheadError, os_error_reason

# how torch, which is not imported here, tells that memory is short, and that no memory could be so large
TOO_LARGE = ("out of memory", "CPUAllocator", "Storage size calculation overflowed")

TEXT_ARGUMENTS = {"text", "prompt", "what"}  # arguments that are one

TAKES_CONFIG_FLAGS = (  # any option of a configuration, or of a benchmark
    train.train,
    compare.compare,
    verify.verify,
    presets.presets,
    bench.bench,
)

app = typer.Typer(
    help="The Transformer of the lectures as real software.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (  # to look and to use, what there is, and to make
    demo.demo,
    explore.explore,
    generate.generate,
    chat.chat,
    translate.translate,
    fill.fill,
    classify.classify,
    embed.embed,
    score.score,
    see.see,
    vectors.vectors,
    models.models,
    get.get,
    export.export,
    serve.serve,
    train.train,
    compare.compare,
    evaluate.evaluate,
    verify.verify,
    presets.presets,
    bench.bench,
):
    name = command.__name__
    takes = ALLOW_CONFIG_FLAGS if command in TAKES_CONFIG_FLAGS else None
    app.command(name, epilog=examples(name), context_settings=takes)(command)
app.add_typer(tokenizer.app, name="tokenizer", epilog=examples("tokenizer"))


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    """The Transformer of the lectures as real software."""
    from clearhead import __version__
    from clearhead.cli.help_texts import greeting

    show_warnings_on_stderr()
    if version:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(greeting(__version__), nl=False)


def main() -> None:
    """Runs a command; a mistake is one sentence on stderr and exit status 2."""
    try:
        status = app(standalone_mode=False)
    except ClearheadError as mistake:
        _stop(str(mistake), 2)
    except (KeyboardInterrupt, typer.Abort):
        _stop("stopped.", 130)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _stop(f"{error.filename or 'a file'}: {os_error_reason(error, error.filename or '')}.", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(told in str(error) for told in TOO_LARGE):
            raise
        less = (
            "a smaller model, shorter texts, or fewer at a time (train.batch_size, --n) need less"
        )
        _stop(f"this needs more memory than there is; {less}.", 2)
    except Exception as error:
        wrong_use = getattr(
            error, "format_message", None
        )  # only click's mistakes have it, wherever typer keeps click
        if wrong_use is None:
            raise
        _stop(_plainly(wrong_use(), getattr(error, "ctx", None)), 2)
    sys.exit(status if isinstance(status, int) else 0)


def _plainly(sentence: str, context: Any) -> str:
    """Click's sentence in words of the shell."""
    if kind := re.search("Input should be a valid (number|integer)", sentence):
        return (
            f"{sentence[: kind.start()]}it must be a {kind[1].replace('integer', 'whole number')}."
        )
    if extra := re.match(r"Got unexpected extra argument\S* \((.*)\)", sentence):
        names = {name for param in context.command.params for name in (param.name, *param.opts)}
        quoted = "; a text of several words stands in quotes" if names & TEXT_ARGUMENTS else ""
        listed = (
            ", and several texts or names of files on the lines of a file: --input"
            if "--input" in names
            else ""
        )
        return f"{extra[1]!r} is left over{quoted}{listed}."
    return sentence


def _stop(sentence: str, status: int) -> None:
    if os.environ.get("RANK", "0") == "0":  # of several processes that all fail alike, one says why
        typer.echo(f"clearhead: {sentence}", err=True)
    sys.exit(status)
