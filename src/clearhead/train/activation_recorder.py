"""What a microscope looks at: a few texts (or pairs, pictures, sounds), always the same, as one padded batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead import config as c
from clearhead.config.parse import read_config_file
from clearhead.data.batch import Dataset, PackedBatch, make_batch
from clearhead.errors import ClearheadError
from clearhead.hooks import Recorder, force_eager, select_all
from clearhead.io import commit_temporary, temporary_path, write_json
from clearhead.lens.activations import ATTENTION_PATHS, output_labels, token_labels
from clearhead.lens.logit_lens import DEFAULT_TOP_K, RESIDUAL_STREAMS, apply_head
from clearhead.lens.training_trace import (
    TRACE_FOLDER,
    TRACE_INDEX,
    TRACE_TOKENS,
    Probe,
    read_training_trace,
    step_file,
    training_trace_figure,
)
from clearhead.model.inputs import TokenEmbedding
from clearhead.model.transformer import Transformer
from clearhead.train.distributed import SINGLE_PROCESS, SingleProcess
from clearhead.train.trainer import batch_to_device
from clearhead.weights.checkpoint import Checkpoint, SafetensorsReader

# ---- probes: What a microscope looks at: a few texts (or pairs, pictures, sounds), always the same, as one padded batch.

# probes, and tokens of one, that a user may give
MAX_PROBES = 8
MAX_PROBE_TOKENS = 64
# of those that are taken from the data: in a GPT-2 all looks then take less than 50 MB
DEFAULT_PROBES = 4
DEFAULT_PROBE_TOKENS = 32
PAIR_SEPARATOR = "|||"  # the source of a pair and its target


class TokenizedProbe(NamedTuple):
    """One probe as ids; where there is a source, `ids` are what the decoder reads."""

    ids: list[int]
    source: list[int] | None = None
    token_type_ids: list[int] | None = None

    @property
    def max_length(self) -> int:
        return max(len(self.ids), len(self.source or ()))

    def truncate(self, length: int) -> "TokenizedProbe":
        return TokenizedProbe(*(None if side is None else side[:length] for side in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ProbeBatch:
    """The batch, and what each of its rows is; `cut` counts texts that were too long or too many."""

    batch: PackedBatch
    probes: list[Probe]
    num_truncated: int = 0


def choose_probes(model: Checkpoint, data: Dataset) -> ProbeBatch:
    """The texts in `train.probe_texts`; without any, the first rows that are held out, or that are trained on.

    For an encoder-decoder a probe is `source ||| target`: the same target at every step, so that its pictures can be
    compared. For pictures and sounds it is a file. A user's texts are at most 8, of at most 64 tokens.
    """
    m = model.config.model
    given = model.config.train.probe_texts
    reads = m.main_input
    if not all(given):
        raise ClearheadError(
            "train.probe_texts holds an empty text, in which there is nothing to look at; leave it out."
        )
    held = None if given else next(iter(data.valid_batches()), None) or data.batch(0)
    if not isinstance(reads, c.Tokens):
        return _media_probes(model, reads, given, held)
    room = min(
        stack.context_length for stack in (model.net, model.net.encoder) if stack is not None
    )
    most, longest = (
        (MAX_PROBES, min(MAX_PROBE_TOKENS, room))
        if held is None
        else (DEFAULT_PROBES, min(DEFAULT_PROBE_TOKENS, room))
    )
    texts = (
        [_read_probe(model, text) for text in given]
        if held is None
        else list(_probes_from_batch(held, most))
    )
    cut = sum(text.max_length > longest for text in texts[:most]) + len(texts[most:])
    texts = [text.truncate(longest) for text in texts[:most]]
    return ProbeBatch(
        _pad(texts), [_to_probe(model, text) for text in texts], cut if held is None else 0
    )


def _read_probe(model: Checkpoint, text: str) -> TokenizedProbe:
    try:
        return _tokenize_probe(model, text)
    except ClearheadError as error:
        raise ClearheadError(
            f"train.probe_texts: {text!r:.60} cannot be looked at: {error}"
        ) from None


def _tokenize_probe(model: Checkpoint, text: str) -> TokenizedProbe:
    """A user's text as ids, with what belongs around it."""
    use = model.config.inference
    hides = isinstance(model.config.model.head, c.MLMHead)
    tokenizer, source_tokenizer = model.tokenizers
    if tokenizer is None or source_tokenizer is None:
        raise ClearheadError("this model has no tokenizer.")
    if not isinstance(model.config.model.architecture, c.EncoderDecoder):
        ids = [*use.bos_tokens, *tokenizer.encode(text, allow_special=hides), *use.sep_tokens]
        if not ids:
            raise ClearheadError("it has no token.")
        return TokenizedProbe(ids)
    source, bar, target = text.partition(PAIR_SEPARATOR)
    if not (bar and source.strip() and target.strip()):
        raise ClearheadError(f"it must be source {PAIR_SEPARATOR} target for an encoder-decoder.")
    around = [*use.bos_tokens, *source_tokenizer.encode(source.strip()), *use.sep_tokens]
    return TokenizedProbe([*use.decoder_start_tokens, *tokenizer.encode(target.strip())], around)


