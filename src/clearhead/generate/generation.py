"""Text generation: prompts in, text out, by sampling or beam search."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Self, TypeVar

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.config.model import InferenceConfig
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, check_int
from clearhead.generate.beam_search import BeamRules, BeamTree, Hypothesis, beam_search
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.engine import (
    BatchEngine,
    EditedTransformer,
    Request,
    TokenLogprob,
    eval_mode,
)
from clearhead.generate.sampling import SamplingConfig, is_number
from clearhead.generate.tasks import check_finite
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

DEFAULT_SLOTS = {"cpu": 16, "cuda": 64}  # texts that are generated at the same time
MIN_GRAPH_TOKENS = 16  # recording CUDA graphs pays off from this many tokens on

ResultT = TypeVar("ResultT", bound="WithChoices")
Prefix = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class WithChoices:
    """A result that may be one of several for the same input."""

    other_choices: list[Self] = field(default_factory=list, repr=False, kw_only=True)

    @property
    def choices(self) -> list[Self]:
        """This result and the others."""
        return [replace(self, other_choices=[]), *self.other_choices]


@dataclass(frozen=True)
class Generation(WithChoices):
    """A generated text; with n > 1 the first one, and `choices` holds all."""

    text: str
    tokens: list[int]
    finish_reason: str  # stop or length
    token_logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # after its first token

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each generated token."""
        return [token.logprob for token in self.token_logprobs]


@dataclass(frozen=True)
class TextChunk:
    """The text that one more token adds. The chunks of a text joined are the text."""

    text: str
    index: int  # prompt index × n + sample index
    token_logprob: TokenLogprob
    finish_reason: str  # empty until the text has ended


@dataclass(frozen=True)
class BeamResult(WithChoices):
    """The best text of a beam search; `choices` holds the n_best. `tokens` include EOS."""

    text: str
    tokens: list[int]
    score: float  # logprob / length ** length_penalty
    logprob: float  # sum over the tokens
    tree: BeamTree | None = None  # with return_tree


@dataclass(frozen=True)
class BeamSearchConfig:
    """The options of beam search."""

    num_beams: int = 5
    max_tokens: int = 0  # 0 = as many as the context allows
    length_penalty: float = 1.0  # above 1 favors long texts, below 1 short ones
    n_best: int = 1
    early_stopping: bool = False  # stop as soon as num_beams hypotheses have finished
    no_repeat_ngram_size: int = 0  # never repeat an n-gram of this size; 0 = allow
    prefix: Prefix = ""  # start of the output: text or ids for all texts, or a list of them
    alternatives: int | None = None  # the n_best differ in the token at this position
    return_tree: bool = False

    def __post_init__(self) -> None:
        check_int("num_beams", self.num_beams, 1)
        check_int("max_tokens", self.max_tokens)
        check_int("n_best", self.n_best, 1)
        check_int("no_repeat_ngram_size", self.no_repeat_ngram_size)
        if self.n_best > self.num_beams and self.alternatives is None:
            raise ClearheadError(
                f"n_best must be at most num_beams ({self.num_beams}), got {self.n_best}."
            )
        if not is_number(self.length_penalty) or not isfinite(self.length_penalty):
            raise ClearheadError(
                f"length_penalty must be a finite number, got {self.length_penalty!r}."
            )
        if not _is_prefix(self.prefix) and not (
            isinstance(self.prefix, list | tuple) and all(map(_is_prefix, self.prefix))
        ):
            raise ClearheadError(
                f"prefix must be text, token ids or a list of them, got {self.prefix!r:.60}."
            )


def _is_prefix(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list | tuple) and all(type(token) is int for token in value)


def check_can_generate(m: c.ModelConfig) -> None:
    """Raise unless the model is a decoder with a language-modeling head."""
    if not isinstance(m.head, c.LMHead) or not isinstance(m.architecture, c.Decoder):
        raise ClearheadError(
            f"this {m.architecture.kind} with head {m.head.kind} cannot continue a text; "
            "use a decoder with head lm."
        )


