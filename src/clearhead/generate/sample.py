"""Generation (L5.4): sample the next token, append it, run again; the cache makes each run one step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.model.transformer import Transformer


@torch.no_grad()
def sample(
    net: Transformer,
    prompt: Tensor,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    known: int | None = None,
    never: tuple[int, ...] = (),
    never_first: tuple[int, ...] = (),
) -> Iterator[int]:
    """Up to `max_tokens` tokens after `prompt` (1 × tokens), one by one; temperature 0 takes the likeliest.

    Only the first `known` tokens are drawn from: a vocabulary may have room that its tokenizer does not use. Those of
    `never` are not drawn, those of `never_first` not at once.
    """
    generator = torch.Generator().manual_seed(seed)
    memory = net.remember(1, prompt.shape[1] + max_tokens)
    tokens = prompt
    for step in range(max_tokens):
        hidden = net(tokens, memory=memory)
        logits = net.predict(hidden[:, -1:])[0, 0, :known].float().cpu()
        logits[[*never, *(never_first if step == 0 else ())]] = -torch.inf
        token = choose(logits, temperature, top_k, generator)
        yield token
        tokens = torch.tensor([[token]], device=prompt.device)


def choose(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """softmax(logits / T), drawn from (L5.2)."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(min(top_k, len(logits))).values[-1], -torch.inf)
    calm = (logits - logits.max()).double() / temperature  # the largest is 0, so that no temperature overflows
    return int(torch.multinomial(calm.softmax(-1), 1, generator=generator))
