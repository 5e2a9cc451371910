"""A published model learns the manner of some thousand texts, then writes many more: data for a bundled model.

    clearhead get smollm2-135m-instruct
    python recipes/teacher.py smollm2-135m-instruct DATA/text/tinystories.txt.xz DATA/stories --seconds 380
    python recipes/teacher.py smollm2-135m-instruct build/mood/train.tsv build/mood --seconds 55 --batch 16 --shortest 6

The teacher is SmolLM2-135M-Instruct (Apache-2.0). Of a .txt.xz it learns stories, of a .tsv labelled sentences, each
before its label, and writes both: a label is drawn when the whole sentence stands there. Three epochs of stories take
35 s of an H200, and in 380 s it writes 260,000, 50 million tokens; of sentences 290,000 new ones in 55 s. How many it
gets to depends on the machine; what is written first is the same on the same machine. One story in forty is not shown
to it, the same ones that `prepare.py story` holds out; of sentences it is shown those that `prepare.py mood` leaves for
training.
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
from clearhead.generate.fused_decode import Swift
from clearhead.generate.sampling import Draw, Sampling, key_of
from clearhead.tokenizers.tokenizer import Tokenizer
from prepare import finished

END = 0  # <|endoftext|> of SmolLM2
LENGTH = 512
EPOCHS = 3
RATE = 2e-4
# rows written at once, tokens of a row
TEXTS = 1024
TOKENS = 640
FILES = 8
IS = " => "  # between a sentence and its label


def rows(documents: list[list[int]], seed: int, device: str) -> tuple[Tensor, Tensor]:
    """All documents in one stream, in an order of their own for each epoch: tokens and those that follow them."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
    stream = torch.tensor(
        [*chain.from_iterable([END, *documents[i]] for i in order), END], device=device
    )
    whole = (len(stream) - 1) // LENGTH * LENGTH
    return stream[:whole].view(-1, LENGTH), stream[1 : whole + 1].view(-1, LENGTH)


