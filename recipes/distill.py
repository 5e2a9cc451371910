"""Train `sentences`, a small encoder whose attention and vectors imitate those of MiniLM.

    clearhead get minilm-l6
    python recipes/distill.py prepare DATA build/sentences
    python recipes/distill.py train build/sentences --output build/sentences/first
    python recipes/distill.py train build/sentences --init-from build/sentences/first \
        --output build/sentences/run --steps 1591 --lr 0.006 --adam-lr 0.0015 --variants 4 \
        --max-length 40 --max-texts 350000

The teacher is all-MiniLM-L6-v2 (Apache-2.0) with a smaller vocabulary: the most frequent pieces of
the training texts, and the words of the lectures. The student has as many layers and heads, and a
narrower residual stream. It learns the pattern of each head, the residual stream after each layer
through a linear map that is not saved, and the cosines between tokens and between sentences. The
second run, with short texts, adds the cosines between a word and others in its place; it saves the
mean of the weights before and after it.

On one H200, the two runs take 500 s and 100 s. DATA contains text/books.txt.xz, text/wiki.txt.xz
and translation/tatoeba.
"""

import argparse
import json
import lzma
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers as tk
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.config.training import Adam, Muon
from clearhead.hooks import Recorder
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer
from clearhead.train.optim import Optimizer
from prepare import read_documents

TEACHER = "minilm-l6"
CONTEXT_LENGTH = 128
TEXTS_PER_CALL = 20_000
TOKENS_FILE = "tokens.npz"
VOCAB_SIZE = 16_000
WIDTH = 288
FFN_WIDTH = 864
CORPUS_WEIGHTS = {"tatoeba": 0.25, "wiki": 0.45, "books": 0.3}  # in the choice of the vocabulary
PARTS = {"tatoeba": 1.0, "wiki": 1.0, "books": 0.65}  # fraction of the paragraphs
TATOEBA_REPEATS = 3
SEPARATE = 0.5  # probability that the sentences of a paragraph are separate
MAX_PASSAGE_CHARS = 450
UNPUNCTUATED = 0.12  # fraction of sentences without their final punctuation
PHRASES = 0.08  # fraction of sentences of which also a few words are a text
# Always in the vocabulary, and half of the words that take the place of others in the second run.
WORDS = re.findall(
    r"\w+",
    """
    mole moles shrew animal american carbon dioxide biopsy tumor rat mouse gram unit skin spy
    growth chicken road tired wide cross fluffy blue creature roamed verdant forest thanks apple
    king queen man woman bank river money bat ball cave spring season coil water crane bird seal
    bark dog tree table chair capacitor nurse doctor lawyer poodle kitten professor potter
    hitler mussolini italy germany
    """,
)
REPLACED_ROWS = 0.3  # of these, tokens are replaced at random, so that other words are learned too
REPLACED_TOKENS = 0.2
MAX_COMPARED = 3000  # tokens, and texts, of a batch whose cosines are compared with each other
BATCH_TOKENS = 65_536
WARMUP_STEPS = 300
LOG_EVERY = 250
DECAY_FRACTION = 0.5
SEED = 0

# --- data


def split_sentences(paragraph: str) -> list[str]:
    parts = re.split(r"(?<=[.!?])[\"'”’)]?\s+(?=[\"'“‘(]?[A-Z0-9])", paragraph)
    return [part.strip() for part in parts if part.strip()]


def cut_paragraphs(paragraphs: list[str], rng: random.Random) -> Iterator[str]:
    """Sentences, passages of several sentences, and phrases."""
    for paragraph in paragraphs:
        sentences = split_sentences(paragraph)
        if rng.random() < SEPARATE:
            passages = sentences
        else:
            passages = [""]
            limit = rng.randint(100, MAX_PASSAGE_CHARS)
            for sentence in sentences:
                if passages[-1] and len(passages[-1]) + len(sentence) > limit:
                    passages.append("")
                    limit = rng.randint(100, MAX_PASSAGE_CHARS)
                passages[-1] = f"{passages[-1]} {sentence}".strip()
        for passage in passages:
            yield passage.rstrip(".!?\"' ") if rng.random() < UNPUNCTUATED else passage
            if rng.random() < PHRASES:
                words = passage.split()
                length = rng.randint(2, 8)
                start = rng.randint(0, max(0, len(words) - length))
                yield " ".join(words[start : start + length]).strip(".,;:!?\"'()")


