"""How likely a model finds what follows a prompt, or was written for a source, and what else it thought of."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.config.model import InferenceConfig
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, check_int, suggest
from clearhead.generate.beam_search import BeamRules, BeamTree, Hypothesis, beam_search
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.engine import BatchEngine, EditedTransformer, Request, TokenLogprob
from clearhead.generate.sampling import SamplingConfig
from clearhead.generate.tasks import check_finite
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

# ---- chances: How likely a model finds what follows a prompt, or was written for a source, and what else it thought of.


@torch.no_grad()
def token_logprobs(
    net: Transformer,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    num_logprobs: int,
    vocab_size: int | None,
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
    **rules: Any,
) -> list[list[TokenLogprob]]:
    """Each token of each output with its log-probability, and those of the `top` likeliest in its place.

    `rules` are those of the beam search that wrote the outputs, where one did.
    """
    by = BeamRules(next(net.parameters()).device, 1, 1, **rules)
    texts = teacher_forcing_batch(prompts, outputs, next(net.parameters()).device)
    hidden = net(
        texts.inputs,
        segment_ids=texts.segment_ids,
        source=source,
        source_segment_ids=source_segment_ids,
    )
    told = []
    for row, prompt, output in zip(hidden, prompts, outputs, strict=True):
        before = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
        rows = by.teacher_forced_logprobs(net.compute_logits(row[None, before])[0], prompt, output)
        wanted = torch.tensor(output, dtype=torch.long, device=rows.device)
        own = rows.gather(1, wanted[:, None])[:, 0]
        check_finite(own.exp())
        best = (rows := rows[:, :vocab_size]).topk(min(num_logprobs, rows.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        told.append(
            [
                TokenLogprob(token, value, tuple(zip(*pair, strict=True)))
                for token, value, pair in zip(output, own.tolist(), pairs, strict=True)
            ]
        )
    return told


# ---- alternatives: Alternatives at a position: the best text up to there, then each of the likeliest next tokens, written to the end.


def beam_alternatives(
    net: Transformer,
    prompt: list[int],
    *,
    position: int,
    n_best: int,
    source: Tensor | None = None,
    prefix: list[int],
    max_tokens: int,
    eos_tokens: tuple[int, ...] = (),
    forced_eos: bool = False,
    **rules: Any,
) -> list[Hypothesis]:
    """`n_best` texts after a prompt: the first `at` tokens are those of the best, the next is another in each.

    The likeliest next token comes first; other options are those of `beam_search`, for one sentence.
    """
    check_int("alternatives", position)
    whole: dict[str, Any] = {**rules, "stop": eos_tokens, "closed": forced_eos}
    [[best]] = beam_search(
        net, [prompt], source=source, prefix=[prefix], max_tokens=max_tokens, **whole
    )
    if position >= len(best.tokens):
        raise ClearheadError(
            f"alternatives = {position} is beyond the best text, which has {len(best.tokens)} tokens."
        )
    one: dict[str, Any] = {
        **rules,
        "stop": eos_tokens,
        "beams": n_best,
        "n_best": n_best,
        "max_tokens": 1,
    }
    [found] = beam_search(net, [prompt], source=source, prefix=[best.tokens[:position]], **one)
    left = len(prefix) + max_tokens - position - 1
    going = [text for text in found if text.tokens[-1] not in eos_tokens]
    if left < 1 or not going:
        return found
    sources = None if source is None else source.expand(len(going), *source.shape[1:])
    begun = [text.tokens for text in going]
    ended = beam_search(
        net, [prompt] * len(going), source=sources, prefix=begun, max_tokens=left, **whole
    )
    by_begin = {text.tokens[position]: text for [text] in ended}
    return [by_begin.get(text.tokens[position], text) for text in found]


# ---- beamed: Texts written by beam search, after a prompt or for a source: what may be asked for, and what comes back.

T = TypeVar("T")


@dataclass(frozen=True)
class BeamResult:
    """A text that was written, without the token that ended it; `tokens` hold that too."""

    text: str
    tokens: list[int]
    score: float  # what it is ranked by: logprob / length ** length_penalty
    logprob: float  # the sum of what the model gives its tokens
    tree: BeamTree | None = None  # all that was considered, where it was asked for


@dataclass(frozen=True)
class BeamSearchConfig:
    """How beam search is to write."""

    num_beams: int = 5
    max_tokens: int = 0  # 0 = as the context allows
    length_penalty: float = 1.0  # more than 1 prefers long texts, less short ones
    n_best: int = 1
    early_stopping: bool = False  # content with the first `beam` texts that end
    no_repeat_ngram_size: int = (
        0  # runs of so many tokens stand only once in a text; 0 = as they come
    )
    prefix: Any = ""  # what texts begin with: one text or list of ids for all, or a list of them
    alternatives: int | None = (
        None  # a position where the n_best are to differ; before it they are as the best
    )
    return_tree: bool = False

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_tokens", "n_best", "no_repeat_ngram_size"):
            if type(value := getattr(self, name)) is not int:
                raise ClearheadError(f"{name} = {value!r} must be a whole number.")
        if not isinstance(self.length_penalty, int | float) or not isfinite(self.length_penalty):
            raise ClearheadError(
                f"length_penalty = {self.length_penalty!r} must be a finite number."
            )
        several = isinstance(self.prefix, list | tuple) and all(map(_one_prefix, self.prefix))
        if not several and not _one_prefix(self.prefix):
            raise ClearheadError(
                f"prefix = {self.prefix!r:.60} must be a text, ids, or a list of them."
            )


def _one_prefix(given: object) -> bool:
    return isinstance(given, str) or (
        isinstance(given, list | tuple) and all(type(token) is int for token in given)
    )


def beam_search_config(**options: Any) -> BeamSearchConfig:
    """Options by name."""
    known = BeamSearchConfig.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ClearheadError(f"{name} is no option of beam search; {suggest(name, known)}")
    return BeamSearchConfig(**options)


def encode_prefixes(wish: Any, count: int, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The ids that each of so many texts begins with."""
    shared = isinstance(wish, str) or (bool(wish) and isinstance(wish[0], int))
    listed = [wish] * count if shared else list(wish)
    if len(listed) != count:
        raise ClearheadError(
            f"there are {len(listed)} prefixes for {count} texts; give one, or one for each."
        )
    if tokenizer is None and any(isinstance(prefix, str) and prefix for prefix in listed):
        raise ClearheadError(
            "this model has no tokenizer, so it cannot read a prefix; give its token ids."
        )
    return [tokenizer.encode(p) if isinstance(p, str) and tokenizer else list(p) for p in listed]


