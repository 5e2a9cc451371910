"""`clearhead generate`: what follows a prompt."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    ABLATE_HEAD_OPTION,
    BACKEND_OPTION,
    DTYPE_OPTION,
    MODEL_ARGUMENT,
    OVERFLOW_OPTION,
    ablate_heads,
    logprob_table,
    logprobs_to_dicts,
    read_stdin,
    warn_if_file_name,
)

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.generation import Generation


def generate(
    model: str = MODEL_ARGUMENT,
    prompt: str = typer.Argument(
        help="What the text begins with; - reads it from stdin.", show_default=False
    ),
    max_tokens: int = typer.Option(40, help="How many tokens to write."),
    temperature: float = typer.Option(
        1.0, help="0 always takes the likeliest token; higher spreads the chance."
    ),
    top_k: int = typer.Option(0, help="Draw only from the k likeliest tokens; 0 = all."),
    top_p: float = typer.Option(
        1.0, help="Draw only from the likeliest that have this share together."
    ),
    min_p: float = typer.Option(
        0.0, help="Draw only from those this share as likely as the likeliest."
    ),
    repetition_penalty: float = typer.Option(
        1.0, help="More than 1 makes what was there already less likely."
    ),
    presence_penalty: float = typer.Option(0.0, help="Taken from the logits of what was written."),
    frequency_penalty: float = typer.Option(0.0, help="The same for each time it was written."),
    stop: list[str] = typer.Option(
        [], help="A text to end at, which is not shown; may be given again."
    ),
    seed: int = typer.Option(0, help="The same seed gives the same text."),
    n: int = typer.Option(1, help="How many texts to write."),
    logprobs: int = typer.Option(
        0, help="Show each token with this many of the likeliest in its place."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object for each text."),
    stream: bool = typer.Option(False, "--stream", help="Show the text while it is written."),
    num_beams: int = typer.Option(
        0, help="Search the likeliest text instead of drawing one, following so many at once."
    ),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    overflow: str = OVERFLOW_OPTION,
    dtype: str = DTYPE_OPTION,
    backend: str = BACKEND_OPTION,
) -> None:
    """Write on from a prompt."""
    from clearhead.api import load
    from clearhead.errors import ClearheadError, check_int

    check_int("--beam", num_beams)
    if stream and (n > 1 or as_json or logprobs):
        raise ClearheadError(
            "--stream shows one text as it comes; leave out --n, --json and --logprobs."
        )
    if num_beams and (stream or logprobs or n > num_beams):
        raise ClearheadError(
            "--beam searches whole texts; leave out --stream and --logprobs, and --n is at most --beam."
        )
    warn_if_file_name(prompt, "- < {} in its place reads what it holds")
    prompt = read_stdin() if prompt == "-" else prompt
    options: dict[str, Any] = {
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": tuple(stop),
        "overflow": overflow,
    }
    if num_beams:
        idle = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "overflow": "error"}
        others: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "seed": seed,
            "stream": stream,
            "logprobs": logprobs,
        }
        others |= {"engine": backend, "without": ablate_head}
        for name, value in {**options, **others}.items():
            if value != idle.get(name, type(value)()):
                raise ClearheadError(
                    f"--beam searches the likeliest text; --{name.replace('_', '-')} has no part in it."
                )
    loaded: Any = load(model, dtype="" if backend else dtype)
    if num_beams:
        found = loaded.beam_search(prompt, num_beams, max_tokens=max_tokens, n_best=n)
        for number, one in enumerate(found.choices):
            if number and not as_json:
                typer.echo("―――")
            told = {
                "prompt": prompt,
                "text": one.text,
                "score": one.score,
                "logprob": one.logprob,
                "tokens": one.tokens,
            }
            typer.echo(json.dumps(told, ensure_ascii=False) if as_json else prompt + one.text)
        return
    if ablate_head and backend:
        raise ClearheadError(
            "--without changes what happens inside, which other engines hide; leave out --engine."
        )
    writer = loaded.with_backend(backend, dtype) if backend else loaded
    options |= {"temperature": temperature, "top_k": top_k, "seed": seed}
    options |= {"edits": ablate_heads(loaded, ablate_head)} if ablate_head else {}
    if stream:
        pieces = writer.stream(prompt, max_tokens, **options)
        for number, piece in enumerate(pieces):
            if not number:
                typer.echo(prompt, nl=False)
            typer.echo(piece.text, nl=False)
            sys.stdout.flush()
        typer.echo()
        return
    made = writer.generate(prompt, max_tokens, n=n, logprobs=logprobs, **options)
    for number, text in enumerate(made.choices):
        if as_json:
            typer.echo(json.dumps(_tree(loaded, prompt, text), ensure_ascii=False))
            continue
        if number:
            typer.echo("―――")
        typer.echo(prompt + text.text)
        if logprobs:
            typer.echo(logprob_table(loaded.tokenizer, text.token_logprobs), nl=False)


def _tree(model: "Model", prompt: str, made: "Generation") -> dict[str, Any]:
    tokens = logprobs_to_dicts(model.tokenizer, made.token_logprobs)
    return {
        "prompt": prompt,
        "text": made.text,
        "finish_reason": made.finish_reason,
        "tokens": tokens,
    }