def _probes_from_batch(batch: PackedBatch, most: int) -> Iterator[TokenizedProbe]:
    """From each of the first rows the longest document, or of pairs the longest that need not be cut."""
    segment_ids = torch.ones_like(batch.tokens) if batch.segment_ids is None else batch.segment_ids
    for row, numbers in list(enumerate(segment_ids))[:most]:
        own = [(numbers == n).nonzero()[:, 0] for n in numbers.unique().tolist() if n]
        texts = [
            TokenizedProbe(
                batch.tokens[row, places].tolist(),
                None if batch.source is None else _source_of(batch, row, int(numbers[places[0]])),
                None
                if batch.token_type_ids is None
                else batch.token_type_ids[row, places].tolist(),
            )
            for places in own
        ]
        if texts:  # a last row may be empty
            yield max(
                texts,
                key=lambda t: (
                    t.source is None or t.max_length <= DEFAULT_PROBE_TOKENS,
                    min(len(t.ids), DEFAULT_PROBE_TOKENS),
                ),
            )


def _source_of(batch: PackedBatch, row: int, number: int) -> list[int]:
    assert batch.source is not None
    if batch.source_segment_ids is None:
        return batch.source[row].tolist()
    return batch.source[row][batch.source_segment_ids[row] == number].tolist()


def _pad(texts: Sequence[TokenizedProbe]) -> PackedBatch:
    def filled(sides: list[list[int] | None]) -> tuple[Tensor | None, Tensor | None]:
        rows = [side for side in sides if side is not None]
        if not rows:
            return None, None
        wide = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (wide - len(row))] for row in rows])
        return ids, torch.tensor([[1] * len(row) + [0] * (wide - len(row)) for row in rows])

    tokens, segment_ids = filled([text.ids for text in texts])
    source, source_segment_ids = filled([text.source for text in texts])
    kinds, _ = filled([text.token_type_ids for text in texts])
    assert tokens is not None
    return PackedBatch(tokens, tokens, segment_ids, source, source_segment_ids, kinds)


def _to_probe(model: Checkpoint, text: TokenizedProbe) -> Probe:
    """A probe for people to read."""
    use, (own, other) = model.config.inference, model.tokenizers
    around = {*use.bos_tokens, *use.sep_tokens, *use.decoder_start_tokens, *use.eos_tokens}
    sides = [
        (side, tokenizer) for side, tokenizer in ((text.source, other), (text.ids, own)) if side
    ]
    plain = [
        tokenizer.decode([i for i in side if i not in around])
        if tokenizer
        else " ".join(map(str, side))
        for side, tokenizer in sides
    ]
    hidden = [place for place, i in enumerate(text.ids) if i in use.mask_token]
    return Probe(
        f" {PAIR_SEPARATOR} ".join(part.strip() for part in plain),
        token_labels(own, text.ids),
        token_labels(other, text.source or ()),
        hidden[0] if hidden else len(text.ids) - 1,
    )


