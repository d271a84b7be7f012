"""A batch, or the layers, shared among GPUs of two or more kinds: what each way yields, simulated.

`balance` is the answer in one call. Speeds of the kinds are those of `layer_flops`; the shares that
let the slowest worker end early are in `ddlnb.parallelism.partition`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise, permutations
from typing import TYPE_CHECKING

import pandas as pd

from ddlnb.errors import InputError, require, require_positive, require_whole
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.config import find_shape, get_shape
from ddlnb.parallelism.forecast.frameworks import frameworks_meant, layer_flops
from ddlnb.parallelism.forecast.question import BATCH_TOKENS
from ddlnb.parallelism.memory import Precision, get_precision, pipeline_stages
from ddlnb.parallelism.model import ModelShape, Transformer, model_of
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_shares,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.units import GIB, counted, digits, show_rate
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.workloads.task import Task


PIPELINE = "pipeline"
EQUAL, BY_SPEED = "equal shares", "shares by speed"
FORWARD = 1 / 3  # of the FLOPs of an iteration; the backward pass takes the rest


@dataclass(frozen=True)
class Kind:
    """GPUs of one kind: ``count`` of them, each with ``speed`` in FLOP/s as training reaches it.

    ``port`` are the bytes/s of each one's share of the network, ``memory`` its bytes, infinite
    where it does not matter. Raises InputError for what no GPU has.

    >>> Kind("fast", 2, speed=1e14, port=1e10).total
    200000000000000.0
    """

    name: str
    count: int
    speed: float
    port: float
    memory: float = math.inf

    def __post_init__(self) -> None:
        require_whole(count=self.count)
        require_positive(speed=self.speed, port=self.port)
        require(self.memory > 0, f"memory {self.memory!r} must be above 0 bytes")

    @property
    def total(self) -> float:
        """FLOP/s of all of them."""
        return self.count * self.speed


Kinds = tuple[Kind, ...]


def gpu_kinds(
    counts: Mapping[str, int], precision: str = "fp16", reached: float | None = None
) -> Kinds:
    """Return the kinds of a cluster from the data sheets of its GPUs, the fastest first.

    A GPU trains as fast as its layers get FLOP/s (`layer_flops`), or reaches the share ``reached``
    of its peak at this precision, which is then the same for all kinds. Raises UnknownName for a
    GPU or a precision that it has no rate for, InputError for counts below 1 and shares that are
    not above 0 and at most 1.

    >>> kinds = gpu_kinds({"V100": 4, "A100": 4}, reached=0.4)
    >>> [(kind.name, round(kind.speed / 1e12, 1)) for kind in kinds]
    [('A100-SXM4-80GB', 124.8), ('V100-SXM2-32GB', 50.0)]
    """
    require(bool(counts), "there are no GPUs; name at least one kind, such as {'A100': 4}")
    require(
        reached is None or 0 < reached <= 1, f"reached {reached!r} must be above 0 and at most 1"
    )
    kinds = []
    for name, count in counts.items():
        gpu = get_gpu(name)
        flops = reached * gpu.peak(precision) if reached else layer_flops(gpu, precision)
        kinds.append(Kind(gpu.name, count, flops, gpu.port, gpu.memory))
    return by_speed(kinds)


def by_speed(kinds: Kinds | list[Kind]) -> Kinds:
    """Return the kinds, the fastest first. Raises InputError for one that is named twice."""
    names = [kind.name for kind in kinds]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"GPU {', '.join(twice)} is named twice; add up how many there are")
    return tuple(sorted(kinds, key=lambda kind: -kind.speed))


def speeds(kinds: Kinds) -> tuple[float, ...]:
    """Return the speed of every GPU, kind by kind."""
    return tuple(kind.speed for kind in kinds for _ in range(kind.count))


@dataclass(frozen=True)
class Way:
    """One way to use the GPUs: its name, who does how much, and the seconds of an iteration.

    ``shares`` are samples of every GPU, or layers of every stage; ``compute`` the seconds without
    communication. ``states`` are the bytes of parameters, gradients and optimizer states on the
    GPU that they fill most, ``fits`` whether all GPUs hold theirs: activations come on top.
    """

    name: str
    kinds: Kinds
    shares: tuple[int, ...]
    compute: float
    communication: float
    states: float
    fits: bool

    @property
    def seconds(self) -> float:
        """Seconds of an iteration."""
        return self.compute + self.communication


def ways_to_share(
    model: ModelShape,
    kinds: Kinds,
    samples: int,
    micro_batch: int = 1,
    precision: str | Precision = "mixed",
    pipelines: bool = True,
) -> list[Way]:
    """Return every way to train a model with these GPUs on batches of so many samples.

    Data parallelism with equal shares, with shares by speed, and on GPUs of one kind only; one
    pipeline of all GPUs (1F1B) with equal numbers of blocks, and cut by speed, kinds in the order
    that is quicker. Data parallelism exchanges after the slowest worker has ended (BSP), in a ring
    at the pace of the slowest port; pipelines send at that of the slowest port, too.

    Without ``pipelines`` there are none, as for more GPUs than the model has blocks. Raises
    InputError, with the numbers that would do, for a batch or layers that do not divide.
    """
    require_whole(samples=samples, micro_batch=micro_batch)
    require(bool(kinds), "there are no GPUs; give at least one kind")
    if samples % micro_batch:
        below = f"{samples - samples % micro_batch} or " if samples > micro_batch else ""
        raise InputError(
            f"micro batches of {micro_batch} do not divide a batch of {samples}; take {below}"
            f"{samples + micro_batch - samples % micro_batch}"
        )
    kinds, precision = by_speed(kinds), get_precision(precision)
    everyone = speeds(kinds)
    ways = [
        _data(EQUAL, model, kinds, equal_shares(samples, len(everyone)), precision),
        _data(BY_SPEED, model, kinds, share_batch(samples, everyone), precision),
    ]
    ways += [
        _data(f"only {one.name}", model, (one,), share_batch(samples, speeds((one,))), precision)
        for one in kinds
        if len(kinds) > 1
    ]
    if pipelines and len(everyone) > 1:
        blocks = len(model.block_layers)
        require(
            len(everyone) <= blocks,
            f"a pipeline of {len(everyone)} GPUs is longer than the {blocks} blocks of model "
            f"{model.name!r}; use at most {blocks} GPUs, or pipelines=False",
        )
        for is_equal in (True, False):
            orders = [
                _pipeline(model, order, is_equal, samples // micro_batch, micro_batch, precision)
                for order in permutations(kinds)
            ]
            ways.append(min(orders, key=lambda way: way.seconds))
    return ways


def way_table(ways: Sequence[Way], samples: int, model: ModelShape) -> pd.DataFrame:
    """Return a row per way: shares in words, seconds, samples/s, and the share of what is possible.

    ``of_all`` is the throughput over that of all GPUs of the ways computing all the time: the
    trivial forecast, which adds up their speeds. ``states_gib`` and ``fits`` are those of `Way`.
    """
    together = max(sum(kind.total for kind in way.kinds) for way in ways)
    possible = together / model.iteration_flops(1)
    return pd.DataFrame(
        {
            "way": way.name,
            "gpus": " + ".join(f"{kind.count} {kind.name}" for kind in way.kinds),
            "shares": in_words(way.shares),
            "seconds": way.seconds,
            "compute_seconds": way.compute,
            "communication_seconds": way.communication,
            "samples_per_second": samples / way.seconds,
            "of_all": samples / way.seconds / possible,
            "states_gib": way.states / GIB,
            "fits": way.fits,
        }
        for way in ways
    )


def in_words(shares: Sequence[int]) -> str:
    """Return shares with neighbours that are alike put together.

    >>> in_words((7, 7, 3))
    '2 x 7, 1 x 3'
    """
    return ", ".join(f"{len(list(run))} x {share}" for share, run in groupby(shares))


def _data(
    name: str, model: ModelShape, kinds: Kinds, shares: tuple[int, ...], precision: Precision
) -> Way:
    flops, count = model.iteration_flops(1), sum(kind.count for kind in kinds)
    slowest = slowest_seconds(shares, [speed / flops for speed in speeds(kinds)])
    sent = 2 * (count - 1) / count * model.parameters * precision.reduced
    states = model.parameters * precision.states
    fits = all(states <= kind.memory for kind in kinds)
    return Way(name, kinds, shares, slowest, sent / _port(kinds), states, fits)


def _pipeline(
    model: ModelShape,
    kinds: Kinds,
    is_equal: bool,
    micro_batches: int,
    micro_batch: int,
    precision: Precision,
) -> Way:
    everyone = speeds(kinds)
    if is_equal:
        name, even = f"{PIPELINE}, equal layers", pipeline_stages(model, len(everyone))
        held = tuple(sum(count for _, count in stage.layers) for stage in even)
    else:
        name, flops = f"{PIPELINE} by speed", [layer.forward_flops for layer in model.layers]
        held = cut_layers(flops, everyone, micro_batches)
    costs = [layer.forward_flops * micro_batch / FORWARD for layer in model.layers]
    stages = stage_seconds(costs, everyone, held)
    seconds = [{"F": one * FORWARD, "B": one * (1 - FORWARD)} for one in stages]
    order = schedule("1f1b", len(stages), micro_batches)
    width = max(layer.output_elements for layer in model.layers[:-1])
    send = width * micro_batch * precision.activation / _port(kinds)
    alone = play(order, seconds).seconds
    states = [
        precision.states * sum(layer.parameters for layer in model.layers[start:stop])
        for start, stop in pairwise(accumulate(held, initial=0))
    ]
    memory = (kind.memory for kind in kinds for _ in range(kind.count))
    most, room = max(zip(states, memory, strict=True), key=lambda pair: pair[0] / pair[1])
    communication = play(order, seconds, send).seconds - alone
    return Way(name, kinds, held, alone, communication, most, most <= room)


def _port(kinds: Kinds) -> float:
    return min(kind.port for kind in kinds)


@dataclass(frozen=True)
class Sharing:
    """Every way to use GPUs of several kinds together, the best first; as text, sentences.

    ``rows`` are those of `ddlnb.parallelism.heterogeneous.way_table`: first the ways whose
    states all GPUs hold, the quickest first, then the others.
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
    default as many as divide equally and have four million tokens or fewer. Compared are equal
    shares, shares by speed, one kind alone, and one pipeline of all GPUs with equal layers and with
    layers by speed (none where there are more GPUs than blocks). ``reached`` is the share of its
    peak at this precision that each GPU reaches, by default what layers of large models get on it,
    as in `ddlnb.scale`; seconds are simulated from data sheets. A V100 has no bf16: give fp16.

    A task, or a model that is traced, has the samples/s of each kind at its own batch
    (`ddlnb.estimate`), by default that batch for every GPU, and no pipelines, as what goes between
    its layers is not traced.

    Raises UnknownName for unknown names, and InputError with what would do for a batch that does
    not divide.

    >>> import ddlnb
    >>> found = ddlnb.balance("llama3-1b", {"A100": 4, "V100": 4}, samples=256, sequence=2048,
    ...                       precision="fp16")
    >>> found.rows["way"].iloc[0], found.rows["shares"].iloc[0]
    ('shares by speed', '4 x 54, 4 x 10')
    """
    kinds, widths = gpu_kinds(gpus, precision, reached), "mixed"
    count = sum(kind.count for kind in kinds)
    if (shape := find_shape(model)) is None and (traced := _traced(model, sequence)):
        require(reached is None, f"reached {reached} is of large models; leave it out for a task")
        layers, pipelines = model_of(traced), False
        kinds = by_speed([_reached_by_sheet(one, traced, precision) for one in kinds])
        widths = "fp32" if traced.gradients[0].bytes_per_element == 4 else "mixed"
        samples = count * traced.local_batch if samples is None else samples
        why = (
            f"what goes between the layers of {traced.model} is not traced. Batches of other than "
            f"{traced.local_batch} samples, which are taken to need as long per sample"
        )
    else:
        shape = shape or get_shape(model)  # type: ignore[arg-type]
        long = shape.sequence if sequence is None else sequence
        require_whole(sequence=long, micro_batch=micro_batch)
        if samples is None:
            whole = count * micro_batch
            samples = max(BATCH_TOKENS // long // whole, 1) * whole
        layers = replace(shape, sequence=long).shape
        pipelines = count <= len(layers.block_layers)
        why = f"{count} GPUs are more stages than the model has blocks"
    ways = ways_to_share(layers, kinds, samples, micro_batch, widths, pipelines=pipelines)
    rows = way_table(ways, samples, layers)
    order = rows.sort_values(["fits", "seconds"], ascending=[False, True]).index
    ranked = [ways[index] for index in order]
    return Sharing(
        rows.loc[order].reset_index(drop=True),
        tuple(_sentences(ranked, samples, kinds)),
        tuple(_unknowns(reached, "" if pipelines else why)),
    )


def _sentences(ways: list[Way], samples: int, kinds: Kinds) -> list[str]:
    if not ways[0].fits:
        least = min(ways, key=lambda way: way.states)
        raise InputError(
            f"no way holds the states of the model: the least, {least.name}, puts "
            f"{least.states / GIB:.0f} GiB on one GPU; take more GPUs with more memory, or split "
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
        named = ", ".join(f"{way.name} ({way.states / GIB:.0f} GiB)" for way in lacking)
        said.append(f"Not held by all GPUs that they use: the states of {named}.")
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


def _traced(model: object, sequence: int | None) -> Workload | None:
    """Return the workload of a task at its own batch, without seconds; None for other names."""
    from ddlnb.workloads.resolve import is_task, resolve
    from ddlnb.workloads.tracing import trace

    if isinstance(model, str) and not is_task(model):
        return None
    task = resolve(model, sequence=sequence)  # type: ignore[arg-type]
    return task if isinstance(task, Workload) else trace(task, task.local_batch)


def _reached_by_sheet(kind: Kind, traced: Workload, precision: str) -> Kind:
    """Return the kind at the FLOP/s that a traced model reaches on it at its own batch."""
    seconds = estimate(traced, kind.name, precision).compute_seconds
    return replace(kind, speed=model_of(traced).iteration_flops(traced.local_batch) / seconds)


def _unknowns(reached: float | None, no_pipelines: str) -> list[str]:
    taken = (
        f"All kinds are taken to reach {reached:.0%} of their peaks"
        if reached
        else "What each kind sustains is from data sheets and runs of its generation, the mean of "
        f"{len(frameworks_meant())} frameworks"
    )
    said = [
        f"{taken}: time a few steps on one GPU of each kind.",
        "Activations, which come on top of the states; exchanges that overlap with the backward "
        "pass; a GPU's speed that changes.",
    ]
    return [*said, f"Pipelines: {no_pipelines}."] if no_pipelines else said
