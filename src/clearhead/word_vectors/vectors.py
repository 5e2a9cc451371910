"""Word vectors (L1.4): nearest words, analogies such as `king - man + woman`, and directions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.data.batch import batches_by_length
from clearhead.errors import ClearheadError, suggest, warn
from clearhead.lens.argument_checks import check_top_k
from clearhead.lens.text_stack import TextStack
from clearhead.lens.view import View, label_axes
from clearhead.progress_bar import progress_bar
from clearhead.tokenizers.tokenizer import VISIBLE_WHITESPACE
from clearhead.weights.bundled import bundled_path
from clearhead.word_vectors.io import VectorTable, has_word_vectors, read_vectors, write_vectors

if TYPE_CHECKING:
    from clearhead.api import Model

# --- expressions
SIGN_OF = {"+": 1, "-": -1, "−": -1}
UNSUPPORTED_OPERATORS = ("*", "×", "·", "/", "÷", "^", "=")
OPERATOR = re.compile(r"([+−-])")
# + or - without spaces around it; a hyphen between words may be part of a name.
UNSPACED_OPERATOR = re.compile(r"\w[+−]\w|(?<!\S)[+−-]\w|\w[+−-](?!\S)")
MIN_NORM = 1e-6  # of a sum that has a direction
Terms = list[tuple[int, str]]  # sign and word


def parse_terms(expression: str, is_word: Callable[[str], bool] = bool) -> Terms:
    """Split `king - man + woman`, or `E(king) - E(man) + E(woman)`, into signed words.

    Consecutive words are one name. Text between spaces that is not a word is split at + and -.
    """
    example = "write it as king - man + woman."
    parts: list[str] = []
    for part in re.sub(r"\bE\(([^()]*)\)", r" \1 ", expression).split():
        parts += [part] if part in SIGN_OF or is_word(part) else OPERATOR.split(part)
    terms: Terms = []
    sign = 1
    words: list[str] = []
    for i, part in enumerate(filter(None, parts)):
        if words and part in UNSUPPORTED_OPERATORS:
            raise ClearheadError(
                f"{expression!r} contains {part!r}, but only + and - are supported; {example}"
            )
        if part not in SIGN_OF:
            words.append(part)
            continue
        if words:
            terms.append((sign, " ".join(words)))
        elif i:
            raise ClearheadError(f"{expression!r} has no word before {part!r}; {example}")
        sign = SIGN_OF[part]
        words = []
    if not words:
        raise ClearheadError(f"{expression!r} does not end with a word; {example}")
    return [*terms, (sign, " ".join(words))]


def split_equation(equation: str) -> list[str]:
    """The sides of `queen - king = woman - man`; an expression is a single side."""
    return [side.strip() for side in re.split("[=≈]", equation)]


# --- sources
class UnknownWordError(ClearheadError, KeyError):
    """A word that has no vector."""

    __str__ = Exception.__str__  # a KeyError would print the repr of the message


TOKENS_PER_BATCH = 128


@dataclass(frozen=True)
class WordVector:
    """A word and its vector: the mean over its tokens, if a model splits it."""

    text: str
    vector: Tensor
    tokens: tuple[str, ...] = ()


class VectorSource(Protocol):
    """Named vectors, and the vector of any word."""

    item_name: str  # what the names are, e.g. "tokens"

    @property
    def names(self) -> list[str]: ...
    @property
    def matrix(self) -> Tensor: ...
    def has_word(self, text: str) -> bool: ...
    def split_word(self, text: str) -> tuple[str, ...]: ...
    def lookup(self, texts: Sequence[str]) -> list[WordVector]: ...


@dataclass(frozen=True)
class TableSource:
    """The words of a table; a capitalized word falls back to lower case."""

    table: VectorTable
    item_name = "words"

    @property
    def names(self) -> list[str]:
        return self.table.words

    @property
    def matrix(self) -> Tensor:
        return self.table.vectors

    @cached_property
    def _row_indices(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.names)}

    def has_word(self, text: str) -> bool:
        return text in self._row_indices or text.lower() in self._row_indices

    def split_word(self, text: str) -> tuple[str, ...]:
        """No tokens; raises if the word is unknown."""
        self.row_index(text)
        return ()

    def row_index(self, text: str) -> int:
        """The row of a word."""
        if not self.has_word(text):
            raise UnknownWordError(
                f"{text!r} is not among the {len(self.names):,} words "
                f"({suggest(text.lower(), self.names)}); a language model such as "
                "smollm2-135m-instruct has vectors for all words."
            )
        return self._row_indices[text if text in self._row_indices else text.lower()]

    def lookup(self, texts: Sequence[str]) -> list[WordVector]:
        return [WordVector(text, self.matrix[self.row_index(text)]) for text in texts]


class EmbeddingSource:
    """The rows of a model's embedding matrix."""

    item_name = "tokens"

    def __init__(self, text_stack: TextStack) -> None:
        self.text_stack = text_stack
        special_ids = set(text_stack.tokenizer.special_tokens.values())
        self._ids = [i for i in range(len(text_stack.tokenizer)) if i not in special_ids]

    @cached_property
    def names(self) -> list[str]:
        return list(self.text_stack.to_str_tokens(self._ids))

    @cached_property
    def matrix(self) -> Tensor:
        return self._vectors_of(self._ids)

    def has_word(self, text: str) -> bool:
        try:
            return bool(self.text_stack.encode_word(text))
        except ClearheadError:
            return False

    def split_word(self, text: str) -> tuple[str, ...]:
        """The tokens of a word; raises if it is unknown."""
        return self.text_stack.to_str_tokens(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        try:
            return self.text_stack.encode_word(text)
        except ClearheadError as error:
            raise UnknownWordError(str(error)) from None

    def lookup(self, texts: Sequence[str]) -> list[WordVector]:
        rows = [self._encode(text) for text in texts]
        return [
            WordVector(text, vectors.mean(dim=0), self.text_stack.to_str_tokens(row))
            for text, row, vectors in zip(texts, rows, self._vectors_of_rows(rows), strict=True)
        ]

    def _vectors_of(self, ids: list[int]) -> Tensor:
        return self.text_stack.embedding[ids].float().cpu()

    def _vectors_of_rows(self, rows: list[list[int]]) -> list[Tensor]:
        return [self._vectors_of(row) for row in rows]


class LayerSource(EmbeddingSource):
    """The residual stream after a layer, for each word read on its own."""

    def __init__(self, text_stack: TextStack, layer: int) -> None:
        super().__init__(text_stack)
        self._name = text_stack.resid_name(layer)
        self._matrix: Tensor | None = None
        self._vectors: list[Tensor] = []  # read so far
        self._lock = Lock()

    @property
    def matrix(self) -> Tensor:
        num_steps = -(-len(self._ids) // TOKENS_PER_BATCH)
        message = f"reading each token on its own, {TOKENS_PER_BATCH} at a time"
        if self._matrix is None:
            for _ in progress_bar(self.read_in_steps(), num_steps, message):
                pass
        assert self._matrix is not None
        return self._matrix

    def read_in_steps(self) -> Iterator[None]:
        """Compute the matrix in steps, for programs that do something else between them.

        Several threads that do so share the work.
        """
        while self._matrix is None:
            with self._lock:
                if self._matrix is None:
                    self._read_next()
            yield

    def _read_next(self) -> None:
        start = len(self._vectors)
        self._vectors += self._read([[i] for i in self._ids[start : start + TOKENS_PER_BATCH]])
        if len(self._vectors) == len(self._ids):
            self._matrix = torch.cat(self._vectors)
            self._vectors = []

    def _vectors_of_rows(self, rows: list[list[int]]) -> list[Tensor]:
        vectors: dict[int, Tensor] = {}
        for indices in batches_by_length(
            [len(row) for row in rows], self.text_stack.embedding.device
        ):
            vectors |= zip(indices, self._read([rows[i] for i in indices]), strict=True)
        return [vectors[i] for i in range(len(rows))]

    def row_of(self, text: str) -> list[int]:
        """The tokens that are read for a word, with the special tokens around it."""
        return self._with_special_tokens(self._encode(text))

    def _with_special_tokens(self, row: list[int]) -> list[int]:
        return [*self.text_stack.bos_tokens, *row, *self.text_stack.sep_tokens]

    def _read(self, rows: list[list[int]]) -> list[Tensor]:
        """[token, d_model] of each row, without the special tokens around it."""
        cache = self.text_stack.watch(list(map(self._with_special_tokens, rows)), [self._name])
        resid = cache[self._name].float().cpu()
        start = len(self.text_stack.bos_tokens)
        return [value[start : start + len(row)] for value, row in zip(resid, rows, strict=True)]


# --- queries
CONTROL_WORDS = 5000
CONTROL_SUMS = 1000
CONTROL_QUANTILES = (0.025, 0.975)
COMPARISON_ROWS = ("as given", "one random word, mean", "lower 2.5%", "upper 2.5%")


@dataclass(frozen=True)
class Direction:
    """The mean difference between the second and the first words of some pairs."""

    vectors: "Vectors"
    pairs: tuple[tuple[str, str], ...]
    differences: Tensor  # [pair, d_model]

    @property
    def vector(self) -> Tensor:
        """The direction itself."""
        return self.differences.mean(dim=0)

    def score(self, word: str) -> float:
        """The dot product of a word's vector with the direction."""
        return float(self.vectors[word] @ self.vector)

    def scores(self, words: Sequence[str]) -> View:
        """The scores of several words, as a view. Unknown words are left out with a warning."""
        word_vectors = self.vectors.lookup_known(words)
        values = torch.stack([word.vector for word in word_vectors]) @ self.vector
        axes = label_axes({"word": [word.text for word in word_vectors]})
        note = "dot product with the mean difference (second − first)" + _tokens_note(word_vectors)
        return View(values, axes, self._title, "score", signed=True, note=note)

    def agreement(self) -> View:
        """The cosine between the differences of any two pairs."""
        names = [f"{first}:{second}" for first, second in self.pairs]
        note = "cosine similarity of the differences (second − first) of two pairs"
        return _cosine_view(self.differences, {"pair": names, "other": names}, self._title, note)

    @property
    def _title(self) -> str:
        return f"direction {', '.join(f'{first} → {second}' for first, second in self.pairs)}"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SumComparison(View):
    """The cosine of two sums, and with one random word in the second: mean and 95% range."""

    lengths: tuple[float, float]
    control: Tensor  # a cosine for each random sum
    neighbors: tuple[View, View]  # the nearest words of each side


class Vectors:
    """A vector for each word; similar words have a large cosine."""

    def __init__(self, source: VectorSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source.names)

    def __repr__(self) -> str:
        return f"<Vectors: {len(self):,} {self.source.item_name}>"

    def __getitem__(self, word: str) -> Tensor:
        """The vector of a word: the mean over its tokens, if the model splits it."""
        return self.lookup([word])[0].vector

    def lookup(self, words: Sequence[str]) -> list[WordVector]:
        """Words with their vectors and tokens."""
        return self.source.lookup(_check_words(words))

    def lookup_known(self, words: Sequence[str]) -> list[WordVector]:
        """The same, without unknown words, which a warning names; an error if all are unknown."""
        known, errors = self.split_known(words)
        if not known:
            raise errors[0]
        if errors:
            warn(f"left out: {'; '.join(str(error).removesuffix('.') for error in errors)}.")
        return self.lookup(known)

    def split_known(self, words: Sequence[str]) -> tuple[list[str], list[UnknownWordError]]:
        """The words that have vectors, and an error for each that has none."""
        known: list[str] = []
        errors: list[UnknownWordError] = []
        for word in _check_words(words):
            try:
                self.source.split_word(word)
                known.append(word)
            except UnknownWordError as error:
                errors.append(error)
        return known, errors

    def solve(self, expression: str, top_k: int = 10, include_inputs: bool = False) -> View:
        """The words nearest to a sum such as `king - man + woman`, without the words in it.

        Vectors are normalized before they are added. Of names that differ only in case or in a
        leading space, the nearest is shown.
        """
        words, target = self.evaluate_expression(expression)
        exclude = () if include_inputs else [word.text for word in words]
        view = self.nearest(target, top_k, exclude)
        return replace(
            view, title=expression, note=f"cosine with {expression}" + _tokens_note(words)
        )

    def evaluate_expression(self, expression: str) -> tuple[list[WordVector], Tensor]:
        """The words of a sum, and the sum of their normalized vectors."""
        terms = parse_terms(_check_word(expression), self._is_word)
        words = self.lookup([word for _, word in terms])
        signs = torch.tensor([float(sign) for sign, _ in terms])
        total = signs @ F.normalize(torch.stack([word.vector for word in words]), dim=-1)
        if total.norm() < MIN_NORM:
            raise ClearheadError(f"{expression!r} is zero: all words in it cancel out.")
        return words, total

    def _is_word(self, text: str) -> bool:
        """Whether a part of an expression is one word, rather than words with operators."""
        if not self.source.has_word(text):
            return False
        has_operator = UNSPACED_OPERATOR.search(text) is not None
        return not has_operator or len(self.source.split_word(text)) <= 1

    def compare(self, equation: str, top_k: int = 5) -> "SumComparison":
        """How close the two sides of `queen - king = woman - man` are.

        As a control, the left side is also compared with the right side in which one word, each in
        turn, is replaced by a random one: a word that both sides share, or one that is close to the
        left side by itself, would make any difference look alike. Vectors are normalized before
        they are added.
        """
        sides = split_equation(_check_word(equation))
        if len(sides) != 2 or not all(sides):
            raise ClearheadError(
                f"compare needs two sides, as in queen - king = woman - man, got {equation!r}."
            )
        evaluated = [self.evaluate_expression(side) for side in sides]
        left, right = (total for _, total in evaluated)
        signs = torch.tensor([float(sign) for sign, _ in parse_terms(sides[1], self._is_word)])
        terms = signs[:, None] * F.normalize(
            torch.stack([word.vector for word in evaluated[1][0]]), dim=-1
        )
        control = F.cosine_similarity(left, self._replace_one_word(terms, signs), dim=-1)
        cosine = F.cosine_similarity(left, right, dim=0)
        low, high = control.quantile(torch.tensor(CONTROL_QUANTILES)).tolist()
        num_as_close = int((control >= cosine).sum())
        words = [word for words, _ in evaluated for word in words]
        lengths = float(left.norm()), float(right.norm())
        return SumComparison(
            torch.tensor([float(cosine), float(control.mean()), low, high]),
            label_axes({"right side": COMPARISON_ROWS}),
            equation,
            "cosine",
            signed=True,
            vmax=1.0,
            note=f"cosine with {sides[0]} (length {lengths[0]:.3g}; {sides[1]}: {lengths[1]:.3g}); "
            f"{num_as_close} of {len(control):,} right sides with one random word come as close"
            + _tokens_note(words),
            lengths=lengths,
            control=control,
            neighbors=(self.solve(sides[0], top_k), self.solve(sides[1], top_k)),
        )

    def _replace_one_word(self, terms: Tensor, signs: Tensor) -> Tensor:
        """Sums of terms, one of them replaced by a random word: a whole word, a frequent one."""
        names = self.source.names
        has_spaces = any(name.startswith(VISIBLE_WHITESPACE[" "]) for name in names)
        plain = [
            i
            for i, name in enumerate(names)
            if name.startswith(VISIBLE_WHITESPACE[" "]) == has_spaces
            and _fold_name(name).isalpha()
            and not name.startswith("##")
        ]
        rows = torch.tensor(plain[:CONTROL_WORDS] or range(len(names)))
        generator = torch.Generator().manual_seed(0)
        chosen = rows[torch.randint(len(rows), (CONTROL_SUMS,), generator=generator)]
        position = torch.arange(CONTROL_SUMS) % len(signs)
        return terms.sum(dim=0) - terms[position] + signs[position, None] * self.normalized[chosen]

    def nearest(self, vector: Tensor, top_k: int = 10, exclude: Sequence[str] = ()) -> View:
        """The words nearest to a vector."""
        check_top_k(top_k)
        if not isinstance(vector, Tensor):
            raise ClearheadError(
                f"nearest expects a vector, got {vector!r:.40}; use most_similar(word) for a word."
            )
        if vector.shape != self.normalized.shape[1:]:
            raise ClearheadError(
                f"the vector must have shape ({self.normalized.shape[1]},), "
                f"got {tuple(vector.shape)}."
            )
        cosines = self.normalized @ F.normalize(vector, dim=0)
        excluded = set(map(_fold_name, exclude))
        best: list[int] = []
        for i in cosines.argsort(descending=True).tolist():
            if len(best) == top_k:
                break
            name = _fold_name(self.source.names[i])
            if name not in excluded:
                excluded.add(name)
                best.append(i)
        axes = label_axes({"word": [self.source.names[i] for i in best]})
        return View(cosines[best], axes, "nearest words", "cosine", signed=True, vmax=1.0)

    def most_similar(self, word: str, top_k: int = 10) -> View:
        """The words nearest to a word."""
        return self.solve(word, top_k)

    def similarity(self, words: Sequence[str]) -> View:
        """The cosine between any two of some words. Unknown ones are left out with a warning."""
        word_vectors = self.lookup_known(words)
        rows = torch.stack([word.vector for word in word_vectors])
        note = "cosine between two words" + _tokens_note(word_vectors)
        names = [word.text for word in word_vectors]
        return _cosine_view(rows, {"word": names, "other": names}, "word similarity", note)

    def direction(self, pairs: Sequence[tuple[str, str]]) -> Direction:
        """The direction from first to second words: `[("cat", "cats"), ("dog", "dogs")]`.

        Pairs with an unknown word are left out with a warning.
        """
        if not isinstance(pairs, tuple | list) or not pairs or not all(map(_is_pair, pairs)):
            raise ClearheadError(
                f'a direction needs a list of pairs, like [("cat", "cats")], got {pairs!r:.60}.'
            )
        words = self.lookup_known([word for pair in pairs for word in pair])
        known = {word.text: word for word in words}
        pairs = [pair for pair in pairs if all(word.strip() in known for word in pair)]
        if not pairs:
            raise ClearheadError("each pair of the direction has an unknown word.")
        ends = [(known[first.strip()], known[second.strip()]) for first, second in pairs]
        differences = torch.stack([second.vector - first.vector for first, second in ends])
        names = tuple((first.text, second.text) for first, second in ends)
        return Direction(self, names, differences)

    def save(self, path: str | Path) -> None:
        """Write a folder, or a .txt, .vec or .bin file in word2vec format."""
        write_vectors(Path(path), VectorTable(self.source.names, self.source.matrix))

    @cached_property
    def normalized(self) -> Tensor:
        """All vectors, normalized to length 1."""
        return F.normalize(self.source.matrix, dim=-1)


def vectors(source: "Model | str | Path | VectorTable", layer: int | None = None) -> Vectors:
    """The word vectors of a model, a table, a folder or file (.txt, .vec, .bin), or "words".

    Of a model: the rows of its embedding matrix; with `layer`, the residual stream after that
    layer, for each word read on its own.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if not has_word_vectors(path):
            path = bundled_path(str(source)) or path
        if not has_word_vectors(path):
            raise ClearheadError(
                f"{source} contains no word vectors; to use a model, load it with clearhead.load."
            )
        source = read_vectors(path)
    if isinstance(source, VectorTable):
        if layer is not None:
            raise ClearheadError(f"word vectors have no layers; leave out layer={layer}.")
        return Vectors(TableSource(source))
    text_stack = TextStack(source)
    return Vectors(EmbeddingSource(text_stack) if layer is None else LayerSource(text_stack, layer))


def _cosine_view(
    vectors: Tensor, labels: Mapping[str, Sequence[str]], title: str, note: str
) -> View:
    """The cosine between any two vectors."""
    normalized = F.normalize(vectors, dim=-1)
    return View(
        normalized @ normalized.mT,
        label_axes(labels),
        title,
        "cosine",
        signed=True,
        vmax=1.0,
        note=note,
    )


def _check_word(word: object) -> str:
    if not isinstance(word, str) or not word.strip():
        raise ClearheadError(f"expected a word, got {word!r:.60}.")
    return word.strip()


def _check_words(words: Sequence[str]) -> list[str]:
    if isinstance(words, str) or not words:
        raise ClearheadError(
            f"words must be a non-empty list, got {words!r:.60}; write ['one', 'two']."
        )
    return [_check_word(word) for word in words]


def _is_pair(pair: object) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2


def _fold_name(name: str) -> str:
    """A word without case, a leading space and a WordPiece prefix."""
    return name.strip("· ").removeprefix("##").casefold()


def _tokens_note(words: Sequence[WordVector]) -> str:
    """A note that lists words whose vectors are means over tokens."""
    notes = [
        f"; {word.text!r} is the mean of {' '.join(word.tokens)}"
        for word in words
        if len(word.tokens) > 1
    ]
    return "".join(dict.fromkeys(notes))
