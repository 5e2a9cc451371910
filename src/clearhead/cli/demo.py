"""`clearhead demo`: explore the bundled models in the browser, or in the terminal."""

import shlex
import sys
import webbrowser
from pathlib import Path

import typer

SENTENCE = "Lily gave Tim her ball. He was happy, and she"
LAYER, HEAD = 1, 1  # the head of story that finds who a pronoun means; a test measures it
GENERATE = 'clearhead generate story "Once upon a time" --max-tokens 150 --temperature 0.7'
TRANSLATE = 'clearhead translate en-de "Where is the nearest station?"'
GUIDE = """
The page opens in your browser; Ctrl-C stops it. Things to try:
  hover over "she" in layer {layer}, head {head}: it attends to "Lily", and "He" to "Tim"
  click a number to see the computation behind it
  ablate a head and see how the prediction changes; enter your own sentence
In another terminal:
  {generate}
  {translate}
  clearhead models"""


def demo(
    output: Path = typer.Option(Path("demo"), help="Folder for the page if there is no browser."),
) -> None:
    """Explore the bundled models in the browser.

    Without a terminal or a browser, writes a story, translates a sentence, draws an attention head,
    and saves the page.
    """
    from clearhead.weights.bundled import bundled_models

    names = bundled_models()
    if "story" not in names:
        typer.echo("the model 'story' is not installed; clearhead models lists what is.")
        return
    if is_interactive():
        guide = GUIDE.format(layer=LAYER, head=HEAD, generate=GENERATE, translate=TRANSLATE)
        typer.echo(guide)
        run_command(f'clearhead explore --text "{SENTENCE}"')
        return
    typer.echo("There is no terminal or no browser, so the page is saved instead of opened.")
    output.mkdir(parents=True, exist_ok=True)
    run_command(GENERATE)
    if "en-de" in names:
        run_command(TRANSLATE)
    run_command(f'clearhead see story "{SENTENCE}" --layer {LAYER} --head {HEAD}')
    page = shlex.quote(str(output / "page.html"))
    run_command(f'clearhead explore story --text "{SENTENCE}" --output {page}')


def run_command(command: str) -> None:
    """Print a command and run it."""
    from clearhead.cli.main import app

    typer.secho(f"\n$ {command}", bold=True)
    app(shlex.split(command)[1:], standalone_mode=False)


def is_interactive() -> bool:
    """Whether there is a terminal and a browser."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and bool(webbrowser.get())
    except webbrowser.Error:
        return False
