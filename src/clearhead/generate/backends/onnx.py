"""ONNX Runtime backend: it computes forward passes; KV caches, sampling and search stay ours."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.generate.text_generation import Generation, TextChunk
from clearhead.generate.translation import Translation
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.model.kv_cache import KeysValues, ModelCache
from clearhead.model.transformer import Transformer

if TYPE_CHECKING:
    from clearhead.api import GenerateOptions, Model, TextInput, TranslateOptions


class ONNXRuntimeModel:
    """A model whose forward passes ONNX Runtime computes, in float32 on the CPU."""

    def __init__(self, model: "Model", folder: Path, dtype: str = "") -> None:
        if dtype not in ("", "float32"):
            raise ClearheadError(f"the onnxruntime backend computes in float32, got dtype {dtype}.")
        net = ONNXTransformer(model.config.model, folder)
        self._model = type(model)(net, model.config, model.tokenizer, model.source_tokenizer)

    def generate(
        self, prompt: "TextInput", max_tokens: int = 40, **options: Unpack["GenerateOptions"]
    ) -> Generation | list[Generation]:
        """`Model.generate` without `edits`."""
        _check_options(options)
        return self._model.generate(prompt, max_tokens, **options)

    def stream(
        self, prompt: "TextInput", max_tokens: int = 40, **options: Unpack["GenerateOptions"]
    ) -> Iterator[TextChunk]:
        """`Model.stream` without `edits`."""
        _check_options(options)
        return self._model.stream(prompt, max_tokens, **options)

    def translate(
        self, texts: "TextInput", num_beams: int = 5, **options: Unpack["TranslateOptions"]
    ) -> Translation | list[Translation]:
        """`Model.translate` without `align` and `edits`."""
        _check_options(options)
        return self._model.translate(texts, num_beams, **options)


def _check_options(options: Mapping[str, object]) -> None:
    for name in ("align", "edits"):
        if options.get(name) is not None:
            raise ClearheadError(
                f"{name} needs activations, which the onnxruntime backend does not expose."
            )


class ONNXFile:
    """An ONNX file, called with tensors by name."""

    def __init__(self, path: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [tensor.name for tensor in self.session.get_inputs()]

    def __call__(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        arrays = {name: tensors[name].contiguous().numpy() for name in self.inputs}
        return [torch.from_numpy(array) for array in self.session.run(None, arrays)]


class ONNXTransformer(Transformer):
    """The network in a folder written by `weights.export_onnx`, for text generation.

    Its forward pass returns logits, which `compute_logits` passes on. Its `encode` returns what
    cross-attention reads: the keys and values of all layers for each source token.
    """

    def __init__(self, m: c.ModelConfig, folder: Path) -> None:
        nn.Module.__init__(self)  # the layers are in the files
        self.config = m
        self.context_length = m.context_length
        self.is_causal = True
        # The device and dtype of the inputs are those of the first parameter.
        self.dtype_anchor = nn.Parameter(torch.empty(0), requires_grad=False)
        has_encoder = isinstance(m.architecture, c.EncoderDecoder)
        self.encoder_file = ONNXFile(folder / "encoder_model.onnx") if has_encoder else None
        self.file = ONNXFile(folder / ("decoder_model.onnx" if has_encoder else "model.onnx"))

    def encode(
        self, source: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        assert self.encoder_file is not None
        mask = _attention_mask(segment_ids, *source.shape[:2])
        inputs = {"attention_mask": mask, self.encoder_file.inputs[0]: source}
        _, *keys_values = self.encoder_file(inputs)
        return torch.cat([x.transpose(1, 2).flatten(2) for x in keys_values], dim=-1)

    def forward(
        self,
        tokens: Tensor,
        *,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        source: Tensor | None = None,
        source_segment_ids: Tensor | None = None,
        encoder_output: Tensor | None = None,
        cache: ModelCache | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> Tensor:
        count, num_new = tokens.shape
        is_cached = cache is not None
        if source is not None:
            encoder_output = self.encode(source, source_segment_ids)
        cache = cache or self.init_cache(count, num_new)
        rows = cache.rows
        num_past = rows.max_length
        past_mask = torch.arange(num_past) < rows.lengths[:count, None]
        inputs = {"input_ids": tokens, "position_ids": rows.begin_step(count, num_new, segment_ids)}
        new_mask = _attention_mask(segment_ids, count, num_new)
        inputs["attention_mask"] = torch.cat((past_mask.long(), new_mask), dim=1)
        side = ""
        if encoder_output is not None:
            # Without a cache, padding comes after all tokens, which do not attend to it.
            if is_cached and segment_ids is not None and not bool(segment_ids.all()):
                raise ClearheadError(
                    "the onnxruntime backend needs outputs that start at the same position; "
                    "translate texts with different prefixes one by one."
                )
            side = ".decoder"
            beams = count // len(encoder_output)
            source_mask = _attention_mask(source_segment_ids, *encoder_output.shape[:2])
            inputs["encoder_attention_mask"] = source_mask.repeat_interleave(beams, 0)
            for i, (_, cross) in enumerate(cache.layers):
                keys, values = cross(self._layer_keys_values, encoder_output, i)
                name = f"past_key_values.{i}.encoder"
                inputs[f"{name}.key"] = keys.repeat_interleave(beams, 0)
                inputs[f"{name}.value"] = values.repeat_interleave(beams, 0)
        for i, (own, _) in enumerate(cache.layers):
            name = f"past_key_values.{i}{side}"
            inputs[f"{name}.key"] = own.keys[:count, :, :num_past]
            inputs[f"{name}.value"] = own.values[:count, :, :num_past]
        logits, *present = self.file(inputs)
        new = [x[:, :, num_past:] for x in present]
        for i, (own, _) in enumerate(cache.layers):
            own(lambda i=i: (new[2 * i], new[2 * i + 1]))
        rows.end_step(num_new if segment_ids is None else (segment_ids != 0).sum(dim=1))
        return logits

    def compute_logits(
        self, hidden: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return hidden

    def _layer_keys_values(self, encoder_output: Tensor, layer: int) -> KeysValues:
        m = self.config
        layers = encoder_output.unflatten(-1, (m.n_layers, 2, m.n_kv_heads, m.d_head))
        keys, values = layers[:, :, layer].unbind(2)
        return keys.transpose(1, 2), values.transpose(1, 2)


def _attention_mask(segment_ids: Tensor | None, rows: int, tokens: int) -> Tensor:
    if segment_ids is None:
        return torch.ones(rows, tokens, dtype=torch.long)
    return (segment_ids != 0).long()
