"""A network whose passes onnxruntime computes; all around it stays ours: the memory, sampling, beams."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.hooks import NO_HOOKS, Hooks
from clearhead.model.kv_cache import KeysValues, ModelCache
from clearhead.model.transformer import Transformer


class ONNXFile:
    """An ONNX file that is called with tensors by name and gives tensors."""

    def __init__(self, path: Path) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [given.name for given in self.session.get_inputs()]

    def __call__(self, given: dict[str, Tensor]) -> list[Tensor]:
        arrays = {name: given[name].contiguous().numpy() for name in self.inputs}
        return [torch.from_numpy(made) for made in self.session.run(None, arrays)]


class ONNXTransformer(Transformer):
    """The network of a folder that `weights.onnx` wrote, for texts to be written with.

    A pass gives logits, which stand for hidden states and are left as they are by `predict`. What `encode` gives is
    what cross-attention reads of each token of the source: the keys and values of all layers.
    """

    def __init__(self, m: c.ModelConfig, folder: Path) -> None:
        nn.Module.__init__(self)  # the layers are in the files
        self.config = m
        self.context_length = m.context_length
        self.is_causal = True
        self.dtype_anchor = nn.Parameter(
            torch.empty(0), requires_grad=False
        )  # tells where and in which dtype it computes
        both = isinstance(m.architecture, c.EncoderDecoder)
        self.source_file = ONNXFile(folder / "encoder_model.onnx") if both else None
        self.file = ONNXFile(folder / ("decoder_model.onnx" if both else "model.onnx"))

    def encode(
        self, source: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        assert self.source_file is not None  # only an encoder-decoder is asked
        given = {
            "attention_mask": _real(segment_ids, *source.shape[:2]),
            self.source_file.inputs[0]: source,
        }
        _, *keys_values = self.source_file(given)
        return torch.cat([x.transpose(1, 2).flatten(2) for x in keys_values], dim=-1)

    def forward(
        self,
        tokens: Tensor,
        *,
        segment_ids: Tensor | None = None,
        encoder_output: Tensor | None = None,
        source_segment_ids: Tensor | None = None,
        cache: ModelCache | None = None,
        **others: Any,
    ) -> Tensor:
        count, new = tokens.shape
        cache = cache or self.init_cache(count, new)
        rows = cache.rows
        past = cache.rows.max_length
        held = torch.arange(past) < rows.lengths[:count, None]
        given = {"input_ids": tokens, "position_ids": rows.begin_step(count, new, segment_ids)}
        given["attention_mask"] = torch.cat((held.long(), _real(segment_ids, count, new)), dim=1)
        side = ""
        if encoder_output is not None:
            if segment_ids is not None and not bool(segment_ids.all()):
                raise ClearheadError(
                    "onnxruntime begins all outputs of a batch at one place; give them one by one."
                )
            side = ".decoder"
            beams = count // len(encoder_output)
            given["encoder_attention_mask"] = _real(
                source_segment_ids, *encoder_output.shape[:2]
            ).repeat_interleave(beams, 0)
            for i, (_, cross) in enumerate(cache.layers):
                for name, x in zip(
                    ("key", "value"), cross(self._of_layer, encoder_output, i), strict=True
                ):
                    given[f"past_key_values.{i}.encoder.{name}"] = x.repeat_interleave(beams, 0)
        for i, (own, _) in enumerate(cache.layers):
            given[f"past_key_values.{i}{side}.key"] = own.keys[:count, :, :past]
            given[f"past_key_values.{i}{side}.value"] = own.values[:count, :, :past]
        logits, *made = (x if i == 0 else x[:, :, past:] for i, x in enumerate(self.file(given)))
        for (own, _), keys, values in zip(cache.layers, made[::2], made[1::2], strict=True):
            own(lambda pair=(keys, values): pair)
        rows.end_step(new if segment_ids is None else (segment_ids != 0).sum(dim=1))
        return logits

    def compute_logits(
        self, hidden: Tensor, segment_ids: Tensor | None = None, hooks: Hooks = NO_HOOKS
    ) -> Tensor:
        return hidden

    def _of_layer(self, encoded: Tensor, layer: int) -> KeysValues:
        m = self.config
        parts = encoded.unflatten(-1, (m.n_layers, 2, m.n_kv_heads, m.d_head))[:, :, layer]
        return parts[:, :, 0].transpose(1, 2), parts[:, :, 1].transpose(1, 2)


def _real(segment_ids: Tensor | None, rows: int, tokens: int) -> Tensor:
    return (
        torch.ones(rows, tokens, dtype=torch.long)
        if segment_ids is None
        else (segment_ids != 0).long()
    )
