"""The whole of a beam search, to be drawn: every text that was considered, and what became of it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Required, Self, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.errors import ClearheadError, NonFiniteError
from clearhead.generate.engine import EditedTransformer, eval_mode
from clearhead.kernels import TRITON_AVAILABLE
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.generate.fused_decode import FusedDecoder  # needs triton

# ---- beam_tree: The whole of a beam search, to be drawn: every text that was considered, and what became of it.

ROOT_NODE = -1  # the parent of first tokens: the prompt, and the prefix if there is one


@dataclass(frozen=True)
class BeamNode:
    """A token that was considered after the token of its parent."""

    token: int
    logprob: float  # of the text from the root to here
    parent: int  # a number of a node
    step: int  # how many tokens this text has
    fate: Literal["kept", "finished", "dropped"]


@dataclass
class BeamTree:
    """Nodes in the order of time, each round's likeliest first."""

    num_beams: int
    nodes: list[BeamNode] = field(default_factory=list)
    tips: list[int] = field(default_factory=list)  # the node of each beam
    num_steps: int = 0

    def add_step(
        self,
        tokens: list[int],
        beams: list[int],
        logprobs: list[float],
        finished: list[bool],
        kept: list[int],
    ) -> None:
        """One round's candidates; impossible ones are none."""
        tips = self.tips or [ROOT_NODE] * self.num_beams
        numbers = {}
        self.num_steps = self.num_steps + 1
        for i, (token, beam, logprob, ended) in enumerate(
            zip(tokens, beams, logprobs, finished, strict=True)
        ):
            if logprob == -inf:
                continue
            numbers[i] = len(self.nodes)
            fate: Literal["kept", "finished", "dropped"] = "kept" if i in kept else "dropped"
            self.nodes.append(
                BeamNode(token, logprob, tips[beam], self.num_steps, "finished" if ended else fate)
            )
        self.tips = [numbers.get(i, ROOT_NODE) for i in kept]

    def path_tokens(self, number: int) -> list[int]:
        """The tokens from the root to a node."""
        found: list[int] = []
        while number != ROOT_NODE:
            found.append(self.nodes[number].token)
            number = self.nodes[number].parent
        return found[::-1]

    def table(self) -> list[dict[str, Any]]:
        """A row for each node; plain numbers and words, as JSON has them."""
        return [{"node": number, **asdict(node)} for number, node in enumerate(self.nodes)]


# ---- beam_state: Where a beam search stands: tensors of fixed shapes, for all sentences of a batch at once.

if TRITON_AVAILABLE:
    from clearhead.kernels.cross_entropy import block_max

NO_TOKEN = -1  # where no token stands: before a short prompt, after a text
VOCAB_BLOCK = 64  # of a vocabulary: the largest of each are found first


