"""A stage of the small model on one rank: the groups of its layout, and its share of every layer.

Layers are split with torch's own parts; optimizer states, and with ZeRO-2 gradients, by our Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ddlnb.parallelism.executed import model as context
from ddlnb.parallelism.executed.counting import local_of
from ddlnb.parallelism.executed.model import Block, Embedding, Experts, Head, by_scores, recomputed
from ddlnb.parallelism.layout import Layout, groups, position
from ddlnb.parallelism.model import Transformer


@dataclass
class Mesh:
    """One rank's groups by axis, made when first asked for: every rank must ask alike."""

    layout: Layout
    rank: int
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    _whole: DeviceMesh | None = None

    @property
    def where(self) -> dict[str, int]:
        """Where this rank stands on every axis."""
        return position(self.layout, self.rank)

    def members(self, axis: str) -> tuple[int, ...]:
        """Return the ranks of this rank's group along an axis."""
        return next(group for group in groups(self.layout, axis) if self.rank in group)

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return this rank's process group along an axis."""
        if axis not in self._groups:
            made = [(ranks, dist.new_group(list(ranks))) for ranks in groups(self.layout, axis)]
            self._groups[axis] = next(group for ranks, group in made if self.rank in ranks)
        return self._groups[axis]

    def device_mesh(self, axis: str) -> DeviceMesh:
        """Return the ranks along an axis as torch's parallel parts want them.

        All are slices of one mesh, so that tensor parallelism and FSDP can be combined.
        """
        if self._whole is None:
            outer_first = self.layout.order[::-1]
            sizes = tuple(getattr(self.layout, one) for one in outer_first)
            self._whole = init_device_mesh("cpu", sizes, mesh_dim_names=outer_first)
        if axis != "data":
            return self._whole[axis]
        both = tuple(one for one in self.layout.order[::-1] if one in ("dp", "cp"))
        return self._whole["dp"] if self.layout.cp == 1 else self._whole[both]._flatten("data")


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
    plan: dict[str, ParallelStyle]
    if isinstance(layer, Embedding):
        plan = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
    elif isinstance(layer, Head):
        plan = {
            "logits": ColwiseParallel(
                input_layouts=between, output_layouts=Shard(-1), use_local_output=False
            )
        }
    else:
        plan = {
            **{"attention.qkv": enter, "attention.out": leave},
            **{"feed_forward.up": enter, "feed_forward.down": leave},
        }
    if is_sequence:
        norms = [name for name, one in layer.named_modules() if isinstance(one, nn.LayerNorm)]
        plan |= {name: SequenceParallel(use_local_output=True) for name in norms}
    parallelize_module(layer, mesh.device_mesh("tp"), plan)


class ShardedAdam:
    """ZeRO-1 and ZeRO-2 (arXiv 1910.02054) over one flat vector of all parameters.

    Each rank averages, keeps and updates its shard, and gathers those of the others. With ``zero``
    2 the gradients of every micro batch go straight into the shard, and no rank keeps whole ones.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        zero: int,
        rate: float,
        epsilon: float,
    ):
        self.parameters, self.group, self.zero = list(parameters), group, zero
        self.locals = [local_of(one.detach()) for one in self.parameters]  # same storage
        self.ranks = dist.get_world_size(group)
        self.elements = sum(one.numel() for one in self.locals)
        self.padding = -self.elements % self.ranks
        own = self._flat(self.locals).chunk(self.ranks)
        self.shard = own[dist.get_rank(group)].clone()
        self.shard.grad = torch.zeros_like(self.shard) if zero == 2 else None
        self.adam = torch.optim.Adam([self.shard], lr=rate, eps=epsilon)

    def micro_batch_is_done(self) -> None:
        """Add the gradients to the shard and let go of them, with ZeRO-2."""
        if self.zero == 2:
            assert self.shard.grad is not None
            self.shard.grad += self._scattered()
            for one in self.parameters:
                one.grad = None

    def step(self) -> None:
        """Average gradients, update the shard and gather all parameters."""
        if self.zero == 1:
            self.shard.grad = self._scattered()
        self.adam.step()
        gathered = self.shard.new_empty(self.elements + self.padding)
        dist.all_gather_into_tensor(gathered, self.shard, group=self.group)
        parts = unflattened(gathered[: self.elements], self.locals)
        for one, values in zip(self.locals, parts, strict=True):
            one.copy_(values)

    def zero_grad(self) -> None:
        """Forget all gradients; the shard of ZeRO-2 starts again from 0."""
        for one in self.parameters:
            one.grad = None
        self.shard.grad = torch.zeros_like(self.shard) if self.zero == 2 else None

    def gradient_bytes(self) -> int:
        """Return the bytes of gradients that outlive a backward pass."""
        whole = [local_of(one.grad) for one in self.parameters if one.grad is not None]
        kept = [self.shard.grad] if self.zero == 2 and self.shard.grad is not None else whole
        return sum(one.nbytes for one in kept)

    def _scattered(self) -> Tensor:
        """Return this rank's shard of the average gradients."""
        gradients = self._flat([_gradient(one) for one in self.parameters])
        shard = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(shard, gradients, group=self.group)
        return shard / self.ranks

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        parts = [one.flatten() for one in tensors]
        return torch.cat([*parts, parts[0].new_zeros(self.padding)])


def unflattened(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of one flat vector in the shapes of these tensors."""
    parts = flat.split([one.numel() for one in tensors])
    return [values.view_as(one) for one, values in zip(tensors, parts, strict=True)]


def _gradient(parameter: nn.Parameter) -> Tensor:
    own = local_of(parameter.detach())
    return torch.zeros_like(own) if parameter.grad is None else local_of(parameter.grad)