# --- sampling
class OutputSequence:
    """The output of a request, converted from tokens to text as it grows."""

    def __init__(
        self,
        request: Request,
        index: int,
        tokenizer: Tokenizer | None,
        eos_tokens: Iterable[int],
        prompt_text: str = "",
    ) -> None:
        self.request = request
        self.index = index
        self.prompt_text = prompt_text  # with echo: the output starts with it
        self.eos_tokens = {*eos_tokens, *request.config.stop_tokens}
        self.num_emitted = 0  # tokens converted to text
        self.detokenizer: IncrementalDetokenizer | None = None
        if tokenizer:
            self.detokenizer = IncrementalDetokenizer(
                tokenizer, request.prompt, request.config.stop
            )

    def new_chunks(self) -> list[TextChunk]:
        """The text of the tokens since the last call. A stop string finishes the request."""
        request = self.request
        num_tokens = len(request.output)
        chunks: list[TextChunk] = []
        while self.num_emitted < num_tokens:
            token = request.output[self.num_emitted]
            self.num_emitted += 1
            text = self.prompt_text if self.num_emitted == 1 else ""
            if self.detokenizer:
                is_last = bool(request.finish_reason) and self.num_emitted == num_tokens
                text += self.detokenizer.add(token.token, self.eos_tokens, is_last)
                if self.detokenizer.stopped:
                    request.finish("stop")
                    num_tokens = self.num_emitted
            finish_reason = request.finish_reason if self.num_emitted == num_tokens else ""
            chunks.append(TextChunk(text, self.index, token, finish_reason))
        return chunks

    def result(self, prompt_logprobs: Sequence[TokenLogprob] = ()) -> Generation:
        """The whole output. Tokens not yet converted are decoded at once."""
        tokens = [token.token for token in self.request.output]
        text = self.prompt_text
        if self.detokenizer:
            rest = tokens[self.num_emitted :]
            self.detokenizer.feed(*(token for token in rest if token not in self.eos_tokens))
            self.detokenizer.flush()
            text += self.detokenizer.text
        request = self.request
        return Generation(
            text, tokens, request.finish_reason, request.output, list(prompt_logprobs)
        )


class GenerationStream:
    """Texts generated together: iterate over their chunks, or get all `results()`. Use it once."""

    def __init__(
        self,
        engine: BatchEngine,
        tokenizer: Tokenizer | None,
        prompts: Sequence[list[int]],
        config: SamplingConfig,
        n: int = 1,
        num_logprobs: int = 0,
        echo: bool = False,
    ) -> None:
        self.engine = engine
        self.config = config
        self.num_logprobs = num_logprobs
        self.echo = echo
        self.sequences: dict[Request, OutputSequence] = {}
        try:
            if echo and config.overflow == "slide":
                raise ClearheadError("echo cannot be combined with overflow='slide'.")
            for prompt in prompts:
                prompt_text = tokenizer.decode(prompt) if tokenizer and echo else ""
                for sample in range(n):
                    request = Request(list(prompt), config, sample, num_logprobs)
                    engine.validate(request)
                    self.sequences[request] = OutputSequence(
                        request,
                        len(self.sequences),
                        tokenizer,
                        engine.inference.eos_tokens,
                        prompt_text,
                    )
        except ClearheadError:
            engine.release()
            raise
        for request in self.sequences:
            engine.add_request(request)

    def __iter__(self) -> Iterator[TextChunk]:
        with closing(self._steps()) as steps:  # closing the iterator frees the engine's rows
            for requests in steps:
                for request in requests:
                    yield from self.sequences[request].new_chunks()

    def _steps(self) -> Generator[list[Request], None, None]:
        """After each step, the requests that have one more token."""
        try:
            while requests := self.engine.step():
                yield requests
        finally:
            for request in self.sequences:
                request.finish("stop")
            self.engine.release()

    def results(self) -> list[Generation]:
        """Generate to the end. Tokens are decoded on the way only if there are stop strings."""
        for _ in self if self.config.stop else self._steps():
            pass
        prompt_logprobs: dict[tuple[int, ...], list[TokenLogprob]] = {}
        if self.echo:
            runner = self.engine.runner
            for prompt in {tuple(request.prompt) for request in self.sequences}:
                [prompt_logprobs[prompt]] = token_logprobs(
                    runner.net,
                    [list(prompt[:1])],
                    [list(prompt[1:])],
                    self.num_logprobs,
                    runner.vocab_size,
                )
        return [
            sequence.result(prompt_logprobs.get(tuple(request.prompt), ()))
            for request, sequence in self.sequences.items()
        ]


