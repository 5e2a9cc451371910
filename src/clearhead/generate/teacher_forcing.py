"""Log-probabilities of given outputs, by teacher forcing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.generate.beam_search import BeamRules
from clearhead.generate.engine import TokenLogprob
from clearhead.generate.tasks import check_finite
from clearhead.model.transformer import Transformer, eval_mode


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
        index = torch.tensor(output, dtype=torch.long, device=device)
        values = logprobs.gather(1, index[:, None])[:, 0]
        check_finite(values.exp())
        candidates = logprobs[:, :vocab_size]
        best = candidates.topk(min(num_logprobs, candidates.shape[1]))
        tokens = []
        for i, value in enumerate(values.tolist()):
            top = zip(best.indices[i].tolist(), best.values[i].tolist(), strict=True)
            tokens.append(TokenLogprob(output[i], value, tuple(top)))
        results.append(tokens)
    return results


def teacher_forcing_batch(
    prompts: Sequence[list[int]], outputs: Sequence[list[int]], device: torch.device
) -> Batch:
    """Prompts followed by their outputs without the last token, as the decoder reads them."""
    rows = [[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)]
    return Batch.from_rows(rows, device)
