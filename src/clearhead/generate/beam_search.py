"""Beam search (L5.4): extend several texts in parallel, keep the best, rank those that have ended.

Each step extends every beam by every token. Of the most likely candidates, those that end are
finished and the others are the next beams. A search ends when no unfinished beam can beat the
finished ones. One beam is greedy decoding. Steps and results equal those of `generate(num_beams=…)`
in Hugging Face transformers 5.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.kernels import TRITON_AVAILABLE, can_use_triton
from clearhead.model.transformer import Transformer, eval_mode

if TRITON_AVAILABLE:
    from clearhead.kernels.logsumexp import block_max, logsumexp_rows
if TYPE_CHECKING:
    from clearhead.generate.fused_decode import FusedDecoder  # needs triton

NO_TOKEN = -1  # padding before a short prompt and after a text
ROOT_NODE = -1  # the parent of the first tokens
VOCAB_BLOCK = 64  # tokens in a block of `blockwise_topk`
DONE_CHECK_INTERVAL = 8  # steps between synchronizations with a GPU

TokenLogprobs = Float[Tensor, "batch beam vocabulary"]
NodeStatus = Literal["kept", "finished", "dropped"]


# --- the tree of all candidates
@dataclass(frozen=True)
class BeamNode:
    """A candidate token of a beam search."""

    token: int
    logprob: float  # of the text from the root to here
    parent: int  # index of a node, or ROOT_NODE
    step: int  # length of the text
    status: NodeStatus


@dataclass
class BeamTree:
    """All candidates of a beam search, step by step, the most likely first."""

    num_beams: int
    nodes: list[BeamNode] = field(default_factory=list)
    tips: list[int] = field(default_factory=list)  # the last node of each beam
    num_steps: int = 0

    def add_step(
        self,
        tokens: list[int],
        beams: list[int],
        logprobs: list[float],
        is_finished: list[bool],
        next_beams: list[int],
    ) -> None:
        """Add the candidates of one step, except impossible ones."""
        tips = self.tips or [ROOT_NODE] * self.num_beams
        nodes = {}
        self.num_steps += 1
        for i, (token, beam, logprob, finished) in enumerate(
            zip(tokens, beams, logprobs, is_finished, strict=True)
        ):
            if logprob == -inf:
                continue
            status: NodeStatus = "kept" if i in next_beams else "dropped"
            if finished:
                status = "finished"
            nodes[i] = len(self.nodes)
            self.nodes.append(BeamNode(token, logprob, tips[beam], self.num_steps, status))
        self.tips = [nodes.get(i, ROOT_NODE) for i in next_beams]

    def path_tokens(self, node: int) -> list[int]:
        """The tokens from the root to a node."""
        tokens: list[int] = []
        while node != ROOT_NODE:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tokens[::-1]

    def table(self) -> list[dict[str, Any]]:
        """One JSON object per node."""
        return [{"node": index, **asdict(node)} for index, node in enumerate(self.nodes)]


@dataclass(frozen=True)
class Hypothesis:
    """A finished continuation: its new tokens, including EOS."""

    tokens: list[int]
    score: float  # logprob / length ** length_penalty
    logprob: float  # sum over the tokens
    tree: BeamTree | None = None


# --- state and scoring
@dataclass
class BeamState:
    """Unfinished and finished texts, both best first. A text: a left-padded prompt and its output.

    Impossible beams are included with log-probability −∞, so the shapes never change.
    """

    tokens: Int[Tensor, "batch beam position"]
    logprobs: Float[Tensor, "batch beam"]
    cache_rows: Int[Tensor, "batch beam"]  # the row of the KV cache that each beam continues
    finished_tokens: Int[Tensor, "batch beam position"]
    finished_logprobs: Float[Tensor, "batch beam"]
    finished_scores: Float[Tensor, "batch beam"]  # −∞: no text
    prefix_lengths: Int[Tensor, " batch"]
    is_done: Bool[Tensor, " batch"]
    step: Int[Tensor, ""]  # number of generated tokens

    @classmethod
    def initial(
        cls,
        prompts: list[list[int]],
        prefix_lengths: Int[Tensor, " batch"],
        num_beams: int,
        max_tokens: int,
    ) -> Self:
        """The state before the first step, in which only the first beam is possible."""
        device = prefix_lengths.device
        longest = max(map(len, prompts))
        padded = [
            [NO_TOKEN] * (longest - len(prompt)) + prompt + [NO_TOKEN] * max_tokens
            for prompt in prompts
        ]
        tokens = torch.tensor(padded, device=device)[:, None].repeat(1, num_beams, 1)
        impossible = torch.full((len(prompts), num_beams), -inf, device=device)
        first_beam = torch.zeros(1, dtype=torch.long, device=device)
        return cls(
            tokens=tokens,
            logprobs=impossible.index_fill(1, first_beam, 0.0),
            cache_rows=torch.arange(impossible.numel(), device=device).view_as(impossible),
            finished_tokens=tokens.clone(),
            finished_logprobs=impossible,
            finished_scores=impossible.clone(),
            prefix_lengths=prefix_lengths,
            is_done=torch.zeros_like(prefix_lengths, dtype=torch.bool),
            step=torch.zeros((), dtype=torch.long, device=device),
        )

    def last_tokens(self, max_tokens: int) -> Int[Tensor, "row 1"]:
        """The last token of each beam."""
        position = self.step + (self.tokens.shape[-1] - max_tokens - 1)
        return self.tokens.index_select(-1, position[None]).flatten(0, 1)

    def copy_from(self, other: "BeamState") -> None:
        """Copy another state into this one's tensors."""
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(other, f.name))

    def select(self, index: Int[Tensor, " batch"]) -> "BeamState":
        """The state of some rows of the batch."""
        batched = [f.name for f in fields(self) if f.name != "step"]
        selected = {name: getattr(self, name).index_select(0, index) for name in batched}
        return replace(self, **selected)


