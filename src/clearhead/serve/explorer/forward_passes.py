"""Forward passes whose activations are recomputed on demand, and their cache."""

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from clearhead import config as c
from clearhead.api import Model
from clearhead.data.batch import Batch
from clearhead.errors import ClearheadError, suggest
from clearhead.hooks import Hooks, Recorder, force_eager
from clearhead.lens.argument_checks import answer_position
from clearhead.lens.edits import checked_edit
from clearhead.lens.hook_points import (
    ActivationInfo,
    activation_table,
    has_pooled_head,
    matching_names,
)
from clearhead.lens.resumable_forward import resume_blocks
from clearhead.lens.tokens import output_labels
from clearhead.model.transformer import Stack
from clearhead.serve.errors import GoneError, JSONDict
from clearhead.serve.explorer.cost import check_num_tokens
from clearhead.serve.explorer.requests import (
    EditableRequest,
    Edits,
    LensInputs,
    ModelInputs,
    RunRequest,
    build_edits,
)
from clearhead.serve.explorer.serialize import describe_tokens, finite_or_none
from clearhead.serve.limits import Limits
from clearhead.serve.registry import LoadedModel

MAX_RUN_BYTES = 1 << 30  # of cached runs
MAX_RECOMPUTED_BYTES = 256 << 20  # of cached recomputed activations
NUM_TOP_ANSWERS = 10
ENCODER_PREFIX = "encoder."
RESIDUAL_NAMES = ("full_embed", "blocks.*.resid_post", "final_norm")  # kept by every trace

CacheValue = TypeVar("CacheValue")


# Traces


