"""A stage of the small model, split as a layout says, with torch's own parts."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ddlnb.parallelism.executed import context
from ddlnb.parallelism.executed.experts import Experts
from ddlnb.parallelism.executed.mesh import Mesh
from ddlnb.parallelism.executed.model import Block, Embedding, Head, by_scores, recomputed
from ddlnb.parallelism.transformer import Transformer


class Part(nn.Module):
    """The layers of one chunk of a pipeline stage, by the names that they have in the model."""

    def __init__(self, layers: dict[str, nn.Module]):
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers.values():
            hidden = layer(hidden)
        return hidden


def split(part: Part, shape: Transformer, mesh: Mesh) -> None:
    """Leave this rank its share of a chunk of layers, whatever the layout divides."""
    layout = mesh.layout
    for layer in part.layers.values():
        if isinstance(layer, Block):
            _split_block(layer, shape, mesh)
        if isinstance(layer, Embedding):
            layer.first = _first_token(shape, mesh)
        if layout.tp > 1:
            _split_matrices(layer, mesh)
        if layout.zero == 3:
            data = mesh.device_mesh("data")
            fully_shard(layer, mesh=data, reshard_after_forward=True)


def _split_block(block: Block, shape: Transformer, mesh: Mesh) -> None:
    layout, attention = mesh.layout, block.attention
    if layout.recomputation == "selective":
        attention.core = recomputed(by_scores)
    block.is_recomputed = layout.recomputation == "full"
    if layout.cp > 1:
        group, core = mesh.group("cp"), attention.core
        if layout.context == "ring":
            attention.core = partial(context.ring, group=group)
        else:
            attention.core = partial(context.by_heads, group=group, core=core)
    if layout.ep > 1 and isinstance(block.feed_forward, Experts):
        block.feed_forward.share(mesh.group("ep"))


def _first_token(shape: Transformer, mesh: Mesh) -> int:
    """Return the position of the first token that this rank embeds."""
    layout, where = mesh.layout, mesh.where
    tokens = shape.sequence // layout.cp
    inside = tokens // layout.tp * where["tp"] if layout.sequence_parallel else 0
    return where["cp"] * tokens + inside


def _split_matrices(layer: nn.Module, mesh: Mesh) -> None:
    """Divide heads, inner rows and vocabulary; with sequence parallelism also what is between."""
    is_sequence = mesh.layout.sequence_parallel
    between = Shard(1) if is_sequence else Replicate()
    enter = ColwiseParallel(input_layouts=between)
    leave = RowwiseParallel(output_layouts=between)
    plan: dict[str, ParallelStyle] = {}
    if isinstance(layer, Embedding):
        tokens = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        plan["tokens"] = tokens
    elif isinstance(layer, Head):
        logits = ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        )
        plan["logits"] = logits
    else:
        plan |= {"attention.qkv": enter, "attention.out": leave}
        plan |= {"feed_forward.up": enter, "feed_forward.down": leave}
    if is_sequence:
        norms = [name for name, one in layer.named_modules() if isinstance(one, nn.LayerNorm)]
        plan |= {name: SequenceParallel(use_local_output=True) for name in norms}
    parallelize_module(layer, mesh.device_mesh("tp"), plan)
