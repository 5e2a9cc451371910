"""A forward pass that resumes from the residual stream of any layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.hooks import Edit, Hooks, Recorder, force_eager
from clearhead.lens.activation_cache import check_no_nan
from clearhead.lens.argument_checks import check_single_text
from clearhead.lens.edits import checked_edit
from clearhead.lens.hook_points import activation_table, has_pooled_head, is_source_activation
from clearhead.model.attention import NO_MASK
from clearhead.model.kv_cache import NO_CACHE
from clearhead.model.transformer import Block, BlockInputs, Stack, Transformer

NamedEdit = tuple[str, Edit]  # an activation and its edit


def resume_blocks(
    stack: Stack, x: Tensor, layers: range, encoder_output: Tensor | None, hooks: Hooks
) -> Tensor:
    """Run some blocks of a stack from the residual stream before them, without a cache."""
    position_ids, key_positions, mask = stack.positions_and_mask(x, None, None, None)
    n_layers = len(stack.blocks)
    positions = stack.position.layer_positions(position_ids, key_positions, n_layers)
    for i in layers:
        block = stack.blocks[i]
        assert isinstance(block, Block)
        inputs = BlockInputs(positions[i], mask, NO_CACHE, encoder_output, NO_MASK, NO_CACHE)
        x = block(x, inputs, hooks.scope("blocks", i))
    return x


class ResumableForward:
    """A forward pass of one text that keeps the residual stream before every block."""

    def __init__(self, net: Transformer, batch: Batch) -> None:
        check_single_text(batch.inputs)
        self.net = net
        self.batch = batch
        self.n_layers = net.config.n_layers
        last = f"blocks.{self.n_layers - 1}.resid_post"
        recorder = Recorder(("blocks.*.resid_pre", last))
        with torch.no_grad(), force_eager():
            self.encoder_output = None if batch.source is None else net.encode(batch.source)
            hidden = net(
                batch.inputs,
                token_type_ids=batch.token_type_ids,
                encoder_output=self.encoder_output,
                hooks=recorder,
            )
            self.logits = net.compute_logits(hidden)[0].float()
        check_no_nan({"the logits": self.logits})
        self.residuals = [recorder.values[f"blocks.{i}.resid_pre"] for i in range(self.n_layers)]
        self.residuals.append(recorder.values[last])

    def axis_sizes(self, name: str) -> dict[str, int]:
        """The number of heads (if it has any) and positions of an activation."""
        m = self.net.config
        dimensions = activation_table(m)[name].shape.split()
        tokens = self.residuals[0]
        if is_source_activation(m, name) and self.encoder_output is not None:
            tokens = self.encoder_output
        sizes = {"position": tokens.shape[1]}
        if "head" in dimensions:
            sizes["head"] = m.attention.n_heads
        elif "kv_head" in dimensions:
            sizes["head"] = m.n_kv_heads
        return sizes

    def first_block(self, name: str) -> int:
        """The block to resume from after an edit of this activation; −1 for the very beginning."""
        first, _, rest = name.partition(".")
        if first == "blocks":
            return int(rest.partition(".")[0])
        return self.n_layers if name == "final_norm" else -1

    @torch.no_grad()
    def run_edited(self, start: int, edits: Sequence[NamedEdit], position: int) -> Tensor:
        """The logits at a position (or of the whole text) after each edit: row × outputs."""
        hooks = Recorder(edits=edits_by_row(edits))
        num_rows = len(edits)
        with force_eager():
            if start < 0:
                hidden = self.net(
                    _repeat(self.batch.inputs, num_rows),
                    token_type_ids=_repeat_optional(self.batch.token_type_ids, num_rows),
                    source=_repeat_optional(self.batch.source, num_rows),
                    hooks=hooks,
                )
            else:
                x = resume_blocks(
                    self.net,
                    _repeat(self.residuals[start], num_rows),
                    range(start, self.n_layers),
                    _repeat_optional(self.encoder_output, num_rows),
                    hooks,
                )
                hidden = hooks("final_norm", self.net.final_norm(x))
            if has_pooled_head(self.net.config):
                return self.net.compute_logits(hidden).float()
            return self.net.compute_logits(hidden[:, position : position + 1])[:, 0].float()


def _repeat(x: Tensor, num_rows: int) -> Tensor:
    return x.expand(num_rows, *x.shape[1:])


def _repeat_optional(x: Tensor | None, num_rows: int) -> Tensor | None:
    return None if x is None else _repeat(x, num_rows)


def edits_by_row(edits: Sequence[NamedEdit]) -> dict[str, Edit]:
    """One edit for each name, which applies the edit of each row to that row only."""
    grouped: dict[str, list[tuple[int, Edit]]] = {}
    for row, (name, edit) in enumerate(edits):
        grouped.setdefault(name, []).append((row, checked_edit(edit)))

    def edit_rows(row_edits: list[tuple[int, Edit]]) -> Edit:
        def edit(value: Tensor, name: str) -> Tensor:
            edited = _repeat(value, len(edits)).clone()  # position embeddings may be a single row
            for row, row_edit in row_edits:
                own = value[row : row + 1] if len(value) > 1 else value
                edited[row : row + 1] = row_edit(own, name)
            return edited

        return edit

    return {name: edit_rows(row_edits) for name, row_edits in grouped.items()}
