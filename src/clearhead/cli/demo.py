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
    out: Path = typer.Option(Path("demo"), help="The folder of the page, where it is saved instead of opened."),
) -> None:
    """Open the page on the models that came with clearhead.

    Where there is no terminal or no browser: write a story, translate a sentence, draw a head, and save the page.
    """
    from clearhead.weights import bundled

    here = bundled.names()
    if "story" not in here:
        typer.echo("the model story did not come with this installation; clearhead models lists what did.")
        return
    layer, head = busiest()
    if somebody_looks():
        typer.echo(TRY.format(layer=layer, head=head, write=WRITE, translate=TRANSLATE))
        run(f'clearhead explore --text "{SENTENCE}"')
        return
    typer.echo("There is no terminal or no browser here, so the page is saved and not opened.")
    out.mkdir(parents=True, exist_ok=True)
    run(WRITE)
    if "en-de" in here:
        run(TRANSLATE)
    run(f'clearhead see story "{SENTENCE}" --layer {layer} --head {head}')
    run(f'clearhead explore story --text "{SENTENCE}" --out {shlex.quote(str(out / "page.html"))}')


def run(command: str) -> None:
    """Shows a command, and does what it says."""
    from clearhead.cli.main import app

    typer.secho(f"\n$ {command}", bold=True)
    app(shlex.split(command)[1:], standalone_mode=False)


def busiest() -> tuple[int, int]:
    """The layer and head of story in which *creature* looks most at both *fluffy* and *blue* and not elsewhere."""
    from clearhead import api
    from clearhead.lens.looks import looks

    seen = looks(api.load("story"), "creature", SENTENCE)
    asked = [word in ("fluffy", "blue") for word in seen.axes[-1].labels]
    others = [not word for word in asked]
    ahead = seen.values[..., asked].amin(dim=-1) - seen.values[..., others].amax(dim=-1)
    return divmod(int(ahead.argmax()), ahead.shape[1])


def somebody_looks() -> bool:
    """Whether there is a terminal to end the page from, and a browser to show it."""
    import sys
    import webbrowser

    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and bool(webbrowser.get())
    except webbrowser.Error:
        return False
