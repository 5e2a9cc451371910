"""Beam search on texts: options, results and alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from torch import Tensor

from clearhead.config.model import InferenceConfig
from clearhead.errors import ClearheadError, check_int
from clearhead.generate.beam_search import BeamRules, BeamTree, Hypothesis, beam_search
from clearhead.generate.detokenizer import IncrementalDetokenizer
from clearhead.generate.sampling import is_number
from clearhead.generate.text_generation import WithChoices
from clearhead.model.transformer import Transformer
from clearhead.tokenizers.tokenizer import Tokenizer

Prefix = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


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
    # A translation is a separate text; a continuation may start with a space.
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
