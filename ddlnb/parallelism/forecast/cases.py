"""Which pipeline stage holds how many layers: dealt evenly, or by what they cost.

Cases: many models, machines and layouts as columns of numbers, forecast all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS
from ddlnb.parallelism.layout import SCHEDULES

ROUNDING = 1e-9


@dataclass(frozen=True)
class Dealt:
    """Arrays (cases, stages): layers, heads (0 or 1) and embeddings; 0 where there is no stage."""

    layers: NDArray[np.float64]
    heads: NDArray[np.float64]
    embeddings: NDArray[np.float64]
    parameters: NDArray[np.float64]


def dealt(
    layers: NDArray[np.float64],
    pp: NDArray[np.float64],
    layer_parameters: NDArray[np.float64],
    held_parameters: NDArray[np.float64],
    head_parameters: NDArray[np.float64],
    tied: NDArray[np.float64],
    by_cost: NDArray[np.bool_],
) -> Dealt:
    """Deal the layers of many cases. A tied embedding is a tensor of its own on another stage.

    ``layer_parameters`` are those that a token meets, ``held_parameters`` those that ranks hold.
    """
    head_share = np.round(head_parameters / layer_parameters, 6)
    keys = np.stack([layers, pp, head_share, by_cost], axis=1)
    kinds, which = np.unique(keys, axis=0, return_inverse=True)
    held, heads = np.zeros((2, len(kinds), int(pp.max())))
    for row, (count, stages, head, costs) in enumerate(kinds):
        deal = deal_by_cost if costs else deal_evenly
        held[row, : int(stages)], heads[row, : int(stages)] = deal(
            int(count), int(stages), float(head)
        )
    held, heads = held[which.ravel()], heads[which.ravel()]
    embeddings = np.zeros_like(held)
    embeddings[:, 0] = 1 - tied * (pp == 1)
    parameters = held * held_parameters[:, None] + (heads + embeddings) * head_parameters[:, None]
    return Dealt(held, heads, embeddings, parameters)


@lru_cache(maxsize=4096)
def deal_by_cost(layers: int, pp: int, head: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return layers and heads of every stage as nanotron deals them.

    The head counts as ``head`` layers. A stage takes blocks until the cost of all so far reaches
    its share of the whole; the block that reaches it is still its own (nanotron, ``build_model``).

    >>> deal_by_cost(16, 4, 4.0)
    ((5, 5, 5, 1), (0, 0, 0, 1))
    """
    whole, so_far, stage = layers + head, 0.0, 0
    held, heads = [0] * pp, [0] * pp
    for block in range(layers + 1):
        is_head = block == layers
        (heads if is_head else held)[stage] += 1
        so_far += head if is_head else 1
        if so_far >= whole * (stage + 1) / pp * (1 - ROUNDING):
            stage = min(stage + 1, pp - 1)
    return tuple(held), tuple(heads)


