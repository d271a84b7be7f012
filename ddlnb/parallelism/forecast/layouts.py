"""Which layout is fastest: every way to split a model over GPUs, forecast and ranked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.hardware.catalogue import get_gpu, get_interconnect
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.parallelism.forecast.cases import FULL, NONE, Cases
from ddlnb.parallelism.forecast.chunks import (
    INTERLEAVED,
    chunk_degrees,
    no_such_chunks,
    searched_chunks,
)
from ddlnb.parallelism.forecast.forecast import Outlook, forecast
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, NAMES
from ddlnb.parallelism.forecast.machines import sustained_share
from ddlnb.parallelism.forecast.parameters import Fitted
from ddlnb.parallelism.forecast.shapes import get_shape
from ddlnb.parallelism.forecast.step import PARTS
from ddlnb.parallelism.layout import SCHEDULES, Layout
from ddlnb.parallelism.transformer import Transformer
from ddlnb.units import GIB

BATCH_TOKENS = 4 * 1024 * 1024  # of a step, where nobody says
SEARCHED = ("1f1b", "zero-bubble", "gpipe")  # chunks (vpp) make 1f1b the interleaved one
MOST_TENSOR, MOST_STAGES = 32, 64
RECOMPUTATIONS = {NONE: "none", FULL: "full"}
REASONS = {
    "compute": "computes longer",
    "tensor": "tensor-parallel exchanges",
    "bubble": "pipeline bubble",
    "transfers": "transfers between stages",
    "reduction": "data-parallel reduction",
    "optimizer": "optimizer",
    "other": "other",
    "slow": "slow transfers, which are likely",
}


@dataclass(frozen=True)
class Ranking:
    """Layouts of a model on a machine, the fastest that fits first; and all that were looked at.

    ``order`` are indices into ``outlook`` of the layouts that fit.
    """

    model: Transformer
    outlook: Outlook
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order)

    def layout(self, index: int) -> Layout:
        """Return the layout of a case."""
        cases, tp = self.outlook.cases, int(self.outlook.cases.tp[index])
        return Layout(
            dp=int(cases.dp[index]),
            tp=tp,
            pp=int(cases.pp[index]),
            vpp=int(cases.vpp[index]),
            zero=int(cases.zero[index]),
            sequence_parallel=tp > 1,
            recomputation=RECOMPUTATIONS[int(cases.recomputation[index])],
            schedule=SCHEDULES[int(cases.schedule[index])] if cases.pp[index] > 1 else "1f1b",
            micro_batch=int(cases.micro_batch[index]),
            micro_batches=int(cases.micro_batches[index]),
        )

    def rows(self, top: int = 10) -> list[dict[str, Any]]:
        """Return one row per split (dp, tp, pp), the best first, and why each is no better.

        Of a split its best micro batch, chunks, ZeRO and recomputation stand for it.
        ``loses_by`` compares the seconds of a step with those of the row above it: the part that
        grows most, and by how much.
        """
        require_whole(top=top)
        found, rows, best = self.outlook, [], self.best_of_splits()[:top]
        for rank, index in enumerate(best):
            rows.append(
                {
                    "layout": str(self.layout(index)),
                    "tokens_per_s_per_gpu": float(found.tokens_per_s_per_gpu[index]),
                    "low": float(found.low[index]),
                    "high": float(found.high[index]),
                    "mfu": float(found.mfu[index]),
                    "memory_gib": float(found.most_gib[index]),
                    "chance_of_slow": float(found.chance[index]),
                    "seconds": float(found.seconds[index]),
                    "loses_by": self.reason(best[rank - 1], index) if rank else "",
                }
            )
        return rows

    def best_of_splits(self) -> NDArray[np.intp]:
        """Return the case of every split's fastest layout, the fastest split first."""
        cases = self.outlook.cases
        splits = np.stack([cases.tp[self.order], cases.pp[self.order]], axis=1)
        _, first = np.unique(splits, axis=0, return_index=True)
        return self.order[np.sort(first)]

    def reason(self, better: int, worse: int) -> str:
        """Return which part of the step makes one layout slower than another, and by how much."""
        seconds = {name: self.parts(worse)[name] - self.parts(better)[name] for name in REASONS}
        most = max(seconds, key=lambda name: seconds[name])
        return f"{REASONS[most]} +{seconds[most]:.3g} s"

    def parts(self, index: int) -> dict[str, float]:
        """Return the seconds of a case by what they go to; ``slow`` counts where it is likely."""
        step = self.outlook.step
        slow = float(step.slow[index]) if self.outlook.chance[index] > 0.5 else 0.0
        return {name: float(getattr(step, name)[index]) for name in PARTS} | {"slow": slow}