def read_corpora(data: Path) -> dict[str, list[str]]:
    """The texts to train on, by corpus."""
    rng = random.Random(SEED)
    with lzma.open(data / "translation/tatoeba/deu-eng.tsv.xz", "rt", encoding="utf-8") as file:
        english = dict.fromkeys(line.split("\t")[0].strip() for line in file)
    paragraphs = {"tatoeba": list(english)}
    for name in ("wiki", "books"):
        documents = read_documents(data / f"text/{name}.txt.xz")
        lines = [line.strip() for text in documents for line in text.splitlines()]
        paragraphs[name] = [line for line in lines if len(line) > 20 and rng.random() < PARTS[name]]
    return {name: [*cut_paragraphs(lines, rng)] for name, lines in paragraphs.items()}


def is_supported(piece: str) -> bool:
    """Whether a piece is a character of a European script, or punctuation."""
    character = piece.removeprefix("##")
    return len(character) == 1 and (character < "\u0530" or "\u2000" <= character < "\u2300")


def choose_vocabulary(teacher: Tokenizer, counts: dict[str, Counter[int]]) -> list[int]:
    """Ids of the teacher's pieces that the student keeps, in the teacher's order."""
    frequency: Counter[int] = Counter()
    for name, counter in counts.items():
        total = counter.total()
        for i, count in counter.items():
            frequency[i] += CORPUS_WEIGHTS[name] * count / total
    kept = [*teacher.special_tokens.values()]
    kept += [i for i in range(len(teacher)) if is_supported(teacher.id_to_token(i))]
    kept += [i for word in WORDS for i in teacher.encode(word)]
    ranked = [i for i, _ in frequency.most_common()]
    return sorted([*dict.fromkeys([*kept, *ranked])][:VOCAB_SIZE])


def prune(teacher: ch.Model, kept: list[int]) -> ch.Model:
    """The teacher with fewer tokens and positions; its token types become part of the positions."""
    assert teacher.tokenizer is not None
    description = json.loads(teacher.tokenizer.backend.to_str())
    pieces = [teacher.tokenizer.id_to_token(i) for i in kept]
    new_ids = {piece: i for i, piece in enumerate(pieces)}
    description["model"]["vocab"] = new_ids
    for token in description["added_tokens"]:
        token["id"] = new_ids[token["content"]]
    description |= {"truncation": None, "padding": None}
    for token in description["post_processor"]["special_tokens"].values():
        token["ids"] = [new_ids[name] for name in token["tokens"]]
    tokenizer = Tokenizer(tk.Tokenizer.from_str(json.dumps(description)))
    inference = teacher.config.inference
    special = {
        f"inference__{name}": [kept.index(i) for i in getattr(inference, name)]
        for name in ("bos_tokens", "sep_tokens", "pad_token", "mask_token")
    }
    config = teacher.config.replace(
        vocab_size=len(kept),
        context_length=CONTEXT_LENGTH,
        input__token_types=0,
        dropout__embedding=0.0,
        dropout__residual=0.0,
        dropout__attention=0.0,
        inference__max_length=CONTEXT_LENGTH,
        **special,
    )
    model = ch.new(config, tokenizer=tokenizer)
    weights = teacher.net.state_dict()
    types = weights.pop("embed.token_types.weight")
    weights["embed.tokens.weight"] = weights["embed.tokens.weight"][kept]
    weights["position.table"] = weights["position.table"][:CONTEXT_LENGTH] + types[0]
    model.net.load_state_dict(weights)
    return model


