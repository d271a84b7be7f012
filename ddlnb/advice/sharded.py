"""A traced model that is sharded: ZeRO and FSDP over all GPUs, played layer by layer; simulated.

A task says what its layers store and compute, and what a sample takes, and not what goes from one
layer to the next or what divides a matrix: pipelines, tensor and context parallelism need a model
whose layers are known by name or configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from ddlnb.advice.question import Question
from ddlnb.errors import require
from ddlnb.hardware.catalogue import gpu_in
from ddlnb.networks.topologies import Star, with_islands
from ddlnb.parallelism.iteration import play_iteration
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.memory import Precision, memory
from ddlnb.parallelism.model import ModelShape, model_of
from ddlnb.plans.methods import BASELINES
from ddlnb.questions import Answer, Table, Verdict
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.units import GIB, digits, gpus_in_words, show_rate

DEGREES = (0, 1, 2, 3)  # of ZeRO


def shown_layout(
    layout: str, seconds: float, memory_bytes: float, fits: bool = True
) -> dict[str, str]:
    """Return the cells of a layout in a table; memory that is not known is a dash."""
    memory = "-" if math.isnan(memory_bytes) else f"{memory_bytes / GIB:.3g} GiB"
    step = f"{digits(seconds, 3)} s"
    return {"layout": layout, "step": step, "memory": memory + " (does not fit)" * (not fits)}


def needs_shards(asked: Question) -> bool:
    """Return whether not even one sample fits on GPUs that are known."""
    return asked.fits(1) is False and gpu_in(asked.cluster.hardware) is not None


def ddp_seconds(asked: Question) -> float:
    """Return the seconds of an iteration of replicas that exchange as PyTorch does (DDP)."""
    cell = Cell(asked.workload, asked.cluster, BASELINES["DDP"])
    return steady_seconds([cell])[0].iteration_seconds


def of_replicas(asked: Question) -> Verdict:
    """Return the verdict on replicas that exchange as PyTorch does (DDP), or on their shards."""
    workload, on = asked.workload, asked.cluster
    batch, fits = asked.held_batch, asked.fits(asked.held_batch)
    needed = asked.memory_bytes(batch)
    memory = f"Memory of a GPU: not known, as {asked.why_no_footprint}."
    if asked.footprint is not None:
        memory = asked.footprint.said(batch, asked.gpu_memory)
        if needs_shards(asked):
            return Sharded(asked).verdict
        if fits is False:
            most = asked.footprint.most_samples(asked.gpu_memory)
            said = f"Verdict: it does not fit; at most {most:,} samples per GPU do: give --batch."
            return Verdict(needed, fits, "", math.nan, math.nan, (memory, said))
    rate = workload.local_batch * on.workers / ddp_seconds(asked)
    said = (
        f"Verdict: {'it fits' if fits else 'whether it fits is not known'}; DDP makes "
        f"{show_rate(rate)} samples/s on {gpus_in_words(on.workers)}."
    )
    return Verdict(needed, fits, "DDP", rate, needed, (memory, said))


@dataclass(frozen=True, eq=False, repr=False)
class Sharded(Answer):
    """Every degree of ZeRO for a traced model, those that fit first, the fastest first."""

    question: Question
    shown: tuple[int, ...] = DEGREES

    def of(self, layouts: Sequence[Layout]) -> Sharded:
        """Return the answer with the rows of these layouts alone.

        Raises InputError for one that splits more than states, and for another number of GPUs.
        """
        gpus = self.question.cluster.workers
        for one in layouts:
            require(
                replace(one, zero=0) == Layout(dp=gpus),
                f"layout {str(one)!r} cannot be played: what lies between the layers of "
                f"{self.question.workload.model} is not traced, so that it is sharded alone, over "
                f"all {gpus} GPUs; write dp{gpus} or dp{gpus} zero3, or give a config.json",
            )
        return replace(self, shown=tuple(one.zero for one in layouts))

    @cached_property
    def verdict(self) -> Verdict:
        """Memory of a GPU unsplit, and the fastest degree of ZeRO that fits."""
        asked, held = self.question, self.question.footprint
        if not needs_shards(asked) or held is None:
            return of_replicas(asked)
        best = self.rows.iloc[0]
        batch, gpus = asked.held_batch, asked.cluster.workers
        needed, fits = asked.memory_bytes(batch), asked.fits(batch)
        memory_said = held.said(batch, asked.gpu_memory)
        if not best["fits"]:
            said = (
                f"Verdict: it fits on no GPU, not even sharded: {best['layout']} takes "
                f"{best['memory_bytes'] / GIB:.3g} GiB; take more GPUs, or give a config.json of "
                f"known layers, which can be split in other ways."
            )
            return Verdict(needed, fits, "", math.nan, math.nan, (memory_said, said))
        rate = float(best["throughput_samples_per_s"])
        said = (
            f"Verdict: it has to be sharded; fastest is {best['layout']}, with {show_rate(rate)} "
            f"samples/s on {gpus_in_words(gpus)} and {best['memory_bytes'] / GIB:.3g} GiB on each "
            f"(played; what goes between its layers is not traced, so no pipelines)."
        )
        taken = float(best["memory_bytes"])
        return Verdict(needed, fits, best["layout"], rate, taken, (memory_said, said))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row per degree: layout, samples/s of all GPUs, bytes of one, and whether it fits."""
        rows = pd.DataFrame([_row(self.question, degree) for degree in DEGREES])
        by = ["fits", "throughput_samples_per_s"]
        return rows.sort_values(by, ascending=False, kind="stable").reset_index(drop=True)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Throughput and memory of every degree."""
        shown = [
            {
                "GPUs": row["gpus"],
                "samples/s": show_rate(row["throughput_samples_per_s"]),
                **shown_layout(
                    row["layout"], row["iteration_seconds"], row["memory_bytes"], row["fits"]
                ),
            }
            for row in self.rows[self.rows["zero"].isin(self.shown)].to_dict("records")
        ]
        on = self.question.cluster
        return (Table(f"Simulated: {self.question.workload!r} on {on.label}", shown),)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What tells the rows apart that are not made alike."""
        if self.question.cluster.nodes_in_use == 1 or 0 not in self.shown or not any(self.shown):
            return ()
        return (
            "Without ZeRO it is DDP, simulated with all effects of the cluster, whose all-reduces "
            "may take trees. ZeRO is played with its links and rings alone, as reduce-scatter and "
            "all-gather have them.",
        )


