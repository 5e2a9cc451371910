"""A published model learns the manner of some thousand stories, then writes many more: data for story to learn from.

    clearhead get smollm2-135m-instruct
    python recipes/teacher.py smollm2-135m-instruct DATA/text/tinystories.txt.xz DATA/stories --seconds 380

The teacher is SmolLM2-135M-Instruct (Apache-2.0). Three epochs of fine-tuning take 35 s of an H200, and in 380 s it
writes 260,000 stories, 50 million tokens. How many it gets to depends on the machine; what is written first is the
same on the same machine. One story in forty is not shown to it, the same ones that `prepare.py story` holds out.
"""

import argparse
import lzma
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

import clearhead as ch
from clearhead.generate.draw import Draw, key_of
from clearhead.generate.sampling import Sampling
from clearhead.generate.swift import Swift
from prepare import finished

END = 0  # <|endoftext|> of SmolLM2
LENGTH, BATCH, EPOCHS, RATE = 512, 64, 3, 2e-4
TEXTS, TOKENS, SHORTEST = 1024, 640, 40  # rows written at once, tokens of a row, tokens of a story
FILES = 8


def rows(documents: list[list[int]], seed: int, device: str) -> tuple[Tensor, Tensor]:
    """All documents in one stream, in an order of their own for each epoch: tokens and those that follow them."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
    stream = torch.tensor([*chain.from_iterable([END, *documents[i]] for i in order), END], device=device)
    whole = (len(stream) - 1) // LENGTH * LENGTH
    return stream[:whole].view(-1, LENGTH), stream[1 : whole + 1].view(-1, LENGTH)


def teach(net: torch.nn.Module, train: list[list[int]], device: str) -> None:
    """AdamW on fp32 copies of bf16 weights; the rate rises for 20 steps and falls to 0."""
    net.to(torch.bfloat16).train()
    weights = list(net.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    optimiser = torch.optim.AdamW(masters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    steps, step = int(EPOCHS * (sum(len(ids) + 1 for ids in train) // LENGTH) // BATCH), 0
    for epoch in range(EPOCHS + 1):
        tokens, targets = rows(train, 1 + epoch, device)
        for start in range(0, len(tokens) - BATCH + 1, BATCH):
            if step == steps:
                break
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1, (step + 1) / 20) * (1 - step / steps)
            total, count = net.loss(net(tokens[start : start + BATCH]), targets[start : start + BATCH])
            (total / count).backward()
            for master, weight in zip(masters, weights, strict=True):
                master.grad, weight.grad = weight.grad.float(), None
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            with torch.no_grad():
                for master, weight in zip(masters, weights, strict=True):
                    weight.copy_(master)
            if step % 40 == 0:
                print(f"step {step} of {steps}: loss {float(total / count):.3f}", flush=True)
            step += 1
    net.eval()


@torch.no_grad()
def write(net: torch.nn.Module, known: int, seconds: float) -> Iterator[list[int]]:
    """Stories, as their ids: rows of one recorded step that is replayed, cut where a story ends.

    A row begins with two ends: the first token of this model draws all attention and says nothing.
    """
    memory, swift, device = net.remember(TEXTS, TOKENS), Swift(net), torch.device("cuda")
    token = torch.zeros(TEXTS, 1, dtype=torch.long, device=device)
    place, at = torch.zeros_like(token), torch.zeros(1, dtype=torch.long, device=device)
    written = torch.zeros(TEXTS, TOKENS, dtype=torch.int32, device=device)
    draw = Draw([Sampling(top_p=0.97)] * TEXTS, [key_of(0, row) for row in range(TEXTS)], device, True)

    def step() -> None:
        chosen = draw(swift(token, memory), place, known, None, None)[0][:, None]
        place.add_(1)
        token.copy_(chosen)
        written.index_copy_(1, at, chosen.int())
        at.add_(1)

    def begin() -> None:
        memory.clear(TEXTS)
        memory.rows.fixed, memory.rows.longest = True, 0
        token.fill_(END)
        at.zero_()

    begin()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
        step()
    torch.cuda.current_stream().wait_stream(aside)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        begin()
        recorded.replay()
        token.fill_(END)
        at.zero_()
        for _ in range(TOKENS - 1):
            recorded.replay()
        for row in written.cpu().numpy():
            last = 0
            for end in (row == END).nonzero()[0].tolist():
                if end - last >= SHORTEST:
                    yield row[last:end].tolist()
                last = end + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("stories", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=380)
    given = parser.parse_args()
    model = ch.load(given.model, device="cuda", dtype="float32")
    words = model.tokenizer
    assert words is not None
    stories = [words.encode(story) for story in finished(given.stories)]
    teach(model.net, stories[len(stories) // 40 :], "cuda")
    found = list(write(model.net, len(words), given.seconds))
    print(f"{len(found):,} stories, {sum(map(len, found)):,} tokens")
    given.out.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        text = "\n<|endoftext|>\n".join(words.decode(story).strip() for story in found[number::FILES])
        with lzma.open(given.out / f"stories{number}.txt.xz", "wt", encoding="utf-8", preset=4) as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
