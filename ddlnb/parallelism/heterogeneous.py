"""A batch, or the layers, shared among GPUs of two or more kinds: what each way yields, simulated.

The shares that let the slowest worker end early are in `ddlnb.parallelism.partition`; what kinds
of named GPUs do by themselves, and the answer in one call, in `ddlnb.advice.balance`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise, permutations

import pandas as pd

from ddlnb.errors import InputError, require, require_positive, require_whole
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.parallelism.forecast.frameworks import layer_flops
from ddlnb.parallelism.memory import Precision, get_precision, pipeline_stages
from ddlnb.parallelism.model import ModelShape
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_shares,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule
from ddlnb.units import GIB

PIPELINE = "pipeline"
EQUAL, BY_SPEED = "equal shares", "shares by speed"
FORWARD = 1 / 3  # of the FLOPs of an iteration; the backward pass takes the rest


@dataclass(frozen=True)
class Kind:
    """GPUs of one kind: ``count`` of them, each with ``speed`` in FLOP/s as training reaches it.

    ``port`` are the bytes/s of each one's share of the network, ``memory`` its bytes, infinite
    where it does not matter. ``way`` is the layout or method in which the kind trains by itself, if
    that is known: then ``held`` bytes lie on each of its GPUs, and ``speed`` is what remains of
    theirs when they have exchanged with one another and computed again what they did not keep. A
    stage of a pipeline does neither: ``stage_speed`` is its FLOP/s, 0 for ``speed``. Raises
    InputError for what no GPU has.

    >>> Kind("fast", 2, speed=1e14, port=1e10).total
    200000000000000.0
    """

    name: str
    count: int
    speed: float
    port: float
    memory: float = math.inf
    way: str = ""
    held: float = 0.0
    stage_speed: float = 0.0

    def __post_init__(self) -> None:
        require_whole(count=self.count)
        require_positive(speed=self.speed, port=self.port)
        require(self.memory > 0, f"memory {self.memory!r} must be above 0 bytes")

    @property
    def total(self) -> float:
        """FLOP/s of all of them, alone or as stages, whichever is more."""
        return self.count * max(self.speed, self.stage_speed)


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
    require(
        isinstance(counts, Mapping) and bool(counts),
        f"there are no GPUs by name in {counts!r}; name at least one kind, such as {{'A100': 4}}",
    )
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
    return tuple(sorted(kinds, key=lambda kind: (-kind.speed, kind.name)))


def speeds(kinds: Kinds) -> tuple[float, ...]:
    """Return the speed of every GPU, kind by kind."""
    return tuple(kind.speed for kind in kinds for _ in range(kind.count))


@dataclass(frozen=True)
class Way:
    """One way to use the GPUs: its name, who does how much, and the seconds of an iteration.

    ``shares`` are samples of every GPU, or layers of every stage; ``compute`` the seconds without
    communication, or with that within kinds that have ways of their own. ``held`` are the bytes on
    the GPU that they fill most, ``fits`` whether all GPUs hold theirs: parameters, gradients and
    optimizer states, with activations where kinds have ways of their own and on top of them else.
    """

    name: str
    kinds: Kinds
    shares: tuple[int, ...]
    compute: float
    communication: float
    held: float
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
    pipeline of all GPUs (1F1B) with equal numbers of blocks, and cut by speed and by memory, kinds
    in the order that is quickest of those that fit. Data parallelism exchanges after the slowest
    worker has ended (BSP), in a ring at the pace of the slowest port; where all kinds have a way of
    their own, they exchange with one another alone, every GPU its part of the gradients. Pipelines
    send at the pace of the slowest port, too.

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
            ways.append(min(orders, key=lambda way: (not way.fits, way.seconds)))
    return ways


def way_table(ways: Sequence[Way], samples: int, model: ModelShape) -> pd.DataFrame:
    """Return a row per way: shares in words, seconds, samples/s, and the share of what is possible.

    ``of_all`` is the throughput over that of all GPUs of the ways computing all the time: the
    trivial forecast, which adds up their speeds. ``held_gib`` and ``fits`` are those of `Way`.
    """
    together = max(sum(kind.total for kind in way.kinds) for way in ways)
    possible = together / model.iteration_flops(1)
    return pd.DataFrame(
        {
            "way": way.name,
            "gpus": " + ".join(f"{kind.count} {kind.name}" for kind in way.kinds),
            "shares": _shares(way),
            "seconds": way.seconds,
            "compute_seconds": way.compute,
            "communication_seconds": way.communication,
            "samples_per_second": samples / way.seconds,
            "of_all": samples / way.seconds / possible,
            "held_gib": way.held / GIB,
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


def _shares(way: Way) -> str:
    """Return the shares of a way in words, those of a pipeline by the kinds of its stages."""
    if not way.name.startswith(PIPELINE):
        return in_words(way.shares)
    ends = pairwise(accumulate((kind.count for kind in way.kinds), initial=0))
    return "; ".join(
        f"{kind.name.partition('-')[0]}: {in_words(way.shares[start:stop])}"
        for kind, (start, stop) in zip(way.kinds, ends, strict=True)
    )


def _data(
    name: str, model: ModelShape, kinds: Kinds, shares: tuple[int, ...], precision: Precision
) -> Way:
    flops, count = model.iteration_flops(1), sum(kind.count for kind in kinds)
    slowest = slowest_seconds(shares, [speed / flops for speed in speeds(kinds)])
    gradients, states = model.parameters * precision.reduced, model.parameters * precision.states
    if all(kind.way for kind in kinds):
        held = {kind: kind.held for kind in kinds}
        sent = 2 * (len(kinds) - 1) / len(kinds) * gradients
        sending = sent / min(kind.count * kind.port for kind in kinds)
    else:
        held = dict.fromkeys(kinds, states)
        sending = 2 * (count - 1) / count * gradients / _port(kinds)
    fullest = max(kinds, key=lambda kind: held[kind] / kind.memory)
    fits = held[fullest] <= fullest.memory
    return Way(name, kinds, shares, slowest, sending, held[fullest], fits)


def _pipeline(
    model: ModelShape,
    kinds: Kinds,
    is_equal: bool,
    micro_batches: int,
    micro_batch: int,
    precision: Precision,
) -> Way:
    everyone = [kind.stage_speed or kind.speed for kind in kinds for _ in range(kind.count)]
    memory = [kind.memory for kind in kinds for _ in range(kind.count)]
    sizes = [float(precision.states * layer.parameters) for layer in model.layers]
    if is_equal:
        name, even = f"{PIPELINE}, equal layers", pipeline_stages(model, len(everyone))
        held = tuple(sum(count for _, count in stage.layers) for stage in even)
    else:
        name, flops = f"{PIPELINE} by speed", [layer.forward_flops for layer in model.layers]
        held = cut_layers(flops, everyone, micro_batches, sizes, memory)
    costs = [layer.forward_flops * micro_batch / FORWARD for layer in model.layers]
    stages = stage_seconds(costs, everyone, held)
    seconds = [{"F": one * FORWARD, "B": one * (1 - FORWARD)} for one in stages]
    order = schedule("1f1b", len(stages), micro_batches)
    width = max(layer.output_elements for layer in model.layers[:-1])
    send = width * micro_batch * precision.activation / _port(kinds)
    alone = play(order, seconds).seconds
    states = [sum(sizes[start:stop]) for start, stop in pairwise(accumulate(held, initial=0))]
    most, room = max(zip(states, memory, strict=True), key=lambda pair: pair[0] / pair[1])
    communication = play(order, seconds, send).seconds - alone
    return Way(name, kinds, held, alone, communication, most, most <= room)


def _port(kinds: Kinds) -> float:
    return min(kind.port for kind in kinds)