def teach(net: torch.nn.Module, train: list[list[int]], batch: int, device: str) -> None:
    """AdamW on fp32 copies of bf16 weights; the rate rises for 20 steps and falls to 0."""
    net.to(torch.bfloat16).train()
    weights = list(net.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    steps = int(EPOCHS * (sum(len(ids) + 1 for ids in train) // LENGTH) // batch)
    step = 0
    for epoch in range(EPOCHS + 1):
        tokens, targets = rows(train, 1 + epoch, device)
        for start in range(0, len(tokens) - batch + 1, batch):
            if step == steps:
                break
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1, (step + 1) / 20) * (1 - step / steps)
            total, count = net.loss(
                net(tokens[start : start + batch]), targets[start : start + batch]
            )
            (total / count).backward()
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float()
                weight.grad = None
            torch.nn.utils.clip_grad_norm_(masters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for master, weight in zip(masters, weights, strict=True):
                    weight.copy_(master)
            if step % 40 == 0:
                print(f"step {step} of {steps}: loss {float(total / count):.3f}", flush=True)
            step += 1
    net.eval()


@torch.no_grad()
def write(net: torch.nn.Module, known: int, seconds: float, shortest: int) -> Iterator[list[int]]:
    """Texts, as their ids: rows of one recorded step that is replayed, cut where a text ends.

    A row begins with two ends: the first token of this model draws all attention and says nothing.
    """
    memory = net.remember(TEXTS, TOKENS)
    swift = Swift(net)
    device = torch.device("cuda")
    token = torch.zeros(TEXTS, 1, dtype=torch.long, device=device)
    place = torch.zeros_like(token)
    at = torch.zeros(1, dtype=torch.long, device=device)
    written = torch.zeros(TEXTS, TOKENS, dtype=torch.int32, device=device)
    draw = Draw(
        [Sampling(top_p=0.97)] * TEXTS, [key_of(0, row) for row in range(TEXTS)], device, True
    )

    def step() -> None:
        chosen = draw(swift(token, memory), place, known, None, None)[0][:, None]
        place.add_(1)
        token.copy_(chosen)
        written.index_copy_(1, at, chosen.int())
        at.add_(1)

    def begin() -> None:
        memory.clear(TEXTS)
        memory.rows.fixed = True
        memory.rows.longest = 0
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
                if end - last >= shortest:
                    yield row[last:end].tolist()
                last = end + 1


def told(file: Path) -> list[str]:
    """What is learned: stories, or sentences and their labels."""
    if file.suffix != ".tsv":
        stories = finished(file)
        return stories[len(stories) // 40 :]
    return [
        IS.join(line.rsplit("\t", 1)) for line in file.read_text(encoding="utf-8").splitlines()[1:]
    ]


@torch.no_grad()
def right(net: torch.nn.Module, words: Tokenizer, texts: list[str]) -> float:
    """The share of these sentences that it would give their label; labels differ in their first token."""
    parts = [text.rpartition(IS) for text in texts]
    names = sorted({name for *_, name in parts})
    asked = [[END, END, *words.encode(text + IS.rstrip())] for text, *_ in parts]
    last = torch.tensor([len(ids) - 1 for ids in asked], device="cuda")
    padded = torch.zeros(len(asked), int(last.max()) + 1, dtype=torch.long, device="cuda")
    for row, ids in zip(padded, asked, strict=True):
        row[: len(ids)] = torch.tensor(ids, device="cuda")
    hidden = net(padded)[torch.arange(len(padded), device="cuda"), last]
    scores = net.predict(hidden)[:, [words.encode(f" {name}")[0] for name in names]]
    found = [names[i] for i in scores.argmax(-1).tolist()]
    return sum(name == part[2] for name, part in zip(found, parts, strict=True)) / len(parts)


def keep_stories(found: list[str], out: Path) -> None:
    for number in range(FILES):
        with lzma.open(out / f"stories{number}.txt.xz", "wt", encoding="utf-8", preset=4) as file:
            file.write("\n<|endoftext|>\n".join(found[number::FILES]) + "\n")


def keep_sentences(found: list[str], learned: list[str], held: list[str], out: Path) -> None:
    """Once each, with the label that was drawn last, and only what is new: what is held out is not to come back."""
    known = {text.rpartition(IS)[0] for text in (*learned, *held)}
    labels = {text.rpartition(IS)[2] for text in learned}
    parts = (" ".join(text.split()).rpartition(IS) for text in found)
    new = {
        text: label for text, _, label in parts if label in labels and text and text not in known
    }
    print(f"{len(new):,} of them are new")
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in new.items())]
    (out / "written.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("file", type=Path, help="what it learns from")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=380)
    parser.add_argument("--batch", type=int, default=64, help="rows of a step")
    parser.add_argument("--shortest", type=int, default=40, help="tokens of a text that is kept")
    given = parser.parse_args()
    model = ch.load(given.model, device="cuda", dtype="float32")
    words = model.tokenizer
    assert words is not None
    learned = told(given.file)
    labelled = given.file.suffix == ".tsv"
    held = {
        name: told(given.file.with_name(f"{name}.tsv")) if labelled else []
        for name in ("valid", "dev")
    }
    teach(model.net, [words.encode(text) for text in learned], given.batch, "cuda")
    if labelled:
        print(
            f"it tells {right(model.net, words, held['valid']):.1%} of the sentences that are held out"
        )
    ids = list(write(model.net, len(words), given.seconds, given.shortest))
    print(f"{len(ids):,} texts, {sum(map(len, ids)):,} tokens")
    found = [words.decode(text).strip() for text in ids]
    given.out.mkdir(parents=True, exist_ok=True)
    if labelled:
        keep_sentences(found, learned, [*held["valid"], *held["dev"]], given.out)
    else:
        keep_stories(found, given.out)


if __name__ == "__main__":
    main()
