"""The texts of many clients as rows of one engine: who has a row, and what each new token says."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.engine import Engine
from clearhead.generate.request import Request
from clearhead.generate.sampling import Sampling
from clearhead.generate.stream import TextStream
from clearhead.generate.write import SLOTS, Piece, check_writes
from clearhead.model.caches import Memory
from clearhead.serve.job import Job, Text
from clearhead.serve.limits import Limits
from clearhead.serve.refused import Refused

ROWS = 2 << 30  # bytes that rows may take where their number is not given


class Rows(NamedTuple):
    """The rows that a model's texts get: how many, for so many tokens each, and what they take of the memory."""

    slots: int
    capacity: int
    bytes: int

    @classmethod
    def of(cls, model: Model, limits: Limits) -> "Rows":
        """Known before they are made."""
        check_writes(model.config.model)
        capacity, one = min(model.net.context, limits.context), next(model.net.parameters())
        row = capacity * _bytes(model.net.remember(1, 1))
        slots = limits.slots or min(max(1, ROWS // row), SLOTS["cuda" if one.is_cuda else "cpu"])
        return cls(slots, capacity, slots * row)


class Scribe:
    """An engine, its rows set aside for good, and the texts that have one; only `ready` is for any thread."""

    def __init__(self, model: Model, limits: Limits) -> None:
        slots, capacity, _ = Rows.of(model, limits)
        net, self.words = model.net.eval(), model.tokenizer
        known = len(self.words) if self.words else None
        recorded = next(net.parameters()).is_cuda
        self.engine = Engine(net, model.config.use, slots, capacity, known, recorded)
        self.seated: dict[Request, tuple[Job, Text]] = {}

    @property
    def free(self) -> int:
        return self.engine.slots - len(self.seated)

    def ready(self, prompts: Iterable[list[int]], how: Sampling, n: int, top: int, echo: bool) -> list[Text]:
        """Texts that can be written, `n` for each prompt; or a sentence why not."""
        words, texts = self.words, list[Text]()
        for prompt in prompts:
            self._check_room(len(prompt), how.max_tokens)
            requests = [Request(prompt, how, sample, top) for sample in range(n)]
            self.engine.check(requests[0])
            head = words.decode(prompt) if words and echo else ""
            for request in requests:
                stream = TextStream(words, prompt, how.stop) if words else None
                texts.append(Text(request, stream, len(texts), head))
        return texts

    def _check_room(self, prompt: int, more: int) -> None:
        """As the engine does it, where nothing slides."""
        most = self.engine.capacity
        if prompt >= most:
            raise Refused(f"{prompt} tokens of prompt leave no room in the context of {most}.")
        if prompt + more > most:
            room = f"the context of {most}; ask for at most {most - prompt}"
            raise Refused(f"{prompt} tokens of prompt and {more} to write exceed {room}.", param="max_tokens")

    def leavers(self) -> list[Job]:
        """Whose texts have ended, one for each: their rows are free."""
        ended = [request for request in self.seated if request.reason]
        return [self.seated.pop(request)[0] for request in ended]

    def seat(self, job: Job, text: Text) -> None:
        self.seated[text.request] = job, text
        if not text.request.reason:  # else the client went away while it waited
            self.engine.add(text.request)

    def step(self) -> tuple[dict[Job, list[Piece]], dict[Job, Refused]]:
        """One more token for all: what it says to each job, and what went wrong in some."""
        news, errors = dict[Job, list[Piece]](), dict[Job, Refused]()
        try:
            live = self.engine.step()
        except ClearheadError as error:  # logits that are no numbers; the others have a token, which may be their last
            live = [request for request in self.seated if request.reason != "broken"]
            errors = {j: Refused(str(error), 500) for r, (j, _) in self.seated.items() if r.reason == "broken"}
        for request in live:
            if request in self.seated:
                job, text = self.seated[request]
                try:
                    if pieces := self._spelled(text):
                        news.setdefault(job, []).extend(pieces)
                except ClearheadError as error:  # an id that stands for no text
                    request.end("broken")
                    errors[job] = Refused(str(error))
        return news, errors

    def _spelled(self, text: Text) -> list[Piece]:
        """What can be shown of the tokens that are new; as `Writer` does it."""
        request, pieces = text.request, list[Piece]()
        ends, last = {*self.engine.use.stop, *request.sampling.stop_tokens}, len(request.written)
        while text.told < last:
            chosen, said = request.written[text.told], ""
            text.told += 1
            if text.stream is not None:
                said = text.stream.add(chosen.token, ends, bool(request.reason) and text.told == last)
                if text.stream.stopped:
                    request.end("stop")
                    last = text.told
            reason = request.reason if text.told == last else ""
            pieces.append(Piece(text.head + said if text.told == 1 else said, text.index, chosen, reason))
        return pieces


def told(jobs: Sequence[tuple[Job, Sequence[Piece]]]) -> None:
    for job, pieces in jobs:
        job.tell(pieces)


def _bytes(memory: Memory) -> int:
    return sum(growing.keys.nbytes + growing.values.nbytes for growing, _ in memory.layers)