def _media_probes(
    model: Checkpoint,
    reads: c.Images | c.Audio | c.Spectrogram,
    given: tuple[str, ...],
    held: PackedBatch | None,
) -> ProbeBatch:
    """Pictures or sounds: as many as have no more pairs of patches than eight texts have of tokens."""
    m = model.config.model
    patches = c.num_input_tokens(reads)
    if isinstance(m.architecture, c.EncoderDecoder):
        raise ClearheadError(
            f"the microscope cannot look at an encoder-decoder that reads {reads.kind}."
        )
    most = max(
        1,
        min(
            MAX_PROBES if given else DEFAULT_PROBES, MAX_PROBES * MAX_PROBE_TOKENS**2 // patches**2
        ),
    )
    if held is None:
        files = list(given[:most])
        picture, sound = (files, None) if isinstance(reads, c.Images) else (None, files)
        things = make_batch(
            model.config, (None, None), torch.empty(0), images=picture, audio=sound
        ).inputs
        batch = PackedBatch(things, torch.zeros(len(files)))
        names = files
    else:
        batch = PackedBatch(held.tokens[:most], held.targets[:most])
        kinds = (
            [int(n) for n in batch.targets] if isinstance(m.head, c.ClassificationHead) else None
        )
        names = (
            output_labels(model.config, None, kinds)
            if kinds
            else [f"{float(n):g}" for n in batch.targets]
        )
        names = [f"{reads.kind} {n}: {name}" for n, name in enumerate(names)]
    numbers = [str(n) for n in range(patches)]
    return ProbeBatch(
        batch, [Probe(name, numbers, [], 0) for name in names], max(0, len(given) - most)
    )


# ---- sight: What a microscope sees in one pass: patterns, the logit lens and embeddings of all probes. It changes nothing.

Planes = dict[str, Tensor]


