"""`clearhead generate`: continue a prompt."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from clearhead.cli.common import (
    ABLATE_HEAD_OPTION,
    BACKEND_OPTION,
    DTYPE_OPTION,
    LOGPROBS_HELP,
    MODEL_ARGUMENT,
    OVERFLOW_OPTION,
    SAMPLE_SEPARATOR,
    STDIN,
    Backend,
    Overflow,
    ablate_heads,
    echo,
    logprob_table,
    logprobs_to_dicts,
    read_stdin,
    warn_if_file_name,
)
from clearhead.errors import ClearheadError, check_int

if TYPE_CHECKING:
    from clearhead.api import Model
    from clearhead.generate.beam_search_texts import BeamResult
    from clearhead.generate.text_generation import Generation


def generate(
    model: str = MODEL_ARGUMENT,
    prompt: str = typer.Argument(
        metavar="PROMPT", help="The prompt; - is stdin.", show_default=False
    ),
    max_tokens: int = typer.Option(40, help="Maximum number of tokens to generate."),
    temperature: float = typer.Option(1.0, help="Sampling temperature; 0 is greedy."),
    top_k: int = typer.Option(0, help="Sample from the k most likely tokens; 0 = all."),
    top_p: float = typer.Option(
        1.0,
        help="Nucleus sampling: keep the smallest set of tokens whose probabilities sum to P.",
    ),
    min_p: float = typer.Option(
        0.0, help="Keep tokens with at least this fraction of the highest probability."
    ),
    repetition_penalty: float = typer.Option(
        1.0, help="Above 1, tokens that occurred before become less likely."
    ),
    presence_penalty: float = typer.Option(
        0.0, help="Subtracted from the logits of tokens that were generated before."
    ),
    frequency_penalty: float = typer.Option(0.0, help="The same, times the number of occurrences."),
    stop: list[str] = typer.Option(
        [], metavar="TEXT", help="Stop before this text. May be repeated."
    ),
    seed: int = typer.Option(0, help="Random seed."),
    n: int = typer.Option(1, help="Number of samples."),
    logprobs: int = typer.Option(
        0, help=f"{LOGPROBS_HELP} They are the model's, before temperature and other options."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per sample."),
    stream: bool = typer.Option(False, "--stream", help="Print the text as it is generated."),
    num_beams: int = typer.Option(0, help="Use beam search with this many beams; 0 = sample."),
    ablate_head: list[str] = ABLATE_HEAD_OPTION,
    overflow: Overflow = OVERFLOW_OPTION,
    dtype: str = DTYPE_OPTION,
    backend: Backend | None = BACKEND_OPTION,
) -> None:
    """Continue a prompt by sampling or beam search."""
    from clearhead.api import load

    check_int("--num-beams", num_beams)
    if stream and (n > 1 or as_json or logprobs):
        raise ClearheadError("--stream prints one text; omit --n, --json and --logprobs.")
    if ablate_head and backend:
        raise ClearheadError(f"{backend} cannot ablate heads; omit --ablate-head or --backend.")
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": tuple(stop),
        "seed": seed,
        "overflow": overflow,
    }
    if num_beams:
        _check_beam_options(
            num_beams,
            n,
            sampling | {"stream": stream, "logprobs": logprobs, "backend": backend},
        )
    warn_if_file_name(prompt, "use - < {} to read its content")
    if prompt == STDIN:
        prompt = read_stdin()
    loaded = load(model, dtype="" if backend else dtype)
    edits = ablate_heads(loaded, ablate_head)
    if num_beams:
        result = loaded.beam_search(prompt, num_beams, max_tokens=max_tokens, n_best=n, edits=edits)
        _print_choices(prompt, result.choices, as_json)
        return
    generator: Any = loaded.with_backend(backend, dtype) if backend else loaded
    if edits:
        sampling["edits"] = edits
    if stream:
        is_first = True
        for chunk in generator.stream(prompt, max_tokens, **sampling):
            echo(f"{prompt if is_first else ''}{chunk.text}", nl=False)
            sys.stdout.flush()
            is_first = False
        echo()
        return
    generation = generator.generate(prompt, max_tokens, n=n, logprobs=logprobs, **sampling)
    _print_samples(loaded, prompt, generation.choices, as_json, bool(logprobs))


def _check_beam_options(num_beams: int, n: int, options: dict[str, Any]) -> None:
    """Raise if an option is set that beam search ignores."""
    if n > num_beams:
        raise ClearheadError(f"--n must not exceed --num-beams, got {n} > {num_beams}.")
    defaults = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "overflow": "error"}
    for name, value in options.items():
        if value != defaults.get(name, type(value)()):
            flag = name.replace("_", "-")
            raise ClearheadError(f"--{flag} does not apply to beam search; omit it or --num-beams.")


def _print_choices(prompt: str, choices: "list[BeamResult]", as_json: bool) -> None:
    for number, choice in enumerate(choices):
        if as_json:
            record = {
                "prompt": prompt,
                "text": choice.text,
                "score": choice.score,
                "logprob": choice.logprob,
                "tokens": choice.tokens,
            }
            echo(json.dumps(record, ensure_ascii=False))
            continue
        if number:
            echo(SAMPLE_SEPARATOR)
        echo(prompt + choice.text)


def _print_samples(
    model: "Model",
    prompt: str,
    samples: "list[Generation]",
    as_json: bool,
    with_logprobs: bool,
) -> None:
    for number, sample in enumerate(samples):
        if as_json:
            record = {
                "prompt": prompt,
                "text": sample.text,
                "finish_reason": sample.finish_reason,
                "tokens": logprobs_to_dicts(model.tokenizer, sample.token_logprobs),
            }
            echo(json.dumps(record, ensure_ascii=False))
            continue
        if number:
            echo(SAMPLE_SEPARATOR)
        echo(prompt + sample.text)
        if with_logprobs:
            typer.echo(logprob_table(model.tokenizer, sample.token_logprobs), nl=False)
