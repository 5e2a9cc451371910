"""`clearhead chat`: a conversation in the terminal."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.flags import MODEL

if TYPE_CHECKING:
    from clearhead.api import Model

HELP = """/system TEXT   another system prompt; the conversation begins anew
/regenerate    another answer to the last message
/see           the very text that the model reads, special tokens and all
/save FILE     the conversation as JSON
/clear         begin anew
/quit          or Ctrl-D"""


def chat(
    model: str = MODEL,
    system: str = typer.Option("", help="What the model is to be: You are an apple.", show_default=False),
    max_tokens: int = typer.Option(200, help="How long an answer may get."),
    temperature: float = typer.Option(0.7, help="0 always takes the likeliest token; higher spreads the chance."),
    seed: int = typer.Option(0, help="The same seed and the same messages give the same answers."),
) -> None:
    """Talk with a model that was made for it."""
    from clearhead import api

    talk = Talk(api.load(model), system, max_tokens, temperature, seed)
    talk.model.conversation([*talk.whole, {"role": "user", "content": "Hello"}])  # a model not made for it says so now
    inviting = sys.stdin.isatty()
    if inviting:
        typer.echo(f"{talk.model!r}; /help tells what else can be typed")
    for line in _lines(inviting):
        if not talk.hear(line):
            break


def _lines(inviting: bool) -> Iterator[str]:
    """What is typed, with the arrow keys bringing back what was typed before; or the lines of a pipe."""
    if inviting:
        import readline  # noqa: F401 - it gives `input` its history

    while True:
        try:
            yield input("you: " if inviting else "")
        except EOFError:
            return


class Talk:
    """One conversation."""

    def __init__(self, model: "Model", system: str, max_tokens: int, temperature: float, seed: int) -> None:
        self.model, self.system = model, system
        self.options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
        self.seed = seed
        self.messages: list[dict[str, str]] = []

    def hear(self, line: str) -> bool:
        """A message, or a command; whether the conversation goes on."""
        from clearhead.errors import ClearheadError

        word, _, rest = line.strip().partition(" ")
        if not word:
            return True
        try:
            if not word.startswith("/"):
                self.messages.append({"role": "user", "content": line.strip()})
                self.answer()
            elif word == "/quit":
                return False
            else:
                self.command(word, rest.strip())
        except ClearheadError as mistake:
            if not word.startswith("/") and self.messages and self.messages[-1]["role"] == "user":
                self.messages.pop()
            typer.echo(f"clearhead: {mistake}", err=True)
        return True

    def command(self, word: str, rest: str) -> None:
        if word == "/system":
            self.system, self.messages = rest, []
        elif word == "/clear":
            self.messages = []
        elif word == "/regenerate" and self.messages:
            self.messages.pop()
            self.seed += 1
            self.answer()
        elif word == "/see":
            typer.echo(self.model.conversation(self.whole))
        elif word == "/save" and rest:
            from clearhead.files import overwrite

            overwrite(Path(rest), (json.dumps(self.whole, indent=1, ensure_ascii=False) + "\n").encode())
            typer.echo(f"saved {rest}")
        else:
            typer.echo(HELP)

    @property
    def whole(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def answer(self) -> None:
        """Shown while it is written; Ctrl-C ends it, and what was written stays."""
        text = ""
        try:
            for piece in self.model.chat(self.whole, seed=self.seed, stream=True, **self.options):
                typer.echo(piece.text, nl=False)
                sys.stdout.flush()
                text += piece.text
        except KeyboardInterrupt:
            pass
        typer.echo()
        self.messages.append({"role": "assistant", "content": text})