class Trace:
    """A forward pass that keeps the residual stream only and recomputes other activations.

    A model with 12 layers and 12 heads has 600 MB of attention patterns at 1,024 tokens, but only
    38 MB of residual stream. Everything inside a block follows from the stream that enters it, by
    running the block again with the same edits. Values have no batch dimension.
    """

    def __init__(self, model: Model, batch: Batch, edits: Edits | None = None) -> None:
        if len(batch.inputs) != 1:
            raise ClearheadError(f"A run needs a single text, got {len(batch.inputs)}.")
        self._model = weakref.ref(model)
        self.batch = batch
        self.edits = edits or {}
        for name in self.edits:
            matching_names(model.config.model, name)  # raises if unknown
        names = list(RESIDUAL_NAMES)
        if batch.source is not None:
            names += [ENCODER_PREFIX + name for name in RESIDUAL_NAMES]
        recorder = self._recorder(names)
        with _eager_no_grad():
            model.run_batch(batch, recorder)
        self.residuals = recorder.values
        self.last_logits = self._compute_logits(-1)

    @property
    def model(self) -> Model:
        """The model, unless it was evicted: a run does not keep it alive."""
        model = self._model()
        if model is None:
            raise GoneError("The model of this run is no longer loaded.")
        return model

    def belongs_to(self, model: Model) -> bool:
        return self._model() is model

    @property
    def config(self) -> c.ModelConfig:
        return self.model.config.model

    @property
    def is_pooled(self) -> bool:
        """Whether the head has one output per text."""
        return has_pooled_head(self.config)

    @cached_property
    def activations(self) -> Mapping[str, ActivationInfo]:
        return activation_table(self.config)

    @property
    def nbytes(self) -> int:
        inputs = [value for value in vars(self.batch).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in (*self.residuals.values(), self.last_logits, *inputs))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an activation without its batch dimension, known before it is computed."""
        m = self.config
        dimensions = self._info(name).shape.split()[1:]
        target_length = self.residuals["full_embed"].shape[1]
        source = self.residuals.get(f"{ENCODER_PREFIX}full_embed")
        source_length = source.shape[1] if source is not None else 0
        length = source_length if name.startswith(ENCODER_PREFIX) else target_length
        sizes = {
            "seq": length,
            "query": length,
            "key": source_length if ".cross_attn." in name else length,
            "head": m.attention.n_heads,
            "kv_head": m.n_kv_heads,
            "d_head": m.d_head,
            "d_model": m.d_model,
            "d_ff": m.d_ff,
            "vocab_size": m.vocab_size,
            "num_labels": self.last_logits.shape[-1],
        }
        return tuple(sizes[dimension] for dimension in dimensions)

    def stack(self, name: str) -> Stack:
        """The stack of blocks that an activation belongs to."""
        net = self.model.net
        return net.encoder if name.startswith(ENCODER_PREFIX) and net.encoder is not None else net

    def value(self, name: str) -> Tensor:
        """An activation of this run."""
        return self.values([name])[name]

    def values(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Several activations of one block (or outside of blocks), from one pass."""
        names = list(names)
        for name in names:
            self._info(name)
        values = {name: self.residuals[name] for name in names if name in self.residuals}
        missing = [name for name in names if name not in values]
        if missing:
            with _eager_no_grad():
                values |= self._recompute(missing)
        return {name: values[name][0] for name in names}

    @staticmethod
    def select_head(value: Tensor, head: int | None, name: str) -> Tensor:
        if head is None:
            return value
        if value.dim() != 3:
            raise ClearheadError(f"{name} has no heads; remove head={head}.")
        if not 0 <= head < len(value):
            raise ClearheadError(f"head must be below {len(value)} for {name}, got {head}.")
        return value[head]

    def logits(self, token: int = -1) -> Tensor:
        """Logits at one token, or of the whole text for a pooled head."""
        if isinstance(self.config.head, c.NoHead):
            raise ClearheadError("This model has no head, so it has no logits.")
        length = self.residuals["final_norm"].shape[1]
        if not -length <= token < length:
            raise ClearheadError(f"token must be between 0 and {length - 1}, got {token}.")
        is_last = self.is_pooled or token % length == length - 1
        return self.last_logits if is_last else self._compute_logits(token)

    def _compute_logits(self, token: int) -> Tensor:
        hidden = self.residuals["final_norm"]
        with _eager_no_grad():
            if self.is_pooled:
                return self._apply_head(hidden)[0].float()
            if "logits" in self.edits:  # an edit of one token needs all tokens
                return self._apply_head(hidden)[0, token].float()
            token %= hidden.shape[1]
            return self._apply_head(hidden[:, token : token + 1])[0, 0].float()

    def _info(self, name: str) -> ActivationInfo:
        if name not in self.activations:
            hint = suggest(name, self.activations)
            raise ClearheadError(f"{name!r:.60} is not an activation of this model; {hint}")
        return self.activations[name]

    def _recorder(self, names: Iterable[str]) -> Recorder:
        return Recorder(names, {name: checked_edit(edit) for name, edit in self.edits.items()})

    def _apply_head(self, hidden: Tensor) -> Tensor:
        return self.model.net.compute_logits(hidden, None, self._recorder(()))

    def _recompute(self, names: list[str]) -> dict[str, Tensor]:
        if names == ["logits"]:
            return {"logits": self._apply_head(self.residuals["final_norm"])}
        recorder = self._recorder(names)
        is_encoder = names[0].startswith(ENCODER_PREFIX)
        hooks = recorder.scope("encoder") if is_encoder else recorder
        stack = self.stack(names[0])
        path = names[0].removeprefix(ENCODER_PREFIX).split(".")
        if path[0] == "blocks":
            self._run_block(stack, int(path[1]), hooks, is_encoder)
        else:
            self._run_embedding(stack, hooks, is_encoder)
        missing = sorted(set(names) - recorder.values.keys())
        if missing:
            raise ClearheadError(f"{', '.join(missing)}: request one block at a time.")
        return recorder.values

    def _run_embedding(self, stack: Stack, hooks: Hooks, is_encoder: bool) -> None:
        inputs = self.batch.source if is_encoder else self.batch.inputs
        assert inputs is not None
        token_type_ids = None if is_encoder else self.batch.token_type_ids
        x = stack.embed(inputs) if token_type_ids is None else stack.embed(inputs, token_type_ids)
        positions, _, _ = stack.positions_and_mask(x, None, None, None)
        stack.embed.add_positions(x, stack.position.embed(positions, x.dtype), hooks)

    def _run_block(self, stack: Stack, layer: int, hooks: Hooks, is_encoder: bool) -> None:
        prefix = ENCODER_PREFIX if is_encoder else ""
        input_name = f"blocks.{layer - 1}.resid_post" if layer else "full_embed"
        x = self.residuals[prefix + input_name]
        encoder_output = None if is_encoder else self.residuals.get(f"{ENCODER_PREFIX}final_norm")
        resume_blocks(stack, x, range(layer, layer + 1), encoder_output, hooks)


