"""Log-probabilities of given outputs, by teacher forcing."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.generate.beam_search import BeamRules
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.tasks import check_finite
from clearhead.model.transformer import Transformer, eval_mode

PROMPT_STEP_TOKENS = 128  # a logit per token and word takes much memory


@torch.no_grad()
def token_logprobs(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    num_logprobs: int,
    vocab_size: int | None,
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
    rules: BeamRules | None = None,
) -> list[list[TokenLogprob]]:
    """The log-probability of each output token, with the `num_logprobs` most likely alternatives.

    `rules` are those of the beam search that found the outputs.
    """
    device = next(net.parameters()).device
    rules = rules or BeamRules(device, num_beams=1, max_tokens=1)
    batch = teacher_forcing_batch(prompts, outputs, device)
    with eval_mode(net):
        hidden = net(
            batch.inputs,
            segment_ids=batch.segment_ids,
            source=source,
            source_segment_ids=source_segment_ids,
        )
    results = []
    for row, prompt, output in zip(hidden, prompts, outputs, strict=True):
        states = row[len(prompt) - 1 : len(prompt) + len(output) - 1]
        logits = net.compute_logits(states[None])[0]
        logprobs = rules.teacher_forced_logprobs(logits, prompt, output)
        results.append(_to_token_logprobs(output, logprobs, num_logprobs, vocab_size))
    return results


@torch.no_grad()
def prompt_logprobs_in_steps(
    net: Transformer, prompt: list[int], num_logprobs: int, vocab_size: int | None
) -> Iterator[list[TokenLogprob]]:
    """The log-probabilities of a prompt's tokens from the second on, some in each step.

    A program may do something else between the steps.
    """
    device = next(net.parameters()).device
    inputs = torch.tensor([prompt[:-1]], dtype=torch.long, device=device)
    cache = net.init_cache(1, len(prompt))
    for start in range(0, len(prompt) - 1, PROMPT_STEP_TOKENS):
        window = slice(start, start + PROMPT_STEP_TOKENS)
        with eval_mode(net):
            logits = net.compute_logits(net(inputs[:, window], cache=cache))[0]
        logprobs = logits.float().log_softmax(-1)
        yield _to_token_logprobs(prompt[1:][window], logprobs, num_logprobs, vocab_size)


def _to_token_logprobs(
    tokens: list[int], logprobs: Tensor, num_logprobs: int, vocab_size: int | None
) -> list[TokenLogprob]:
    """The log-probabilities of these tokens, one in each row, and of the most likely ones."""
    index = torch.tensor(tokens, dtype=torch.long, device=logprobs.device)
    values = logprobs.gather(1, index[:, None])[:, 0]
    check_finite(values.exp())
    candidates = logprobs[:, :vocab_size]
    best = candidates.topk(min(num_logprobs, candidates.shape[1]))
    rows = zip(tokens, values.tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token, value, tuple(zip(top_ids, top_values, strict=True)))
        for token, value, top_ids, top_values in rows
    ]


def teacher_forcing_batch(
    prompts: Sequence[list[int]], outputs: Sequence[list[int]], device: torch.device
) -> Batch:
    """Prompts followed by their outputs without the last token, as the decoder reads them."""
    rows = [[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)]
    return Batch.from_rows(rows, device)