@dataclass
class BeamRules:
    """Options and their tensors. CUDA graphs can record all methods, as none synchronizes."""

    device: torch.device
    num_beams: int
    max_tokens: int
    eos_tokens: tuple[int, ...] = ()
    length_penalty: float = 1.0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    renormalize_logits: bool = False
    forced_eos: bool = False
    early_stopping: bool = False
    no_repeat_ngram_size: int = 0
    vocab_size: int | None = None
    eos_ids: Tensor = field(init=False, repr=False)
    suppress_ids: Tensor = field(init=False, repr=False)
    begin_suppress_ids: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.eos_ids = self._to_tensor(self.eos_tokens)
        self.suppress_ids = self._to_tensor(self.suppress_tokens)
        self.begin_suppress_ids = self._to_tensor(self.begin_suppress_tokens)

    def _to_tensor(self, ids: tuple[int, ...]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def options(self) -> tuple[tuple[str, object], ...]:
        """The options as hashable pairs."""
        names = [f.name for f in fields(self) if f.init and f.name != "device"]
        return tuple((name, getattr(self, name)) for name in names)

    @property
    def num_candidates(self) -> int:
        """Enough candidates that `num_beams` continue, as each beam can end in any EOS token."""
        return self.num_beams * (1 + len(self.eos_tokens))

    def is_final(self, tokens: Int[Tensor, "batch candidate"], step: Int[Tensor, ""]) -> Tensor:
        """Whether a text ends with these tokens."""
        return (tokens[..., None] == self.eos_ids).any(-1) | (step + 1 == self.max_tokens)

    def score(self, logprobs: Float[Tensor, "batch text"], state: BeamState) -> Tensor:
        """The scores of texts that end in this step."""
        lengths = (state.prefix_lengths + state.step + 1).to(logprobs.dtype)
        return logprobs / lengths[:, None] ** self.length_penalty

    def log_normalizer(self, logits: TokenLogprobs) -> Float[Tensor, "batch beam 1"] | None:
        """On a GPU, what is still to be subtracted from `logprobs`, of the selected tokens only."""
        if not can_use_triton(logits.device) or self.renormalize_logits:
            return None
        return logsumexp_rows(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])

    def logprobs(self, logits: TokenLogprobs, state: BeamState) -> TokenLogprobs:
        """Log-probabilities of the next token, up to `log_normalizer`. May overwrite the logits."""
        if can_use_triton(logits.device) and not self.renormalize_logits:
            logprobs = logits
        elif self.renormalize_logits:
            logprobs = logits.float()
        else:
            logprobs = logits.float().log_softmax(-1)
        logprobs.index_fill_(-1, self.suppress_ids, -inf)
        if self.begin_suppress_tokens:
            is_first = (state.step == 0) & (state.prefix_lengths == 0)
            penalty = torch.where(is_first, -inf, 0.0)[:, None, None]
            shape = (*logprobs.shape[:2], len(self.begin_suppress_tokens))
            logprobs.index_add_(-1, self.begin_suppress_ids, penalty.expand(shape))
        if self.no_repeat_ngram_size:
            length = state.step + (state.tokens.shape[-1] - self.max_tokens)
            texts = state.tokens[:, : logprobs.shape[1]]
            ban_repeated_ngrams(logprobs, texts, length, self.no_repeat_ngram_size)
        if self.forced_eos:
            only_eos = torch.full_like(logprobs[:1, :1], -inf)
            only_eos = only_eos.index_fill_(-1, self.eos_ids[:1], 0.0)
            logprobs = torch.where(state.step + 1 == self.max_tokens, only_eos, logprobs)
        if self.renormalize_logits:
            is_impossible = logprobs.amax(-1, keepdim=True) == -inf
            logprobs = logprobs.log_softmax(-1).masked_fill_(is_impossible, -inf)
        return logprobs[..., : self.vocab_size]

    def teacher_forced_logprobs(
        self, logits: Float[Tensor, "token vocabulary"], prompt: list[int], output: list[int]
    ) -> Tensor:
        """Log-probabilities at each position of an output, as the search computes them.

        An output token that the search could not generate has the model's log-probability.
        """
        unrestricted = logits.float().log_softmax(-1)
        if not self.renormalize_logits or not output:
            return unrestricted
        contexts = [[*prompt, *output[:i]] for i in range(len(output))]
        lengths = torch.arange(len(output), device=self.device)
        rules = replace(self, max_tokens=1, forced_eos=False, vocab_size=None)
        state = BeamState.initial(contexts, lengths, 1, 1)
        logprobs = rules.logprobs(logits[:, None], state)[:, 0]
        index = torch.tensor(output, device=self.device)[:, None]
        values = logprobs.gather(1, index)
        values = torch.where(values == -inf, unrestricted.gather(1, index), values)
        return logprobs.scatter(1, index, values)


