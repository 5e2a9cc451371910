"""`clearhead demo`: the page on the bundled models; where nobody looks, what they do, one command after the other."""

import shlex
from pathlib import Path

import typer

SENTENCE = "a fluffy blue creature roamed the verdant forest"  # of the lectures: creature asks for adjectives
WRITE = 'clearhead generate story "Once upon a time" --max-tokens 150 --temperature 0.7'
TRANSLATE = 'clearhead translate en-de "Where is the nearest station?"'
TRY = """
The page opens in your browser; Ctrl-C ends it. Try there
  point at creature in layer {layer}, head {head}: it looks at the words before it that tell what it is like
  click a number: the arithmetic that made it, with its operands
  switch a head off, and see what becomes of the prediction; write a sentence of your own
and in another terminal
  {write}
  {translate}
  clearhead models"""


def demo(
    output: Path = typer.Option(
        Path("demo"), help="The folder of the page, where it is saved instead of opened."
    ),
) -> None:
    """Open the page on the models that came with clearhead.

    Where there is no terminal or no browser: write a story, translate a sentence, draw a head, and save the page.
    """
    from clearhead.weights.model_cards import bundled_models

    here = bundled_models()
    if "story" not in here:
        typer.echo(
            "the model story did not come with this installation; clearhead models lists what did."
        )
        return
    layer, head = find_adjective_head()
    if is_interactive():
        typer.echo(TRY.format(layer=layer, head=head, write=WRITE, translate=TRANSLATE))
        run_command(f'clearhead explore --text "{SENTENCE}"')
        return
    typer.echo("There is no terminal or no browser here, so the page is saved and not opened.")
    output.mkdir(parents=True, exist_ok=True)
    run_command(WRITE)
    if "en-de" in here:
        run_command(TRANSLATE)
    run_command(f'clearhead see story "{SENTENCE}" --layer {layer} --head {head}')
    run_command(
        f'clearhead explore story --text "{SENTENCE}" --out {shlex.quote(str(output / "page.html"))}'
    )


def run_command(command: str) -> None:
    """Shows a command, and does what it says."""
    from clearhead.cli.main import app

    typer.secho(f"\n$ {command}", bold=True)
    app(shlex.split(command)[1:], standalone_mode=False)


def find_adjective_head() -> tuple[int, int]:
    """The layer and head of story in which *creature* looks most at both *fluffy* and *blue* and not elsewhere."""
    from clearhead.api import load
    from clearhead.lens.attention import word_attention

    seen = word_attention(load("story"), "creature", SENTENCE)
    asked = [word in ("fluffy", "blue") for word in seen.axes[-1].labels]
    others = [not word for word in asked]
    ahead = seen.values[..., asked].amin(dim=-1) - seen.values[..., others].amax(dim=-1)
    return divmod(int(ahead.argmax()), ahead.shape[1])


def is_interactive() -> bool:
    """Whether there is a terminal to end the page from, and a browser to show it."""
    import sys
    import webbrowser

    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and bool(webbrowser.get())
    except webbrowser.Error:
        return False
