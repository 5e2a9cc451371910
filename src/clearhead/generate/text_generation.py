"""Text generation by sampling: prompts in, text or chunks of text out."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Self, TypeVar

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.engine import BatchEngine, Request, TokenLogprob
from clearhead.generate.sampling import SamplingConfig
from clearhead.generate.teacher_forcing import prompt_logprobs_in_steps
from clearhead.tokenizers.tokenizer import Tokenizer

ResultT = TypeVar("ResultT", bound="WithChoices")


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

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TextChunk:
    """The text that one more token adds. The chunks of a text joined are the text."""

    text: str
    index: int  # prompt index × n + sample index
    token_logprob: TokenLogprob
    finish_reason: str  # empty until the text has ended

    def __str__(self) -> str:
        return self.text


def check_can_generate(m: c.ModelConfig) -> None:
    """Raise unless the model is a decoder with a language-modeling head."""
    if not isinstance(m.head, c.LMHead) or not isinstance(m.architecture, c.Decoder):
        raise ClearheadError(
            f"this {m.architecture.kind} with head {m.head.kind} is not a language model; "
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

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string was found, in the last of the tokens converted so far."""
        return self.detokenizer is not None and self.detokenizer.stopped

    def new_chunks(self) -> list[TextChunk]:
        """The text of the tokens since the last call. A stop string finishes the request."""
        if self.has_stopped:  # later tokens are those of steps that had already started
            return []
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
                if self.has_stopped:
                    request.finish("stop")
                    num_tokens = self.num_emitted
            finish_reason = request.finish_reason if self.num_emitted == num_tokens else ""
            chunks.append(TextChunk(text, self.index, token, finish_reason))
        return chunks

    def result(self, prompt_logprobs: Sequence[TokenLogprob] = ()) -> Generation:
        """The whole output. Tokens not yet converted are decoded at once."""
        request = self.request
        output = request.output[: self.num_emitted] if self.has_stopped else request.output
        tokens = [token.token for token in output]
        text = self.prompt_text
        if self.detokenizer:
            rest = tokens[self.num_emitted :]
            self.detokenizer.feed(*(token for token in rest if token not in self.eos_tokens))
            self.detokenizer.flush()
            text += self.detokenizer.text
        return Generation(text, tokens, request.finish_reason, output, list(prompt_logprobs))


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
                prompt_text = ""
                if tokenizer and echo:
                    prompt_text = tokenizer.decode(prompt, skip_special_tokens=True)
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
                steps = prompt_logprobs_in_steps(
                    runner.net, list(prompt), self.num_logprobs, runner.vocab_size
                )
                prompt_logprobs[prompt] = list(chain.from_iterable(steps))
        return [
            sequence.result(prompt_logprobs.get(tuple(request.prompt), ()))
            for request, sequence in self.sequences.items()
        ]


def with_choices(results: Sequence[ResultT]) -> ResultT:
    """The first result, the others as its choices."""
    return replace(results[0], other_choices=list(results[1:]))


def group_samples(results: list[Generation], n: int) -> list[Generation]:
    """One Generation per prompt, its `n` samples as choices."""
    return [with_choices(results[i : i + n]) for i in range(0, len(results), n)]