def ban_repeated_ngrams(
    logprobs: TokenLogprobs,
    texts: Int[Tensor, "batch beam position"],
    length: Int[Tensor, ""],
    size: int,
) -> None:
    """Set tokens that would repeat an n-gram of this size to −∞; `length` positions are filled."""
    if size > texts.shape[-1]:
        return
    ngrams = texts.unfold(-1, size, 1)
    last = length - size + 1 + torch.arange(size - 1, device=texts.device)
    current = texts.index_select(-1, last.clamp(min=0))
    # The padding before a short prompt matches nothing, as it occurs only at the left end.
    is_repeat = (ngrams[..., :-1] == current[..., None, :]).all(-1) & (ngrams[..., -1] >= 0)
    is_repeat &= torch.arange(size, texts.shape[-1] + 1, device=texts.device) <= length
    ban = torch.where(is_repeat, -inf, inf).to(logprobs.dtype)
    logprobs.scatter_reduce_(-1, ngrams[..., -1].clamp(min=0), ban, "amin")


def blockwise_topk(
    values: TokenLogprobs, k: int
) -> tuple[Float[Tensor, "batch beam k"], Int[Tensor, "batch beam k"]]:
    """A faster `topk`: the k largest values are in the k blocks with the largest maxima."""
    vocab_size = values.shape[-1]
    num_blocks = vocab_size // VOCAB_BLOCK
    if num_blocks < 2 * k:
        top = values.topk(k)
        return top.values, top.indices
    blocked_size = num_blocks * VOCAB_BLOCK
    if can_use_triton(values.device):
        maxima = block_max(values.flatten(0, 1), num_blocks, VOCAB_BLOCK)
        maxima = maxima.unflatten(0, values.shape[:2])
    else:
        maxima = values[..., :blocked_size].unflatten(-1, (num_blocks, VOCAB_BLOCK)).amax(-1)
    best_blocks = maxima.topk(k).indices
    offsets = torch.arange(VOCAB_BLOCK, device=values.device)
    candidates = (best_blocks[..., None] * VOCAB_BLOCK + offsets).flatten(-2)
    rest = torch.arange(blocked_size, vocab_size, device=values.device)
    candidates = torch.cat((candidates, rest.expand(*values.shape[:-1], -1)), dim=-1)
    top = values.gather(-1, candidates).topk(k)
    return top.values, candidates.gather(-1, top.indices)


