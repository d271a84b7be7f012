"""Which layout is fastest: every way to split a model over GPUs, forecast and ranked.

Every function and command about layouts takes what `LayoutQuestion` says, checked there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.machine import joined_by_nvlink
from ddlnb.parallelism.forecast.cases import (
    FULL,
    NONE,
    Cases,
    gpu_columns,
    model_columns,
    shards_within,
)
from ddlnb.parallelism.forecast.forecast import MOMENTS, footprint, rate
from ddlnb.parallelism.forecast.frameworks import FRAMEWORKS, Framework
from ddlnb.parallelism.forecast.mixture import Expected, Open, expected
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import values_of
from ddlnb.parallelism.layout import Layout, equal_parts
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import INTERLEAVED, SCHEDULES
from ddlnb.units import GIB, counted, digits
from ddlnb.workloads.memory import FLOAT32, OPTIMIZER_COPIES, Footprint

MOST_TENSOR, MOST_STAGES, MOST_EXPERT = 32, 64, 64
RECOMPUTED = ("none", "selective", "full")  # NONE, SELECTIVE, FULL
REASONS = {
    "compute": "computes longer",
    "tensor": "tensor-parallel exchanges",
    "bubble": "pipeline bubble",
    "transfers": "transfers between stages",
    "reduction": "data-parallel reduction",
    "optimizer": "optimizer",
    "other": "other",
    "slow": "slow transfers, by their chance",
}


OF_SHARDS = "exchanges of shards"  # that replicas gather, where no tensor is split


@dataclass(frozen=True)
class Ranking:
    """Layouts of a model on a machine, the fastest that fits first; and all that were looked at.

    They stand by what is expected of them (`Expected`), which knows slow runs. ``order`` are
    indices into ``outlook`` of the layouts that fit; where no framework is named, if there are any,
    of those alone that several frameworks run, and that fit in all of these.
    """

    model: Transformer
    outlook: Expected
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
            cp=int(cases.cp[index]),
            ep=int(cases.ep[index]),
            vpp=int(cases.vpp[index]),
            zero=int(cases.zero[index]),
            shard=int(cases.shard[index]),
            sequence_parallel=tp > 1,
            recomputation=RECOMPUTED[int(cases.recomputation[index])],
            schedule=str(cases.schedule[index]) if cases.pp[index] > 1 else "1f1b",
            micro_batch=int(cases.micro_batch[index]),
            micro_batches=int(cases.micro_batches[index]),
        )

    def rows(self, top: int = 10) -> list[dict[str, Any]]:
        """Return one row per split (dp, tp, pp, shard), the best first, and why each is no better.

        Of a split its best micro batch, chunks, ZeRO and recomputation stand for it.
        ``loses_by`` compares the seconds of a step with those of the row above it: the part that
        grows most, and by how much.
        """
        require_whole(top=top)
        best = self.best_of_splits()[:top]
        return [
            {**row, "loses_by": self.reason(best[rank - 1], best[rank]) if rank else ""}
            for rank, row in enumerate(self.described(best))
        ]

    def described(self, which: NDArray[np.intp]) -> list[dict[str, Any]]:
        """Return a row of these layouts, in their order."""
        found = self.outlook
        columns = {
            "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu[which],
            "low": found.low[which],
            "high": found.high[which],
            "mfu": found.mfu[which],
            "memory_gib": found.most_gib[which],
            "chance_of_slow": found.chance[which],
            "seconds": found.seconds[which],
        }
        return [
            {
                "layout": str(self.layout(index)),
                **{name: float(values[place]) for name, values in columns.items()},
                "frameworks": ", ".join(
                    f"{name} {digits(rate, 4)}" for name, rate in self.frameworks(index).items()
                ),
            }
            for place, index in enumerate(which)
        ]

    def frameworks(self, index: int) -> dict[str, float]:
        """Return tokens/s per GPU in the frameworks that run a layout, and in which it fits.

        In all that run it, where it fits in none.
        """
        members, each = self.outlook.members, self.outlook.each
        rates = rate(each.cases, each.expected_seconds)
        which = np.flatnonzero((members.owner == index) & (members.share > 0))
        names = members.cases.framework[which]
        return {str(name): float(rates[at]) for at, name in zip(which, names, strict=True)}

    def best_of_splits(self) -> NDArray[np.intp]:
        """Return the case of every split's fastest layout, the fastest split first."""
        cases = self.outlook.cases
        axes = (cases.tp, cases.pp, cases.shard)
        splits = np.stack([axis[self.order] for axis in axes], axis=1)
        _, first = np.unique(splits, axis=0, return_index=True)
        return self.order[np.sort(first)]

    def reason(self, better: int, worse: int) -> str:
        """Return which part of the step makes one layout slower than another, and by how much."""
        seconds = {name: self.parts(worse)[name] - self.parts(better)[name] for name in REASONS}
        most = max(seconds, key=lambda name: seconds[name])
        return f"{self.name_of(most, worse)} +{digits(seconds[most], 3)} s"

    def name_of(self, part: str, index: int) -> str:
        """Return what a part of a case's step is called."""
        cases = self.outlook.cases
        is_of_shards = part == "tensor" and cases.tp[index] == 1 and cases.zero[index] == 3
        return OF_SHARDS if is_of_shards else REASONS[part]

    def parts(self, index: int) -> dict[str, float]:
        """Return the seconds of a case by what they go to; ``slow`` is what slow runs lose."""
        parts = {name: float(own[index]) for name, own in self.outlook.step.parts.items()}
        return parts | {"slow": float(self.outlook.seconds[index]) - sum(parts.values())}