def prepare(data: Path, output: Path) -> None:
    teacher = ch.load(TEACHER, device="cpu")
    assert teacher.tokenizer is not None
    corpora = read_corpora(data)
    counts = {}
    for name, texts in corpora.items():
        counts[name] = Counter[int]()
        for ids in teacher.tokenizer.encode_batch(texts[:: max(1, len(texts) // 150_000)]):
            counts[name].update(ids)
    kept = choose_vocabulary(teacher.tokenizer, counts)
    small_teacher = prune(teacher, kept)
    assert small_teacher.tokenizer is not None
    small_teacher.net.half()
    ch.save(small_teacher, output / "teacher")
    for name, texts in corpora.items():
        coverage = sum(counts[name][i] for i in kept) / counts[name].total()
        print(f"{name}: {len(texts):,} texts; {coverage:.2%} of the tokens are in the vocabulary")
    texts = corpora["tatoeba"] * TATOEBA_REPEATS + corpora["wiki"] + corpora["books"]
    random.Random(SEED).shuffle(texts)
    write_tokens(output / TOKENS_FILE, small_teacher.tokenizer, texts)


def write_tokens(path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    """All tokens in a row as uint16, and the length of each text."""
    max_length = CONTEXT_LENGTH - 2
    rows: list[NDArray[np.uint16]] = []
    for start in range(0, len(texts), TEXTS_PER_CALL):
        encoded = tokenizer.encode_batch(texts[start : start + TEXTS_PER_CALL])
        rows += [np.array(ids[:max_length], dtype=np.uint16) for ids in encoded if len(ids) > 1]
    lengths = np.array([len(row) for row in rows], dtype=np.uint8)
    np.savez(path, tokens=np.concatenate(rows), lengths=lengths)
    print(f"{path}: {len(rows):,} texts, {lengths.sum():,} tokens")


# --- training


class Batches:
    """Random batches of texts of one length, without padding."""

    def __init__(
        self, path: Path, model: ch.Model, device: str, max_length: int, max_texts: int
    ) -> None:
        assert model.tokenizer is not None
        self.inference = model.config.inference
        self.vocab_size = model.config.model.vocab_size
        self.device = device
        pieces = [model.tokenizer.encode(word) for word in WORDS]
        self.words = torch.tensor([ids[0] for ids in pieces if len(ids) == 1], device=device)
        self.generator = torch.Generator(device).manual_seed(SEED)
        arrays = np.load(path)
        lengths = arrays["lengths"].astype(np.int64)
        starts = lengths.cumsum() - lengths
        chosen = np.flatnonzero(lengths <= max_length)[:max_texts]
        starts, lengths = starts[chosen], lengths[chosen]
        self.tokens = torch.from_numpy(arrays["tokens"].astype(np.int32)).to(device)
        self.counts = self.tokens.bincount(minlength=self.vocab_size)
        self.starts = {
            int(length): torch.from_numpy(starts[lengths == length]).to(device)
            for length in np.unique(lengths)
        }
        self.lengths = list(self.starts)
        self.weights = [length * len(self.starts[length]) for length in self.lengths]
        self.order = random.Random(SEED)
        print(f"{lengths.sum():,} tokens in {len(lengths):,} texts", flush=True)

    def draw(self, num_tokens: int, variants: int) -> tuple[Tensor, Tensor]:
        """Token ids, row × token, with the special tokens at both ends, and a position per row.

        `variants` consecutive rows differ only at this position, which has the rarest token of the
        text in the first of them.
        """
        (length,) = self.order.choices(self.lengths, self.weights)
        starts = self.starts[length]
        rows = num_tokens // (length + 2) // variants
        chosen = starts[self._randint(len(starts), (rows,))]
        ids = self.tokens[chosen[:, None] + torch.arange(length, device=self.device)].long()
        positions = self.counts[ids].argmin(dim=1, keepdim=True).repeat_interleave(variants, dim=0)
        ids = self._replace(ids).repeat_interleave(variants, dim=0)
        words = self.words[self._randint(len(self.words), positions.shape)]
        uniform = self._randint(self.vocab_size, positions.shape)
        other = torch.where(self._rand(positions.shape) < 0.5, words, uniform)
        is_original = torch.arange(len(ids), device=self.device)[:, None] % variants == 0
        ids.scatter_(1, positions, torch.where(is_original, ids.gather(1, positions), other))
        first = ids.new_tensor(self.inference.bos_tokens).expand(len(ids), -1)
        last = ids.new_tensor(self.inference.sep_tokens).expand(len(ids), -1)
        return torch.cat((first, ids, last), dim=1), positions[:, 0] + 1

    def _replace(self, ids: Tensor) -> Tensor:
        """Replace some tokens by random ones: half as frequent as in the texts, half uniform."""
        frequent = self.tokens[self._randint(len(self.tokens), ids.shape)].long()
        uniform = self._randint(self.vocab_size, ids.shape)
        other = torch.where(self._rand(ids.shape) < 0.5, frequent, uniform)
        is_replaced = self._rand((len(ids), 1)) < REPLACED_ROWS
        is_replaced = is_replaced & (self._rand(ids.shape) < REPLACED_TOKENS)
        return torch.where(is_replaced, other, ids)

    def _rand(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def _randint(self, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(high, shape, generator=self.generator, device=self.device)


class Student(nn.Module):
    """The student, and a linear map from its residual stream after each layer to the teacher's."""

    def __init__(self, net: Transformer, teacher: Transformer) -> None:
        super().__init__()
        self.net = net
        table = teacher.embed.tokens.weight.detach().float()
        basis = principal_axes(table, WIDTH)
        with torch.no_grad():
            net.embed.tokens.weight.copy_(table @ basis)
            net.position.table.copy_(teacher.position.table.float() @ basis)
        width = teacher.config.d_model
        layers = net.config.n_layers + 1
        self.maps = nn.ModuleList(nn.Linear(WIDTH, width) for _ in range(layers))
        for layer_map in self.maps:
            assert isinstance(layer_map, nn.Linear)
            nn.init.zeros_(layer_map.bias)
            with torch.no_grad():
                layer_map.weight.copy_(basis)


def principal_axes(x: Tensor, count: int) -> Tensor:
    """Orthonormal columns along which the rows vary most, about the origin."""
    _, vectors = torch.linalg.eigh((x.mT @ x).double())
    return vectors[:, -count:].flip(1).to(x.dtype)


def run(net: Transformer, ids: Tensor, pattern: str) -> tuple[list[Tensor], list[Tensor]]:
    """The residual stream before and after each layer, and scores or patterns of each layer."""
    recorder = Recorder(["full_embed", f"blocks.*.attn.{pattern}", "blocks.*.resid_post"])
    net(ids, hooks=recorder)
    values = recorder.values
    layers = range(net.config.n_layers)
    streams = [values["full_embed"], *(values[f"blocks.{i}.resid_post"] for i in layers)]
    return streams, [values[f"blocks.{i}.attn.{pattern}"] for i in layers]


def cosines(x: Tensor) -> Tensor:
    unit = F.normalize(x.float(), dim=-1)
    return unit @ unit.mT


@torch.no_grad()
def fit_maps(student: Student, teacher: Transformer, ids: Tensor) -> None:
    """The maps of least squares for one batch, slightly regularized."""
    for layer_map, s, t in zip(
        student.maps, run(student.net, ids, "z")[0], run(teacher, ids, "z")[0], strict=True
    ):
        assert isinstance(layer_map, nn.Linear)
        inputs = F.pad(s.flatten(0, 1).double(), (0, 1), value=1.0)
        # A norm makes the inputs linearly dependent.
        gram = inputs.mT @ inputs + 1e-4 * len(inputs) * torch.eye(WIDTH + 1).to(inputs)
        solution = torch.linalg.solve(gram, inputs.mT @ t.flatten(0, 1).double()).float()
        layer_map.weight.copy_(solution[:-1].mT)
        layer_map.bias.copy_(solution[-1])


def compute_losses(
    student: Student, teacher: Transformer, ids: Tensor, positions: Tensor, variants: int
) -> dict[str, Tensor]:
    with torch.no_grad():
        target_streams, patterns = run(teacher, ids, "pattern")
    streams, scores = run(student.net, ids, "masked_scores")
    attention = [
        F.kl_div(s.float().log_softmax(dim=-1), p.float(), reduction="sum") / p[..., 0].numel()
        for s, p in zip(scores, patterns, strict=True)
    ]
    hidden = []
    similarity = []
    substitutes = []
    all_rows = torch.arange(len(ids), device=ids.device)
    rows = max(2, MAX_COMPARED // ids.shape[1])
    for layer_map, s, t in zip(student.maps, streams, target_streams, strict=True):
        t = t.float()
        hidden.append(F.mse_loss(layer_map(s).float(), t) / t.var(dim=(0, 1)).mean())
        near, far = s[:rows].flatten(0, 1), t[:rows].flatten(0, 1)
        similarity.append(F.mse_loss(cosines(near), cosines(far)))
        near, far = (x[all_rows, positions].unflatten(0, (-1, variants)) for x in (s, t))
        substitutes.append(F.mse_loss(cosines(near), cosines(far)))
    pooled = streams[-1].float().mean(dim=1)
    target = target_streams[-1].float().mean(dim=1)
    mapped = student.maps[-1](pooled).float()
    some = slice(0, MAX_COMPARED)
    return {
        "attention": torch.stack(attention).mean(),
        "hidden": torch.stack(hidden).mean(),
        "token cosines": torch.stack(similarity).mean(),
        "substitute cosines": torch.stack(substitutes).mean(),
        "sentence cosines": F.mse_loss(cosines(pooled[some]), cosines(target[some])),
        "sentence": 1 - F.cosine_similarity(mapped, target, dim=-1).mean(),
    }


LOSS_WEIGHTS = {
    "attention": 2.0,
    "hidden": 1.0,
    "token cosines": 10.0,
    "substitute cosines": 20.0,
    "sentence cosines": 20.0,
    "sentence": 1.0,
}


def lr_factor(step: int, steps: int) -> float:
    """Linear warmup, and linear decay to zero in the second half."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (1 - step / steps) / DECAY_FRACTION)


def train(build: Path, args: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = ch.load(build / "teacher", device=device, dtype="float32")
    config = teacher.config.replace(d_model=WIDTH, ffn__d_ff=FFN_WIDTH)
    model = ch.new(config, tokenizer=teacher.tokenizer, device=device, seed=SEED)
    student = Student(model.net, teacher.net).to(device).train()
    teacher.net.requires_grad_(False)
    batches = Batches(build / TOKENS_FILE, model, device, args.max_length, args.max_texts)
    initial: dict[str, Tensor] = {}
    if args.init_from:
        weights = ch.load(args.init_from, device=device, dtype="float32").net.state_dict()
        model.net.load_state_dict(weights)
        initial = {name: weight.clone() for name, weight in weights.items()}
        fit_maps(student, teacher.net, batches.draw(BATCH_TOKENS, 1)[0])
    optimizer = Optimizer(student, Muon(lr=args.lr, weight_decay=0.02, adam=Adam(lr=args.adam_lr)))
    start = time.monotonic()
    recent: list[Tensor] = []
    for step in range(args.steps):
        ids, positions = batches.draw(BATCH_TOKENS, args.variants)
        with torch.autocast(device, dtype=torch.bfloat16):
            losses = compute_losses(student, teacher.net, ids, positions, args.variants)
            loss = torch.stack([LOSS_WEIGHTS[name] * losses[name] for name in losses]).sum()
        loss.backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step(lr_factor(step, args.steps))
        optimizer.zero_grad()
        recent.append(torch.stack([*losses.values()]).detach())
        if (step + 1) % LOG_EVERY == 0:
            means = torch.stack(recent).mean(dim=0).tolist()
            recent.clear()
            values = ", ".join(f"{k} {v:.4f}" for k, v in zip(losses, means, strict=True))
            print(f"{step + 1} ({time.monotonic() - start:.0f} s): {values}", flush=True)
    if args.init_from:
        final = model.net.state_dict()
        model.net.load_state_dict({name: (initial[name] + final[name]) / 2 for name in final})
    model.net.eval().half()
    ch.save(model, args.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare")
    command.add_argument("data", type=Path)
    command.add_argument("build", type=Path)
    command = commands.add_parser("train")
    command.add_argument("build", type=Path)
    command.add_argument("--steps", type=int, default=7393)
    command.add_argument("--init-from", default="")
    command.add_argument("--variants", type=int, default=1)
    command.add_argument("--max-length", type=int, default=CONTEXT_LENGTH)
    command.add_argument("--max-texts", type=int)
    command.add_argument("--lr", type=float, default=0.014)
    command.add_argument("--adam-lr", type=float, default=0.004)
    command.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        arguments.build.mkdir(parents=True, exist_ok=True)
        prepare(arguments.data, arguments.build)
    else:
        train(arguments.build, arguments)