# --- one step
class BeamStep(NamedTuple):
    """The candidates of one step, the most likely first."""

    token: Int[Tensor, "batch candidate"]
    beam: Int[Tensor, "batch candidate"]  # the beam it extends
    logprob: Float[Tensor, "batch candidate"]
    is_finished: Bool[Tensor, "batch candidate"]
    next_beams: Int[Tensor, "batch beam"]  # indices of candidates; −1: none


def advance_beams(
    state: BeamState, logits: TokenLogprobs, rules: BeamRules
) -> tuple[BeamState, BeamStep]:
    """One step for the whole batch; rows that are done stay done."""
    # The best candidates are among the best of each beam, so only a few values are summed.
    log_normalizer = rules.log_normalizer(logits)
    logprobs = rules.logprobs(logits, state)
    token_logprobs, tokens = blockwise_topk(logprobs, min(rules.num_candidates, logprobs.shape[2]))
    if log_normalizer is not None:
        token_logprobs = token_logprobs.float() - log_normalizer
    sums = (state.logprobs[:, :, None] + token_logprobs).flatten(1)
    logprob, index = sums.topk(min(rules.num_candidates, sums.shape[1]))
    beam = index // token_logprobs.shape[2]
    token = tokens.expand(-1, rules.num_beams, -1).flatten(1).gather(1, index)
    position = state.tokens.shape[-1] - rules.max_tokens + state.step
    texts = gather_texts(state.tokens, beam).index_copy_(-1, position[None], token[..., None])

    is_final = rules.is_final(token, state.step)
    rank = torch.arange(token.shape[1], device=token.device)
    is_finished = is_final & (rank < rules.num_beams) & (logprob != -inf) & ~state.is_done[:, None]
    new_scores = rules.score(logprob, state).masked_fill(~is_finished, -inf)
    scores = torch.cat((state.finished_scores, new_scores), dim=1)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, : rules.num_beams]
    finished_tokens = torch.cat((state.finished_tokens, texts), dim=1)
    finished_logprobs = torch.cat((state.finished_logprobs, logprob), dim=1)

    unfinished = logprob.masked_fill(is_final, -inf)
    next_beams = unfinished.sort(dim=1, descending=True, stable=True).indices
    next_beams = next_beams[:, : rules.num_beams]
    new = BeamState(
        tokens=gather_texts(texts, next_beams),
        logprobs=unfinished.gather(1, next_beams),
        cache_rows=cache_row_indices(beam.gather(1, next_beams)),
        finished_tokens=gather_texts(finished_tokens, best),
        finished_logprobs=finished_logprobs.gather(1, best),
        finished_scores=scores.gather(1, best),
        prefix_lengths=state.prefix_lengths,
        is_done=state.is_done,
        step=state.step + 1,
    )
    # An estimate of what the best beam can reach: its score if it ended now.
    worst_finished = new.finished_scores[:, -1]
    is_done = worst_finished != -inf
    if not rules.early_stopping:
        is_done = is_done & (rules.score(new.logprobs[:, :1], state)[:, 0] <= worst_finished)
    new.is_done = state.is_done | is_done | (new.logprobs[:, 0] == -inf)
    next_beams = next_beams.masked_fill(new.logprobs == -inf, -1)
    return new, BeamStep(token, beam, logprob, is_finished, next_beams)


def gather_texts(
    texts: Int[Tensor, "batch text position"], index: Int[Tensor, "batch selected"]
) -> Int[Tensor, "batch selected position"]:
    """Select texts of each row."""
    return texts.gather(1, index[..., None].expand(-1, -1, texts.shape[-1]))


def cache_row_indices(beam: Int[Tensor, "batch beam"]) -> Int[Tensor, "batch beam"]:
    """Rows of the KV cache, where the beams of a text are adjacent."""
    batch, num_beams = beam.shape
    return beam + torch.arange(0, batch * num_beams, num_beams, device=beam.device)[:, None]