@dataclass
class BeamState:
    """Texts that go on and texts that ended, both best first; a text is the prompt, set to the right, and what follows.

    Beams that cannot be are there too, with a log-probability of −∞: so shapes never change.
    """

    tokens: Int[Tensor, "sentence beam place"]
    logprobs: Float[Tensor, "sentence beam"]
    cache_rows: Int[Tensor, "sentence beam"]  # of the memory: what each goes on from
    finished_tokens: Int[Tensor, "sentence beam place"]
    finished_logprobs: Float[Tensor, "sentence beam"]
    finished_scores: Float[Tensor, "sentence beam"]  # of those that ended; −∞: there is none
    prefix_lengths: Int[Tensor, " sentence"]  # tokens that the output was told to begin with
    done: Bool[Tensor, " sentence"]
    step: Int[Tensor, ""]  # tokens written since

    @classmethod
    def initial(
        cls,
        texts: list[list[int]],
        given: Int[Tensor, " sentence"],
        beams: int,
        max_tokens: int,
    ) -> Self:
        """Nothing is written yet: of each sentence's beams, only the first can be."""
        longest = max(map(len, texts))
        device = given.device
        listed = [
            [NO_TOKEN] * (longest - len(text)) + text + [NO_TOKEN] * max_tokens for text in texts
        ]
        tokens = torch.tensor(listed, device=device)[:, None].repeat(1, beams, 1)
        none = torch.full((len(texts), beams), -inf, device=device)
        first = none.index_fill(1, torch.zeros(1, dtype=torch.long, device=device), 0.0)
        rows = torch.arange(none.numel(), device=device).view_as(none)
        done = torch.zeros_like(given, dtype=torch.bool)
        step = torch.zeros((), dtype=torch.long, device=device)
        return cls(tokens, first, rows, tokens.clone(), none, none.clone(), given, done, step)

    def last_tokens(self, max_tokens: int) -> Int[Tensor, "row 1"]:
        """The token that each beam wrote last."""
        place = self.step + (self.tokens.shape[-1] - max_tokens - 1)
        return self.tokens.index_select(-1, place[None]).flatten(0, 1)

    def copy_from(self, other: "BeamState") -> None:
        """Takes the other's values into its own tensors."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(other, field.name))

    def select(self, sentences: Int[Tensor, " some"]) -> "BeamState":
        """Some of the sentences."""
        *those, step = (getattr(self, field.name) for field in fields(self))
        return BeamState(*[*(value.index_select(0, sentences) for value in those), step])


def blockwise_topk(
    chances: Float[Tensor, "sentence beam vocabulary"], count: int
) -> tuple[Float[Tensor, "sentence beam some"], Int[Tensor, "sentence beam some"]]:
    """`topk`, sooner: the `count` largest lie in the `count` blocks that hold the largest."""
    vocabulary = chances.shape[-1]
    blocks = chances.shape[-1] // VOCAB_BLOCK
    if blocks < 2 * count:
        found = chances.topk(count)
        return found.values, found.indices
    whole = blocks * VOCAB_BLOCK
    if TRITON_AVAILABLE and chances.is_cuda:
        highest = block_max(chances.flatten(0, 1), blocks, VOCAB_BLOCK).unflatten(
            0, chances.shape[:2]
        )
    else:
        highest = chances[..., :whole].unflatten(-1, (blocks, VOCAB_BLOCK)).amax(-1)
    best = highest.topk(count).indices
    inside = best[..., None] * VOCAB_BLOCK + torch.arange(VOCAB_BLOCK, device=chances.device)
    rest = torch.arange(whole, vocabulary, device=chances.device).expand(*chances.shape[:-1], -1)
    places = torch.cat((inside.flatten(-2), rest), dim=-1)
    found = chances.gather(-1, places).topk(count)
    return found.values, places.gather(-1, found.indices)


# ---- beam_rules: What a beam search goes by: how far and how wide, which tokens may follow, what ends a text, what a text is worth.

if TRITON_AVAILABLE:
    from clearhead.kernels.cross_entropy import logsumexp_rows

TokenLogprobs = Float[Tensor, "sentence beam vocabulary"]


class LogprobOptions(TypedDict, total=False):
    """The options that change the log-probability of a token."""

    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    renormalize_logits: bool
    no_repeat_ngram_size: int


class BeamOptions(LogprobOptions, total=False):
    """The options of `beam_search`, the same for all sentences of a batch."""

    num_beams: Required[int]
    max_tokens: Required[int]
    eos_tokens: tuple[int, ...]
    length_penalty: float
    forced_eos: bool  # a text cut off at max_tokens ends with EOS
    early_stopping: bool
    vocab_size: int | None


@dataclass
class BeamRules:
    """The same for all sentences of a batch; no method asks the device anything, so a GPU can record each."""

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
    token_ids: dict[str, Tensor] = field(init=False)  # the tokens above, on the device

    def __post_init__(self) -> None:
        listed = {
            "stop": self.eos_tokens,
            "never": self.suppress_tokens,
            "never_first": self.begin_suppress_tokens,
            "closing": self.eos_tokens[:1],
        }
        self.token_ids = {
            name: torch.tensor(ids, dtype=torch.long, device=self.device)
            for name, ids in listed.items()
        }

    @property
    def num_candidates(self) -> int:
        """A beam can end in `stop` ways: of this many, `beams` go on."""
        return self.num_beams * (1 + len(self.eos_tokens))

    def is_final(self, tokens: Int[Tensor, "sentence candidate"], step: Int[Tensor, ""]) -> Tensor:
        return (tokens[..., None] == self.token_ids["stop"]).any(-1) | (step + 1 == self.max_tokens)

    def score(self, logprobs: Float[Tensor, "sentence text"], state: BeamState) -> Tensor:
        """What texts are worth that end with the token now chosen."""
        lengths = (state.prefix_lengths + state.step + 1).to(logprobs.dtype)
        return logprobs / lengths[:, None] ** self.length_penalty

    def log_normalizer(self, logits: TokenLogprobs) -> Float[Tensor, "sentence beam 1"] | None:
        """What `chances` lack to be log-probabilities: on a GPU it is taken off the few that are chosen."""
        if not uses_kernel(logits) or self.renormalize_logits:
            return None
        return logsumexp_rows(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])

    def logprobs(self, logits: TokenLogprobs, state: BeamState) -> TokenLogprobs:
        """Log-probabilities of what may follow each beam; of the first beam alone, where there are no others yet."""
        if uses_kernel(logits) and not self.renormalize_logits:
            chances = logits  # `spread` of them is known before any is forbidden
        else:
            chances = logits.float() if self.renormalize_logits else logits.float().log_softmax(-1)
        chances.index_fill_(-1, self.token_ids["never"], -inf)
        if self.begin_suppress_tokens:
            begins = torch.where((state.step == 0) & (state.prefix_lengths == 0), -inf, 0.0)[
                :, None, None
            ]
            chances.index_add_(
                -1,
                self.token_ids["never_first"],
                begins.expand(*chances.shape[:2], len(self.begin_suppress_tokens)),
            )
        if self.no_repeat_ngram_size:
            held = state.step + (state.tokens.shape[-1] - self.max_tokens)
            ban_repeated_ngrams(
                chances, state.tokens[:, : chances.shape[1]], held, self.no_repeat_ngram_size
            )
        if self.forced_eos:
            closing = torch.full_like(chances[:1, :1], -inf).index_fill_(
                -1, self.token_ids["closing"], 0.0
            )
            chances = torch.where(state.step + 1 == self.max_tokens, closing, chances)
        if self.renormalize_logits:
            nothing = chances.amax(-1, keepdim=True) == -inf
            chances = chances.log_softmax(-1).masked_fill_(nothing, -inf)
        return chances[..., : self.vocab_size]

    def teacher_forced_logprobs(
        self, logits: Float[Tensor, "token vocabulary"], prompt: list[int], text: list[int]
    ) -> Tensor:
        """Log-probabilities at each place of a text after a prompt, as a search that wrote it would have had them.

        What was told to stand in its place, though no search would write it, has what the model gives it.
        """
        plain = logits.float().log_softmax(-1)
        if not self.renormalize_logits or not text:
            return plain
        begun = [[*prompt, *text[:i]] for i in range(len(text))]
        given = torch.arange(len(text), device=self.device)
        rules = replace(self, max_tokens=1, forced_eos=False, vocab_size=None)
        chances = rules.logprobs(logits[:, None], BeamState.initial(begun, given, 1, 1))[:, 0]
        own = torch.tensor(text, device=self.device)[:, None]
        told = chances.gather(1, own)
        return chances.scatter(1, own, torch.where(told == -inf, plain.gather(1, own), told))


def uses_kernel(logits: Tensor) -> bool:
    return TRITON_AVAILABLE and logits.is_cuda


def ban_repeated_ngrams(
    chances: TokenLogprobs,
    texts: Int[Tensor, "sentence beam place"],
    held: Int[Tensor, ""],
    size: int,
) -> None:
    """Takes from each text the tokens that would complete a run of `size` that it holds; `held` places are filled."""
    if size > texts.shape[-1]:
        return
    runs = texts.unfold(-1, size, 1)
    tail = held - size + 1 + torch.arange(size - 1, device=texts.device)
    begun = texts.index_select(-1, tail.clamp(min=0))
    # What lies before a short prompt is not written, and it stands at the left only: no text meets it again.
    met = (runs[..., :-1] == begun[..., None, :]).all(-1) & (runs[..., -1] >= 0)
    met = met & (torch.arange(size, texts.shape[-1] + 1, device=texts.device) <= held)
    taken = torch.where(met, -inf, inf).to(chances.dtype)
    chances.scatter_reduce_(-1, runs[..., -1].clamp(min=0), taken, "amin")


# ---- beam_rounds: The rounds of a beam search, for all sentences of a batch at once.

DONE_CHECK_INTERVAL = 8  # steps between asking a GPU whether all sentences are done


@dataclass(frozen=True)
class Hypothesis:
    """A continuation that ended: its new tokens, the stop token among them if one was written."""

    tokens: list[int]
    score: float  # what it is ranked by: logprob / length ** length_penalty
    logprob: float  # the sum of what the model gives its tokens
    tree: BeamTree | None = None  # of all that was considered, where it was asked for


class BeamStep(NamedTuple):
    """What was considered for each sentence, likeliest first."""

    token: Int[Tensor, "sentence candidate"]
    beam: Int[Tensor, "sentence candidate"]  # that it goes on from
    logprob: Float[Tensor, "sentence candidate"]
    finished: Bool[Tensor, "sentence candidate"]
    next_beams: Int[Tensor, "sentence beam"]  # candidates that are the next beams; −1: none is left


def advance_beams(
    state: BeamState, logits: TokenLogprobs, rules: BeamRules
) -> tuple[BeamState, BeamStep]:
    """One round for all sentences; those that are done stay as they are."""
    # The likeliest of all are among the likeliest of each beam: so sums are taken of few, not of whole vocabularies.
    spread = rules.log_normalizer(logits)
    chances = rules.logprobs(logits, state)
    each, tokens = blockwise_topk(chances, min(rules.num_candidates, chances.shape[2]))
    each = each if spread is None else each.float() - spread
    sums = (state.logprobs[:, :, None] + each).flatten(1)
    logprobs, places = sums.topk(min(rules.num_candidates, sums.shape[1]))
    beam = places // each.shape[2]
    token = tokens.expand(-1, rules.num_beams, -1).flatten(1).gather(1, places)
    written = state.tokens.shape[-1] - rules.max_tokens + state.step
    texts = gather_texts(state.tokens, beam).index_copy_(-1, written[None], token[..., None])

    ends = rules.is_final(token, state.step)
    ranked = torch.arange(token.shape[1], device=token.device)
    finished = ends & (ranked < rules.num_beams) & (logprobs != -inf) & ~state.done[:, None]
    scores = torch.cat(
        (state.finished_scores, rules.score(logprobs, state).masked_fill(~finished, -inf)), dim=1
    )
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, : rules.num_beams]

    going = logprobs.masked_fill(ends, -inf)
    kept = going.sort(dim=1, descending=True, stable=True).indices[:, : rules.num_beams]
    new = BeamState(
        tokens=gather_texts(texts, kept),
        logprobs=going.gather(1, kept),
        cache_rows=cache_row_indices(beam.gather(1, kept)),
        finished_tokens=gather_texts(torch.cat((state.finished_tokens, texts), dim=1), best),
        finished_logprobs=torch.cat((state.finished_logprobs, logprobs), dim=1).gather(1, best),
        finished_scores=scores.gather(1, best),
        prefix_lengths=state.prefix_lengths,
        done=state.done,
        step=state.step + 1,
    )
    # What the best beam might reach is guessed from what it would score if it ended now.
    enough = new.finished_scores[:, -1] != -inf
    reach = rules.score(new.logprobs[:, :1], state)[:, 0]
    unbeatable = enough if rules.early_stopping else enough & (reach <= new.finished_scores[:, -1])
    new.done = state.done | unbeatable | (new.logprobs[:, 0] == -inf)
    return new, BeamStep(
        token, beam, logprobs, finished, kept.masked_fill(new.logprobs == -inf, -1)
    )


def gather_texts(
    texts: Int[Tensor, "sentence text place"], index: Int[Tensor, "sentence some"]
) -> Tensor:
    return texts.gather(1, index[..., None].expand(-1, -1, texts.shape[-1]))


def cache_row_indices(beam: Int[Tensor, "sentence beam"]) -> Int[Tensor, "sentence beam"]:
    """Rows of the memory: the beams of a sentence lie side by side."""
    sentences, beams = beam.shape
    return beam + torch.arange(0, sentences * beams, beams, device=beam.device)[:, None]


class BeamSearch:
    """A network that writes all beams of all sentences; `step` goes one token on in each.

    A source is read once and kept once for a sentence, however many beams look at it.
    """

    def __init__(
        self, net: Transformer, rules: BeamRules, prompts: list[list[int]], prefixes: list[list[int]],
        source: Tensor | None, source_segment_ids: Tensor | None, return_trees: bool,
    ) -> None:  # fmt: skip
        self.net = net
        self.rules = rules
        self.prefixes = prefixes
        self.sentences = list(range(len(prompts)))  # those that are still written
        self.results: dict[int, list[Hypothesis]] = {}
        self.fused_decoder: FusedDecoder | None = None
        self.trees = [BeamTree(rules.num_beams) if return_trees else None for _ in prompts]
        self.source = source
        self.source_segment_ids = source_segment_ids
        self.encoder_output = source
        texts = [prompt + prefix for prompt, prefix in zip(prompts, prefixes, strict=True)]
        self.max_prompt_length = max(map(len, texts))
        self.equal_lengths = self.max_prompt_length == min(map(len, texts))
        self.input_ids = torch.tensor(
            [text + [0] * (self.max_prompt_length - len(text)) for text in texts],
            device=rules.device,
        )
        self.prompt_lengths = torch.tensor([len(text) for text in texts], device=rules.device)
        given = torch.tensor([len(prefix) for prefix in prefixes], device=rules.device)
        self.state, self.initial_state = (
            BeamState.initial(texts, given, rules.num_beams, rules.max_tokens) for _ in range(2)
        )
        self.cache = net.init_cache(
            len(texts) * rules.num_beams, self.max_prompt_length + rules.max_tokens - 1
        )

    def prefill(self) -> None:
        """Sources and prompts are read, and the first tokens chosen."""
        if self.source is not None:
            self.encoder_output = self.net.encode(self.source, self.source_segment_ids)
        self.cache.reset(len(self.input_ids))  # a prompt is the same for all beams
        row = torch.arange(len(self.input_ids), device=self.rules.device)
        segment_ids = (
            torch.arange(self.max_prompt_length, device=self.rules.device)
            < self.prompt_lengths[:, None]
        ).long()
        hidden = self.forward(self.input_ids, None if self.equal_lengths else segment_ids)
        self.cache.reorder_self(row.repeat_interleave(self.rules.num_beams))
        self.initial_state.logprobs[:, 0] = self.prefix_logprobs(hidden)
        self.state.copy_from(self.initial_state)
        self.select_beams(self.net.compute_logits(hidden[row, self.prompt_lengths - 1][:, None]))

    def prefix_logprobs(self, hidden: Tensor) -> Float[Tensor, " sentence"]:
        """The log-probability of each prefix."""
        worth = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for i, prefix in enumerate(self.prefixes):
            if prefix:
                end = int(self.prompt_lengths[i]) - 1
                prompt = self.input_ids[i, : end + 1 - len(prefix)].tolist()
                logits = self.net.compute_logits(hidden[i : i + 1, end - len(prefix) : end])[0]
                chances = self.rules.teacher_forced_logprobs(logits, prompt, prefix)
                worth[i] = chances[range(len(prefix)), prefix].sum()
        return worth

    def forward(self, ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        return self.net(
            ids,
            segment_ids=segment_ids,
            encoder_output=self.encoder_output,
            source_segment_ids=self.source_segment_ids,
            cache=self.cache,
        )

    def step(self) -> None:
        """One token more in every beam: the same tensors each time, and nothing is asked of the device."""
        rows = self.state.cache_rows.flatten()
        if self.rules.num_beams > 1 or len(rows) < self.cache.rows.n_active:
            self.cache.reorder_self(rows)
        logits = self.net.compute_logits(
            self.decode_hidden(self.state.last_tokens(self.rules.max_tokens))
        )
        self.select_beams(logits.unflatten(0, (-1, self.rules.num_beams))[:, :, 0])

    def decode_hidden(self, tokens: Tensor) -> Tensor:
        """Hidden states of one more token in every beam."""
        if self.fused_decoder is None:
            return self.forward(tokens)
        return self.net.final_norm(
            self.fused_decoder.hidden_states(tokens, self.cache, self.source_segment_ids)[:, None]
        )

    def select_beams(self, logits: TokenLogprobs) -> None:
        new, considered = advance_beams(self.state, logits, self.rules)
        for i, sentence in enumerate(self.sentences):
            if (tree := self.trees[sentence]) is not None and not self.state.done[i]:
                tree.add_step(*(value[i].tolist() for value in considered))
        self.state.copy_from(new)

    def run(self) -> list[list[Hypothesis]]:
        """To the end: all hypotheses of each sentence, best first."""
        every = 1 if self.rules.device.type == "cpu" else DONE_CHECK_INTERVAL
        self.prefill()
        for step in range(self.rules.max_tokens - 1):
            if step % every == 0 and not self.drop_finished():
                break
            self.step()
        self.collect_results(range(len(self.sentences)))
        return [self.results[i] for i in range(len(self.results))]

    def drop_finished(self) -> bool:
        """Whether any sentence goes on. On a CPU those that are done leave; a GPU likes shapes that stay."""
        done = self.state.done.tolist()
        if any(done) and not all(done) and self.rules.device.type == "cpu":
            self.collect_results([i for i, over in enumerate(done) if over])
            left = [i for i, over in enumerate(done) if not over]
            self.sentences = [self.sentences[i] for i in left]
            index = torch.tensor(left)
            self.state = self.state.select(index)
            self.cache.reorder_cross(index)
            self.encoder_output = (
                None if self.encoder_output is None else self.encoder_output[index]
            )
            self.source_segment_ids = (
                None if self.source_segment_ids is None else self.source_segment_ids[index]
            )
        return not all(done)

    def collect_results(self, places: Iterable[int]) -> None:
        """What these sentences have found."""
        start = self.state.tokens.shape[-1] - self.rules.max_tokens
        ended = [
            x.tolist()
            for x in (
                self.state.finished_tokens[..., start:],
                self.state.finished_scores,
                self.state.finished_logprobs,
            )
        ]
        for i in places:
            sentence = self.sentences[i]
            prefix = self.prefixes[sentence]
            tree = self.trees[sentence]
            self.results[sentence] = [
                Hypothesis(prefix + [t for t in text if t != NO_TOKEN], score, logprob, tree)
                for text, score, logprob in zip(*(value[i] for value in ended), strict=True)
                if score != -inf
            ]


# ---- beam: Beam search (L5.4): write several texts side by side, always go on with the likeliest, rank those that ended.


@torch.no_grad()
def beam_search(
    net: Transformer,
    prompt: Tensor | list[list[int]],
    *,
    source: Tensor | None = None,
    source_segment_ids: Tensor | None = None,
    n_best: int = 1,
    prefix: list[list[int]] | None = None,
    return_tree: bool = False,
    **options: Unpack[BeamOptions],
) -> list[list[Hypothesis]]:
    """The `n_best` best continuations of each prompt, best first; fewer where fewer are possible.

    `rules` are those of `Rules`. For an encoder-decoder, prompts are what its output starts with, one for each row of
    `source`. A continuation begins with its `prefix`, which counts for scores and lengths but not for `max_tokens`.
    With `tree`, each hypothesis carries the tree of all that was considered.
    """
    from clearhead.generate.beam_cuda import pad_source, run_with_graphs  # imports this module

    prompts = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    by = BeamRules(next(net.parameters()).device, **options)
    prefixes = prefix or [[]] * len(prompts)
    check_beam_search(net, by, prompts, prefixes, source, n_best)
    if by.device.type == "cuda" and source is not None and not source.is_floating_point():
        source, source_segment_ids = pad_source(net, source, source_segment_ids)
    search = BeamSearch(net, by, prompts, prefixes, source, source_segment_ids, return_tree)
    plain = (
        search.equal_lengths
        and not return_tree
        and not any(prefixes)
        and not isinstance(net, EditedTransformer)
    )
    with eval_mode(net):
        found = run_with_graphs(search) if by.device.type == "cuda" and plain else search.run()
    if any(isnan(h.score) for hypotheses in found for h in hypotheses):
        raise NonFiniteError
    if not all(found):
        raise ClearheadError(
            "suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size and vocab_size leave no "
            "token to generate."
        )
    return [hypotheses[:n_best] for hypotheses in found]


def check_beam_search(
    net: Transformer, rules: BeamRules, prompts: list[list[int]], prefixes: list[list[int]], source: Tensor | None,
    n_best: int,
) -> None:  # fmt: skip
    """Refuses what cannot be searched for."""
    least = {
        "beams": (rules.num_beams, 1),
        "max_tokens": (rules.max_tokens, 1),
        "n_best": (n_best, 1),
    }
    for name, (value, fewest) in (least | {"no_repeat": (rules.no_repeat_ngram_size, 0)}).items():
        if value < fewest:
            raise ClearheadError(f"{name} = {value} is too few; it must be at least {fewest}.")
    if n_best > rules.num_beams:
        most = f"the {rules.num_beams} beams can give; ask for at most {rules.num_beams}"
        raise ClearheadError(f"n_best = {n_best} is more than {most}.")
    if not prompts or not all(prompts):
        raise ClearheadError("a prompt is empty; each needs at least one token to go on from.")
    if source is not None and len(source) != len(prompts):
        raise ClearheadError(
            f"there are {len(prompts)} prompts for {len(source)} sources; each source needs one."
        )
    if len(prefixes) != len(prompts):
        raise ClearheadError(
            f"there are {len(prefixes)} prefixes for {len(prompts)} prompts; each prompt needs one."
        )
    vocabulary = net.config.vocab_size
    for token in {token for prefix in prefixes for token in prefix}:
        if token in rules.eos_tokens:
            raise ClearheadError(
                f"the prefix holds token {token}, which ends a text; nothing could follow."
            )
        if not 0 <= token < vocabulary:
            raise ClearheadError(
                f"the prefix holds token {token}; the vocabulary has ids 0 to {vocabulary - 1}."
            )
