"""Cases: many models, machines and layouts as columns of numbers, forecast all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require
from ddlnb.hardware.gpu import Gpu
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, core_share, sustained_share
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.partition import even_partition

Column = NDArray[np.float64]
Names = NDArray[np.str_]
ROUNDING = 1e-9
NONE, SELECTIVE, FULL = RECOMPUTATIONS = 0, 1, 2  # what is computed again in the backward pass
NAMED = ("schedule", "framework")  # columns of names
# Columns that may be left out, and what they are then.
DESCRIBED = dict.fromkeys(
    ("dense", "expert", "core", "sent", "shared", "parts", "attending", "mixed"), math.nan
)
UNUSUAL = {"adapters": 0.0, "shard": 0.0}  # are left out where there are none
USUAL_HOP = 7e-6  # of InfiniBand (data/hardware/protocols.yaml), where none is said
NEWER = ("Hopper", "Blackwell")  # and what is like them
# What kernels of a state space move per element of its width beside its gate, in terms of what
# kernels of attention move per element of the model's: by a count of mamba_ssm's kernels 12 to 17
# elements read and written forward, 2.5 times as many backward, less the gate's.
SCANNED = 0.7
ATTENTION_MATRICES = 2  # queries and outputs are as wide as the model; keys and values may be less


@dataclass(frozen=True)
class Cases:
    """One column per quantity, one element per case; a single number counts for all cases.

    - layers, hidden, heads, kv_heads, ffn, vocab, sequence: the transformer; ``gated`` 1 for three
      matrices in the feed-forward part, 0 for two; ``tied`` 1 if the head is the embedding;
      experts, top_k: feed-forward parts of a layer, and how many of them a token takes, each
      ``ffn`` wide (a mean over layers, with a share of what all tokens meet besides).
    - tp, pp, dp, cp, ep, vpp, schedule, zero, shard, sequence_parallel, recomputation, micro_batch,
      micro_batches: as in `Layout`, with recomputation as 0 (none), 1 (selective) or 2 (full).
    - overlap: 1 if replicas exchange beside computation, 0 if after it.
    - gpus_per_node; peak, core_peak: FLOP/s of a GPU, and those for the core of attention, which
      is never in fp8; sustained, core_sustained: the shares of them that matrices of any size and
      this core reach; newer: 1 for Hopper and later, whose matrix units have instructions of their
      own; memory,
      memory_bandwidth; inside, across: bytes/s that a GPU sends to others in its node, and a node
      to other nodes, by the line; sockets: what TCP leaves of it, infinite for networks with RDMA;
      hop: seconds of the latency between nodes, by the protocol.
    - framework: by name.
    - dense, expert, core, sent, shared, parts, attending, mixed: of a model whose layers
      `model_columns` describes, means over layers: parameters in matrices that every token meets,
      those of one expert, half the elements that the core of attention multiplies for a token,
      copies of a token that go to experts, elements of its keys and values, parts of a layer, how
      many of them are attention, and how wide is what mixes tokens, attention or a state space.
      NaN: they follow from the sizes.
    - adapters: 1 if only those of low rank are trained (LoRA), and the model is frozen.
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
    schedule: Names
    overlap: Column
    zero: Column
    shard: Column
    sequence_parallel: Column
    recomputation: Column
    micro_batch: Column
    micro_batches: Column
    gpus_per_node: Column
    peak: Column
    core_peak: Column
    sustained: Column
    core_sustained: Column
    newer: Column
    memory: Column
    memory_bandwidth: Column
    inside: Column
    across: Column
    sockets: Column
    hop: Column
    framework: Names
    dense: Column
    expert: Column
    core: Column
    sent: Column
    shared: Column
    parts: Column
    attending: Column
    mixed: Column
    adapters: Column

    @classmethod
    def of(cls, **columns: Any) -> Cases:
        """Return cases of these columns, numbers repeated. Raises InputError if lengths differ."""
        columns = DESCRIBED | UNUSUAL | {"hop": USUAL_HOP} | columns
        missing = {field.name for field in fields(cls)} - set(columns)
        require(not missing, f"cases lack the columns {', '.join(sorted(missing))}; give them")
        arrays = {
            name: np.asarray(column, dtype=str if name in NAMED else float)
            for name, column in columns.items()
        }
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

    @staticmethod
    def all_of(parts: Sequence[Cases]) -> Cases:
        """Return the cases of these, one after the other."""
        names = [field.name for field in fields(Cases)]
        return Cases(**{n: np.concatenate([getattr(one, n) for one in parts]) for n in names})

    @cached_property
    def frameworks(self) -> tuple[list[str], NDArray[np.intp]]:
        """The names of the frameworks, and the place of that of every case among them."""
        names, which = np.unique(self.framework, return_inverse=True)
        return names.tolist(), which.ravel()

    def way(self, what: str) -> NDArray[Any]:
        """Return what the framework of every case says: a field of `Framework`."""
        names, which = self.frameworks
        return np.array([getattr(FRAMEWORKS[name], what) for name in names])[which]

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
    def shards(self) -> Column:
        """Ranks over which ZeRO shards: all replicas, or neighbours among them (HSDP)."""
        return np.where(self.shard > 0, self.shard, self.replicas)

    @cached_property
    def tokens(self) -> Column:
        """Tokens of a micro batch on one rank."""
        return self.micro_batch * self.sequence / self.cp

    @cached_property
    def step_tokens(self) -> Column:
        """Tokens of a step over all replicas."""
        return self.dp * self.micro_batch * self.micro_batches * self.sequence

    @property
    def trained(self) -> Column:
        """1 where the matrices of a model are trained, 0 where only adapters are."""
        return 1 - self.adapters

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
        """Parameters in the matrices that every token meets, such as those around attention."""
        follow = ATTENTION_MATRICES * self.hidden**2 * (1 + self.kv_heads / self.heads)
        return np.where(np.isnan(self.dense), follow, self.dense)

    @cached_property
    def expert_parameters(self) -> Column:
        """Parameters of one feed-forward part that others may stand beside."""
        follow = (2 + self.gated) * self.hidden * self.ffn
        return np.where(np.isnan(self.expert), follow, self.expert)

    @cached_property
    def core_width(self) -> Column:
        """Half the elements that the core of attention multiplies for a token, in a layer."""
        return np.where(np.isnan(self.core), self.sequence * self.hidden, self.core)

    @cached_property
    def sent_copies(self) -> Column:
        """Copies of a token that a layer sends to experts."""
        return np.where(np.isnan(self.sent), self.top_k * (self.experts > 1), self.sent)

    @cached_property
    def shared_width(self) -> Column:
        """Elements of a layer's keys and values for a token, which context parallelism shares."""
        follow = 2 * self.hidden * self.kv_heads / self.heads
        return np.where(np.isnan(self.shared), follow, self.shared)

    @cached_property
    def halves(self) -> Column:
        """Parts of a layer: attention and feed-forward are two, and hybrid models have one."""
        return np.where(np.isnan(self.parts), 2, self.parts)

    @cached_property
    def scoring_heads(self) -> Column:
        """Heads of a layer that score tokens, a mean over layers: a state space has none."""
        return self.heads * np.where(np.isnan(self.attending), 1, self.attending)

    @cached_property
    def mixed_width(self) -> Column:
        """Elements of a token in what mixes tokens, as many as attention's kernels move."""
        return np.where(np.isnan(self.mixed), self.hidden, self.mixed)

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
    def stages(self) -> Stages:
        """Layers, heads and parameters of every pipeline stage: arrays (cases, stages).

        A tied embedding is a tensor of its own on another stage.
        """
        head_share = np.round(self.head_parameters / self.layer_parameters, 6)
        keys = np.stack([self.layers, self.pp, head_share, self.way("layers_by_cost")], axis=1)
        kinds, which = np.unique(keys, axis=0, return_inverse=True)
        held, heads = np.zeros((2, len(kinds), int(self.pp.max())))
        for row, (count, stages, head, by_cost) in enumerate(kinds):
            number = int(stages)
            if by_cost:
                held[row, :number], heads[row, :number] = costly_partition(int(count), number, head)
            else:
                held[row, :number] = even_partition(int(count), number)
                heads[row, number - 1] = 1
        held, heads = held[which.ravel()], heads[which.ravel()]
        embeddings = np.zeros_like(held)
        embeddings[:, 0] = 1 - self.tied * (self.pp == 1)
        others = (heads + embeddings) * self.head_parameters[:, None]
        experts = held * (self.experts / self.ep * self.expert_parameters)[:, None]
        layers = held * self.held_layer_parameters[:, None]
        return Stages(held, heads, layers + others, experts, others, heads + embeddings)

    @property
    def model_flops(self) -> Column:
        """FLOPs per token, forward and backward, without what is computed again.

        6 per parameter in matrices, the head included, and 6 s h per layer for causal attention
        (half of the 12 s h of arXiv 2104.04473, equation 2, which counts the masked half).
        """
        matrices = self.layers * self.layer_parameters + self.head_parameters
        return 6 * matrices + 6 * self.layers * self.core_width