def beam_search_texts(
    net: Transformer,
    tokenizer: Tokenizer | None,
    use: InferenceConfig,
    prompts: list[list[int]],
    wish: BeamSearchConfig,
    begins: list[list[int]],
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
) -> list[list[BeamResult]]:
    """The best texts after each prompt, or for each source, best first; each begins as `begins` says."""
    room = net.context_length - max(len(p) + len(b) for p, b in zip(prompts, begins, strict=True))
    options: dict[str, Any] = {
        "num_beams": wish.num_beams,
        "max_tokens": wish.max_tokens or max(1, room),
        "eos_tokens": use.eos_tokens,
        "length_penalty": wish.length_penalty,
        "n_best": wish.n_best,
        "forced_eos": use.forced_eos,
        "early_stopping": wish.early_stopping,
        "vocab_size": len(tokenizer) if tokenizer else None,
        **token_rules(use, wish),
    }
    if wish.alternatives is None:
        options |= {
            "source": source,
            "source_segment_ids": source_segment_ids,
            "prefix": begins,
            "return_tree": wish.return_tree,
        }
        found = beam_search(net, prompts, **options)
    elif wish.return_tree:
        raise ClearheadError(
            "alternatives come from several searches, not one tree; ask for one or the other."
        )
    else:
        rows = [None] * len(prompts) if source is None else _alone(source, source_segment_ids)
        found = [
            beam_alternatives(
                net, prompt, position=wish.alternatives, prefix=begin, source=row, **options
            )
            for prompt, begin, row in zip(prompts, begins, rows, strict=True)
        ]
    before = (
        prompts if source is None else [[]] * len(prompts)
    )  # a text with a source begins as texts do
    return [
        [
            BeamResult(
                decode_output(tokenizer, h.tokens, use, prompt),
                h.tokens,
                h.score,
                h.logprob,
                h.tree,
            )
            for h in hypotheses
        ]
        for prompt, hypotheses in zip(before, found, strict=True)
    ]