@lru_cache(maxsize=4096)
def deal_evenly(layers: int, pp: int, head: float = 0.0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return layers and heads of every stage, one layer more on middle stages where any are left.

    >>> deal_evenly(30, 4)
    ((7, 8, 8, 7), (0, 0, 0, 1))
    """
    each, left = divmod(layers, pp)
    held = [each] * pp
    for extra in range(left):
        held[-2 - extra if pp > 1 else 0] += 1
    return tuple(held), (*[0] * (pp - 1), 1)


Column = NDArray[np.float64]
GPIPE, ZERO_BUBBLE = SCHEDULES.index("gpipe"), SCHEDULES.index("zero-bubble")
NONE, SELECTIVE, FULL = 0, 1, 2  # what is computed again in the backward pass
ATTENTION_MATRICES = 2  # queries and outputs are as wide as the model; keys and values may be less


@dataclass(frozen=True)
class Cases:
    """One column per quantity, one element per case; a single number counts for all cases.

    - layers, hidden, heads, kv_heads, ffn, vocab, sequence: the transformer; ``gated`` 1 for three
      matrices in the feed-forward part, 0 for two; ``tied`` 1 if the head is the embedding;
      experts, top_k: feed-forward parts of a layer, and how many of them a token takes.
    - tp, pp, dp, cp, ep, vpp, schedule, zero, sequence_parallel, recomputation, micro_batch,
      micro_batches:
      as in `Layout`, with recomputation as 0 (none), 1 (selective) or 2 (full), and schedule as an
      index into `SCHEDULES`.
    - overlap: 1 if replicas exchange beside computation, 0 if after it.
    - gpus_per_node; peak, core_peak: FLOP/s of a GPU, and those for the core of attention, which
      is never in fp8; sustained: the share of it that matrices of any size reach; memory,
      memory_bandwidth; inside, across: bytes/s that a GPU sends to others in its node, and a node
      to other nodes, by the line; sockets: what TCP leaves of it, infinite for networks with RDMA.
    - framework: index into `FRAMEWORKS`.
    """

    layers: Column
    hidden: Column
    heads: Column
    kv_heads: Column
    ffn: Column
    vocab: Column
    sequence: Column
    gated: Column
    tied: Column
    experts: Column
    top_k: Column
    tp: Column
    pp: Column
    dp: Column
    cp: Column
    ep: Column
    vpp: Column
    schedule: Column
    overlap: Column
    zero: Column
    sequence_parallel: Column
    recomputation: Column
    micro_batch: Column
    micro_batches: Column
    gpus_per_node: Column
    peak: Column
    core_peak: Column
    sustained: Column
    memory: Column
    memory_bandwidth: Column
    inside: Column
    across: Column
    sockets: Column
    framework: Column

    @classmethod
    def of(cls, **columns: Any) -> Cases:
        """Return cases of these columns, numbers repeated. Raises InputError if lengths differ."""
        missing = {field.name for field in fields(cls)} - set(columns)
        require(not missing, f"cases lack the columns {', '.join(sorted(missing))}; give them")
        arrays = {name: np.asarray(column, dtype=float) for name, column in columns.items()}
        try:
            wide = np.broadcast_arrays(*arrays.values(), np.zeros(1))[:-1]
        except ValueError as error:
            sizes = {array.size for array in arrays.values()}
            raise InputError(
                f"columns of cases have the lengths {sorted(sizes)}; use one"
            ) from error
        return cls(**dict(zip(arrays, wide, strict=True)))

    def __len__(self) -> int:
        return len(self.layers)

    def select(self, which: NDArray[Any]) -> Cases:
        """Return the cases of a mask, or of indices."""
        return Cases(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @cached_property
    def gpus(self) -> Column:
        """GPUs of all ranks."""
        return self.tp * self.pp * self.dp * self.cp

    @cached_property
    def nodes(self) -> Column:
        """Nodes that they fill."""
        return np.ceil(self.gpus / self.gpus_per_node)

    @cached_property
    def replicas(self) -> Column:
        """Ranks that hold the same parameters: they reduce gradients and share what ZeRO shards."""
        return self.dp * self.cp

    @cached_property
    def tokens(self) -> Column:
        """Tokens of a micro batch on one rank."""
        return self.micro_batch * self.sequence / self.cp

    @cached_property
    def step_tokens(self) -> Column:
        """Tokens of a step over all replicas."""
        return self.dp * self.micro_batch * self.micro_batches * self.sequence

    @cached_property
    def layer_parameters(self) -> Column:
        """Parameters in the matrices of a layer that one token meets."""
        return self.attention_parameters + self.top_k * self.expert_parameters

    @cached_property
    def held_layer_parameters(self) -> Column:
        """Parameters of a layer that the ranks of a replica's tensor hold: its share of experts."""
        return self.attention_parameters + self.experts / self.ep * self.expert_parameters

    @cached_property
    def attention_parameters(self) -> Column:
        """Parameters in the matrices around attention."""
        return ATTENTION_MATRICES * self.hidden**2 * (1 + self.kv_heads / self.heads)

    @cached_property
    def expert_parameters(self) -> Column:
        """Parameters of one feed-forward part."""
        return (2 + self.gated) * self.hidden * self.ffn

    @cached_property
    def head_parameters(self) -> Column:
        """Parameters of the head, and of the embedding."""
        return self.hidden * self.vocab

    @cached_property
    def parameters(self) -> Column:
        """Parameters of the model, but for norms and biases."""
        layer = self.attention_parameters + self.experts * self.expert_parameters
        return self.layers * layer + (2 - self.tied) * self.head_parameters

    @cached_property
    def stages(self) -> Dealt:
        """Layers, heads and parameters of every pipeline stage: arrays (cases, stages)."""
        by_cost = np.array([framework.deals_by_cost for framework in FRAMEWORKS])
        return dealt(
            self.layers,
            self.pp,
            self.layer_parameters,
            self.held_layer_parameters,
            self.head_parameters,
            self.tied,
            by_cost[self.framework.astype(int)],
        )

    @property
    def model_flops(self) -> Column:
        """FLOPs per token, forward and backward, without what is computed again.

        6 per parameter in matrices, the head included, and 6 s h per layer for causal attention
        (half of the 12 s h of arXiv 2104.04473, equation 2, which counts the masked half).
        """
        matrices = self.layers * self.layer_parameters + self.head_parameters
        return 6 * matrices + 6 * self.layers * self.sequence * self.hidden
