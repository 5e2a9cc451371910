"""`clearhead evaluate`: evaluate a model on data."""

from pathlib import Path
from typing import Literal

import typer

from clearhead.cli.common import DTYPE_OPTION, MODEL_ARGUMENT, echo, show_or_save
from clearhead.errors import ClearheadError

SAVE_VIEW_HELP = "as .png, .svg, .html, .csv or .npy."


def evaluate(
    model: str = MODEL_ARGUMENT,
    more_data: list[str] = typer.Argument(
        None, metavar="FILE", help="More files after --data.", show_default=False
    ),
    data: list[str] = typer.Option(
        ..., metavar="FILE", help="Texts, sentence pairs, labeled tables, images or audio."
    ),
    text_column: str = typer.Option(
        None, "--data.text_column", help="Text column.", show_default=False
    ),
    text_pair_column: str = typer.Option(
        None, "--data.text_pair_column", help="Column of the second text.", show_default=False
    ),
    label_column: str = typer.Option(
        None,
        "--data.label_column",
        help="Label column; of image and audio files: folder, or stem (of the file name).",
        show_default=False,
    ),
    source_column: str = typer.Option(
        None, "--data.source_column", help="Source column of sentence pairs.", show_default=False
    ),
    target_column: str = typer.Option(
        None, "--data.target_column", help="Target column of sentence pairs.", show_default=False
    ),
    on_error: Literal["fail", "skip"] = typer.Option(
        "fail", "--data.on_error", help="What to do with malformed lines; skip counts them."
    ),
    stride: int = typer.Option(
        0, help="Tokens between windows of a long text; 0 = half the context."
    ),
    num_beams: int = typer.Option(5, help="Number of beams for translation; 1 is greedy."),
    seed: int = typer.Option(0, help="Random seed of masks and bootstrap intervals."),
    per_example: Path = typer.Option(
        None, help="Save the result of each document or row as .jsonl.", show_default=False
    ),
    confusion_matrix: Path = typer.Option(
        None, help=f"Save the confusion matrix {SAVE_VIEW_HELP}", show_default=False
    ),
    output: Path = typer.Option(None, help="Save the metrics as JSON.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="Print the metrics as JSON."),
    dtype: str = DTYPE_OPTION,
) -> None:
    """Evaluate a model on data.

    Reports the metrics of its task with 95% confidence intervals.

    Language models: loss, perplexity, bits per byte. Masked language models: loss, accuracy.
    Translation: BLEU, chrF, loss. Classification: accuracy, F1, Matthews correlation, calibration.
    Regression: Pearson and Spearman correlation.
    Columns default to those used in training.
    """
    from clearhead.api import load
    from clearhead.config import ClassificationHead
    from clearhead.evaluate.evaluate import evaluate as evaluate_model
    from clearhead.io import write_atomic
    from clearhead.lens.view import check_output_path, check_parent_folder

    for path in (per_example, output):
        if path is not None:
            check_parent_folder(path)
    if confusion_matrix is not None:
        check_output_path(confusion_matrix)
    loaded = load(model, dtype=dtype)
    is_classifier = isinstance(loaded.config.model.head, ClassificationHead)
    if confusion_matrix is not None and not is_classifier:
        raise ClearheadError("--confusion-matrix needs a classification model.")
    result = evaluate_model(
        loaded,
        [*data, *(more_data or ())],
        stride=stride,
        num_beams=num_beams,
        seed=seed,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        source_column=source_column,
        target_column=target_column,
        on_error=on_error,
    )
    if per_example is not None:
        write_atomic(per_example, result.examples_to_jsonl().encode())
    if output is not None:
        write_atomic(output, f"{result.to_json()}\n".encode())
    if as_json:
        echo(result.to_json())
    else:
        echo(str(result))
        for view in result.views.values():
            if view.is_small:
                show_or_save(view, None)
    if confusion_matrix is not None:
        result.views["confusion_matrix"].save(confusion_matrix)