def model_columns(model: Transformer) -> dict[str, Any]:
    """Return the columns of `Cases` that describe a model, means over layers that differ.

    >>> from ddlnb.parallelism.config import get_shape
    >>> found = model_columns(get_shape("llama3-8b"))
    >>> found["dense"] == 2 * 4096**2 * (1 + 8 / 32) + 3 * 4096 * 14336, found["core"]
    (True, 33554432.0)
    """
    blocks, tokens = model.shape.block_layers, model.sequence
    count, experts, top_k = len(blocks), max(1, model.experts), max(1, model.top_k)
    held = [one.elements for block in blocks for one in block.weights if one.split == "expert"]
    expert = sum(held) / (count * experts)
    linear = sum(one.forward_flops - one.core_flops for one in blocks)
    sent = sum(one.dispatched for one in blocks)
    parts = [one.name for block in blocks for one in block.regions]
    attending = [one for one in blocks if "attention" in [part.name for part in one.regions]]
    scanned = sum(one.attention.query for one in blocks if one.attention and one not in attending)
    shared = sum(one.attention.key_value for one in blocks if one.attention)
    return {
        "layers": count, "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads,
        "ffn": sum(one.inner for one in blocks) / (count * top_k), "vocab": model.vocab,
        "sequence": tokens, "gated": model.gated, "tied": model.tied,
        "experts": experts, "top_k": top_k, "expert": expert,
        "dense": linear / (2 * count * tokens) - top_k * expert,
        "core": sum(one.core_flops for one in blocks) / (4 * count * tokens),
        "sent": sent / (count * tokens * model.hidden), "shared": shared / (count * tokens),
        "parts": len(parts) / count, "attending": len(attending) / count,
        "mixed": (model.hidden * len(attending) + SCANNED * scanned / tokens) / count,
    }  # fmt: skip


