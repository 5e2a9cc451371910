"""`clearhead score`: log-probability and perplexity of texts."""

import json

import typer

from clearhead.cli.common import (
    DTYPE_OPTION,
    INPUT_OPTION,
    MODEL_ARGUMENT,
    Overflow,
    echo,
    map_batches,
    read_text_batches,
    warn_if_file_name,
)


def score(
    model: str = MODEL_ARGUMENT,
    text: str = typer.Argument(None, metavar="TEXT", help="A text.", show_default=False),
    file: str = INPUT_OPTION,
    overflow: Overflow = typer.Option(
        "error", help="For texts longer than the context: fail, or slide a window over them."
    ),
    dtype: str = DTYPE_OPTION,
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object per line, with the logprob of each token."
    ),
) -> None:
    """Print the log-probability and perplexity of texts."""
    from clearhead.api import load

    warn_if_file_name(text)
    batches = read_text_batches(text, file)
    loaded = load(model, dtype=dtype)
    results = map_batches(batches, file, lambda lines: loaded.score(lines, overflow))
    for line, result in results:
        has_perplexity = bool(result.logprobs)  # not for a single token
        if as_json:
            record = {
                "text": line,
                "logprob": result.total_logprob,
                "perplexity": result.perplexity if has_perplexity else None,
                "logprobs": result.logprobs,
            }
            echo(json.dumps(record, ensure_ascii=False))
        else:
            perplexity = f"{result.perplexity:.3f}" if has_perplexity else "–"
            echo(f"logprob {result.total_logprob:.3f}  perplexity {perplexity}  {line}")