class EnginePool:
    """Creates engines for a network. On a GPU it keeps the last one, with its recorded CUDA graphs.

    A kept engine serves one stream at a time; concurrent streams get engines of their own.
    """

    def __init__(self) -> None:
        self.cached: BatchEngine | None = None

    def get(
        self,
        net: Transformer,
        inference: InferenceConfig,
        vocab_size: int | None,
        num_texts: int,
        max_length: int,
        config: SamplingConfig,
    ) -> BatchEngine:
        """An engine for texts of up to `max_length` tokens."""
        vocab_size = vocab_size or net.config.vocab_size
        is_cuda = next(net.parameters()).is_cuda
        slots = min(num_texts, DEFAULT_SLOTS["cuda" if is_cuda else "cpu"])
        capacity = min(max_length, net.context_length)
        can_record = config.max_tokens >= MIN_GRAPH_TOKENS and not isinstance(
            net, EditedTransformer
        )
        if not is_cuda or not can_record:
            return BatchEngine(net, inference, slots, capacity, vocab_size)
        engine = self.cached
        if (
            engine is not None
            and engine.slots >= slots
            and engine.capacity >= capacity
            and engine.inference == inference
            and engine.runner.matches(net, vocab_size)
            and engine.try_acquire()
            and engine.is_idle
        ):
            engine.clear_prefix_cache()
            return engine
        rounded_capacity = min(net.context_length, max(256, 1 << (capacity - 1).bit_length()))
        engine = BatchEngine(
            net, inference, slots, rounded_capacity, vocab_size, use_cuda_graphs=True
        )
        engine.try_acquire()
        self.cached = engine
        return engine


def with_choices(results: Sequence[ResultT]) -> ResultT:
    """The first result, the others as its choices."""
    return replace(results[0], other_choices=list(results[1:]))


def group_samples(results: list[Generation], n: int) -> list[Generation]:
    """One Generation per prompt, its `n` samples as choices."""
    return [with_choices(results[i : i + n]) for i in range(0, len(results), n)]


# --- log-probabilities
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


