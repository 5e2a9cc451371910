"""`clearhead`: the command-line interface. Does not import torch."""

import os
import sys
from typing import Any, NoReturn

import typer

from clearhead.cli import (
    bench,
    chat,
    check,
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
    softmax,
    tokenizer,
    train,
    translate,
    vectors,
    verify,
)
from clearhead.cli.common import ALLOW_CONFIG_FLAGS, echo, show_warnings_on_stderr
from clearhead.cli.examples import example_text, start_page
from clearhead.errors import ClearheadError, os_error_reason

OUT_OF_MEMORY_MESSAGES = (  # of torch, which raises plain RuntimeErrors on the CPU
    "out of memory",
    "CPUAllocator",
    "Storage size calculation overflowed",
)
TEXT_ARGUMENTS = {"text", "prompt"}
DESCRIPTION = "Read, train, inspect and edit Transformers."

app = typer.Typer(
    help=DESCRIPTION,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
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
    softmax.softmax,
    vectors.vectors,
    models.models,
    get.get,
    export.export,
    serve.serve,
    train.train,
    compare.compare,
    evaluate.evaluate,
    verify.verify,
    check.check,
    presets.presets,
    bench.bench,
)
CONFIG_COMMANDS = (  # accept --dotted.flags, or pass on the flags of a benchmark
    train.train,
    compare.compare,
    verify.verify,
    presets.presets,
    bench.bench,
)
CONTEXT_SETTINGS = {
    **dict.fromkeys(CONFIG_COMMANDS, ALLOW_CONFIG_FLAGS),
    softmax.softmax: {"ignore_unknown_options": True},  # the first logit may have a minus sign
}
for command in COMMANDS:
    app.command(
        command.__name__,
        epilog=example_text(command.__name__),
        context_settings=CONTEXT_SETTINGS.get(command),
    )(command)
app.add_typer(tokenizer.app, name="tokenizer", epilog=example_text("tokenizer"))


@app.callback(invoke_without_command=True, help=DESCRIPTION)
def start(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    from clearhead import __version__

    show_warnings_on_stderr()
    if version:
        echo(f"clearhead {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        echo(start_page(__version__), nl=False)


def main() -> None:
    """Run a command; errors of input are one line on stderr and exit status 2."""
    try:
        status = app(standalone_mode=False)
    except ClearheadError as error:
        _exit(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _exit("stopped.", 130)
    except BrokenPipeError:  # the reader of our output, such as head, has finished
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _exit(f"{error.filename or 'a file'}: {os_error_reason(error, error.filename or '')}.", 2)
    except (MemoryError, RuntimeError) as error:
        is_out_of_memory = isinstance(error, MemoryError) or any(
            message in str(error) for message in OUT_OF_MEMORY_MESSAGES
        )
        if not is_out_of_memory:
            raise
        _exit(
            "out of memory; use a smaller model, shorter texts, or a smaller batch "
            "(--train.batch_size, --n).",
            2,
        )
    except Exception as error:
        context = getattr(error, "ctx", None)  # only usage errors of typer have it
        if context is None:
            raise
        _exit(_describe_usage_error(error, context), 2)
    sys.exit(status if isinstance(status, int) else 0)


def _describe_usage_error(error: Any, context: typer.Context) -> str:
    params = context.command.params
    is_extra_argument = type(error).__name__ == "UsageError"  # others have a type of their own
    hint = ""
    if is_extra_argument and any(param.name in TEXT_ARGUMENTS for param in params):
        hint = " Put a text of several words in quotes."
    if is_extra_argument and any("--input" in param.opts for param in params):
        hint += " For several texts, use --input FILE with one text per line."
    if type(error).__name__ == "NoSuchOption" and (ours := _our_option(error, params)):
        hint = f" Use {ours}."
    message = error.format_message().replace("Value error, ", "")  # a prefix of pydantic
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end}{hint} Try '{context.command_path} --help'."


def _our_option(error: Any, params: list[Any]) -> str:
    """Our flag for an option of Hugging Face's `generate`, or an empty string."""
    from clearhead.generate.sampling import HUGGING_FACE_NAMES

    names = HUGGING_FACE_NAMES.get(error.option_name.strip("-").replace("-", "_"), ())
    flags = [param.opts[0] for param in params if param.name in names]
    return flags[0] if flags else ""


def _exit(message: str, status: int) -> NoReturn:
    if os.environ.get("RANK", "0") == "0":  # only one process of torchrun prints
        echo(f"clearhead: {message}", err=True)
    sys.exit(status)
