"""Records attention, logit lens and embeddings of a few probes during training.

    activations/00000010.safetensors    what was recorded after step 10
    activations/index.json              probes and recorded steps; steps not listed do not exist
    activations/tokens.json             labels of all tokens and outputs
    activations/training_trace.png      the attention of one head over the steps

`clearhead.lens.read_training_trace` reads the folder.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead import config as c
from clearhead.data.batch import Batch, make_batch
from clearhead.data.dataset import Dataset
from clearhead.data.packed_batch import PackedBatch
from clearhead.errors import ClearheadError
from clearhead.hooks import Recorder, force_eager, select_all
from clearhead.io import atomic_path, write_json
from clearhead.lens.hook_points import ATTENTION_PATHS
from clearhead.lens.logit_lens import DEFAULT_TOP_K, RESIDUAL_STREAMS, apply_head
from clearhead.lens.tokens import output_labels, token_labels
from clearhead.lens.training_trace import (
    TRACE_FOLDER,
    TRACE_INDEX,
    TRACE_TOKENS,
    Probe,
    read_recorded_tensor,
    read_trace_index,
    read_training_trace,
    step_file,
)
from clearhead.model.embeddings import TokenEmbedding
from clearhead.model.transformer import Transformer
from clearhead.train.report import TRACE_FIGURE_FILE
from clearhead.train.strategy import SINGLE_PROCESS, Echo, SingleProcess
from clearhead.train.train_step import batch_to_device, hidden_states
from clearhead.weights.checkpoint import Checkpoint

MAX_PROBES = 8  # that a user may set
MAX_PROBE_TOKENS = 64
DEFAULT_PROBES = 4  # taken from the data; the recordings of a GPT-2 then take less than 50 MB
DEFAULT_PROBE_TOKENS = 32
PAIR_SEPARATOR = "|||"  # between source and target
MAX_TIME_FRACTION = 0.03  # of a run's time that recording may take
RECORDINGS_PER_DECADE = 6  # while the number of steps grows tenfold

Planes = dict[str, Tensor]  # 2D projections of the embedding matrices


# --- when to record


def recording_steps(max_steps: int) -> set[int]:
    """0, about six steps per decade (1, 2, 3, 5, 7, 10, 15 …), and the last."""
    steps = {0, max_steps}
    n = 0
    while (step := round(10 ** (n / RECORDINGS_PER_DECADE))) < max_steps:
        steps.add(step)
        n += 1
    return steps


class ActivationRecorder:
    """Records a network while it is trained: `trainer.train(on_report, on_step=recorder)`.

    The first and the last step are always recorded. Others are skipped if recording would take
    more than 3 % of the time of the whole run, which is extrapolated from the steps so far.
    (Measured against the time so far, the beginning would be missing, where most is learned.)

    A resumed run keeps the recordings up to its checkpoint; later ones are made again.
    """

    def __init__(
        self,
        model: Checkpoint,
        data: Dataset,
        output: Path,
        step: int = 0,
        strategy: SingleProcess = SINGLE_PROCESS,
        echo: Echo = print,
    ) -> None:
        self._started = monotonic()
        self._echo = echo
        self.folder = output / TRACE_FOLDER
        self.figure_file = output / TRACE_FIGURE_FILE
        self.max_steps = model.config.train.max_steps
        self._start_step = step
        self._is_main_process = strategy.is_main_process
        # Sharded weights need all processes in a forward pass, or none.
        self._any_process: Callable[[bool], bool] = (
            strategy.any_process if strategy.is_sharded else bool
        )
        self._recording_steps = recording_steps(self.max_steps)
        self.observer = ProbeObserver(model, choose_probes(model, data), strategy)
        self._error = ""  # why recording was stopped
        self._recordings: list[dict[str, Any]] = []  # step and seconds of each
        self._planes: Planes = {}  # of the last recording
        if self._is_main_process:
            self._open_folder(step)
        self._setup_seconds = monotonic() - self._started
        self._seconds_in_process = self._setup_seconds

    @property
    def note(self) -> str:
        """Sentence about probes that were truncated or dropped; empty if there are none."""
        count = self.observer.probes.num_truncated
        if not count:
            return ""
        return (
            f"{count} of the probes truncated or dropped: at most {MAX_PROBES} of "
            f"{MAX_PROBE_TOKENS} tokens each are recorded, or fewer if the context is shorter"
        )

    @property
    def recorded_steps(self) -> list[int]:
        return [recording["step"] for recording in self._recordings]

    @property
    def seconds(self) -> float:
        """Time of all recordings, including the setup."""
        return self._setup_seconds + sum(recording["seconds"] for recording in self._recordings)

    def __call__(self, step: int) -> None:
        """Record if it is time; to be called before the first step and after each."""
        if self.is_due(step):
            self.record(step)

    def is_due(self, step: int) -> bool:
        is_candidate = step in self._recording_steps or step == self._start_step
        return is_candidate and self._any_process(self._is_main_process and self._has_time(step))

    def _has_time(self, step: int) -> bool:
        if self._error or step in self.recorded_steps:
            return False
        if not self._recordings or step == self.max_steps:
            return True
        if step <= self._start_step:  # of a resumed run, which has not timed a step yet
            return step in self._recording_steps
        train_seconds = monotonic() - self._started - self._seconds_in_process
        seconds_per_step = train_seconds / (step - self._start_step)
        total_seconds = seconds_per_step * (self.max_steps - self.recorded_steps[0])
        # This recording, and the last one.
        expected_seconds = self.seconds + 2 * self._recordings[-1]["seconds"]
        return expected_seconds <= MAX_TIME_FRACTION * total_seconds

    def record(self, step: int) -> None:
        """Record now; weights that are not finite are skipped, as the run itself reports them."""
        parameter = next(self.observer.net.parameters())
        if parameter.is_cuda:  # training steps that are still running do not count
            torch.cuda.synchronize(parameter.device)
        started = monotonic()
        tensors = self.observer.observe(self._planes)
        if self._is_main_process and tensors:
            self._save(step, tensors, started)
        self._seconds_in_process += monotonic() - started

    def finish(self, step: int) -> str:
        """Record the last step and draw the figure; return a sentence about both."""
        is_missing = step not in self.recorded_steps and not self._error
        if self._any_process(self._is_main_process and is_missing):
            self.record(step)
        if not self._recordings or self._error:
            return self._error
        try:
            read_training_trace(self.folder.parent).attention_over_steps().save(self.figure_file)
        except ClearheadError as error:
            return str(error).removesuffix(".")
        return (
            f"recorded activations of {len(self._recordings)} steps in {self.seconds:.1f} s; "
            f"{self.figure_file} shows one head over training"
        )

    def _save(self, step: int, tensors: dict[str, Tensor], started: float) -> None:
        """Write tensors first, then the index that lists them, so that no recording is partial."""
        try:
            with atomic_path(step_file(self.folder, step)) as temporary:
                save_file(tensors, temporary)
                temporary.chmod(self.folder.stat().st_mode & 0o666)  # safetensors sets 0o600
            recording = {"step": step, "seconds": monotonic() - started}
            recordings = [*self._recordings, recording]
            self._write_index(recordings, {name: list(t.shape) for name, t in tensors.items()})
        except (OSError, SafetensorError) as error:
            self._stop(error)
            return
        self._recordings = recordings
        self._planes = {name: tensors[f"{name}.plane"] for name in self.observer.embeddings}

    def _write_index(self, recordings: list[dict[str, Any]], shapes: dict[str, list[int]]) -> None:
        index = {**self.observer.metadata(), "shapes": shapes, "records": recordings}
        write_json(self.folder / TRACE_INDEX, index, None)

    def _open_folder(self, step: int) -> None:
        """Keep recordings up to the checkpoint of a resumed run, and remove all others."""
        index_file = self.folder / TRACE_INDEX
        index = read_trace_index(self.folder) if step and index_file.is_file() else {}
        metadata = self.observer.metadata()
        if metadata == {name: index.get(name) for name in metadata}:
            self._recordings = [
                recording
                for recording in index["records"]
                if recording["step"] <= step and step_file(self.folder, recording["step"]).is_file()
            ]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_index(self._recordings, index.get("shapes", {}))
            files = [step_file(self.folder, recorded) for recorded in self.recorded_steps]
            for file in (*self.folder.glob("*.safetensors"), *self.folder.glob(".*")):
                if file not in files:
                    file.unlink()
            write_json(self.folder / TRACE_TOKENS, self.observer.labels(), None)
        except OSError as error:
            self._stop(error)
        if self._recordings:
            last_step = self.recorded_steps[-1]
            self._planes = {
                name: read_recorded_tensor(self.folder, last_step, f"{name}.plane", index["shapes"])
                for name in self.observer.embeddings
            }

    def _stop(self, error: Exception) -> None:
        """Stop recording, but not training."""
        reason = getattr(error, "strerror", None) or error
        self._error = f"cannot write to {self.folder} ({reason}); activations are not recorded"
        self._echo(self._error)


# --- probes


class TokenizedProbe(NamedTuple):
    """Token ids of a probe; with a source, `ids` are those of the decoder."""

    ids: list[int]
    source: list[int] | None = None
    token_type_ids: list[int] | None = None

    @property
    def length(self) -> int:
        """Number of tokens of the longer side."""
        return max(len(self.ids), len(self.source or ()))

    def truncate(self, length: int) -> "TokenizedProbe":
        return TokenizedProbe(*(None if side is None else side[:length] for side in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ProbeBatch:
    """Probes as a padded batch; `num_truncated` counts truncated and dropped ones."""

    batch: PackedBatch
    probes: list[Probe]
    num_truncated: int = 0


def choose_probes(model: Checkpoint, data: Dataset) -> ProbeBatch:
    """Tokenize `train.probe_texts`, or take the first rows of the validation or training data.

    A probe of an encoder-decoder is `source ||| target`, with the same target at every step so that
    steps can be compared. A probe of images or audio is a file.
    """
    texts = model.config.train.probe_texts
    model_input = model.config.model.main_input
    if not all(texts):
        raise ClearheadError("train.probe_texts must not contain an empty text.")
    data_batch = None
    if not texts:
        data_batch = next(iter(data.valid_batches()), None) or data.batch(0)
    if not isinstance(model_input, c.Tokens):
        return _media_probes(model, model_input, texts, data_batch)

    stacks = [stack for stack in (model.net, model.net.encoder) if stack is not None]
    context_length = min(stack.context_length for stack in stacks)
    if data_batch is None:
        probes = [_tokenize_probe(model, text) for text in texts]
        max_probes = MAX_PROBES
        max_length = min(MAX_PROBE_TOKENS, context_length)
        num_truncated = sum(probe.length > max_length for probe in probes[:max_probes])
        num_truncated += len(probes[max_probes:])
    else:
        max_probes = DEFAULT_PROBES
        max_length = min(DEFAULT_PROBE_TOKENS, context_length)
        probes = list(_probes_from_batch(data_batch, max_probes))
        num_truncated = 0
    probes = [probe.truncate(max_length) for probe in probes[:max_probes]]
    readable = [_readable_probe(model, probe) for probe in probes]
    return ProbeBatch(_pad(probes), readable, num_truncated)


def _tokenize_probe(model: Checkpoint, text: str) -> TokenizedProbe:
    """Tokenize a user's text and add the special tokens."""
    option = f"train.probe_texts: {text!r:.60}"
    inference = model.config.inference
    tokenizer, source_tokenizer = model.tokenizers
    if tokenizer is None or source_tokenizer is None:
        raise ClearheadError(f"{option} cannot be tokenized: the model has no tokenizer.")
    try:
        if not isinstance(model.config.model.architecture, c.EncoderDecoder):
            is_masked = isinstance(model.config.model.head, c.MLMHead)
            tokens = tokenizer.encode(text, allow_special=is_masked)
            ids = [*inference.bos_tokens, *tokens, *inference.sep_tokens]
            if not ids:
                raise ClearheadError("it has no tokens.")
            return TokenizedProbe(ids)
        source, separator, target = (part.strip() for part in text.partition(PAIR_SEPARATOR))
        if not (separator and source and target):
            raise ClearheadError(f"an encoder-decoder needs 'source {PAIR_SEPARATOR} target'.")
        source_tokens = source_tokenizer.encode(source)
        return TokenizedProbe(
            [*inference.decoder_start_tokens, *tokenizer.encode(target)],
            [*inference.bos_tokens, *source_tokens, *inference.sep_tokens],
        )
    except ClearheadError as error:
        raise ClearheadError(f"{option} cannot be used: {error}") from None