# --- beam search
def encode_prefixes(prefix: Prefix, count: int, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The token ids with which each of `count` texts starts."""
    is_shared = isinstance(prefix, str) or (bool(prefix) and isinstance(prefix[0], int))
    prefixes: list[str | Sequence[int]] = [prefix] * count if is_shared else list(prefix)  # type: ignore[list-item, arg-type]
    if len(prefixes) != count:
        raise ClearheadError(
            f"expected one prefix, or one for each of {count} texts, got {len(prefixes)}."
        )
    encoded = []
    for one in prefixes:
        if not isinstance(one, str):
            encoded.append(list(one))
        elif not one:
            encoded.append([])
        elif tokenizer is None:
            raise ClearheadError("this model has no tokenizer; give the prefix as token ids.")
        else:
            encoded.append(tokenizer.encode(one))
    return encoded


def beam_search_rules(
    net: Transformer,
    tokenizer: Tokenizer | None,
    inference: InferenceConfig,
    config: BeamSearchConfig,
    max_tokens: int,
) -> BeamRules:
    """The rules of a beam search with these options and the model's special tokens."""
    return BeamRules(
        next(net.parameters()).device,
        config.num_beams,
        max_tokens,
        eos_tokens=inference.eos_tokens,
        length_penalty=config.length_penalty,
        suppress_tokens=inference.suppress_tokens,
        begin_suppress_tokens=inference.begin_suppress_tokens,
        renormalize_logits=inference.renormalize_logits,
        forced_eos=inference.forced_eos,
        early_stopping=config.early_stopping,
        no_repeat_ngram_size=config.no_repeat_ngram_size,
        vocab_size=len(tokenizer) if tokenizer else None,
    )


def beam_search_texts(
    net: Transformer,
    tokenizer: Tokenizer | None,
    inference: InferenceConfig,
    prompts: list[list[int]],
    config: BeamSearchConfig,
    prefixes: list[list[int]],
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
) -> list[list[BeamResult]]:
    """The best continuations of each prompt, or translations of each source, best first."""
    longest = max(len(p) + len(start) for p, start in zip(prompts, prefixes, strict=True))
    max_tokens = config.max_tokens or max(1, net.context_length - longest)
    rules = beam_search_rules(net, tokenizer, inference, config, max_tokens)
    if config.alternatives is None:
        hypotheses = beam_search(
            net,
            rules,
            prompts,
            source=source,
            source_segment_ids=source_segment_ids,
            n_best=config.n_best,
            prefixes=prefixes,
            return_tree=config.return_tree,
        )
    elif config.return_tree:
        raise ClearheadError("return_tree cannot be combined with alternatives.")
    else:
        sources: Sequence[Tensor | None] = [None] * len(prompts)
        if source is not None:
            sources = _single_sources(source, source_segment_ids)
        hypotheses = [
            beam_alternatives(
                net,
                rules,
                prompt,
                position=config.alternatives,
                n_best=config.n_best,
                source=one_source,
                prefix=prefix,
            )
            for prompt, prefix, one_source in zip(prompts, prefixes, sources, strict=True)
        ]
    # A translation is a text of its own; a continuation may start with a space.
    return [
        [
            BeamResult(
                decode_output(tokenizer, h.tokens, inference, prompt if source is None else []),
                **vars(h),
            )
            for h in row
        ]
        for prompt, row in zip(prompts, hypotheses, strict=True)
    ]


def beam_alternatives(
    net: Transformer,
    rules: BeamRules,
    prompt: list[int],
    *,
    position: int,
    n_best: int,
    prefix: list[int],
    source: Tensor | None = None,
) -> list[Hypothesis]:
    """`n_best` outputs that agree with the best one before `position` and differ there.

    The most likely token at `position` comes first; each is continued to the end.
    """
    check_int("alternatives", position)
    [[best]] = beam_search(net, rules, [prompt], source=source, prefixes=[prefix])
    if position >= len(best.tokens):
        raise ClearheadError(
            f"alternatives must be less than the {len(best.tokens)} tokens of the best text, "
            f"got {position}."
        )
    one_step = replace(rules, num_beams=n_best, max_tokens=1, forced_eos=False)
    [starts] = beam_search(
        net, one_step, [prompt], source=source, prefixes=[best.tokens[:position]], n_best=n_best
    )
    tokens_left = len(prefix) + rules.max_tokens - position - 1
    unfinished = [start.tokens for start in starts if start.tokens[-1] not in rules.eos_tokens]
    if tokens_left < 1 or not unfinished:
        return starts
    sources = None if source is None else source.expand(len(unfinished), *source.shape[1:])
    to_the_end = replace(rules, max_tokens=tokens_left)
    finished = beam_search(
        net, to_the_end, [prompt] * len(unfinished), source=sources, prefixes=unfinished
    )
    by_token = {text.tokens[position]: text for [text] in finished}
    return [by_token.get(start.tokens[position], start) for start in starts]


def _single_sources(source: Tensor, segment_ids: Tensor | None) -> list[Tensor]:
    """Each source as a batch of one, without padding."""
    if segment_ids is None:
        return list(source.split(1))
    return [row[mask][None] for row, mask in zip(source, segment_ids != 0, strict=True)]


def decode_output(
    tokenizer: Tokenizer | None,
    tokens: Sequence[int],
    inference: InferenceConfig,
    prompt: Sequence[int] = (),
) -> str:
    """Decode an output without its EOS, as it reads after the prompt."""
    if tokenizer is None:
        return ""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    text = detokenizer.feed(*(token for token in tokens if token not in inference.eos_tokens))
    return text + detokenizer.flush()