def gpu_columns(gpu: Gpu, precision: str) -> dict[str, Any]:
    """Return the columns of `Cases` that describe a GPU at a precision."""
    core = "bf16" if precision in ("fp8", "fp4") else precision
    return {
        "peak": gpu.peak(precision),
        "core_peak": gpu.peak(core),
        "sustained": sustained_share(gpu, core),
        "core_sustained": core_share(gpu, core),
        "newer": float(gpu.kin.tuned_like in NEWER),
        "memory": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "inside": gpu.inside_bandwidth,
    }


def shards_within(near: int, tp: int, replicas: int) -> int:
    """Return over how many replicas hybrid sharding shards within so many GPUs; 0 where it cannot.

    >>> shards_within(8, 2, 64), shards_within(8, 1, 20), shards_within(8, 1, 8)
    (4, 0, 0)
    """
    shards = near // tp
    fits = near % tp == 0 and 1 < shards < replicas and replicas % shards == 0
    return shards if fits else 0


@dataclass(frozen=True)
class Stages:
    """Arrays (cases, stages): layers, heads (0 or 1), parameters; 0 where there is no stage.

    ``experts`` are those of the parameters that only ``replicas / ep`` ranks hold alike, ``others``
    those of embedding and head, ``tables`` how many of these two there are.
    """

    layers: Column
    heads: Column
    parameters: Column
    experts: Column
    others: Column
    tables: Column


@lru_cache(maxsize=4096)
def costly_partition(layers: int, pp: int, head: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return layers and heads of every stage as nanotron partitions them.

    The head counts as ``head`` layers. A stage takes blocks until the cost of all so far reaches
    its share of the whole; the block that reaches it is still its own (nanotron, ``build_model``).

    >>> costly_partition(16, 4, 4.0)
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