class ProbeObserver:
    """A model, the probes that are looked at, and what is the same in every look."""

    def __init__(
        self, model: Checkpoint, probes: ProbeBatch, team: SingleProcess = SINGLE_PROCESS
    ) -> None:
        self.model = model
        self.net = model.net
        self.probes = probes
        self.strategy = team
        self.embeddings = _embedding_tables(self.net)
        self._ids = _ids_in(probes, self.embeddings)

    def metadata(self) -> dict[str, Any]:
        """The probes, and of which tokens the vectors are."""
        facts = {
            "probes": [asdict(probe) for probe in self.probes.probes],
            "cut": self.probes.num_truncated,
        }
        return {**facts, "embedded": {name: ids.tolist() for name, ids in self._ids.items()}}

    def labels(self) -> dict[str, list[str]]:
        """Every token and every answer, for people to read."""
        m = self.model.config.model
        model = self.model
        sides = dict(zip(("tokens", "source"), model.tokenizers, strict=True))
        found = {
            name: token_labels(sides[name], range(len(table.weight)))
            for name, table in self.embeddings.items()
        }
        if isinstance(m.head, c.LMHead | c.MLMHead):
            return found  # an answer is a token
        outputs = m.head.num_labels if isinstance(m.head, c.ClassificationHead) else 1
        return {**found, "answers": output_labels(model.config, None, range(outputs))}

    @torch.no_grad()
    def observe(self, before: Planes) -> dict[str, Tensor]:
        """Everything of one pass over all probes, on the CPU, cut to each probe's length.

        `before` are the planes of the look before, which those of this one are turned to. Weights that are no numbers
        show nothing.
        """
        patterns, lens = self._pass()
        weights = {
            name: self.strategy.full_tensor(table.weight) for name, table in self.embeddings.items()
        }
        if not all(
            bool(t.isfinite().all())
            for t in (lens["probabilities"], *patterns.values(), *weights.values())
        ):
            return {}
        seen = {}
        for n, probe in enumerate(self.probes.probes):
            own = len(probe.tokens)
            other = len(probe.source_tokens)
            sizes = {"attention": (own, own), "cross": (own, other), "encoder": (other, other)}
            for part, pattern in patterns.items():
                down, across = sizes[part]
                seen[f"{n}.{part}"] = pattern[:, n, :, :down, :across]
            seen |= {f"{n}.lens.{part}": value[n, :, :own] for part, value in lens.items()}
        for name, weight in weights.items():
            plane = principal_plane(weight)
            seen[f"{name}.plane"] = (
                align_plane(plane, before[name]) if name in before else plane
            ).half()
            seen[f"{name}.vectors"] = weight[self._ids[name].to(weight.device)].half().cpu()
        return {name: value.contiguous() for name, value in seen.items()}

    def _pass(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Patterns (layer × probe × head × query × key) and the lens (probe × layer × position × rank)."""
        kept = {f"{path.format('*')}.pattern": _half for path in ATTENTION_PATHS.values()}
        watch = Recorder(dict.fromkeys(RESIDUAL_STREAMS, select_all) | kept)
        x = batch_to_device(self.probes.batch, next(self.net.parameters()).device, self.net)
        sides = {"source": x.source, "source_segments": x.source_segment_ids}
        training = self.net.training
        self.net.eval()
        try:
            with force_eager():
                self.net(
                    x.tokens,
                    segment_ids=x.segment_ids,
                    token_type_ids=x.token_type_ids,
                    **sides,
                    hooks=watch,
                )
                ids, shares = apply_head(self.net, watch.values, x.segment_ids, DEFAULT_TOP_K)
        finally:
            self.net.train(training)
            self.strategy.reshard(self.net)
        layers = {part: _layers(watch, path) for part, path in ATTENTION_PATHS.items()}
        patterns = {part: torch.stack(found).cpu() for part, found in layers.items() if found}
        return patterns, {"ids": ids.int().cpu(), "probabilities": shares.cpu()}


def principal_plane(table: Tensor) -> Tensor:
    """Each row's place in the plane in which the rows differ most (the first two principal components)."""
    centred = table.float() - table.float().mean(dim=0)
    spread = (
        centred.mT @ centred
    ).cpu()  # solved on the CPU: a GPU would have to load its solvers first
    axes = torch.linalg.eigh(spread).eigenvectors[:, -2:].flip(1)
    return (centred @ axes.to(centred.device)).cpu()


def align_plane(plane: Tensor, before: Tensor) -> Tensor:
    """The plane turned and mirrored so that its points lie nearest to where they were (orthogonal Procrustes).

    Principal axes have no sign, and two of like length swap, so a film would jump without any token having moved.
    The axes of the last look would hold a film still as well, but only if every table were kept until then, and a run
    that is still going on would have no film. Distances remain those of the look itself.
    """
    u, _, vh = torch.linalg.svd(plane.double().mT @ before.double())
    return (plane.double() @ u @ vh).float()


def _embedding_tables(net: Transformer) -> dict[str, nn.Embedding]:
    """The embedding matrices of both sides; one where they share it, none for pictures and sound."""
    found: dict[str, nn.Embedding] = {}
    for name, stack in (("tokens", net), ("source", net.encoder)):
        if (
            stack is not None
            and isinstance(stack.embed, TokenEmbedding)
            and stack.embed.tokens not in found.values()
        ):
            found[name] = stack.embed.tokens
    return found


def _ids_in(probes: ProbeBatch, tables: dict[str, nn.Embedding]) -> dict[str, Tensor]:
    """The different tokens of the probes, for each table."""
    sides: dict[str, list[Tensor]] = {name: [] for name in tables}
    for name, ids, segment_ids in (
        ("tokens", probes.batch.tokens, probes.batch.segment_ids),
        ("source", probes.batch.source, probes.batch.source_segment_ids),
    ):
        if ids is not None and tables:
            sides[name if name in tables else "tokens"].append(
                ids if segment_ids is None else ids[segment_ids != 0]
            )
    return {
        name: torch.cat([side.flatten() for side in found]).unique()
        for name, found in sides.items()
    }


def _layers(watch: Recorder, path: str) -> list[Tensor]:
    found: list[Tensor] = []
    while (name := f"{path.format(len(found))}.pattern") in watch.values:
        found.append(watch.values[name])
    return found


def _half(value: Tensor) -> Tensor:
    return value.half()


# ---- microscope: A microscope on training: how attention, the logit lens and the embeddings of a few probes come to be.

MAX_TIME_FRACTION = 0.03  # of a run's time that looking may take
RECORDS_PER_DECADE = 6  # looks while the steps grow tenfold


class ActivationRecorder:
    """Looks at a net while it is trained: `run.train(watch, each=microscope)`.

    When: before the first step, after about six steps a decade (1, 2, 3, 5, 7, 10, 15 …), and after the last. The
    first look and the last are always taken. Another is left out, and the next one has its chance, if with it and
    with the last one all looks would take more than 3 % of the time that the whole run will take; that is foreseen
    from the time of its steps so far. Measured against the time so far alone, a film would lack its beginning, where
    the most is learned; but a run that ends early may so have spent more than 3 % of its shorter time.

    A run that goes on from a checkpoint keeps the looks up to it; later ones are taken again.
    """

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        out: Path,
        step: int = 0,
        strategy: SingleProcess = SINGLE_PROCESS,
        echo: Callable[[str], None] = print,
    ) -> None:
        self._began = monotonic()
        self._say = echo
        self.folder = out / TRACE_FOLDER
        self.max_steps = model.config.train.max_steps
        self._start = step
        self._first = strategy.is_main_process
        self._agreed = (
            strategy.any_process if strategy.is_sharded else bool
        )  # where weights are shared out, all look or none
        self._due = recording_steps(self.max_steps)
        self.observer = ProbeObserver(model, choose_probes(model, data), strategy)
        self._stopped = ""  # why no more looks are taken
        self._looks: list[dict[str, Any]] = []  # step and seconds of each
        self._planes: Planes = {}  # of the last look
        if self._first:
            self._go_on(step)
        self._prepared = self._spent = monotonic() - self._began  # of this process' time

    @property
    def note(self) -> str:
        """What was cut, in a sentence; empty if nothing was."""
        most = f"there are at most {MAX_PROBES}, of {MAX_PROBE_TOKENS} tokens each, or of the context's where that is less"
        return (
            f"{cut} of the probes cut or left out; {most}"
            if (cut := self.observer.probes.num_truncated)
            else ""
        )

    @property
    def recorded_steps(self) -> list[int]:
        """The steps that were looked at."""
        return [look["step"] for look in self._looks]

    @property
    def seconds(self) -> float:
        """What all looks have taken, and what came before the first."""
        return self._prepared + sum(look["seconds"] for look in self._looks)

    def __call__(self, step: int) -> None:
        """After each step, and before the first one: looks if it is time."""
        if self.is_due(step):
            self.record(step)

    def is_due(self, step: int) -> bool:
        """Whether it is time for a look, and there is time for it."""
        on_time = step in self._due or step == self._start
        return on_time and self._agreed(self._first and self._wanted(step))

    def _wanted(self, step: int) -> bool:
        if self._stopped or step in self.recorded_steps:
            return False
        if not self._looks or step == self.max_steps:
            return True
        if step <= self._start:  # a run goes on; no step has been timed yet
            return step in self._due
        trained = monotonic() - self._began - self._spent
        foreseen = trained / (step - self._start) * (self.max_steps - self.recorded_steps[0])
        return self.seconds + 2 * self._looks[-1]["seconds"] <= MAX_TIME_FRACTION * foreseen

    def record(self, step: int) -> None:
        """Keeps what is seen now; if nothing is, the run itself will tell why."""
        like = next(self.observer.net.parameters())
        if like.is_cuda:  # what was asked of the device before is not the microscope's time
            torch.cuda.synchronize(like.device)
        began = monotonic()
        seen = self.observer.observe(self._planes)
        if self._first and seen:
            self._keep(step, seen, began)
        self._spent += monotonic() - began

    def finish(self, step: int) -> str:
        """A look at the end, wherever that is; the picture; and a sentence about both."""
        if self._agreed(self._first and step not in self.recorded_steps and not self._stopped):
            self.record(step)
        if not self._looks or self._stopped:
            return self._stopped
        picture = self.folder / "film.png"
        try:
            training_trace_figure(read_training_trace(self.folder.parent)).savefig(
                temporary_path(picture), format="png", dpi=150
            )
            commit_temporary(picture)
        except OSError as error:
            return f"{picture} cannot be written: {error.strerror}"
        return f"the microscope looked {len(self._looks)} times in {self.seconds:.1f} s; {picture} shows a head over time"

    def _keep(self, step: int, seen: dict[str, Tensor], began: float) -> None:
        """The tensors first, then the index that names them: a look is there as a whole or not at all."""
        file = step_file(self.folder, step)
        try:
            save_file(seen, temporary_path(file))
            temporary_path(file).chmod(
                self.folder.stat().st_mode & 0o666
            )  # it is written for the owner's eyes only
            commit_temporary(file)
            looks = [*self._looks, {"step": step, "seconds": monotonic() - began}]
            self._write_index(looks, {name: list(value.shape) for name, value in seen.items()})
        except (OSError, SafetensorError) as error:
            self._stop(error)
            return
        self._looks = looks
        self._planes = {name: seen[f"{name}.plane"] for name in self.observer.embeddings}

    def _write_index(self, looks: list[dict[str, Any]], shapes: dict[str, list[int]]) -> None:
        write_json(
            self.folder / TRACE_INDEX,
            {**self.observer.metadata(), "shapes": shapes, "looks": looks},
            None,
        )

    def _go_on(self, step: int) -> None:
        """Keeps the looks up to the checkpoint that a run goes on from; a fresh run starts a new film."""
        index = (
            read_config_file(self.folder / TRACE_INDEX)
            if step and (self.folder / TRACE_INDEX).is_file()
            else {}
        )
        facts = self.observer.metadata()
        if facts == {name: index.get(name) for name in facts}:
            self._looks = [
                x
                for x in index["looks"]
                if x["step"] <= step and step_file(self.folder, x["step"]).is_file()
            ]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_index(self._looks, index.get("shapes", {}))
            kept = [step_file(self.folder, looked) for looked in self.recorded_steps]
            for file in (*self.folder.glob("*.safetensors"), *self.folder.glob(".*")):
                if file not in kept:
                    file.unlink()
            write_json(self.folder / TRACE_TOKENS, self.observer.labels(), None)
        except OSError as error:
            self._stop(error)
        if self._looks:
            last = SafetensorsReader([step_file(self.folder, self.recorded_steps[-1])])
            self._planes = {
                name: last.get_tensor(f"{name}.plane") for name in self.observer.embeddings
            }

    def _stop(self, error: Exception) -> None:
        """The run is worth more than its film."""
        for draft in self.folder.glob(".*"):
            with suppress(OSError):
                draft.unlink()
        why = getattr(error, "strerror", None) or error
        self._stopped = f"the microscope could not write to {self.folder} ({why}) and looks no more"
        self._say(self._stopped)


def recording_steps(steps: int) -> set[int]:
    """0, about six whole steps a decade, and the last."""
    found = {0, steps}
    n = 0
    while (step := round(10 ** (n / RECORDS_PER_DECADE))) < steps:
        found.add(step)
        n += 1
    return found
