"""Fine-tune a published model on a few thousand texts and generate many more to train small ones.

    clearhead get smollm2-135m-instruct
    python recipes/teacher.py smollm2-135m-instruct DATA/text/tinystories.txt.xz DATA/stories \\
        --seconds 380
    python recipes/teacher.py smollm2-135m-instruct build/mood/train.tsv build/mood \\
        --seconds 55 --batch-size 16 --min-tokens 6

The teacher is SmolLM2-135M-Instruct (Apache-2.0). A .txt.xz contains stories; a .tsv labeled
sentences, which become "sentence => label", so that a label is sampled for each new sentence. On an
H200, three epochs of stories take 35 s, and 380 s of generation give 260,000 stories (50 million
tokens); 55 s give 290,000 new sentences. The number of texts depends on the machine; on the same
machine the first ones are always the same. The texts that prepare.py holds out are not used.
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
from clearhead.generate.fused_decode import FusedDecoder
from clearhead.generate.sampling import Sampler, SamplingConfig, rng_key
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from prepare import SEPARATOR, read_complete_stories

END = 0  # token id of <|endoftext|> in SmolLM2
SEQ_LEN = 512
EPOCHS = 3
LR = 2e-4
WARMUP_STEPS = 20
LOG_EVERY = 40
GENERATION_ROWS = 1024
GENERATION_TOKENS = 640  # per row
OUTPUT_FILES = 8
LABEL_SEPARATOR = " => "


def epoch_rows(documents: list[list[int]], seed: int, device: str) -> tuple[Tensor, Tensor]:
    """All documents, shuffled and concatenated, as rows of tokens and of next tokens."""
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
    ids = [*chain.from_iterable([END, *documents[i]] for i in order), END]
    stream = torch.tensor(ids, device=device)
    length = (len(stream) - 1) // SEQ_LEN * SEQ_LEN
    tokens = stream[:length].view(-1, SEQ_LEN)
    targets = stream[1 : length + 1].view(-1, SEQ_LEN)
    return tokens, targets


def fine_tune(net: Transformer, documents: list[list[int]], batch_size: int, device: str) -> None:
    """AdamW on fp32 copies of bf16 weights, with warmup and linear decay."""
    net.to(torch.bfloat16).train()
    weights = list(net.parameters())
    master_weights = [weight.detach().float().clone() for weight in weights]
    optimizer = torch.optim.AdamW(master_weights, lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    num_tokens = sum(len(ids) + 1 for ids in documents)
    max_steps = EPOCHS * (num_tokens // SEQ_LEN) // batch_size
    step = 0
    for epoch in range(EPOCHS + 1):
        tokens, targets = epoch_rows(documents, 1 + epoch, device)
        for start in range(0, len(tokens) - batch_size + 1, batch_size):
            if step == max_steps:
                break
            batch = slice(start, start + batch_size)
            for group in optimizer.param_groups:
                group["lr"] = LR * min(1, (step + 1) / WARMUP_STEPS) * (1 - step / max_steps)
            loss_sum, num_targets = net.loss(net(tokens[batch]), targets[batch])
            loss = loss_sum / num_targets
            loss.backward()
            for master, weight in zip(master_weights, weights, strict=True):
                assert weight.grad is not None
                master.grad = weight.grad.float()
                weight.grad = None
            torch.nn.utils.clip_grad_norm_(master_weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for master, weight in zip(master_weights, weights, strict=True):
                    weight.copy_(master)
            if step % LOG_EVERY == 0:
                print(f"step {step} of {max_steps}: loss {float(loss):.3f}", flush=True)
            step += 1
    net.eval()


@torch.no_grad()
def generate(
    net: Transformer, vocab_size: int, seconds: float, min_tokens: int
) -> Iterator[list[int]]:
    """Token ids of texts: rows decoded by replaying a CUDA graph of one step, split at END.

    Each row starts with END twice, because the first token is an attention sink of this model.
    """
    device = torch.device("cuda")
    cache = net.init_cache(GENERATION_ROWS, GENERATION_TOKENS)
    decoder = FusedDecoder(net)
    tokens = torch.zeros(GENERATION_ROWS, 1, dtype=torch.long, device=device)
    steps = torch.zeros_like(tokens)
    column = torch.zeros(1, dtype=torch.long, device=device)
    output = torch.zeros(GENERATION_ROWS, GENERATION_TOKENS, dtype=torch.int32, device=device)
    rng_keys = [rng_key(0, row) for row in range(GENERATION_ROWS)]
    configs = [SamplingConfig(top_p=0.97)] * GENERATION_ROWS
    sampler = Sampler(configs, rng_keys, device, use_kernel=True)

    def decode_step() -> None:
        sampled, _ = sampler(decoder(tokens, cache), steps, vocab_size)
        steps.add_(1)
        tokens.copy_(sampled[:, None])
        output.index_copy_(1, column, tokens.int())
        column.add_(1)

    def reset() -> None:
        cache.reset(GENERATION_ROWS)
        cache.rows.is_static = True
        cache.rows.max_length = 0
        tokens.fill_(END)
        column.zero_()

    reset()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        decode_step()
        decode_step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_step()
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        reset()
        graph.replay()
        tokens.fill_(END)
        column.zero_()
        for _ in range(GENERATION_TOKENS - 1):
            graph.replay()
        for row in output.cpu().numpy():
            text_start = 0
            for end in (row == END).nonzero()[0].tolist():
                if end - text_start >= min_tokens:
                    yield row[text_start:end].tolist()
                text_start = end + 1


def read_texts(file: Path) -> list[str]:
    """Stories without those held out, or sentences with their labels."""
    if file.suffix == ".tsv":
        rows = file.read_text(encoding="utf-8").splitlines()[1:]
        return [LABEL_SEPARATOR.join(row.rsplit("\t", 1)) for row in rows]
    stories = read_complete_stories(file)
    return stories[len(stories) // 40 :]


@torch.no_grad()
def label_accuracy(net: Transformer, tokenizer: Tokenizer, texts: list[str]) -> float:
    """The fraction of labels that are the most likely ones; labels differ in their first token."""
    parts = [text.rpartition(LABEL_SEPARATOR) for text in texts]
    labels = sorted({label for *_, label in parts})
    prompts = [[END, END, *tokenizer.encode(text + LABEL_SEPARATOR.rstrip())] for text, *_ in parts]
    last = torch.tensor([len(ids) - 1 for ids in prompts], device="cuda")
    padded = torch.zeros(len(prompts), int(last.max()) + 1, dtype=torch.long, device="cuda")
    for row, ids in zip(padded, prompts, strict=True):
        row[: len(ids)] = torch.tensor(ids, device="cuda")
    hidden = net(padded)[torch.arange(len(padded), device="cuda"), last]
    label_ids = [tokenizer.encode(f" {label}")[0] for label in labels]
    predictions = net.compute_logits(hidden)[:, label_ids].argmax(-1).tolist()
    correct = [labels[i] == label for i, (*_, label) in zip(predictions, parts, strict=True)]
    return sum(correct) / len(correct)


def write_stories(texts: list[str], output: Path) -> None:
    for number in range(OUTPUT_FILES):
        path = output / f"stories{number}.txt.xz"
        with lzma.open(path, "wt", encoding="utf-8", preset=4) as file:
            file.write(f"\n{SEPARATOR}\n".join(texts[number::OUTPUT_FILES]) + "\n")


def write_sentences(texts: list[str], train: list[str], held_out: list[str], output: Path) -> None:
    """Write each new sentence once, with the label sampled last; none of the known ones."""
    known = {text.rpartition(LABEL_SEPARATOR)[0] for text in (*train, *held_out)}
    labels = {text.rpartition(LABEL_SEPARATOR)[2] for text in train}
    new: dict[str, str] = {}
    for text in texts:
        sentence, _, label = " ".join(text.split()).rpartition(LABEL_SEPARATOR)
        if label in labels and sentence and sentence not in known:
            new[sentence] = label
    print(f"{len(new):,} sentences are new")
    lines = ["sentence\tlabel", *(f"{sentence}\t{label}" for sentence, label in new.items())]
    (output / "written.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("file", type=Path, help="training texts, .txt.xz or .tsv")
    parser.add_argument("output", type=Path, help="output folder")
    parser.add_argument("--seconds", type=float, default=380, help="time to generate")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--min-tokens", type=int, default=40, help="discard shorter texts")
    args = parser.parse_args()
    model = ch.load(args.model, device="cuda", dtype="float32")
    tokenizer = model.tokenizer
    assert tokenizer is not None
    train = read_texts(args.file)
    is_labeled = args.file.suffix == ".tsv"
    fine_tune(model.net, [tokenizer.encode(text) for text in train], args.batch_size, "cuda")
    held_out: dict[str, list[str]] = {}
    if is_labeled:
        held_out = {
            name: read_texts(args.file.with_name(f"{name}.tsv")) for name in ("valid", "dev")
        }
        accuracy = label_accuracy(model.net, tokenizer, held_out["valid"])
        print(f"accuracy on held-out sentences: {accuracy:.1%}")
    ids = list(generate(model.net, len(tokenizer), args.seconds, args.min_tokens))
    print(f"{len(ids):,} texts, {sum(map(len, ids)):,} tokens")
    texts = [tokenizer.decode(text_ids).strip() for text_ids in ids]
    args.output.mkdir(parents=True, exist_ok=True)
    if is_labeled:
        write_sentences(texts, train, [*held_out["valid"], *held_out["dev"]], args.output)
    else:
        write_stories(texts, args.output)


if __name__ == "__main__":
    main()