def _probes_from_batch(batch: PackedBatch, max_probes: int) -> Iterator[TokenizedProbe]:
    """From each of the first rows the longest document, or the longest pair that fits."""
    segment_ids = batch.segment_ids
    if segment_ids is None:
        segment_ids = torch.ones_like(batch.tokens)

    def preference(probe: TokenizedProbe) -> tuple[bool, int]:
        fits = probe.source is None or probe.length <= DEFAULT_PROBE_TOKENS
        return fits, min(len(probe.ids), DEFAULT_PROBE_TOKENS)

    for row, row_segments in list(enumerate(segment_ids))[:max_probes]:
        probes = [
            _probe_of_segment(batch, row, row_segments == segment, segment)
            for segment in row_segments.unique().tolist()
            if segment
        ]
        if probes:  # the last row of a batch may be empty
            yield max(probes, key=preference)


def _probe_of_segment(
    batch: PackedBatch, row: int, in_segment: Tensor, segment: int
) -> TokenizedProbe:
    source = None
    if batch.source is not None:
        source_row = batch.source[row]
        if batch.source_segment_ids is not None:
            source_row = source_row[batch.source_segment_ids[row] == segment]
        source = source_row.tolist()
    token_type_ids = None
    if batch.token_type_ids is not None:
        token_type_ids = batch.token_type_ids[row, in_segment].tolist()
    return TokenizedProbe(batch.tokens[row, in_segment].tolist(), source, token_type_ids)


