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
)
from ddlnb.parallelism.forecast.forecast import MOMENTS, Outlook, footprint, forecast
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.step import PARTS
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.schedules import INTERLEAVED, SCHEDULES
from ddlnb.units import GIB, counted, digits
from ddlnb.workloads.memory import FLOAT32, OPTIMIZER_COPIES, Footprint

MOST_TENSOR, MOST_STAGES, MOST_EXPERT = 32, 64, 64
RECOMPUTED = ("none", "selective", "full")  # NONE, SELECTIVE, FULL
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
            cp=int(cases.cp[index]),
            ep=int(cases.ep[index]),
            vpp=int(cases.vpp[index]),
            zero=int(cases.zero[index]),
            sequence_parallel=tp > 1,
            recomputation=RECOMPUTATIONS[int(cases.recomputation[index])],
            schedule=str(cases.schedule[index]) if cases.pp[index] > 1 else "1f1b",
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
        found, best = self.outlook, self.best_of_splits()[:top]
        columns = {
            "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
            "low": found.low,
            "high": found.high,
            "mfu": found.mfu,
            "memory_gib": found.most_gib,
            "chance_of_slow": found.chance,
            "seconds": found.seconds,
        }
        return [
            {
                "layout": str(self.layout(index)),
                **{name: float(values[index]) for name, values in columns.items()},
                "loses_by": self.reason(best[rank - 1], index) if rank else "",
            }
            for rank, index in enumerate(best)
        ]

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
        return f"{REASONS[most]} +{digits(seconds[most], 3)} s"

    def parts(self, index: int) -> dict[str, float]:
        """Return the seconds of a case by what they go to; ``slow`` counts where it is likely."""
        step = self.outlook.step
        slow = float(step.slow[index]) if self.outlook.chance[index] > 0.5 else 0.0
        return {name: float(getattr(step, name)[index]) for name in PARTS} | {"slow": slow}


def scale(
    model: str | Transformer, gpu: str | Gpu = "H100", nodes: int = 8, **options: Any
) -> Ranking:
    """Return every layout of a large model that fits on these GPUs, the fastest first.

    ``options`` are ``gpus_per_node`` (8); ``network``, by default the ports that nodes with this
    GPU usually have; ``sequence`` in tokens, by default the model's; ``global_batch``: sequences of
    a step, by default four million tokens; ``framework``: nanotron (the default) or another of
    `FRAMEWORKS`, whose ways and fitted parameters are taken; ``precision`` (bf16); ``schedule`` of
    pipelines: 1f1b (the default), zero-bubble or gpipe; ``vpp``: chunks of layers per stage, which
    make 1f1b the interleaved schedule, by default all that divide the layers of a stage, where the
    framework can run them (megatron, nemo) and micro batches are a multiple of the stages;
    ``overlap``: whether replicas reduce gradients and gather parameters while the GPU computes, by
    default the framework's way; ``fitted``: parameters other than the kept ones. Searched are
    tensor, pipeline and data parallelism, ZeRO 0 and 1 (FSDP: 3), micro batches, and full
    recomputation or none.

    Raises UnknownName for unknown names, and InputError with what would do where nothing fits, or
    the batch or the layers do not divide.

    >>> import ddlnb
    >>> best = ddlnb.scale("llama3-8b", "H100", nodes=8, sequence=4096).rows(1)[0]
    >>> best["layout"], 5_000 < best["tokens_per_s_per_gpu"] < 12_000
    ('dp32 tp2 zero1 sp mb2 acc16', True)
    """
    return ranked(LayoutQuestion(model, gpu, nodes, **options))  # type: ignore[arg-type]


def ranked(asked: LayoutQuestion) -> Ranking:
    """Return the answer of `scale` to a question, and raise what it raises."""
    shape, device, gpus = asked.model, asked.gpu, asked.gpus
    found = list(_layouts(asked))
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
    cases = cases_of(asked, found)
    outlook = forecast(cases, asked.fitted)
    order = np.argsort(-outlook.tokens_per_s_per_gpu)
    order = order[outlook.fits[order]]
    if not len(order):
        least = float(outlook.most_gib.min())
        raise InputError(
            f"no layout of {shape.name} fits on {gpus} x {device.name}: the least needs "
            f"{least:.0f} GiB, a GPU has {device.memory / GIB:.0f}; use more nodes"
        )
    return Ranking(replace(shape, sequence=asked.sequence), outlook, order)