def scale(
    model: str | Transformer, gpu: str | Gpu = "H100", nodes: int = 8, **options: Any
) -> Ranking:
    """Return every layout of a large model that fits on these GPUs, the fastest first.

    ``options`` are ``gpus_per_node`` (8); ``network``, by default the ports that nodes with this
    GPU usually have; ``sequence`` in tokens, by default the model's; ``global_batch``: sequences of
    a step, by default 4 Mi tokens; ``framework``: one of `FRAMEWORKS`, whose ways and
    fitted parameters are taken, by default a mixture of those in use; ``precision`` (bf16);
    ``schedule`` of pipelines: 1f1b (the default), zero-bubble or gpipe; ``vpp``: chunks of layers
    per stage, which make 1f1b the interleaved schedule, by default all that divide the layers of a
    stage, where the framework can run them (megatron, nemo) and micro batches are a multiple of
    the stages; ``cp``: ranks that share a sequence (1); ``ep``: ranks that share the experts, by
    default all numbers that divide;
    ``overlap``: whether replicas reduce gradients and gather parameters while the GPU computes, by
    default the framework's way; ``fitted``: parameters other than the kept ones. Searched are
    tensor, pipeline and data parallelism, ZeRO 0 and 1 (FSDP: 3, over all replicas or those
    of a node), micro batches, and full recomputation or none.

    Raises UnknownName for unknown names, and InputError with what would do where nothing fits, or
    the batch or the layers do not divide.

    >>> import ddlnb
    >>> best = ddlnb.scale("llama3-8b", "H100", nodes=8, sequence=4096).rows(1)[0]
    >>> best["layout"], 5_000 < best["tokens_per_s_per_gpu"] < 12_000
    ('dp64 zero3 mb4 acc4', True)
    """
    return ranked(LayoutQuestion(model, gpu, nodes, **options))  # type: ignore[arg-type]


def ranked(asked: LayoutQuestion) -> Ranking:
    """Return the answer of `scale` to a question, and raise what it raises."""
    shape, device, gpus = asked.model, asked.gpu, asked.gpus
    every = [layout for one in asked.by_framework.values() for layout in _layouts(one)]
    found = list({tuple(one.values()): one for one in every}.values())
    require(
        bool(found) or asked.ep is None,
        f"ep {asked.ep} shares out the {counted(shape.experts, 'expert')} of {shape.name} in no "
        f"layout on {gpus} GPUs; leave it out, or take a divisor of both",
    )
    require(
        bool(found),
        f"a batch of {counted(asked.global_batch, 'sequence')} does not divide over "
        f"{counted(gpus, 'GPU')} in any layout; use a multiple of {gpus} "
        f"(global_batch, --global-batch), or fewer nodes",
    )
    if asked.vpp is not None:
        offered = {int(one["vpp"]) for one in found}
        found = [one for one in found if one["vpp"] == asked.vpp]
        require(
            bool(found),
            f"vpp {asked.vpp} divides the {shape.layers} layers of {shape.name} in no layout "
            f"on {gpus} GPUs (chunks divide the layers of a stage, stages the micro batches); "
            f"use one of {', '.join(map(str, sorted(offered)))}",
        )
    outlook = expected(_open(asked, found), asked.fitted)
    order = np.argsort(-outlook.tokens_per_s_per_gpu)
    order = order[outlook.fits[order]]
    if not asked.framework:
        several = np.bincount(outlook.members.owner) > 1
        common = order[(several & outlook.everywhere)[order]]
        order = common if len(common) else order
    if not len(order):
        least = float(outlook.most_gib.min())
        raise InputError(
            f"no layout of {shape.name} fits on {gpus} x {device.name}: the least needs "
            f"{least:.0f} GiB, a GPU has {device.memory / GIB:.0f}; use more nodes"
        )
    return Ranking(replace(shape, sequence=asked.sequence), outlook, order)