def token_rules(use: InferenceConfig, wish: BeamSearchConfig) -> dict[str, Any]:
    """The rules that tell how likely a token is in its place."""
    names = ("suppress_tokens", "begin_suppress_tokens", "renormalize_logits")
    return {name: getattr(use, name) for name in names} | {
        "no_repeat_ngram_size": wish.no_repeat_ngram_size
    }


def _alone(source: Tensor, segment_ids: Tensor | None) -> list[Tensor]:
    """Each source in a batch of its own, without padding."""
    if segment_ids is None:
        return list(source.split(1))
    return [row[real][None] for row, real in zip(source, segment_ids != 0, strict=True)]


def best_or_list(found: Sequence[list[T]], n_best: int) -> list[Any]:
    """Lists where several were asked for, else the best themselves."""
    return list(found) if n_best > 1 else [best for best, *_ in found]


def decode_output(
    tokenizer: Tokenizer | None,
    tokens: Sequence[int],
    use: InferenceConfig,
    prompt: Sequence[int] = (),
) -> str:
    """What was written, without the token that ended it; after a prompt, with the space between them."""
    if tokenizer is None:
        return ""
    stream = IncrementalDetokenizer(tokenizer, prompt)
    return "".join(
        [*(stream.feed(token) for token in tokens if token not in use.eos_tokens), stream.flush()]
    )


# ---- write: Writing on from prompts: tokens become text, and the model's own stop tokens, or the user's texts, end it.

DEFAULT_SLOTS = {"cpu": 16, "cuda": 64}  # texts that are written side by side
MAX_SAMPLES = (
    1000  # samples of one prompt; all are held, and nothing is told before the last has ended
)
MIN_GRAPH_TOKENS = 16  # tokens from which it pays to record a step