def _pad(probes: Sequence[TokenizedProbe]) -> PackedBatch:
    def pad(rows: tuple[list[int] | None, ...]) -> tuple[Tensor | None, Tensor | None]:
        """Padded ids and segment ids, if there are any."""
        existing = [row for row in rows if row is not None]
        if not existing:
            return None, None
        batch = Batch.from_rows(existing, torch.device("cpu"))
        return batch.inputs, batch.segment_ids

    sides = map(pad, zip(*probes, strict=True))
    (tokens, segment_ids), (source, source_segment_ids), (token_type_ids, _) = sides
    assert tokens is not None
    return PackedBatch(tokens, tokens, segment_ids, source, source_segment_ids, token_type_ids)


def _readable_probe(model: Checkpoint, probe: TokenizedProbe) -> Probe:
    inference = model.config.inference
    tokenizer, source_tokenizer = model.tokenizers
    special_ids = {
        *inference.bos_tokens,
        *inference.sep_tokens,
        *inference.decoder_start_tokens,
        *inference.eos_tokens,
    }
    texts = []
    for ids, side_tokenizer in ((probe.source, source_tokenizer), (probe.ids, tokenizer)):
        if not ids:
            continue
        if side_tokenizer is None:
            texts.append(" ".join(map(str, ids)))
        else:
            texts.append(side_tokenizer.decode([i for i in ids if i not in special_ids]).strip())
    masked = [position for position, i in enumerate(probe.ids) if i in inference.mask_token]
    return Probe(
        f" {PAIR_SEPARATOR} ".join(texts),
        token_labels(tokenizer, probe.ids),
        token_labels(source_tokenizer, probe.source or ()),
        masked[0] if masked else len(probe.ids) - 1,
    )