def _open(asked: LayoutQuestion, layouts: Sequence[dict[str, Any]]) -> Open:
    """Return layouts as rows, each with a case per framework that is meant and runs it.

    Of those that no framework searches, such as ZeRO-2, all are cases.
    """
    meant: list[dict[str, Any]] = [
        {"framework": name, "overlap": one.overlaps} for name, one in asked.by_framework.items()
    ]
    each = [
        (row, own | named)
        for row, own in enumerate(layouts)
        for named in [one for one in meant if _runs(FRAMEWORKS[one["framework"]], own)] or meant
    ]
    cases = cases_of(asked, [columns for _, columns in each])
    return Open(cases, np.array([row for row, _ in each]), np.ones(len(cases)))


def _runs(ways: Framework, layout: Mapping[str, Any]) -> bool:
    """Return whether a framework runs a layout that the search of some framework looks at."""
    shards_all = ways.zero == 3
    return (
        shards_all == (layout["zero"] == 3)
        and layout["zero"] != 2
        and (ways.interleaves or layout["vpp"] == 1)
        and (ways.splits_models or layout["tp"] == layout["pp"] == 1)
    )


def cases_of(asked: LayoutQuestion, layouts: Sequence[Mapping[str, Any]]) -> Cases:
    """Return the cases of these layouts, given by the columns in which they differ."""
    columns: dict[str, Any] = {name: [one[name] for one in layouts] for name in layouts[0]}
    columns = {"cp": asked.cp} | columns
    device = asked.gpu
    together = joined_by_nvlink(device.nvlink_domain, asked.gpus_per_node, asked.gpus)
    return Cases.of(
        **columns,
        **model_columns(replace(asked.model, sequence=asked.sequence)),
        gpus_per_node=together, **gpu_columns(device, asked.precision),
        across=asked.across * together / asked.gpus_per_node,
        sockets=asked.joined.socket_bandwidth * together / asked.gpus_per_node,
        hop=asked.joined.latency.value,
    )  # fmt: skip


def ranking_of(asked: LayoutQuestion, *layouts: Layout) -> Ranking | None:
    """Return these layouts of a model in their order, None if no case describes one of them.

    Those have adapters, another order of ranks, all-to-all context parallelism, gathered inputs
    that are kept, a V schedule, or shards on whose ranks a node ends.
    """
    usual = Layout()
    special = ("lora", "order", "context", "gather_again")
    if any(getattr(one, name) != getattr(usual, name) for one in layouts for name in special):
        return None
    if any(SCHEDULES[one.schedule].vee for one in layouts):
        return None
    node = asked.gpus_per_node
    held = [one.tp * one.shard for one in layouts if one.shard and asked.gpus > node]
    if any(node % ranks and ranks % node for ranks in held):
        return None
    alike = (
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "vpp",
        "zero",
        "shard",
        "micro_batch",
        "micro_batches",
        "schedule",
    )
    columns = [
        {
            **{name: getattr(one, name) for name in alike},
            "sequence_parallel": float(one.sequence_parallel),
            "recomputation": RECOMPUTED.index(one.recomputation),
        }
        for one in layouts
    ]
    shape = replace(asked.model, sequence=asked.sequence)
    return Ranking(shape, expected(_open(asked, columns), asked.fitted), np.arange(len(layouts)))