@contextmanager
def _eager_no_grad() -> Iterator[None]:
    with torch.no_grad(), force_eager():
        yield


# Runs


@dataclass(frozen=True)
class Run:
    """A request with its trace."""

    id: str
    request: RunRequest
    inputs: ModelInputs
    trace: Trace
    patched_values: dict[str, Tensor]
    model_path: str
    milliseconds: float

    @property
    def nbytes(self) -> int:
        tensors = [
            value
            for value in (*self.inputs.values(), *self.patched_values.values())
            if isinstance(value, Tensor)
        ]
        tensor_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        return self.trace.nbytes + tensor_bytes + self.request.num_chars

    def lens_inputs(self) -> LensInputs:
        """Keyword arguments of functions of the lens, edits included."""
        return {**self.inputs, "edits": self.trace.edits}

    def resolve_token(self, token: int = -1) -> int:
        """The token of the answer for −1: the first mask, else the last token."""
        position = None if token == -1 else token
        return answer_position(self.trace.model.config, self.trace.batch, position)

    def to_dict(self) -> JSONDict:
        """Tokens, activations and top answers of the run."""
        trace = self.trace
        model = trace.model
        batch = trace.batch
        token = self.resolve_token()
        source_tokens = None
        if batch.source is not None:
            source_tokens = describe_trace_tokens(model, batch.source, trace, is_source=True)
        activations = {
            name: {
                "shape": trace.shape(name),
                "formula": info.formula,
                "description": info.description,
            }
            for name, info in trace.activations.items()
        }
        return {
            "id": self.id,
            "tokens": describe_trace_tokens(model, batch.inputs, trace, is_source=False),
            "source_tokens": source_tokens,
            "activations": activations,
            "answer_token": token if token >= 0 else None,
            "top": top_answers(trace, token, NUM_TOP_ANSWERS),
            "milliseconds": round(self.milliseconds, 2),
        }


class LRUCache(Generic[CacheValue]):
    """A thread-safe cache limited by bytes; the newest entry always stays."""

    def __init__(self, max_bytes: int, size: Callable[[CacheValue], int]) -> None:
        self._max_bytes = max_bytes
        self._size = size
        self._num_bytes = 0
        self._entries: OrderedDict[str, CacheValue] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> CacheValue | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: str, value: CacheValue) -> CacheValue:
        with self._lock:
            if key in self._entries:
                self._num_bytes -= self._size(self._entries.pop(key))
            self._entries[key] = value
            self._num_bytes += self._size(value)
            while self._num_bytes > self._max_bytes and len(self._entries) > 1:
                _, evicted = self._entries.popitem(last=False)
                self._num_bytes -= self._size(evicted)
        return value

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


