"""`clearhead`: the commands, and how mistakes are told. Nothing here imports torch."""

import os
import sys

import typer

from clearhead.cli import (
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
    verify,
)  # fmt: skip
from clearhead.cli.flags import DOTTED
from clearhead.errors import ClearheadError

# click's own base of mistakes; some versions of typer carry click inside
WrongUse: type[typer.BadParameter] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="The Transformer of the lectures as real software.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("explore")(explore.explore)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("translate")(translate.translate)
app.command("fill")(fill.fill)
app.command("classify")(classify.classify)
app.command("embed")(embed.embed)
app.command("score")(score.score)
app.command("see")(see.see)
app.command("vectors")(vectors.vectors)
app.command("train", context_settings=DOTTED)(train.train)
app.command("compare", context_settings=DOTTED)(compare.compare)
app.add_typer(tokenizer.app, name="tokenizer")
app.command("models")(models.models)
app.command("get")(get.get)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("evaluate")(evaluate.evaluate)
app.command("verify", context_settings=DOTTED)(verify.verify)
app.command("presets", context_settings=DOTTED)(presets.presets)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    """The Transformer of the lectures as real software."""
    from clearhead import __version__
    from clearhead.cli.start import greeting

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
    except WrongUse as mistake:
        _stop(mistake.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        _stop("stopped.", 130)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _stop(f"{error.filename or 'a file'}: {error.strerror or error}.", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _stop(sentence: str, status: int) -> None:
    if os.environ.get("RANK", "0") == "0":  # of several processes that all fail alike, one says why
        typer.echo(f"clearhead: {sentence}", err=True)
    sys.exit(status)