def _media_probes(
    model: Checkpoint,
    media_input: c.Images | c.Audio | c.Spectrogram,
    files: tuple[str, ...],
    data_batch: PackedBatch | None,
) -> ProbeBatch:
    """Images or audio, limited to the attention memory of eight 64-token texts."""
    config = model.config
    kind = media_input.kind
    if isinstance(config.model.architecture, c.EncoderDecoder):
        raise ClearheadError(
            f"activations of an encoder-decoder with {kind} input cannot be recorded."
        )
    num_patches = c.num_input_tokens(media_input)
    max_scores = MAX_PROBES * MAX_PROBE_TOKENS**2
    wanted = MAX_PROBES if files else DEFAULT_PROBES
    max_probes = max(1, min(wanted, max_scores // num_patches**2))
    if data_batch is None:
        names = list(files[:max_probes])
        is_image = isinstance(media_input, c.Images)
        media = make_batch(
            config,
            (None, None),
            torch.empty(0),
            images=names if is_image else None,
            audio=None if is_image else names,
        ).inputs
        batch = PackedBatch(media, torch.zeros(len(names)))
    else:
        batch = PackedBatch(data_batch.tokens[:max_probes], data_batch.targets[:max_probes])
        if isinstance(config.model.head, c.ClassificationHead):
            labels = output_labels(config, None, [int(target) for target in batch.targets])
        else:
            labels = [f"{float(target):g}" for target in batch.targets]
        names = [f"{kind} {i}: {label}" for i, label in enumerate(labels)]
    patches = [str(i) for i in range(num_patches)]
    probes = [Probe(name, patches, [], 0) for name in names]
    return ProbeBatch(batch, probes, max(0, len(files) - max_probes))


# --- what to record


class ProbeObserver:
    """Runs the probes through the network without changing anything.

    The pass is uncompiled, without gradients, dropout or random numbers, and uses the weights that
    are trained, not their EMA.
    """

    def __init__(
        self, model: Checkpoint, probes: ProbeBatch, strategy: SingleProcess = SINGLE_PROCESS
    ) -> None:
        self.model = model
        self.net = model.net
        self.probes = probes
        self.strategy = strategy
        self.embeddings = _embedding_tables(self.net)
        self._embedding_ids = _unique_ids(probes.batch, self.embeddings)

    def metadata(self) -> dict[str, Any]:
        """Probes, and the token ids of the recorded embedding vectors."""
        return {
            "probes": [asdict(probe) for probe in self.probes.probes],
            "num_truncated": self.probes.num_truncated,
            "embedding_ids": {name: ids.tolist() for name, ids in self._embedding_ids.items()},
        }

    def labels(self) -> dict[str, list[str]]:
        """Labels of all tokens, and of the outputs if those are not tokens."""
        config = self.model.config
        head = config.model.head
        tokenizers = dict(zip(("tokens", "source"), self.model.tokenizers, strict=True))
        labels = {
            name: token_labels(tokenizers[name], range(len(table.weight)))
            for name, table in self.embeddings.items()
        }
        if not isinstance(head, c.LMHead | c.MLMHead):
            num_outputs = head.num_labels if isinstance(head, c.ClassificationHead) else 1
            labels["answers"] = output_labels(config, None, range(num_outputs))
        return labels

    @torch.no_grad()
    def observe(self, previous_planes: Planes) -> dict[str, Tensor]:
        """Patterns, logit lens and embeddings on the CPU, without padding.

        The planes are rotated to match `previous_planes`. Empty if anything is not finite.
        """
        patterns, lens = self._run()
        weights = {
            name: self.strategy.full_tensor(table.weight) for name, table in self.embeddings.items()
        }
        checked = (lens["probabilities"], *patterns.values(), *weights.values())
        if not all(bool(t.isfinite().all()) for t in checked):
            return {}
        tensors = {}
        for n, probe in enumerate(self.probes.probes):
            length = len(probe.tokens)
            source_length = len(probe.source_tokens)
            shapes = {
                "attention": (length, length),
                "cross": (length, source_length),
                "encoder": (source_length, source_length),
            }
            for kind, pattern in patterns.items():
                queries, keys = shapes[kind]
                tensors[f"{n}.{kind}"] = pattern[:, n, :, :queries, :keys]
            for name, value in lens.items():
                tensors[f"{n}.lens.{name}"] = value[n, :, :length]
        for name, weight in weights.items():
            plane = principal_plane(weight)
            if name in previous_planes:
                plane = align_plane(plane, previous_planes[name])
            ids = self._embedding_ids[name].to(weight.device)
            tensors[f"{name}.plane"] = plane.half()
            tensors[f"{name}.vectors"] = weight[ids].half().cpu()
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def _run(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Patterns (layer × probe × head × query × key), lens (probe × layer × position × rank)."""
        recorder = Recorder(
            dict.fromkeys(RESIDUAL_STREAMS, select_all)
            | {
                f"{path.format('*')}.pattern": torch.Tensor.half
                for path in ATTENTION_PATHS.values()
            }
        )
        device = next(self.net.parameters()).device
        batch = batch_to_device(self.probes.batch, device, self.net)
        was_training = self.net.training
        self.net.eval()
        try:
            with force_eager():
                hidden_states(self.net, batch, recorder)
                ids, probabilities = apply_head(
                    self.net, recorder.values, batch.segment_ids, DEFAULT_TOP_K
                )
        finally:
            self.net.train(was_training)
            self.strategy.reshard(self.net)
        patterns = {}
        for kind, path in ATTENTION_PATHS.items():
            layers: list[Tensor] = []
            while (name := f"{path.format(len(layers))}.pattern") in recorder.values:
                layers.append(recorder.values[name])
            if layers:
                patterns[kind] = torch.stack(layers).cpu()
        return patterns, {"ids": ids.int().cpu(), "probabilities": probabilities.cpu()}


def principal_plane(table: Tensor) -> Tensor:
    """Project the rows of a matrix on its first two principal components."""
    centered = table.float() - table.float().mean(dim=0)
    covariance = (centered.mT @ centered).cpu()  # a GPU would have to load its solvers first
    components = torch.linalg.eigh(covariance).eigenvectors[:, -2:].flip(1)
    return (centered @ components.to(centered.device)).cpu()


def align_plane(plane: Tensor, previous: Tensor) -> Tensor:
    """Rotate and mirror a plane so that its points are nearest to the previous ones.

    This is the orthogonal Procrustes problem. Principal components have no sign, and components of
    similar size swap, so without it points would jump between steps. Distances do not change.
    """
    u, _, vh = torch.linalg.svd(plane.double().mT @ previous.double())
    return (plane.double() @ u @ vh).float()


def _embedding_tables(net: Transformer) -> dict[str, nn.Embedding]:
    """Embedding matrices of target and source; one if they share it, none for images and audio."""
    tables: dict[str, nn.Embedding] = {}
    for name, stack in (("tokens", net), ("source", net.encoder)):
        if stack is not None and isinstance(stack.embed, TokenEmbedding):
            table = stack.embed.tokens
            if table not in tables.values():
                tables[name] = table
    return tables


def _unique_ids(batch: PackedBatch, tables: dict[str, nn.Embedding]) -> dict[str, Tensor]:
    """Unique token ids of the probes, for each embedding matrix."""
    ids_of_table: dict[str, list[Tensor]] = {name: [] for name in tables}
    for name, ids, segment_ids in (
        ("tokens", batch.tokens, batch.segment_ids),
        ("source", batch.source, batch.source_segment_ids),
    ):
        if ids is not None and tables:
            table = name if name in tables else "tokens"
            ids_of_table[table].append(ids if segment_ids is None else ids[segment_ids != 0])
    return {
        name: torch.cat([t.flatten() for t in ids]).unique() for name, ids in ids_of_table.items()
    }