class RunStore:
    """Cached runs and their recomputed activations."""

    def __init__(self, max_length: int = Limits.max_context_length) -> None:
        self.max_length = max_length  # attention patterns need its square
        self._runs: LRUCache[Run] = LRUCache(MAX_RUN_BYTES, lambda run: run.nbytes)
        self._values: LRUCache[Tensor] = LRUCache(
            MAX_RECOMPUTED_BYTES, lambda value: value.untyped_storage().nbytes()
        )

    def get_or_create(self, loaded_model: LoadedModel, request: RunRequest) -> Run:
        """The cached run of a request, or a new one."""
        model = loaded_model.model
        run_id = request.run_id(loaded_model)
        cached = self._runs.get(run_id)
        if cached is not None and cached.trace.belongs_to(model):
            return cached
        patched_values = self._patched_values(loaded_model, request, request.source)
        start = time.perf_counter()
        inputs = request.model_inputs(model)
        batch = model.make_batch(**inputs)
        self.check_length(model, batch)
        trace = Trace(model, batch, build_edits(request.edits, patched_values))
        run = Run(
            id=run_id,
            request=request.without_uploads(),
            inputs=replayable_inputs(batch, inputs),
            trace=trace,
            patched_values=patched_values,
            model_path=loaded_model.path or loaded_model.name,
            milliseconds=1000 * (time.perf_counter() - start),
        )
        return self._runs.put(run_id, run)

    def check_length(self, model: Model, batch: Batch) -> None:
        """Raise an error if the texts are too much for one turn; media have a fixed size."""
        texts = [
            ids
            for ids in (batch.inputs, batch.source)
            if ids is not None and not ids.is_floating_point()
        ]
        check_num_tokens(model, [ids.shape[1] for ids in texts], self.max_length)

    def edits_for(
        self, loaded_model: LoadedModel, request: EditableRequest, source: str | None = None
    ) -> Edits:
        """The edits of a request, for `model.logits(edits=…)`."""
        patched_values = self._patched_values(loaded_model, request, source)
        return build_edits(request.edits, patched_values)

    def _patched_values(
        self, loaded_model: LoadedModel, request: EditableRequest, source: str | None
    ) -> dict[str, Tensor]:
        """Activations of the other text, with a batch dimension."""
        if not request.patched_names:
            return {}
        if not request.patch_from:
            raise ClearheadError("patch_from is required for edits with op 'patch'.")
        return {
            name: self._patch_trace(loaded_model, request, source, name).value(name)[None]
            for name in request.patched_names
        }

    def _patch_trace(
        self,
        loaded_model: LoadedModel,
        request: EditableRequest,
        source: str | None,
        name: str,
    ) -> Trace:
        """The trace of the other text, which is the source if the activation is of the encoder."""
        if name.startswith(ENCODER_PREFIX):
            start_tokens = list(loaded_model.model.config.inference.decoder_start_tokens)
            other = RunRequest(model=request.model, ids=start_tokens, source=request.patch_from)
        else:
            other = RunRequest(model=request.model, text=request.patch_from, source=source)
        return self.get_or_create(loaded_model, other).trace

    def get(self, run_id: str) -> Run:
        run = self._runs.get(run_id)
        if run is None:
            raise GoneError(f"Run {run_id!r:.30} has expired; request it again.")
        return run

    def values(self, run: Run, names: Iterable[str]) -> dict[str, Tensor]:
        """Activations of one block of a run; recomputed ones are cached."""
        names = list(names)
        values = {}
        for name in names:
            value = self._values.get(f"{run.id} {name}")
            if value is not None:
                values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            for name, value in run.trace.values(missing).items():
                values[name] = self._values.put(f"{run.id} {name}", value)
        return values


def replayable_inputs(batch: Batch, inputs: ModelInputs) -> ModelInputs:
    """The same inputs after tokenization and preprocessing, for repeated use."""
    replay: ModelInputs = {"x": None}
    if not batch.inputs.is_floating_point():
        replay["x"] = batch.inputs[0].tolist()
    elif "images" in inputs:
        replay["images"] = batch.inputs[0]
    if batch.source is not None:
        if not batch.source.is_floating_point():
            replay["source"] = batch.source[0].tolist()
        elif "images" in inputs:
            replay["images"] = batch.source[0]
    if "audio" in inputs:
        replay["audio"] = inputs["audio"]
    return replay


def describe_trace_tokens(
    model: Model, ids: Tensor | None, trace: Trace, is_source: bool
) -> list[JSONDict]:
    """Readable tokens of a trace; patches are numbered."""
    assert ids is not None
    if ids.is_floating_point():
        prefix = ENCODER_PREFIX if is_source else ""
        count = trace.residuals[f"{prefix}full_embed"].shape[1]
        return [{"id": None, "text": str(i), "special": False} for i in range(count)]
    return describe_tokens(model.tokenizers[is_source], ids[0].tolist())


def top_answers(trace: Trace, token: int, top_k: int) -> list[JSONDict]:
    """The most likely outputs with probabilities; of a regression head, the predicted value."""
    config = trace.model.config
    if isinstance(config.model.head, c.NoHead):
        return []
    logits = trace.logits(token)
    if isinstance(config.model.head, c.RegressionHead):
        logit = finite_or_none(logits[0])
        return [{"id": 0, "text": "value", "logit": logit, "prob": None, "logprob": None}]
    logits = torch.atleast_2d(logits)[-1].float().cpu()
    logprobs = logits.log_softmax(dim=-1)
    ids = logits.topk(min(top_k, len(logits))).indices.tolist()
    labels = output_labels(config, trace.model.tokenizer, ids)
    return [
        {
            "id": output,
            "text": label,
            "logit": finite_or_none(logits[output]),
            "prob": finite_or_none(logprobs[output].exp()),
            "logprob": finite_or_none(logprobs[output]),
        }
        for output, label in zip(ids, labels, strict=True)
    ]
