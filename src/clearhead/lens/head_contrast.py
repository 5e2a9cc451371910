"""Find the heads that do something, and measure it with controls (L3.6).

A contrast is a list of sentences with an effect, each with a control: a sentence in which the
effect should be absent. The first half of the pairs chooses the heads, the second half measures
them, so that a head that was chosen by chance does not keep its advantage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.data.readers import DataReport, read_records
from clearhead.errors import ClearheadError, suggest, suggest_file
from clearhead.lens.argument_checks import check_model, check_top_k
from clearhead.lens.attention import word_spans
from clearhead.lens.text_stack import TextStack
from clearhead.lens.view import View, label_axes
from clearhead.lens.word_in_context import locate_words
from clearhead.progress_bar import progress_bar

if TYPE_CHECKING:
    from clearhead.api import Model

COLUMNS = ("kind", "word", "text", "attended")
STATISTICS = ("effect", "control", "difference", "95% low", "95% high")
TEXTS_PER_BATCH = 16
MIN_PAIRS = 8
MAX_PAIRS = 1000
# A clear effect: attention in the effect sentences minus, and divided by, that in the controls.
MIN_DIFFERENCE = 0.05
MIN_RATIO = 1.5
BOOTSTRAP_SAMPLES = 10_000


@dataclass(frozen=True)
class AttentionExample:
    """A sentence, and how much a word should attend to other words, separated by spaces."""

    word: str
    text: str
    attended: str


Contrast = Sequence[tuple[AttentionExample, AttentionExample]]  # pairs of effect and control


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadContrast(View):
    """head × statistic, the best head first, measured on sentences that did not choose it."""

    heads: tuple[tuple[int, int], ...]  # layer and head
    num_pairs: int  # that were measured
    measured: Tensor  # pair kind head: the attention in each effect sentence and its control

    @property
    def has_clear_effect(self) -> bool:
        """Whether the best head attends more in the effect sentences than in their controls.

        The interval of the difference must be above 0, the difference at least 0.05, and the
        attention 1.5 times as large.
        """
        effect, control, difference, low, _ = self.values[0].tolist()
        is_large = difference >= MIN_DIFFERENCE and effect >= MIN_RATIO * control
        return bool(low > 0 and is_large)


def contrast_names() -> list[str]:
    """The contrasts that come with clearhead."""
    return sorted(path.name.removesuffix(".tsv") for path in _contrast_folder().iterdir())


def read_contrast(source: str | Path) -> list[tuple[AttentionExample, AttentionExample]]:
    """Pairs of an effect sentence and its control, from a file or by the name of a bundled one.

    The file is a .tsv, .csv or .jsonl with the columns kind (effect or control), word, text and
    attended. The n-th control belongs to the n-th effect.
    """
    if str(source) in contrast_names():
        path = Path(str(_contrast_folder() / f"{source}.tsv"))
    else:
        path = Path(source)
        if not path.is_file():
            hint = suggest_file(path) or f"; {suggest(str(source), contrast_names())}"
            raise ClearheadError(f"there is no file {str(source)!r:.80}{hint}")
    examples: dict[str, list[AttentionExample]] = {"effect": [], "control": []}
    hint = f"the columns must be {', '.join(COLUMNS)}"
    for location, cells in read_records(path, DataReport(), COLUMNS, column_hint=hint):
        if not all(isinstance(cell, str) and cell.strip() for cell in cells):
            raise ClearheadError(f"{location}: every cell must be a text that is not empty.")
        kind, *values = (str(cell).strip() for cell in cells)
        if kind not in examples:
            raise ClearheadError(f"{location}: kind must be effect or control, got {kind!r:.40}.")
        if len(examples[kind]) == MAX_PAIRS:
            raise ClearheadError(f"{location}: a contrast has at most {MAX_PAIRS:,} pairs.")
        examples[kind].append(AttentionExample(*values))
    effects, controls = examples["effect"], examples["control"]
    if len(effects) != len(controls):
        raise ClearheadError(
            f"{path} has {len(effects)} effects and {len(controls)} controls; "
            "each effect needs its control."
        )
    return list(zip(effects, controls, strict=True))


def find_heads(model: "Model", contrast: str | Path | Contrast, top_k: int = 5) -> HeadContrast:
    """The heads where a word attends more to others in effect sentences than in their controls.

    `contrast` is a file, the name of a bundled one (adjectives, described-noun, it,
    pronouns), or a list of pairs.
    The first half of the pairs ranks the heads, by mean difference minus two standard errors; the
    second half measures them: the mean attention in effect sentences and controls, and the mean
    difference with its 95% bootstrap interval.
    """
    check_model(model)
    check_top_k(top_k)
    name = str(contrast) if isinstance(contrast, str | Path) else f"{len(contrast)} pairs"
    pairs = read_contrast(contrast) if isinstance(contrast, str | Path) else list(contrast)
    _check_pairs(pairs)
    weights = attention_to_words(model, [example for pair in pairs for example in pair])
    return rank_heads(weights, name, top_k)


def _check_pairs(pairs: Sequence[object]) -> None:
    if not MIN_PAIRS <= len(pairs) <= MAX_PAIRS:
        raise ClearheadError(
            f"a contrast needs {MIN_PAIRS} to {MAX_PAIRS:,} pairs of effect and control, "
            f"got {len(pairs):,}."
        )
    for pair in pairs:
        examples = pair if isinstance(pair, list | tuple) else ()
        if [isinstance(example, AttentionExample) for example in examples] != [True, True]:
            raise ClearheadError(
                f"a contrast must be a list of pairs of AttentionExample, got {pair!r:.80}."
            )


def rank_heads(weights: Tensor, name: str, top_k: int = 5) -> HeadContrast:
    """`find_heads` from the attention to words in effects and controls, which take turns."""
    weights = weights.unflatten(0, (-1, 2))  # pair kind layer head
    n_heads = weights.shape[-1]
    chosen_by, measured = weights.flatten(2).tensor_split((len(weights) // 2,))
    differences = chosen_by[:, 0] - chosen_by[:, 1]
    ranking = differences.mean(dim=0) - 2 * differences.std(dim=0) / len(differences) ** 0.5
    heads = ranking.topk(min(check_top_k(top_k), len(ranking))).indices
    measured = measured[:, :, heads]  # pair kind head
    layer_heads = tuple(divmod(head, n_heads) for head in heads.tolist())
    return HeadContrast(
        contrast_statistics(measured),
        label_axes({"head": [f"{i}.{j}" for i, j in layer_heads], "statistic": STATISTICS}),
        f"heads (layer.head) found by {name}",
        "weight",
        signed=True,
        vmax=1.0,
        note=f"mean attention; {len(chosen_by)} pairs chose the heads, {len(measured)} others "
        "measure them",
        heads=layer_heads,
        num_pairs=len(measured),
        measured=measured,
    )


def contrast_statistics(weights: Tensor) -> Tensor:
    """From pair × kind × … to … × statistic."""
    effect, control = weights.mean(dim=0)
    interval = bootstrap_interval(weights[:, 0] - weights[:, 1])
    return torch.stack([effect, control, effect - control, *interval], dim=-1)


def attention_to_words(model: "Model", examples: Sequence[AttentionExample]) -> Tensor:
    """example × layer × head: how much the word attends to the attended words together.

    As in `word_attention`, the last token of the last occurrence of the word attends.
    """
    num_batches = -(-len(examples) // TEXTS_PER_BATCH)
    steps = attention_in_steps(model, examples)
    return torch.cat(list(progress_bar(steps, num_batches, f"{len(examples)} texts")))


def attention_in_steps(model: "Model", examples: Sequence[AttentionExample]) -> Iterator[Tensor]:
    """The parts of `attention_to_words`, for programs that do something else between them."""
    text_stack = TextStack(model)
    names = [
        f"{text_stack.prefix}blocks.{i}.attn.pattern" for i in range(len(text_stack.stack.blocks))
    ]
    located = [_locate(text_stack, example) for example in examples]
    for start in range(0, len(located), TEXTS_PER_BATCH):
        batch = located[start : start + TEXTS_PER_BATCH]
        cache = text_stack.watch([ids for ids, _, _ in batch], names)
        patterns = torch.stack([cache[name].float().cpu() for name in names], dim=1)
        weights = [
            pattern[..., query, keys].sum(dim=-1)
            for pattern, (_, query, keys) in zip(patterns, batch, strict=True)
        ]
        yield torch.stack(weights)


def _locate(text_stack: TextStack, example: AttentionExample) -> tuple[list[int], int, list[int]]:
    """The token ids, the position that attends, and the positions of the attended words."""
    located = locate_words(text_stack, example.text, word_spans(example.text))
    words = [example.text[slice(*word.char_span)].casefold() for word in located]
    for word in (example.word, *example.attended.split()):
        if word.casefold() not in words:
            raise ClearheadError(
                f"{word!r} is not in {example.text!r:.80}; {suggest(word, dict.fromkeys(words))}"
            )
    query = max(n for n, word in enumerate(words) if word == example.word.casefold())
    attended = example.attended.casefold().split()
    if text_stack.stack.is_causal and not any(word in attended for word in words[: query + 1]):
        raise ClearheadError(
            f"{example.word!r} cannot attend to {example.attended!r:.60}, which comes later in "
            f"{example.text!r:.80}; a decoder attends to earlier words only."
        )
    keys = {
        position
        for word, name in zip(located, words, strict=True)
        if name in attended
        for position in word.word_positions
    }
    return located[query].ids, located[query].word_positions[-1], sorted(keys)


def bootstrap_interval(differences: Tensor) -> tuple[Tensor, Tensor]:
    """The 95% percentile bootstrap interval of the mean over the first dimension."""
    generator = torch.Generator().manual_seed(0)
    n = len(differences)
    samples = torch.randint(n, (BOOTSTRAP_SAMPLES, n), generator=generator)
    means = differences[samples].mean(dim=1)
    low, high = means.quantile(torch.tensor([0.025, 0.975]), dim=0)
    return low, high


def _contrast_folder() -> Path:
    return Path(str(files("clearhead.lens") / "contrasts"))