def _row(asked: Question, degree: int) -> dict[str, Any]:
    """Return a degree of ZeRO, in micro batches as large as fit and make up the batch.

    Degree 0 is DDP on the whole batch.
    """
    held, workload, on = asked.footprint, asked.workload, asked.cluster
    gpu = gpu_in(on.hardware)
    assert held is not None
    assert gpu is not None
    model, batch = model_of(workload), workload.local_batch
    width = max(one.bytes_per_element for one in workload.gradients)
    kept = held.fixed / model.parameters - 2 * width  # what the optimizer keeps, and frozen ones
    widths = Precision("traced", width, width, kept, width, width)
    layout = Layout(dp=on.workers, zero=degree)
    found = memory(model, layout, widths)
    fixed = found.states + found.gathered
    room = int((asked.gpu_memory - fixed) // max(held.per_sample, 1.0)) if degree else batch
    most = min(asked.held_batch, max(room, 1))
    micro = next((one for one in range(most, 0, -1) if batch % one == 0), 1)
    layout = replace(layout, micro_batch=micro, micro_batches=batch // micro)
    seconds = _played_seconds(asked, layout, model, widths) if degree else ddp_seconds(asked)
    whole = fixed + micro * held.per_sample
    return {
        "model": workload.model,
        "gpus": on.workers,
        "layout": str(layout),
        "zero": degree,
        "throughput_samples_per_s": batch * on.workers / seconds,
        "iteration_seconds": seconds,
        "memory_bytes": whole,
        "fits": bool(whole <= asked.gpu_memory),
    }


def seconds_of(asked: Question, degree: int) -> float:
    """Return the seconds of an iteration with this degree of ZeRO."""
    return float(_row(asked, degree)["iteration_seconds"])


def _played_seconds(asked: Question, layout: Layout, model: ModelShape, widths: Precision) -> float:
    """Return the seconds of an iteration in which states are sharded."""
    workload, on, gpu = asked.workload, asked.cluster, gpu_in(asked.cluster.hardware)
    assert gpu is not None
    effects, nodes = on.effects, on.nodes_in_use
    # A hop between nodes, or GPUs, has two links: their latencies add up to that of the hop.
    hosts = Star(max(2, nodes)).network(effects.between_bandwidth, effects.between_latency / 2)
    inside = effects.inside_bandwidth
    if math.isinf(inside):  # nobody said it
        inside = gpu.inside_bandwidth
    network = with_islands(hosts, on.workers // nodes, inside, effects.inside_latency / 2)
    played = play_iteration(
        model,
        layout,
        network,
        model.iteration_flops(workload.local_batch)
        / (effects.compute_factor * workload.compute_seconds),
        memory_bandwidth=gpu.memory_bandwidth,
        precision=widths,
    )
    return played.iteration_seconds
