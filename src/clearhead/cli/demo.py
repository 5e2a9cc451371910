"""`clearhead demo`: from nothing to a model that writes, in a minute, on text every machine has."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.explore import explore

if TYPE_CHECKING:
    from rich.console import Console

    from clearhead.api import Model
    from clearhead.lens.seen import Seen

PROMPTS = ("Return the", "If the file", "Raise an error")
SENTENCE = "Return the name of the file if it exists, and raise an error if it does not."
OPTIONS: dict[str, object] = {
    "data.vocabulary": 1024,
    "data.held_out": 0.0,  # the time goes to learning
    "train.steps": 1200,
    "train.rows": 16,
    "train.warmup": 20,
    "train.optimiser.rate": 4e-3,
    "train.report": 5,
    "train.check": 1200,
    "train.save": 1200,
}


def demo(
    out: Path = typer.Option(Path("demo"), help="Where the model and the picture go."),
    seconds: int = typer.Option(45, min=1, help="How long to train at most."),
) -> None:
    """Train a small model, write with it, look inside; then open the page on it.

    It learns from the docstrings of Python's standard library, for under a minute. Where there is no terminal or no
    browser, the page is only saved, as one file.
    """
    from rich.console import Console

    from clearhead import api
    from clearhead.lens.attention import heads_of
    from clearhead.weights.whole import check_free

    console = Console(highlight=False)
    check_free(out / "model")
    model = train(console, seconds)
    api.save(model, out / "model")
    console.print("\n[bold]It writes[/] [dim](temperature 0.6)[/]")
    for prompt in PROMPTS:
        text = model.generate(prompt, max_tokens=40, temperature=0.6, seed=1).text
        console.print(f"  [bold]{prompt}[/]", end="")
        console.print(" ".join(text.splitlines()), markup=False, soft_wrap=True)
    seen = model.watch(SENTENCE, ["blocks.*.attn.pattern"])
    layer, head = busiest_head(seen)
    console.print(
        f"\n[bold]It looks[/] [dim](layer {layer}, head {head}; darker squares are where each token looks)[/]"
    )
    console.print(heads_of(seen, layer, head).terminal())
    picture = out / "attention.png"
    heads_of(seen, layer, head).save(picture)
    shown: dict[str, Any] = {"models": [str(out / "model")], "text": SENTENCE, "source": "", "port": 8800}
    shown |= {"device": "cpu", "dtype": ""}
    explore(**shown, no_open=True, save=out / "page.html")
    console.print(f"saved {picture} and {out / 'model'}; go on with")
    for words in (
        f"explore {out / 'model'}",
        f'generate {out / "model"} "Open a"',
        f'see {out / "model"} "Return True if the file exists." --layer 1 --head 2',
        f"verify {out / 'model'}",
    ):
        console.print(f"  clearhead {words}", markup=False, soft_wrap=True)
    if somebody_looks():
        explore(**shown, no_open=False, save=None)


def somebody_looks() -> bool:
    """Whether there is a terminal to end the page from, and a browser to show it."""
    import sys
    import webbrowser

    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and bool(webbrowser.get())
    except webbrowser.Error:
        return False


def train(console: "Console", seconds: int) -> "Model":
    """A fresh lecture-small, its tokenizer, and up to `seconds` of training, in a run of which only the model stays."""
    import json
    from tempfile import TemporaryDirectory

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from clearhead import api
    from clearhead.presets import presets
    from clearhead.train import run
    from clearhead.train.begin import begin

    typer.echo("reading the docstrings of Python's standard library")
    with TemporaryDirectory(prefix="clearhead-demo.") as there:
        texts = Path(there) / "docstrings.jsonl"
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in docstrings()), encoding="utf-8")
        config = presets["lecture-small"].change(**OPTIONS, **{"data.train": str(texts)})
        made = begin(config, Path(there) / "run", resume=False, device="cpu", compiled=False)
        model = api.Model(made.net, made.model.config, made.model.tokenizer)
        typer.echo(f"{made.data.report.read:,} docstrings; the model: {model!r}\n")
        columns = (
            TextColumn("training"),
            BarColumn(),
            TextColumn("step {task.completed:>4}  loss {task.fields[loss]:.3f}"),
            TimeElapsedColumn(),
        )
        start = time.monotonic()
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=made.options.steps, loss=0.0)

            def watch(at: run.Progress) -> bool:
                progress.update(task, completed=at.step, loss=at.loss)
                return time.monotonic() - start < seconds

            result = made.train(watch)
    if result.step < made.options.steps:
        console.print(
            f"[dim]stopped after {seconds} s, {result.step} of {made.options.steps} steps; "
            "a faster or quieter machine gets further[/]"
        )
    return model


def docstrings() -> Iterator[str]:
    """Every docstring in the sources of the standard library, in a fixed order."""
    import ast
    import sysconfig

    from clearhead.errors import ClearheadError

    found = False
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) > 40:
                    found = True
                    yield text
    if not found:
        raise ClearheadError(f"{root} holds no sources of the standard library to learn from.")


def busiest_head(seen: "Seen") -> tuple[int, int]:
    """The head that looks around most sharply: the largest weights on tokens other than itself and the first."""
    import torch

    from clearhead.lens.attention import pattern_of

    patterns = torch.stack([pattern_of(seen, layer) for layer in range(len(seen))])  # layer head query key
    patterns[..., 0] = 0
    patterns.diagonal(dim1=-2, dim2=-1).zero_()
    sharpest = int(patterns.amax(-1).mean(-1).argmax())
    return divmod(sharpest, patterns.shape[1])
