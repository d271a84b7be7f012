"""A batch, or the layers, shared among GPUs of two or more kinds: the answer in one call.

What a kind does by itself is the verdict of every other answer on those GPUs; what kinds do
together is in `ddlnb.parallelism.heterogeneous`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pandas as pd

from ddlnb.advice.splits import posed, verdict_of
from ddlnb.clusters.named import cluster_of, usual_gpus
from ddlnb.errors import InputError, require, require_whole
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.config import find_shape, get_shape
from ddlnb.parallelism.forecast.layouts import ranking_of
from ddlnb.parallelism.forecast.question import BATCH_TOKENS, LayoutQuestion
from ddlnb.parallelism.heterogeneous import (
    EQUAL,
    PIPELINE,
    Kind,
    Kinds,
    Way,
    by_speed,
    gpu_kinds,
    way_table,
    ways_to_share,
)
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Transformer, model_of
from ddlnb.simulator.questions import Held
from ddlnb.units import GIB, counted, digits, show_rate
from ddlnb.workloads.resolve import is_task, resolve
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.workloads.task import Task


@dataclass(frozen=True)
class Sharing:
    """Every way to use GPUs of several kinds together, the best first; as text, sentences.

    ``rows`` are those of `ddlnb.parallelism.heterogeneous.way_table`: first the ways that all GPUs
    hold, the quickest first, then the others.
    """

    rows: pd.DataFrame
    sentences: tuple[str, ...]
    unknowns: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def balance(
    model: str | Transformer | Task,
    gpus: Mapping[str, int],
    *,
    samples: int | None = None,
    sequence: int | None = None,
    micro_batch: int = 1,
    precision: str = "bf16",
    reached: float | None = None,
) -> Sharing:
    """Return how to share the batch, or the layers, of a model among GPUs of several kinds.

    ``gpus`` says how many there are of each kind. ``samples`` are the sequences of an iteration, by
    default as many as divide equally and have 4 Mi tokens or fewer. Compared are equal
    shares, shares by speed, one kind alone, and one pipeline of all GPUs with equal layers and with
    layers by speed (none where there are more GPUs than blocks). A kind alone trains as
    `ddlnb.forecast` says of it, in nodes and on a network as they are usual with such GPUs; where
    it holds the model in no way, its speed is that of a stage: of a GPU that holds all states and
    computes nothing again. ``reached`` is instead the share of its peak that each GPU reaches,
    which then holds all states or its stage.
    A V100 has no bf16: give fp16.

    A task, or a model that is traced, trains as `ddlnb.forecast` says at its own batch, by default
    that batch for every GPU, and has no pipelines, as what goes between its layers is not traced.

    Raises UnknownName for unknown names, and InputError with what would do for a batch that does
    not divide.

    >>> import ddlnb
    >>> found = ddlnb.balance("llama3-1b", {"A100": 4, "V100": 4}, samples=256, sequence=2048,
    ...                       precision="fp16")
    >>> found.rows["way"].iloc[0], found.rows["shares"].iloc[0]
    ('shares by speed', '4 x 53, 4 x 11')
    """
    kinds, widths = gpu_kinds(gpus, precision, reached), "mixed"
    count = sum(kind.count for kind in kinds)
    traced = _traced(model, sequence) if find_shape(model, strict=True) is None else None
    if traced:
        require(reached is None, f"reached {reached} is of large models; leave it out for a task")
        layers, pipelines = model_of(traced), False
        widths = "fp32" if traced.gradients[0].bytes_per_element == 4 else "mixed"
        samples = count * traced.local_batch if samples is None else samples
        why = (
            f"what goes between the layers of {traced.model} is not traced. Batches of other than "
            f"{traced.local_batch} samples, which are taken to need as long per sample"
        )
    else:
        shape = get_shape(model)  # type: ignore[arg-type]
        long = shape.sequence if sequence is None else sequence
        require_whole(sequence=long, micro_batch=micro_batch)
        if samples is None:
            whole = count * micro_batch
            samples = max(BATCH_TOKENS // long // whole, 1) * whole
        layers = replace(shape, sequence=long).shape
        pipelines = count <= len(layers.block_layers)
        why = f"{count} GPUs are more stages than the model has blocks"
    if reached is None:
        batch = None if traced else samples
        asked = Held(model, "", sequence=sequence, precision=precision)  # type: ignore[arg-type]
        flops = layers.iteration_flops(1)
        if not traced:
            kinds = tuple(_as_stage(kind, asked, flops, samples, micro_batch) for kind in kinds)
        kinds = by_speed([_by_itself(kind, asked, flops, batch) for kind in kinds])
    ways = ways_to_share(layers, kinds, samples, micro_batch, widths, pipelines=pipelines)
    rows = way_table(ways, samples, layers)
    order = rows.sort_values(["fits", "seconds"], ascending=[False, True]).index
    ranked = [ways[index] for index in order]
    return Sharing(
        rows.loc[order].reset_index(drop=True),
        tuple(_sentences(ranked, samples, kinds)),
        tuple(_unknowns(reached, kinds, "" if pipelines else why)),
    )


def _sentences(ways: list[Way], samples: int, kinds: Kinds) -> list[str]:
    if not ways[0].fits:
        least = min(ways, key=lambda way: way.held)
        raise InputError(
            f"no way holds the model: the least, {least.name}, puts "
            f"{least.held / GIB:.0f} GiB on one GPU; take more GPUs with more memory, or split "
            f"tensors as well (ddlnb layouts scale)"
        )
    best, by_name = ways[0], {way.name: way for way in ways}
    said = [
        f"Take {best.name}: {_in_words(best)}. An iteration of {counted(samples, 'sample')} takes "
        f"{digits(best.seconds, 3)} s, {show_rate(samples / best.seconds)} samples/s."
    ]
    equal = by_name[EQUAL]
    if best is not equal and equal.fits:
        said.append(f"Equal shares take {equal.seconds / best.seconds:.2f} times as long.")
    alone = [way for way in ways if len(way.kinds) < len(kinds) and way.fits]
    if alone:
        most = min(alone, key=lambda way: way.seconds)
        if most is not best:
            said.append(
                f"The other GPUs make it {most.seconds / best.seconds:.2f} times as fast as "
                f"{most.name.removeprefix('only ')} alone."
            )
    lacking = [way for way in ways if not way.fits]
    if lacking:
        named = ", ".join(f"{way.name} ({way.held / GIB:.0f} GiB)" for way in lacking)
        said.append(f"Too much for a GPU that they use: {named}.")
    return said


def _in_words(way: Way) -> str:
    """Return who does how much: samples of GPUs, or layers of stages, in their order."""
    names = [kind.name for kind in way.kinds for _ in range(kind.count)]
    what = "layer" if way.name.startswith(PIPELINE) else "sample"
    parts = []
    for (name, share), run in groupby(zip(names, way.shares, strict=True)):
        count, several = len(list(run)), "" if share == 1 else "s"
        whom = f"one {name}" if count == 1 else f"each of {count} {name}"
        parts.append(f"{share} {what}{several} on {whom}")
    return ", ".join(parts)


def _by_itself(kind: Kind, asked: Held, flops: float, samples: int | None) -> Kind:
    """Return a kind at the throughput of the verdict on it alone; as it is where nothing fits.

    ``flops`` are those of a sample, ``samples`` what a step has, None for the model's own.
    """
    size = math.gcd(kind.count, usual_gpus(get_gpu(kind.name)))
    on = cluster_of(kind.name, nodes=kind.count // size, gpus_per_node=size)
    batch = None if samples is None else max(samples // kind.count, 1)
    question = posed(replace(asked, cluster=on, local_batch=batch), on, unused={})
    try:
        found = verdict_of(question)
    except InputError:  # no layout fits
        return kind
    if not found.way:
        return kind
    speed = found.samples_per_s * flops / kind.count
    return replace(kind, speed=speed, way=found.way, held=found.way_bytes)


def _as_stage(kind: Kind, asked: Held, flops: float, samples: int, micro_batch: int) -> Kind:
    """Return a kind at the FLOP/s of a GPU that holds all states and computes nothing again.

    A stage is as fast, which holds and updates its part of the model, and computes its part of
    every sample.
    """
    on = LayoutQuestion(
        asked.model,  # type: ignore[arg-type]
        kind.name,  # type: ignore[arg-type]
        nodes=1,
        gpus_per_node=1,
        sequence=asked.sequence,  # type: ignore[arg-type]
        global_batch=samples,
        precision=asked.precision,
    )
    layout = Layout(micro_batch=micro_batch, micro_batches=max(samples // micro_batch, 1))
    found = ranking_of(on, layout)
    assert found is not None  # a case describes it
    speed = layout.samples * flops / float(found.outlook.seconds[0])
    return replace(kind, speed=speed, stage_speed=speed)


def _traced(model: object, sequence: int | None) -> Workload | None:
    """Return the workload of a task at its own batch, without seconds; None for other names."""
    if isinstance(model, str) and not is_task(model):
        return None
    task = resolve(model, sequence=sequence)  # type: ignore[arg-type]
    return task if isinstance(task, Workload) else trace(task, task.local_batch)


def _unknowns(reached: float | None, kinds: Kinds, no_pipelines: str) -> list[str]:
    alone = [f"{kind.name} as {kind.way}" for kind in kinds if kind.way]
    other = [kind.name for kind in kinds if not kind.way]
    if reached:
        taken = [f"All kinds are taken to reach {reached:.0%} of their peaks"]
    else:
        taken = [f"By itself a kind trains as forecasts say ({', '.join(alone)})"] * bool(alone)
        taken += [
            f"In no layout is it held by {' or by '.join(other)} alone, taken to train as "
            f"fast as if memory did not matter"
        ] * bool(other)
    said = [
        f"{'. '.join(taken)}: time a few steps on one GPU of each kind.",
        "Exchanges between kinds that overlap with the backward pass; activations of stages, "
        "which come on top of their states; a GPU's speed that changes.",
    ]
    if not no_pipelines:
        said.append("In shares of pipelines the embedding and the head count as a layer each.")
    if any("tp" in kind.way or "pp" in kind.way for kind in kinds):
        said.append("Shares are of one GPU: a replica on several of them has whole samples.")
    return [*said, f"Pipelines: {no_pipelines}."] if no_pipelines else said
