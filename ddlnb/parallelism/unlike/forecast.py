"""What each way to use GPUs of two or more kinds together yields, simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, permutations
from typing import TYPE_CHECKING

from ddlnb.errors import InputError, require, require_whole
from ddlnb.parallelism.model import ModelShape
from ddlnb.parallelism.play_schedule import play
from ddlnb.parallelism.precision import Precision, get_precision
from ddlnb.parallelism.schedules import schedule
from ddlnb.parallelism.stages import pipeline_stages
from ddlnb.parallelism.unlike.batch import equal_shares, share_batch, slowest_seconds
from ddlnb.parallelism.unlike.kinds import Kinds, by_speed, speeds
from ddlnb.parallelism.unlike.layers import cut_layers, stage_seconds
from ddlnb.units import GIB

if TYPE_CHECKING:
    import pandas as pd

Cut = Callable[[ModelShape, Sequence[float], int], tuple[int, ...]]
FORWARD = 1 / 3  # of the FLOPs of an iteration; the backward pass takes the rest


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


def unlike_ways(
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
    if not kinds:
        raise InputError("there are no GPUs; give at least one kind")
    if samples % micro_batch:
        below = f"{samples - samples % micro_batch} or " if samples > micro_batch else ""
        raise InputError(
            f"micro batches of {micro_batch} do not divide a batch of {samples}; take {below}"
            f"{samples + micro_batch - samples % micro_batch}"
        )
    kinds, precision = by_speed(kinds), get_precision(precision)
    everyone = speeds(kinds)
    ways = [
        _data("equal shares", model, kinds, equal_shares(samples, len(everyone)), precision),
        _data("shares by speed", model, kinds, share_batch(samples, everyone), precision),
    ]
    if len(kinds) > 1:
        for kind in kinds:
            shares = share_batch(samples, speeds((kind,)))
            ways.append(_data(f"only {kind.name}", model, (kind,), shares, precision))
    if pipelines and len(everyone) > 1:
        blocks = len(model.block_layers)
        require(
            len(everyone) <= blocks,
            f"a pipeline of {len(everyone)} GPUs is longer than the {blocks} blocks of model "
            f"{model.name!r}; use at most {blocks} GPUs, or pipelines=False",
        )
        for name, cut in (("pipeline, equal layers", _equal), ("pipeline by speed", _by_speed)):
            found = [
                _pipeline(name, model, order, cut, samples // micro_batch, micro_batch, precision)
                for order in permutations(kinds)
            ]
            ways.append(min(found, key=lambda way: way.seconds))
    return ways


def unlike_table(ways: Sequence[Way], samples: int, model: ModelShape) -> pd.DataFrame:
    """Return a row per way: shares in words, seconds, samples/s, and the share of what is possible.

    ``of_all`` is the throughput over that of all GPUs of the ways computing all the time: the
    trivial forecast, which adds up their speeds. ``states_gib`` and ``fits`` are those of `Way`.
    """
    import pandas as pd

    together = max(sum(kind.total for kind in way.kinds) for way in ways)
    possible = together / model.iteration_flops(1)
    rows = []
    for way in ways:
        throughput = samples / way.seconds
        rows.append(
            {
                "way": way.name,
                "gpus": " + ".join(f"{kind.count} {kind.name}" for kind in way.kinds),
                "shares": in_words(way.shares),
                "seconds": way.seconds,
                "compute_seconds": way.compute,
                "communication_seconds": way.communication,
                "samples_per_second": throughput,
                "of_all": throughput / possible,
                "states_gib": way.states / GIB,
                "fits": way.fits,
            }
        )
    return pd.DataFrame(rows)


def in_words(shares: Sequence[int]) -> str:
    """Return shares with neighbours that are alike put together.

    >>> in_words((7, 7, 3))
    '2 x 7, 1 x 3'
    """
    return ", ".join(f"{len(list(run))} x {share}" for share, run in groupby(shares))


def _data(
    name: str, model: ModelShape, kinds: Kinds, shares: tuple[int, ...], precision: Precision
) -> Way:
    flops = model.iteration_flops(1)
    rates = [speed / flops for speed in speeds(kinds)]
    count = len(rates)
    sent = 2 * (count - 1) / count * model.parameters * precision.reduced
    states = model.parameters * _state(precision)
    fits = all(states <= kind.memory for kind in kinds)
    slowest = slowest_seconds(shares, rates)
    return Way(name, kinds, shares, slowest, sent / _port(kinds), states, fits)


def _state(precision: Precision) -> int:
    """Return the bytes that a parameter takes with its gradient and Adam's states."""
    return precision.parameter + precision.gradient + precision.optimizer


def _equal(model: ModelShape, everyone: Sequence[float], micro_batches: int) -> tuple[int, ...]:
    stages = pipeline_stages(model, len(everyone))
    return tuple(sum(count for _, count in stage.layers) for stage in stages)


def _by_speed(model: ModelShape, everyone: Sequence[float], micro_batches: int) -> tuple[int, ...]:
    return cut_layers([layer.forward_flops for layer in model.layers], everyone, micro_batches)


def _pipeline(
    name: str,
    model: ModelShape,
    kinds: Kinds,
    cut: Cut,
    micro_batches: int,
    micro_batch: int,
    precision: Precision,
) -> Way:
    everyone = speeds(kinds)
    held = cut(model, everyone, micro_batches)
    costs = [layer.forward_flops * micro_batch / FORWARD for layer in model.layers]
    stages = stage_seconds(costs, everyone, held)
    seconds = [{"F": one * FORWARD, "B": one * (1 - FORWARD)} for one in stages]
    order = schedule("1f1b", len(stages), micro_batches)
    width = max(layer.output_elements for layer in model.layers[:-1])
    send = width * micro_batch * precision.activation / _port(kinds)
    alone = play(order, seconds).seconds
    stops = list(accumulate(held))
    states = [
        _state(precision) * sum(layer.parameters for layer in model.layers[stop - count : stop])
        for count, stop in zip(held, stops, strict=True)
    ]
    own = [kind.memory for kind in kinds for _ in range(kind.count)]
    most = max(range(len(held)), key=lambda stage: states[stage] / own[stage])
    communication = play(order, seconds, send).seconds - alone
    return Way(name, kinds, held, alone, communication, states[most], states[most] <= own[most])


def _port(kinds: Kinds) -> float:
    return min(kind.port for kind in kinds)
