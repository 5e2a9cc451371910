"""`clearhead evaluate`: how good a model is on data."""

from pathlib import Path

import typer

from clearhead.cli.common import DTYPE_OPTION, MODEL_ARGUMENT


def evaluate(
    model: str = MODEL_ARGUMENT,
    more: list[str] = typer.Argument(
        None, metavar="FILE", help="More files, after --data.", show_default=False
    ),
    data: list[str] = typer.Option(
        ..., metavar="FILE", help="Texts, pairs, a table with labels, pictures or sounds."
    ),
    text_column: str = typer.Option(
        None, "--data.text_column", help="The column of the text.", show_default=False
    ),
    text_pair_column: str = typer.Option(
        None, "--data.text_pair_column", help="The column of a second text.", show_default=False
    ),
    label_column: str = typer.Option(
        None,
        "--data.label_column",
        help="The column of the label; of files, folder or stem.",
        show_default=False,
    ),
    source_column: str = typer.Option(
        None, "--data.source_column", help="The column of the source text.", show_default=False
    ),
    target_column: str = typer.Option(
        None, "--data.target_column", help="The column of the target text.", show_default=False
    ),
    on_error: str = typer.Option(
        "fail", "--data.on_error", help="fail, or skip: leave broken lines out, and count them."
    ),
    stride: int = typer.Option(
        0, help="Tokens from one window of a long text to the next; 0 = half a context."
    ),
    num_beams: int = typer.Option(
        5, help="How many translations are followed at once; 1 is greedy."
    ),
    seed: int = typer.Option(0, help="Of the words that are hidden, and of the intervals."),
    per_example: Path = typer.Option(
        None, help="Save what came of each document or row, as .jsonl.", show_default=False
    ),
    confusion_matrix: Path = typer.Option(
        None,
        help="Save what was taken for what as .png, .svg, .html, .csv or .npy.",
        show_default=False,
    ),
    output: Path = typer.Option(None, help="Save the figures as JSON.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
    dtype: str = DTYPE_OPTION,
) -> None:
    """Measure how good a model is on data.

    The data is of the kind that the model is trained on, and each figure has a 95 % interval.
    Language models: loss, perplexity, bits per byte. Masked words: loss, accuracy. Translators: BLEU, chrF, loss.
    Classes: accuracy, F1, Matthews, calibration. Numbers: Pearson, Spearman.
    Columns that are not given are those that the model was trained with.
    """
    from clearhead.api import load
    from clearhead.cli.common import show_or_save
    from clearhead.config.model import ClassificationHead
    from clearhead.errors import ClearheadError
    from clearhead.evaluate.evaluate import evaluate as measure
    from clearhead.io import write_atomic
    from clearhead.lens.view import check_output_path, check_parent_folder

    for path in (per_example, output):
        if path is not None:
            check_parent_folder(path)
    if confusion_matrix is not None:
        check_output_path(confusion_matrix)
    loaded = load(model, dtype=dtype)
    if confusion_matrix is not None and not isinstance(
        loaded.config.model.head, ClassificationHead
    ):
        raise ClearheadError(
            "only a model that tells classes takes one for another; leave out --confusion."
        )
    columns = {
        "text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column,
        "source_column": source_column, "target_column": target_column, "on_error": on_error,
    }  # fmt: skip
    given = {name: value for name, value in columns.items() if value is not None}
    found = measure(
        loaded, [*data, *(more or ())], stride=stride, num_beams=num_beams, seed=seed, **given
    )
    if per_example is not None:
        write_atomic(per_example, found.examples_to_jsonl().encode())
    if output is not None:
        write_atomic(output, f"{found.to_json()}\n".encode())
    if as_json:
        typer.echo(found.to_json())
    else:
        typer.echo(str(found))
        for view in found.views.values():
            if view.is_small:
                show_or_save(view, None)
    if confusion_matrix is not None:
        found.views["confusion"].save(confusion_matrix)
