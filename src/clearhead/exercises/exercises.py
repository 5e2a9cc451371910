"""The exercises: what is asked, arguments to try, clearhead's own results, common mistakes."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor

from clearhead.config.presets import presets
from clearhead.exercises import reference, template
from clearhead.exercises.mistakes import MISTAKES, merge_pair, search, search_greedily
from clearhead.exercises.reference import RESULT, NextTokenModel, Result, Steps
from clearhead.model.transformer import build_transformer

NUM_CASES = 16
GRID = 64  # random numbers are multiples of 1/64, so they are the same in float32 and float64
LETTERS = "abcd"

Arguments = dict[str, Any]


class Draw:
    """Random arguments from a seed; seed 0 draws the smallest sizes."""

    def __init__(self, seed: int) -> None:
        self.is_smallest = seed == 0
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.sizes: dict[str, object] = {}

    def size(self, name: str, low: int, high: int, step: int = 1) -> int:
        """A size that messages mention."""
        value = low if self.is_smallest else self.random.randrange(low, high + 1, step)
        self.sizes[name] = value
        return value

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed numbers, in float64."""
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale
        return (values * GRID).round() / GRID

    def integers(self, n: int, high: int) -> Tensor:
        """Integers below `high`."""
        return torch.randint(high, (n,), generator=self.generator)

    def mask(self, n: int, m: int) -> Tensor:
        """An additive mask; each query may attend to at least one key."""
        allowed = torch.rand(n, m, generator=self.generator) < 0.6
        allowed[torch.arange(n), self.integers(n, m)] = True
        self.sizes["mask"] = "random"
        return torch.zeros(n, m, dtype=torch.float64).masked_fill(~allowed, -torch.inf)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, in the order of the parameters."""

    arguments: Arguments
    sizes: Mapping[str, object]  # such as n=6, d=4, seed=3

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.sizes.items())


@dataclass(frozen=True)
class Exercise:
    """A function to write."""

    stub: Callable[..., object]  # in `template.py`: name, signature, equation
    draw: Callable[[Draw], Arguments]
    compute: Callable[..., Steps]

    @property
    def name(self) -> str:
        return self.stub.__name__

    @property
    def signature(self) -> str:
        """The name with its parameters: `attention(q, k, v, mask=None)`."""
        parameters = inspect.signature(self.stub).parameters.values()
        names = [str(p.replace(annotation=p.empty)) for p in parameters]
        return f"{self.name}({', '.join(names)})"

    @property
    def description(self) -> str:
        """The stub with its types and its docstring, indented."""
        types = str(inspect.signature(self.stub)).replace("numpy.ndarray", "Array")
        lines = [f"    {line}".rstrip() for line in self._docstring.splitlines()]
        return "\n".join([f"{self.name}{types.replace('collections.abc.', '')}", *lines])

    @property
    def _docstring(self) -> str:
        return inspect.getdoc(self.stub) or ""

    @property
    def returns(self) -> str:
        """What the function returns: `n × d.`"""
        return self._docstring.partition("Returns: ")[2]

    @property
    def mistakes(self) -> Mapping[str, Callable[..., Result]]:
        """Common mistakes: a description and a function that makes it."""
        return MISTAKES[self.name]

    def cases(self) -> list[Case]:
        """The same arguments every time."""
        cases = []
        for seed in range(NUM_CASES):
            draw = Draw(seed)
            arguments = self.draw(draw)
            cases.append(Case(arguments, {**draw.sizes, "seed": seed}))
        return cases

    @torch.no_grad()
    def steps(self, case: Case) -> Steps:
        """What clearhead computes, step by step."""
        return self.compute(*case.arguments.values())


# --- tokens
def _draw_words(draw: Draw) -> Arguments:
    """Words in which the most frequent pair is unique at each merge."""
    num_merges = draw.size("num_merges", 1, 6)
    while True:
        words = [
            "".join(draw.random.choices(LETTERS, k=draw.random.randint(2, 7))) for _ in "12345"
        ]
        corpus = [word for word in words for _ in range(draw.random.randint(1, 9))]
        merges = reference.learn_merges(corpus, num_merges)
        if _is_unambiguous(corpus, merges):
            draw.sizes["words"] = len(corpus)
            return {"words": corpus, "num_merges": len(merges)}


def _is_unambiguous(words: list[str], merges: list[tuple[str, str]]) -> bool:
    """Whether each merge is of the only most frequent pair."""
    texts = [[*word] for word in words]
    for pair in merges:
        counts = Counter(pair for text in texts for pair in pairwise(text)).most_common(2)
        if counts[0][0] != pair or (len(counts) == 2 and counts[0][1] == counts[1][1]):
            return False
        texts = [merge_pair(text, pair) for text in texts]
    return True


def _draw_word(draw: Draw) -> Arguments:
    merges = reference.learn_merges(**_draw_words(draw))
    draw.sizes = {"num_merges": len(merges)}
    word = "".join(draw.random.choices(LETTERS, k=draw.size("letters", 1, 14)))
    return {"word": word, "merges": merges}


def _draw_ids(draw: Draw) -> Arguments:
    vocabulary = draw.size("vocabulary", 1, 9)
    E = draw.normal(vocabulary, draw.size("d", 1, 6))
    return {"ids": draw.integers(draw.size("n", 1, 7), vocabulary), "E": E}


# --- positions
def _draw_encoding_sizes(draw: Draw) -> Arguments:
    return {"n": draw.size("n", 1, 40), "d": draw.size("d", 2, 12, 2)}


def _draw_rotary(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    return {"x": draw.normal(n, draw.size("d", 2, 10, 2)), "positions": draw.integers(n, 40)}


# --- attention
def _draw_logits(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 5)
    x = draw.normal(n, draw.size("m", 1, 7))
    if draw.random.random() < 0.3:
        x = x[0]
        del draw.sizes["n"]
    if draw.random.random() < 0.3:
        x = x + draw.random.choice((-1, 1)) * 4096  # exp overflows or is 0
        draw.sizes["logits"] = "large"
    if draw.random.random() < 0.5:
        return {"x": x}
    temperature = draw.random.choice((0.25, 0.5, 2.0, 4.0))
    draw.sizes["temperature"] = temperature
    return {"x": x, "temperature": temperature}


def _draw_length(draw: Draw) -> Arguments:
    return {"n": draw.size("n", 1, 9)}


def _draw_tokens(draw: Draw) -> Arguments:
    return {"x": draw.normal(draw.size("n", 1, 7), draw.size("d", 1, 6))}


def _draw_qkv(draw: Draw, n: int, m: int) -> Arguments:
    d = draw.size("d", 1, 6)
    arguments = {"q": draw.normal(n, d), "k": draw.normal(m, d), "v": draw.normal(m, d)}
    if draw.random.random() < 0.3:
        arguments["q"] *= 4096  # exp of a score overflows
        draw.sizes["scores"] = "large"
    return arguments


def _draw_attention(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    m = draw.size("m", 1, 6)
    arguments = _draw_qkv(draw, n, m)
    return arguments | ({"mask": draw.mask(n, m)} if draw.random.random() < 0.5 else {})


def _draw_masked_attention(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 7)
    return _draw_qkv(draw, n, n)


def _draw_attention_weights(draw: Draw) -> tuple[int, Arguments]:
    """The number of heads, and W_Q, W_K, W_V, W_O."""
    n_heads = draw.size("n_heads", 1, 4)
    d = n_heads * draw.random.randint(1, 4)
    draw.sizes["d"] = d
    return n_heads, {name: draw.normal(d, d, scale=0.7) for name in ("w_q", "w_k", "w_v", "w_o")}


def _draw_multi_head(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    n_heads, weights = _draw_attention_weights(draw)
    arguments = {"x": draw.normal(n, len(weights["w_q"]))} | weights | {"n_heads": n_heads}
    return arguments | ({"mask": draw.mask(n, n)} if draw.random.random() < 0.5 else {})


def _draw_cross_attention(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    m = draw.size("m", 1, 6)
    n_heads, weights = _draw_attention_weights(draw)
    d = len(weights["w_q"])
    streams = {"x": draw.normal(n, d), "encoder_output": draw.normal(m, d)}
    return streams | weights | {"n_heads": n_heads}


# --- the block
def _draw_norm(draw: Draw) -> Arguments:
    """Some tokens have a small variance, or none."""
    n = draw.size("n", 1, 6)
    d = draw.size("d", 1, 8)
    x = draw.normal(n, d)
    x[draw.random.randrange(n)] = 3.0
    x[draw.random.randrange(n)] /= 256
    arguments = {"x": x, "gamma": draw.normal(d), "beta": draw.normal(d)}
    if draw.random.random() < 0.7:
        return arguments
    draw.sizes["eps"] = 2**-10
    return arguments | {"eps": 2**-10}


def _draw_ffn_weights(draw: Draw, d: int) -> Arguments:
    d_ff = draw.size("d_ff", 1, 10)
    shapes = {"w1": (d, d_ff), "b1": (d_ff,), "w2": (d_ff, d), "b2": (d,)}
    return {name: draw.normal(*shape) for name, shape in shapes.items()}


def _draw_ffn(draw: Draw) -> Arguments:
    x = draw.normal(draw.size("n", 1, 6), draw.size("d", 1, 6))
    return {"x": x} | _draw_ffn_weights(draw, x.shape[1])


def _draw_block(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    n_heads, weights = _draw_attention_weights(draw)
    d = len(weights["w_q"])
    weights |= _draw_ffn_weights(draw, d)
    weights |= {name: draw.normal(d) for name in ("gamma1", "beta1", "gamma2", "beta2")}
    return {"x": draw.normal(n, d), "weights": weights, "n_heads": n_heads}


# --- output
def _draw_unembedding(draw: Draw) -> Arguments:
    d = draw.size("d", 1, 6)
    return {
        "h": draw.normal(draw.size("n", 1, 6), d),
        "E": draw.normal(draw.size("vocabulary", 1, 9), d),
    }


def _draw_predictions(draw: Draw) -> Arguments:
    n = draw.size("n", 1, 6)
    vocabulary = draw.size("vocabulary", 1, 9)
    logits = draw.normal(n, vocabulary, scale=2.0)
    if draw.random.random() < 0.3:
        logits = logits + 4096
        draw.sizes["logits"] = "large"
    return {"logits": logits, "targets": draw.integers(n, vocabulary)}


def _draw_beam_search(draw: Draw) -> Arguments:
    """Searches that no early stop changes; greedy search fails in some of them."""
    num_beams = draw.size("num_beams", 1, 4)
    max_tokens = draw.size("max_tokens", 1, 7)
    vocabulary = draw.size("vocabulary", 3, 6)
    is_hard = num_beams > 1 and max_tokens > 1 and draw.random.random() < 0.5
    while True:
        m = presets["tiny-decoder"].replace(
            vocab_size=vocabulary, d_model=8, n_layers=1, attention__n_heads=2
        )
        net = build_transformer(m.model, seed=draw.random.randrange(10**6), dtype=torch.float64)
        with torch.no_grad():
            for parameter in net.parameters():
                noise = torch.randn(parameter.shape, generator=draw.generator, dtype=torch.float64)
                parameter.add_(noise, alpha=0.4)
        arguments: Arguments = {
            "next_logprobs": NextTokenModel(net.eval()),
            "num_beams": num_beams,
            "max_tokens": max_tokens,
            "eos": vocabulary - 1,
        }
        best = search(**arguments)
        if is_hard and best == search_greedily(**arguments):
            continue
        if best == reference.beam_search(**arguments)[RESULT]:
            return arguments


DRAWS: dict[str, Callable[[Draw], Arguments]] = {
    "bpe_merges": _draw_words,
    "bpe": _draw_word,
    "embed": _draw_ids,
    "positional_encoding": _draw_encoding_sizes,
    "rotary": _draw_rotary,
    "softmax": _draw_logits,
    "causal_mask": _draw_length,
    "simple_attention": _draw_tokens,
    "attention": _draw_attention,
    "masked_attention": _draw_masked_attention,
    "multi_head": _draw_multi_head,
    "cross_attention": _draw_cross_attention,
    "layer_norm": _draw_norm,
    "feed_forward": _draw_ffn,
    "block": _draw_block,
    "post_norm_block": _draw_block,
    "unembed": _draw_unembedding,
    "cross_entropy": _draw_predictions,
    "beam_search": _draw_beam_search,
}
EXERCISES = {
    name: Exercise(getattr(template, name), draw, getattr(reference, name))
    for name, draw in DRAWS.items()
}