def unsplit(asked: LayoutQuestion, optimizer: str = "adam") -> Footprint:
    """Return what a GPU holds of a model that is not split, by the formulas that judge layouts.

    Plain data parallelism, without ZeRO and with nothing computed again, of the framework that
    needs most of those that are meant; a sample is a sequence.
    """
    whole: dict[str, Any] = {
        "tp": 1, "pp": 1, "dp": asked.gpus // asked.cp, "ep": 1, "zero": 0, "shard": 0, "vpp": 1,
        "recomputation": NONE, "sequence_parallel": 0, "micro_batches": 1, "schedule": "1f1b",
    }  # fmt: skip
    found = _open(asked, [{**whole, "micro_batch": number} for number in (1, 2)])
    gib = footprint(found.cases, asked.fitted, np.zeros(len(found.cases))).max(axis=1)
    one, two = (GIB * gib[found.owner == row].max() for row in (0, 1))
    fewer = FLOAT32 * (OPTIMIZER_COPIES["adam"] - OPTIMIZER_COPIES[optimizer])
    width = found.cases.way("gradient_bytes").max()
    buffers = float(np.max(values_of(found.cases, asked.fitted).states))
    parts = (
        f"2 bytes each, gradients {width}, fp32 master weights and {optimizer} {MOMENTS - fewer}"
        + (f", buffers {digits(buffers, 2)}" if buffers else "")
    )
    return Footprint(
        fixed=float(2 * one - two) - fewer * asked.model.shape.parameters,
        per_sample=float(two - one),
        optimizer=optimizer,
        states=f"states and buffers ({asked.model.shape.parameters / 1e6:,.0f} million parameters "
        f"of {parts})",
        sample=f"sequence of {asked.sequence:,} tokens in {asked.precision}",
    )


def _layouts(asked: LayoutQuestion) -> Iterator[dict[str, Any]]:
    """Return the columns of every layout: all that divides, the rest is for memory to refuse."""
    shape, gpus, batch = asked.model, asked.gpus // asked.cp, asked.global_batch
    cut = [number for axis, _, number in shape.shape.divided if axis == "tp"]
    sharded, interleaves = not asked.ways.splits_models, asked.interleaves
    for tp in _divisors(gpus, 1 if sharded else min(MOST_TENSOR, shape.heads)):
        if any(number % tp for number in cut):
            continue
        for pp in _divisors(gpus // tp, 1 if sharded else min(MOST_STAGES, shape.layers)):
            dp = gpus // tp // pp
            if batch % dp:
                continue
            for micro_batch in _divisors(batch // dp, batch // dp):
                rounds = batch // dp // micro_batch
                chunks = chunk_degrees(shape.layers, pp, rounds) if interleaves else [1]
                zeros = (3,) if asked.ways.zero == 3 else (0, 1) if dp > 1 else (0,)
                shares = _divisors(gcd(dp, max(1, shape.experts)), asked.ep or MOST_EXPERT)
                shares = [one for one in shares if asked.ep in (None, one)]
                for vpp, zero, again, ep in product(chunks, zeros, (NONE, FULL), shares):
                    for shard in _shard_degrees(asked, zero, tp, dp, ep):
                        yield {
                            "tp": tp, "pp": pp, "dp": dp, "ep": ep, "zero": zero, "shard": shard,
                            "recomputation": again, "micro_batch": micro_batch,
                            "sequence_parallel": float(tp > 1),
                            "micro_batches": rounds, "vpp": vpp,
                            "schedule": INTERLEAVED if vpp > 1 else asked.schedule,
                        }  # fmt: skip


def _shard_degrees(asked: LayoutQuestion, zero: int, tp: int, dp: int, ep: int) -> list[int]:
    """Return over how many replicas FSDP shards: all (0), or those that share a node or NVLink."""
    host, replicas = asked.gpus_per_node, dp * asked.cp
    joined = int(joined_by_nvlink(asked.gpu.nvlink_domain, host, asked.gpus))
    within = {shards_within(near, tp, replicas) for near in (host, joined)}
    return [0, *sorted(within - {0})] if zero == 3 and ep == 1 else [0]


def chunk_degrees(layers: int, pp: int, micro_batches: int) -> list[int]:
    """Return how many chunks of the same size a stage can hold, from 1 to a layer in each.

    More than 1 where stages have the same number of layers, which the chunks divide, and micro
    batches are a multiple of the stages (Megatron-LM, arXiv 2104.04473, section 2.2). Embedding and
    head count as a layer each where that makes stages equal, as for Llama 3 405B (arXiv 2407.21783,
    section 3.3.2).

    >>> chunk_degrees(96, 8, 16), chunk_degrees(96, 8, 12), chunk_degrees(126, 16, 16)
    ([1, 2, 3, 4, 6, 12], [1], [1, 2, 4])
    """
    each = equal_parts(layers, pp)
    if pp == 1 or not each or micro_batches % pp:
        return [1]
    return [number for number in _divisors(each, each) if number * pp <= layers]


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