def scale(
    model: str | Transformer,
    gpu: str | Gpu = "H100",
    nodes: int = 8,
    *,
    gpus_per_node: int = 8,
    network: str | Interconnect | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    framework: str = "nanotron",
    precision: str = "bf16",
    schedule: str = "1f1b",
    vpp: int | None = None,
    overlap: bool | None = None,
    fitted: Fitted | None = None,
) -> Ranking:
    """Return every layout of a large model that fits on these GPUs, the fastest first.

    ``global_batch``: sequences of a step, by default four million tokens. ``network``: by default
    the ports that nodes with this GPU usually have. ``framework``: nanotron, fsdp, megatron or
    nemo, whose ways and fitted parameters are taken. ``schedule`` of pipelines: 1f1b, zero-bubble
    or gpipe. ``vpp``: chunks of layers per stage, which make 1f1b the interleaved schedule; None
    for all that divide the layers of a stage, where the framework can run them (megatron, nemo) and
    micro batches are a multiple of the stages. ``overlap``: whether replicas reduce gradients and
    gather parameters while the GPU computes; None for the framework's way. Searched are tensor,
    pipeline and data parallelism, ZeRO 0 and 1 (FSDP: 3), micro batches, and full recomputation or
    none.

    Raises UnknownName for unknown names, and InputError with what would do where nothing fits, or
    the batch or the layers do not divide.

    >>> import ddlnb
    >>> best = ddlnb.scale("llama3-8b", "H100", nodes=8, sequence=4096).rows(1)[0]
    >>> best["layout"], 5_000 < best["tokens_per_s_per_gpu"] < 12_000
    ('dp32 tp2 zero1 sp mb2 acc16', True)
    """
    require_whole(nodes=nodes, gpus_per_node=gpus_per_node)
    shape, device = get_shape(model), get_gpu(gpu)
    if framework not in NAMES:
        raise UnknownName("framework", framework, NAMES)
    if schedule not in SEARCHED:
        raise UnknownName("schedule of the search", schedule, SEARCHED)
    ways = FRAMEWORKS[NAMES.index(framework)]
    overlaps = ways.overlaps if overlap is None else overlap
    require_whole(vpp=1 if vpp is None else vpp)
    interleaves = searched_chunks(ways, schedule, vpp)
    sequence = shape.sequence if sequence is None else sequence
    require_whole(sequence=sequence)
    batch = max(BATCH_TOKENS // sequence, 1) if global_batch is None else global_batch
    require_whole(global_batch=batch)
    gpus = nodes * gpus_per_node
    found = list(_layouts(shape, gpus, batch, framework, schedule, interleaves))
    require(
        bool(found),
        f"a batch of {batch} sequences does not divide over {gpus} GPUs in any layout; use a "
        f"multiple of {gpus} (global_batch, --global-batch), or fewer nodes",
    )
    if vpp is not None:
        offered = {int(one["vpp"]) for one in found}
        found = [one for one in found if one["vpp"] == vpp]
        if not found:
            raise no_such_chunks(vpp, shape.name, shape.layers, gpus, offered)
    across = get_interconnect(network).line_rate if network else device.port * gpus_per_node
    columns: dict[str, Any] = {name: [one[name] for one in found] for name in found[0]}
    cases = Cases.of(
        **columns,
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads,
        ffn=shape.ffn, vocab=shape.vocab, sequence=sequence, gated=shape.gated, tied=shape.tied,
        cp=1, ep=1, overlap=overlaps,
        experts=max(1, shape.experts), top_k=max(1, shape.top_k),
        gpus_per_node=gpus_per_node, peak=device.peak(precision),
        core_peak=device.peak("bf16" if precision == "fp8" else precision),
        sustained=sustained_share(device, precision), memory=device.memory,
        memory_bandwidth=device.memory_bandwidth, inside=device.inside_bandwidth, across=across,
        framework=NAMES.index(framework),
    )  # fmt: skip
    outlook = forecast(cases, fitted)
    order = np.argsort(-outlook.tokens_per_s_per_gpu)
    order = order[outlook.fits[order]]
    if not len(order):
        least = float(outlook.most_gib.min())
        raise InputError(
            f"no layout of {shape.name} fits on {gpus} x {device.name}: the least needs "
            f"{least:.0f} GiB, a GPU has {device.memory / GIB:.0f}; use more nodes"
        )
    return Ranking(replace(shape, sequence=sequence), outlook, order)


def _layouts(
    shape: Transformer, gpus: int, batch: int, framework: str, schedule: str, interleaves: bool
) -> Iterator[dict[str, float]]:
    """Return the columns of every layout: all that divides, the rest is for memory to refuse."""
    sharded = framework == "fsdp"
    for tp in _divisors(gpus, 1 if sharded else min(MOST_TENSOR, shape.heads)):
        if shape.heads % tp or shape.ffn % tp:
            continue
        for pp in _divisors(gpus // tp, 1 if sharded else min(MOST_STAGES, shape.layers)):
            dp = gpus // tp // pp
            if batch % dp:
                continue
            for micro_batch in _divisors(batch // dp, batch // dp):
                rounds = batch // dp // micro_batch
                chunks = chunk_degrees(shape.layers, pp, rounds) if interleaves else [1]
                zeros = (3,) if sharded else (0, 1) if dp > 1 else (0,)
                for vpp, zero, again in product(chunks, zeros, RECOMPUTATIONS):
                    yield {
                        "tp": tp, "pp": pp, "dp": dp, "zero": zero, "recomputation": again,
                        "micro_batch": micro_batch, "sequence_parallel": float(tp > 1),
                        "micro_batches": rounds, "vpp": vpp,
                        "schedule": SCHEDULES.index(INTERLEAVED if vpp > 1 else schedule),
                    }  # fmt: skip


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
