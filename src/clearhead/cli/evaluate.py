"""`clearhead evaluate`: how good a model is on data."""

from pathlib import Path

import typer

from clearhead.cli.flags import DTYPE, MODEL


def evaluate(
    model: str = MODEL,
    more: list[str] = typer.Argument(None, metavar="FILE", help="More files, after --data.", show_default=False),
    data: list[str] = typer.Option(..., metavar="FILE", help="Texts, pairs, a table with labels, pictures or sounds."),
    field: str = typer.Option(None, "--data.field", help="The column of the text.", show_default=False),
    second: str = typer.Option(None, "--data.second", help="The column of a second text.", show_default=False),
    label: str = typer.Option(
        None, "--data.label", help="The column of the label; of files, folder or stem.", show_default=False
    ),
    sides: tuple[str, str] = typer.Option(None, "--data.sides", help="The two columns of pairs.", show_default=False),
    broken: str = typer.Option(
        "refuse", "--data.broken", help="refuse, or skip: leave broken lines out, and count them."
    ),
    stride: int = typer.Option(0, help="Tokens from one window of a long text to the next; 0 = half a context."),
    beam: int = typer.Option(5, help="How many translations are followed at once; 1 is greedy."),
    seed: int = typer.Option(0, help="Of the words that are hidden, and of the intervals."),
    each: Path = typer.Option(None, help="Save what came of each document or row, as .jsonl.", show_default=False),
    confusion: Path = typer.Option(
        None, help="Save what was taken for what as .png, .svg, .html, .csv or .npy.", show_default=False
    ),
    out: Path = typer.Option(None, help="Save the figures as JSON.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
    dtype: str = DTYPE,
) -> None:
    """Measure how good a model is on data.

    The data is of the kind that the model is trained on, and each figure has a 95 % interval.
    Language models: loss, perplexity, bits per byte. Masked words: loss, accuracy. Translators: BLEU, chrF, loss.
    Classes: accuracy, F1, Matthews, calibration. Numbers: Pearson, Spearman.
    Columns that are not given are those that the model was trained with.
    """
    from clearhead import api
    from clearhead.cli.pictures import give
    from clearhead.config import Classes
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.evaluation import evaluate as measure
    from clearhead.files import overwrite
    from clearhead.lens.view import check_folder, check_out

    for path in (each, out):
        if path is not None:
            check_folder(path)
    if confusion is not None:
        check_out(confusion)
    loaded = api.load(model, dtype=dtype)
    if confusion is not None and not isinstance(loaded.config.model.head, Classes):
        raise ClearheadError("only a model that tells classes takes one for another; leave out --confusion.")
    columns = {"field": field, "second": second, "label": label, "sides": sides, "broken": broken}
    given = {name: value for name, value in columns.items() if value is not None}
    found = measure(loaded, [*data, *(more or ())], stride=stride, beam=beam, seed=seed, **given)
    if each is not None:
        overwrite(each, found.each_json().encode())
    if out is not None:
        overwrite(out, f"{found.json()}\n".encode())
    if as_json:
        typer.echo(found.json())
    else:
        typer.echo(str(found))
        for view in found.views.values():
            if view.small:
                give(view, None)
    if confusion is not None:
        found.views["confusion"].save(confusion)