# --- the search
class BeamSearch:
    """A beam search for a batch of prompts. Each source is encoded once, for all of its beams."""

    def __init__(
        self,
        net: Transformer,
        rules: BeamRules,
        prompts: list[list[int]],
        prefixes: list[list[int]],
        source: Tensor | None,
        source_segment_ids: Tensor | None,
        return_tree: bool,
    ) -> None:
        self.net = net
        self.rules = rules
        self.prefixes = prefixes
        self.active = list(range(len(prompts)))  # indices of unfinished prompts
        self.results: dict[int, list[Hypothesis]] = {}
        self.fused_decoder: FusedDecoder | None = None
        self.trees = [BeamTree(rules.num_beams) if return_tree else None for _ in prompts]
        self.source = source
        self.source_segment_ids = source_segment_ids
        self.encoder_output: Tensor | None = None
        texts = [prompt + prefix for prompt, prefix in zip(prompts, prefixes, strict=True)]
        lengths = [len(text) for text in texts]
        self.max_prompt_length = max(lengths)
        self.has_equal_lengths = self.max_prompt_length == min(lengths)
        padded = [text + [0] * (self.max_prompt_length - len(text)) for text in texts]
        device = rules.device
        self.input_ids = torch.tensor(padded, device=device)
        self.prompt_lengths = torch.tensor(lengths, device=device)
        prefix_lengths = torch.tensor([len(prefix) for prefix in prefixes], device=device)
        self.state, self.initial_state = (
            BeamState.initial(texts, prefix_lengths, rules.num_beams, rules.max_tokens)
            for _ in range(2)
        )
        self.cache = net.init_cache(
            len(texts) * rules.num_beams, self.max_prompt_length + rules.max_tokens - 1
        )

    def prefill(self) -> None:
        """Read the sources and prompts, and select the first tokens."""
        if self.source is not None:
            self.encoder_output = self.net.encode(self.source, self.source_segment_ids)
        self.cache.reset(len(self.input_ids))  # all beams share the prompt
        row = torch.arange(len(self.input_ids), device=self.rules.device)
        segment_ids = None
        if not self.has_equal_lengths:
            position = torch.arange(self.max_prompt_length, device=self.rules.device)
            segment_ids = (position < self.prompt_lengths[:, None]).long()
        hidden = self.forward(self.input_ids, segment_ids)
        self.cache.reorder_self(row.repeat_interleave(self.rules.num_beams))
        self.initial_state.logprobs[:, 0] = self.prefix_logprobs(hidden)
        self.state.copy_from(self.initial_state)
        last = hidden[row, self.prompt_lengths - 1][:, None]
        self.select_beams(self.net.compute_logits(last))

    def prefix_logprobs(self, hidden: Tensor) -> Float[Tensor, " batch"]:
        """The log-probability of each prefix."""
        total = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for i, prefix in enumerate(self.prefixes):
            if not prefix:
                continue
            end = int(self.prompt_lengths[i]) - 1
            start = end - len(prefix)
            prompt = self.input_ids[i, : start + 1].tolist()
            logits = self.net.compute_logits(hidden[i : i + 1, start:end])[0]
            logprobs = self.rules.teacher_forced_logprobs(logits, prompt, prefix)
            total[i] = logprobs[range(len(prefix)), prefix].sum()
        return total

    def forward(self, ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        return self.net(
            ids,
            segment_ids=segment_ids,
            encoder_output=self.encoder_output,
            source_segment_ids=self.source_segment_ids,
            cache=self.cache,
        )

    def step(self) -> None:
        """One more token in every beam, in the same tensors and without synchronization."""
        rows = self.state.cache_rows.flatten()
        if self.rules.num_beams > 1 or len(rows) < self.cache.rows.n_active:
            self.cache.reorder_self(rows)
        hidden = self.decode_hidden(self.state.last_tokens(self.rules.max_tokens))
        logits = self.net.compute_logits(hidden)[:, 0]
        self.select_beams(logits.unflatten(0, (-1, self.rules.num_beams)))

    def decode_hidden(self, tokens: Int[Tensor, "row 1"]) -> Float[Tensor, "row 1 d"]:
        """The hidden states of one more token in every beam."""
        if self.fused_decoder is None:
            return self.forward(tokens)
        hidden = self.fused_decoder.hidden_states(tokens, self.cache, self.source_segment_ids)
        return self.net.final_norm(hidden[:, None])

    def select_beams(self, logits: TokenLogprobs) -> None:
        """Advance the state, and the trees if there are any."""
        new, candidates = advance_beams(self.state, logits, self.rules)
        for row, index in enumerate(self.active):
            tree = self.trees[index]
            if tree is not None and not self.state.is_done[row]:
                tree.add_step(*(value[row].tolist() for value in candidates))
        self.state.copy_from(new)

    def run(self) -> list[list[Hypothesis]]:
        """Search to the end. Returns all hypotheses of each prompt, best first."""
        return self.run_with(self.prefill, self.step)

    def run_with(
        self, prefill: Callable[[], None], step: Callable[[], None]
    ) -> list[list[Hypothesis]]:
        """Search with functions that do what `prefill` and `step` do, such as CUDA graphs."""
        interval = 1 if self.rules.device.type == "cpu" else DONE_CHECK_INTERVAL
        prefill()
        for i in range(self.rules.max_tokens - 1):
            if i % interval == 0 and not self.drop_finished():
                break
            step()
        self.collect_results(range(len(self.active)))
        return [self.results[i] for i in range(len(self.results))]

    def drop_finished(self) -> bool:
        """Whether any prompt is unfinished. On a CPU, finished ones leave the batch."""
        is_done = self.state.is_done.tolist()
        if all(is_done):
            return False
        if any(is_done) and self.rules.device.type == "cpu":
            self.collect_results([row for row, done in enumerate(is_done) if done])
            rows = [row for row, done in enumerate(is_done) if not done]
            self.active = [self.active[row] for row in rows]
            index = torch.tensor(rows)
            self.state = self.state.select(index)
            self.cache.reorder_cross(index)
            if self.encoder_output is not None:
                self.encoder_output = self.encoder_output[index]
            if self.source_segment_ids is not None:
                self.source_segment_ids = self.source_segment_ids[index]
        return True

    def collect_results(self, rows: Iterable[int]) -> None:
        """Store the finished hypotheses of these rows."""
        start = self.state.tokens.shape[-1] - self.rules.max_tokens
        tokens = self.state.finished_tokens[..., start:].tolist()
        scores = self.state.finished_scores.tolist()
        logprobs = self.state.finished_logprobs.tolist()
        for row in rows:
            index = self.active[row]
            hypotheses = []
            for text, score, logprob in zip(tokens[row], scores[row], logprobs[row], strict=True):
                if score != -inf:
                    output = self.prefixes[index] + [token for token in text if token != NO_TOKEN]
                    hypotheses.append(Hypothesis(output, score, logprob, self.trees[index]))
            self.results[index] = hypotheses


@torch.no_grad()
def beam_search(
    net: Transformer,
    rules: BeamRules,
    prompts: list[list[int]],
    *,
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
    n_best: int = 1,
    prefixes: list[list[int]] | None = None,
    return_tree: bool = False,
) -> list[list[Hypothesis]]:
    """The `n_best` best continuations of each prompt, best first; fewer if fewer are possible.

    For an encoder-decoder, the prompts are decoder start tokens, one for each row of `source`. A
    prefix is the start of the output: it counts for scores and lengths, but not for `max_tokens`.
    """
    prefixes = prefixes or [[]] * len(prompts)
    check_beam_search(net, rules, prompts, prefixes, source)
    run: Callable[[BeamSearch], list[list[Hypothesis]]] = BeamSearch.run
    if rules.device.type == "cuda":
        from clearhead.generate.beam_search_cuda import (  # imports this module
            pad_source,
            run_on_gpu,
        )

        run = run_on_gpu
        source, source_segment_ids = pad_source(net, source, source_segment_ids)
    with eval_mode(net):
        results = run(
            BeamSearch(net, rules, prompts, prefixes, source, source_segment_ids, return_tree)
        )
    if any(isnan(hypothesis.score) for hypotheses in results for hypothesis in hypotheses):
        raise NonFiniteError
    if not all(results):
        raise ClearheadError(
            "suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size and vocab_size leave no "
            "token to generate."
        )
    return [hypotheses[:n_best] for hypotheses in results]


def check_beam_search(
    net: Transformer,
    rules: BeamRules,
    prompts: list[list[int]],
    prefixes: list[list[int]],
    source: Tensor | None,
) -> None:
    """Raise if the arguments of a beam search do not fit together."""
    if not prompts or not all(prompts):
        raise ClearheadError("a prompt is empty; each needs at least one token.")
    if source is not None and len(source) != len(prompts):
        raise ClearheadError(
            f"expected one prompt per source, got {len(prompts)} for {len(source)}."
        )
    if len(prefixes) != len(prompts):
        raise ClearheadError(f"expected {len(prompts)} prefixes, got {len(prefixes)}.")
    vocab_size = net.config.vocab_size
    for token in {token for prefix in prefixes for token in prefix}:
        if token in rules.eos_tokens:
            raise ClearheadError(f"a prefix must not contain an EOS token, got {token}.")
        if not 0 <= token < vocab_size:
            raise ClearheadError(
                f"a prefix contains token {token}; ids must be from 0 to {vocab_size - 1}."
            )