def cases_of(asked: LayoutQuestion, layouts: Sequence[Mapping[str, Any]]) -> Cases:
    """Return the cases of these layouts, given by the columns in which they differ."""
    columns: dict[str, Any] = {name: [one[name] for one in layouts] for name in layouts[0]}
    columns = {"cp": asked.cp} | columns
    device = asked.gpu
    together = joined_by_nvlink(device.nvlink_domain, asked.gpus_per_node, asked.gpus)
    return Cases.of(
        **columns,
        **model_columns(replace(asked.model, sequence=asked.sequence)),
        overlap=asked.overlaps,
        gpus_per_node=together, **gpu_columns(device, asked.precision),
        across=asked.across * together / asked.gpus_per_node,
        sockets=asked.sockets * together / asked.gpus_per_node, framework=asked.framework,
    )  # fmt: skip


def outlook_of(asked: LayoutQuestion, *layouts: Layout) -> Outlook | None:
    """Return what is forecast of layouts of this model, None if no case describes one of them.

    Those have adapters, hybrid sharding, another order of ranks, all-to-all context parallelism,
    gathered inputs that are kept, or a V schedule.
    """
    usual = Layout()
    special = ("lora", "shard", "order", "context", "gather_again")
    if any(getattr(one, name) != getattr(usual, name) for one in layouts for name in special):
        return None
    if any(SCHEDULES[one.schedule].vee for one in layouts):
        return None
    alike = (
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "vpp",
        "zero",
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
    return forecast(cases_of(asked, columns), asked.fitted)


def unsplit(asked: LayoutQuestion, optimizer: str = "adam") -> Footprint:
    """Return what a GPU holds of a model that is not split, by the formulas that judge layouts.

    Plain data parallelism, without ZeRO and with nothing computed again; a sample is a sequence.
    """
    whole: dict[str, Any] = {
        "tp": 1, "pp": 1, "dp": asked.gpus // asked.cp, "ep": 1, "zero": 0, "vpp": 1,
        "recomputation": NONE, "sequence_parallel": 0, "micro_batches": 1, "schedule": "1f1b",
    }  # fmt: skip
    cases = cases_of(asked, [{**whole, "micro_batch": number} for number in (1, 2)])
    one, two = GIB * footprint(cases, asked.fitted, np.zeros(2)).max(axis=1)
    fewer = FLOAT32 * (OPTIMIZER_COPIES["adam"] - OPTIMIZER_COPIES[optimizer])
    parts = (
        f"2 bytes each, gradients {asked.ways.gradient_bytes}, fp32 master weights and {optimizer} "
        f"{MOMENTS - fewer}"
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
                for vpp, zero, again, ep in product(chunks, zeros, RECOMPUTATIONS, shares):
                    yield {
                        "tp": tp, "pp": pp, "dp": dp, "ep": ep, "zero": zero,
                        "recomputation": again, "micro_batch": micro_batch,
                        "sequence_parallel": float(tp > 1),
                        "micro_batches": rounds, "vpp": vpp,
                        "schedule": INTERLEAVED if vpp > 1 else asked.schedule,
                    }  # fmt: skip


def chunk_degrees(layers: int, pp: int, micro_batches: int) -> list[int]:
    """Return how many chunks of the same size a stage can hold, from 1 to a layer in each.

    More than 1 where stages have the same number of layers, which the chunks divide, and micro
    batches are a multiple of the stages (Megatron-LM, arXiv 2104.04473, section 2.2).

    >>> chunk_degrees(96, 8, 16), chunk_degrees(96, 8, 12), chunk_degrees(126, 4, 16)
    ([1, 2, 3, 4, 6, 12], [1], [1])
    """
    each, left = divmod(layers, pp)
    return [1] if pp == 1 or left or micro_batches % pp else _divisors(each, each)


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