@dataclass(frozen=True)
class Generation:
    """What a model wrote after a prompt; `stop` ended it, or the length that was asked for."""

    text: str
    tokens: list[int]
    finish_reason: str
    token_logprobs: list[TokenLogprob]  # each token with its log-probability
    prompt_logprobs: list[TokenLogprob] = field(
        default_factory=list
    )  # the same for the prompt after its first token, with echo

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token that was written."""
        return [chosen.logprob for chosen in self.token_logprobs]


@dataclass(frozen=True)
class GenerationChunk:
    """What can be shown after one more token of one of the texts; the pieces of a text joined are the text."""

    text: str
    index: int  # of the prompt, and of its samples: prompt × n + sample
    token_logprob: TokenLogprob
    finish_reason: str  # empty while it goes on


def check_can_generate(m: c.ModelConfig) -> None:
    """Only a decoder with a language head goes on from a prompt."""
    if not isinstance(m.head, c.LMHead) or not isinstance(m.architecture, c.Decoder):
        raise ClearheadError(
            f"this {m.architecture.kind} does not write text after a prompt; a decoder language model does."
        )


def check_sample_counts(n: int, num_logprobs: int) -> None:
    check_int("n", n, 1, MAX_SAMPLES)
    check_int("logprobs", num_logprobs)


class GenerationStream:
    """Prompts that are written on together; one pass over it writes them all."""

    def __init__(
        self, engine: BatchEngine, tokenizer: Tokenizer | None, prompts: Sequence[list[int]], sampling: SamplingConfig,
        n: int = 1, num_logprobs: int = 0, echo: bool = False,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.eos_tokens = {*engine.inference.eos_tokens, *sampling.stop_tokens}
        self.echo = echo
        self.requests = [
            Request(list(prompt), sampling, i, num_logprobs) for prompt in prompts for i in range(n)
        ]
        self.detokenizers = [
            IncrementalDetokenizer(tokenizer, r.prompt, sampling.stop) if tokenizer else None
            for r in self.requests
        ]
        self.echoed_prompts = [
            tokenizer.decode(r.prompt) if tokenizer and echo else "" for r in self.requests
        ]
        self.request_indices = {id(request): i for i, request in enumerate(self.requests)}
        try:
            if echo and sampling.overflow == "slide":
                raise ClearheadError(
                    "echo tells how likely the whole prompt was, which may slide; leave one out."
                )
            for request in self.requests:
                engine.validate(request)
        except ClearheadError:
            engine.release()
            raise
        for request in self.requests:
            engine.add_request(request)

    def __iter__(self) -> Iterator[GenerationChunk]:
        """Piece by piece; who stops listening frees the rows."""
        with closing(self._steps()) as steps:
            for live in steps:
                for request in live:
                    yield self._piece(request)

    def _steps(self) -> Generator[list[Request], None, None]:
        """Those that have one more token."""
        try:
            while live := self.engine.step():
                yield live
        finally:
            for request in self.requests:
                request.finish("stop")
            self.engine.release()

    def _piece(self, request: Request) -> GenerationChunk:
        index = self.request_indices[id(request)]
        chosen = request.output[-1]
        stream = self.detokenizers[index]
        text = ""
        if stream is not None:
            text = stream.add(chosen.token, self.eos_tokens, bool(request.finish_reason))
            if stream.stopped:
                request.finish("stop")
        return GenerationChunk(
            self.echoed_prompts[index] + text if len(request.output) == 1 else text,
            index,
            chosen,
            request.finish_reason,
        )

    def results(self) -> list[Generation]:
        """All of them, when they have ended. Only where texts may stop one, they are spelled on the way."""
        for _ in self if self.requests[0].sampling_config.stop else self._steps():
            pass
        told = self._told() if self.echo else [[] for _ in self.requests]
        return [
            Generation(
                head + self._text(stream, r),
                [c.token for c in r.output],
                r.finish_reason,
                r.output,
                read,
            )
            for head, stream, r, read in zip(
                self.echoed_prompts, self.detokenizers, self.requests, told, strict=True
            )
        ]

    def _text(self, stream: IncrementalDetokenizer | None, request: Request) -> str:
        if stream is None:
            return ""
        if not request.sampling_config.stop:
            stream.feed(*(c.token for c in request.output if c.token not in self.eos_tokens))
            stream.flush()
        return stream.text

    def _told(self) -> list[list[TokenLogprob]]:
        """Each prompt's tokens after the first, as if they had been written."""
        desk = self.engine.runner
        told = {}
        for request in self.requests:
            if (key := tuple(request.prompt)) not in told:
                first = request.prompt[:1]
                rest = request.prompt[1:]
                [told[key]] = token_logprobs(
                    desk.net, [first], [rest], request.num_logprobs, desk.vocab_size
                )
        return [told[tuple(request.prompt)] for request in self.requests]


class EnginePool:
    """Engines for one net. On a GPU, where steps are recorded, the last one is kept for the next texts.

    It is for one writer at a time; who comes meanwhile gets another.
    """

    def __init__(self) -> None:
        self.cached: BatchEngine | None = None

    def __call__(
        self,
        net: Transformer,
        use: InferenceConfig,
        known: int | None,
        texts: int,
        longest: int,
        sampling: SamplingConfig,
    ) -> BatchEngine:
        """One for so many texts of up to so many tokens."""
        cuda = next(net.parameters()).is_cuda
        slots = min(texts, DEFAULT_SLOTS["cuda" if cuda else "cpu"])
        capacity = min(longest, net.context_length)
        if not cuda or sampling.max_tokens < MIN_GRAPH_TOKENS or isinstance(net, EditedTransformer):
            return BatchEngine(net, use, slots, capacity, known)
        kept = self.cached
        fits = kept is not None and kept.slots >= slots and kept.capacity >= capacity
        same = (
            kept is not None and fits and kept.inference == use and kept.runner.matches(net, known)
        )
        if kept is not None and same and kept.try_acquire() and kept.is_idle:
            kept.clear_prefix_cache()
            return kept
        room = min(net.context_length, max(256, 1 << (capacity - 1).bit_length()))
        made = BatchEngine(net, use, slots, room, known, use_cuda_graphs=True)
        made.try_acquire()
        self.cached = made
        return made


def teacher_forcing_batch(
    prompts: Sequence[list[int]], outputs: Sequence[list[int]], device: torch.device
) -> Batch:
    """What was read when each token of the outputs was written; the last of them was not."""
    return Batch.from_rows(
        [[*prompt, *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)], device
    )
