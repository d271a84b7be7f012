"""Why an iteration takes as long as it does: what was changed, what was last, what may be wrong.

Counterfactuals are the same training simulated again with one thing changed. What a worker waits
for at the end is the message that arrives last. Where a throughput was measured that is not the one
forecast, suspects are what would explain the gap, each with a test that tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from ddlnb.advice.machines import needs_rdma, network_of
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import (
    BANDWIDTH,
    EFFECTS,
    UNLIMITED,
    Effect,
    Effects,
    of_kind,
    without,
)
from ddlnb.errors import require_positive
from ddlnb.hardware.catalogue import interconnects
from ddlnb.hardware.machine import Interconnect
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.draws import Z90, play_cells
from ddlnb.simulator.simulate import Cell, simulate, steady_seconds
from ddlnb.units import show_bytes, show_rate, show_rates, show_seconds

BETWEEN = of_kind(BANDWIDTH, "between", "server link")
INSIDE = of_kind(BANDWIDTH, "inside")
LIMITS = {
    "the bandwidth between nodes": dict.fromkeys(BETWEEN, UNLIMITED),
    "the bandwidth inside nodes": dict.fromkeys(INSIDE, UNLIMITED),
    "latency": without("latency"),
    "contention of communication with computation": without("contention"),
}
NEGLIGIBLE = 0.01  # a change that gains less is none
AS_IT_IS = "as it is"
FASTER = {2.0: "twice", 4.0: "four times"}  # how much faster a network may be
Case = TypeVar("Case")


@dataclass(frozen=True)
class Counterfactual(Generic[Case]):
    """One thing that could be otherwise, and the cell as it would be then, planned anew.

    The cell is what the advice is about: a method on a cluster, or a large model on GPUs.
    """

    what: str
    cell: Case
    can_be_bought: bool = False


def counterfactuals(cell: Cell) -> list[Counterfactual[Cell]]:
    """Return what could be otherwise about a cell; what is not there cannot be."""
    cluster = cell.cluster

    def on(
        what: str, effects: Mapping[str, float], *, bought: bool = False
    ) -> Counterfactual[Cell]:
        changed = cluster.with_effects(**effects)
        return Counterfactual(what, replace(cell, cluster=changed), bought)

    found = []
    if cluster.nodes_in_use > 1:
        for factor in FASTER:
            effects = _faster(cluster, BETWEEN, factor)
            found.append(on(faster_in_words(factor, network_of(cluster)), effects, bought=True))
    if cluster.workers_per_node > 1:
        twice = _faster(cluster, INSIDE, 2.0)
        found.append(on("twice the bandwidth inside nodes", twice, bought=True))
    if cluster.workers > 1:
        found.append(on("no latency", without("latency")))
        found.append(on("no contention with the computation", without("contention")))
        found.append(on("no communication", without("latency", "contention", "bandwidth")))
    if differ := cluster.heterogeneity.among(cluster.workers, cluster.nodes_in_use):
        alike = replace(cell, cluster=cluster.with_heterogeneity())
        found.append(Counterfactual(f"workers all alike ({differ})", alike))
    factor = cluster.effects.compute_factor
    found.append(on("GPUs twice as fast", {"compute_factor": factor / 2}, bought=True))
    return found


def counterfactual_table(cell: Cell) -> pd.DataFrame:
    """Return one row per counterfactual of a cell, which comes first as it is."""
    listed = [Counterfactual(AS_IT_IS, cell), *counterfactuals(cell)]
    played = steady_seconds([each.cell for each in listed])
    return reason_table(listed, [one.iteration_seconds for one in played])


def reason_table(listed: Sequence[Counterfactual[Any]], seconds: Sequence[float]) -> pd.DataFrame:
    """Return one row per counterfactual: seconds of an iteration, and how many times as fast it is.

    Columns: what, iteration_seconds, times_as_fast, can_be_bought. The first row is what the others
    are compared with.
    """
    return pd.DataFrame(
        {
            "what": [one.what for one in listed],
            "iteration_seconds": seconds,
            "times_as_fast": [seconds[0] / each for each in seconds],
            "can_be_bought": [one.can_be_bought for one in listed],
        }
    )


def faster_in_words(factor: float, network: Interconnect) -> str:
    """Return what so many times the bandwidth between nodes is, and whether it takes RDMA."""
    said = f"{FASTER[factor]} the bandwidth between nodes"
    return f"{said}, by RDMA" if needs_rdma(network, factor) else said


def _faster(cluster: Cluster, names: tuple[str, ...], factor: float) -> dict[str, float]:
    """Return these effects multiplied; those that limit nothing stay."""
    values = {name: getattr(cluster.effects, name) for name in names}
    return {name: factor * value for name, value in values.items() if value < UNLIMITED}


SOON = 1e-6  # seconds: less is rounding
STEADY = 1  # the second iteration: the first one waits for nothing that came before


@dataclass(frozen=True)
class LastMessage:
    """The message of an iteration that arrives last, in seconds after the last gradient is ready.

    ``begun`` is when the network took it, ``arrived`` when its average was back; either may be
    negative where it was done before the backward pass.
    """

    name: str
    bytes: int
    begun: float
    arrived: float

    def __str__(self) -> str:
        if self.arrived <= SOON:
            return "all messages have arrived when the last gradient is ready: nothing waits"
        if abs(self.begun) < SOON:
            started = "having started at once"
        elif self.begun > 0:
            started = f"having waited {show_seconds(self.begun)} for others"
        else:
            started = f"having started {show_seconds(-self.begun)} before that"
        return (
            f"the last message ({show_bytes(self.bytes)}) arrives {show_seconds(self.arrived)} "
            f"after the last gradient is ready, {started}"
        )


def last_message(cell: Cell) -> LastMessage | None:
    """Return the message that a worker waits for longest, None where there are no messages."""
    line = simulate(
        cell.workload, cell.cluster, cell.method, servers=cell.servers, iterations=STEADY + 2
    )
    return last_of(line)


def last_of(line: Timeline) -> LastMessage | None:
    """Return the last message of the steady iteration of a timeline, on its lowest rank."""
    rank = min(span.rank for span in line.spans)
    spans = [one for one in line.spans if one.iteration == STEADY and one.rank == rank]
    ready = max(span.stop_seconds for span in spans if span.kind == "backward")
    messages = [span for span in spans if span.kind == "message"]
    if not messages:
        return None
    last = max(messages, key=lambda span: span.stop_seconds)
    return LastMessage(last.name, last.bytes, last.start_seconds - ready, last.stop_seconds - ready)


FACTORS = 2.0 ** (np.arange(33) / 4)  # an effect is tried up to 256 times as bad
WIDE = 8  # of these at a time, at first
SLOW_WORKER, SLOW_LINK, OUTSIDE = "slow worker", "slow link", "outside"
SUSPECTS = 4  # that are named
WITHIN = 3.0  # how far off one worker or one node is, where nobody knows: with 90 % certainty
SAME_RATE = 0.1  # relative: a network that is as slow as a suspect
CHANGED = 1.5  # how far an effect may have moved since it was fitted, with 90 % certainty


@dataclass(frozen=True)
class Suspect:
    """One effect that, alone, would explain the measured seconds, and the test that tells.

    ``factor`` is how many times as bad (below 1: as good) the effect would have to be as the
    cluster says, ``surprise`` how many standard deviations that is: of the effect's interval, and
    of what may have changed since it was found. ``test`` says what to measure, ``expected`` what it
    shows if the cluster is right, ``explains`` if the suspect is; ``cluster`` is as slow, None
    where it is not the cluster that is.
    """

    effect: str
    meaning: str
    factor: float
    surprise: float
    test: str
    expected: str
    explains: str
    cluster: Cluster | None = None

    def __str__(self) -> str:
        far = "" if math.isnan(self.surprise) else f" ({self.surprise:.1f} standard deviations)"
        return (
            f"{self.meaning[:1].upper()}{self.meaning[1:]}: {self.explains} instead of "
            f"{self.expected} would explain it{far}. Test: {self.test}"
        )


@dataclass(frozen=True)
class Gap:
    """A measured throughput beside the forecast of it, and what would explain the difference.

    ``low`` and ``high`` are the 90 % interval of the forecast, both the forecast itself without
    draws. ``suspects`` stand with the least surprising first; there are none where the measurement
    is within the interval.
    """

    measured: float
    forecast: float
    low: float
    high: float
    method: str
    suspects: tuple[Suspect, ...]

    @property
    def likeliest(self) -> tuple[Suspect, ...]:
        """The least surprising suspects, and what is outside of the training step."""
        first = self.suspects[:SUSPECTS]
        outside = [one for one in self.suspects[SUSPECTS:] if one.effect == OUTSIDE]
        return (*first[: SUSPECTS - len(outside)], *outside)

    @property
    def is_as_forecast(self) -> bool:
        """Whether the measured throughput is within the interval."""
        return self.low <= self.measured <= self.high

    def __str__(self) -> str:
        interval = f"{show_rates(self.low, self.high)} were forecast"
        if self.low == self.high:
            interval = f"{show_rate(self.forecast)} were forecast, without an interval"
        said = f"{self.method} was measured at {show_rate(self.measured)} samples/s, and {interval}"
        if self.is_as_forecast:
            return f"{said}: nothing is wrong that the forecast knows of."
        word = "slower" if self.measured < self.low else "faster"
        if not self.suspects:
            return f"{said}. No single effect makes it that much {word}."
        return f"{said}: {word} than it should be."


def explain_gap(cell: Cell, measured: float, *, draws: int = 200, seed: int = 0) -> Gap:
    """Return the gap between a measured throughput, in samples/s, and the forecast of the cell.

    Every effect of the cluster is made worse, or better, by itself until the simulated throughput
    is the measured one; plans stay those of the cluster as it is given. So are the speed of one
    worker and the link of one node. What cannot explain the gap alone is no suspect. Raises
    InputError for a throughput that is not positive.
    """
    require_positive(measured=measured)
    played = play_cells([cell], draws=draws, seed=seed)
    forecast = cell.samples / float(played.seconds[0])
    low, high = (cell.samples / played.quantile(0, share) for share in (0.95, 0.05))
    if math.isnan(low):
        low = high = forecast
    gap = Gap(measured, forecast, low, high, cell.method.name, ())
    if gap.is_as_forecast:
        return gap
    worse = measured < forecast
    target = cell.samples / measured
    found = [
        _suspect(effect, changed, cell, factor)
        for effect, changed in _changes(cell, worse).items()
        if (factor := _needed_factor(cell, changed, target)) is not None
    ]
    found.sort(key=lambda one: one.surprise)
    outside = [_outside(target - float(played.seconds[0]))] if worse else []
    return replace(gap, suspects=(*found, *outside))


Change = Callable[[float], Cluster]


def _changes(cell: Cell, worse: bool) -> dict[str, Change]:
    """Return, for every effect that is there, the cluster on which it is so many times as bad."""
    default, cluster = Effects(), cell.cluster
    changes: dict[str, Change] = {}
    for name, effect in EFFECTS.items():
        value = getattr(cluster.effects, name)
        is_there = value != getattr(default, name) or name == "compute_factor"
        if is_there and 0 < value < math.inf:
            changes[name] = partial(_scaled, cluster, effect, worse)
    if worse and cluster.workers > 1 and cluster.is_homogeneous:
        changes[SLOW_WORKER] = lambda factor: cluster.with_heterogeneity(compute={0: factor})
        is_formula = cluster.has_closed_form and not cell.plan.collectives  # else played on a graph
        if cluster.nodes_in_use > 1 and is_formula:
            changes[SLOW_LINK] = lambda factor: cluster.with_heterogeneity(link={0: factor})
    return changes


def _scaled(cluster: Cluster, effect: Effect, worse: bool, factor: float) -> Cluster:
    value = getattr(cluster.effects, effect.name)
    changed = effect.worsened(value, factor if worse else 1 / factor)
    return cluster.with_effects(**{effect.name: changed})


def _needed_factor(cell: Cell, change: Change, target: float) -> float | None:
    """Return the factor at which an iteration takes the target seconds, None if none does.

    Factors are tried in wide steps first, then all of the step in which the target is reached.
    """

    def played(places: Sequence[int]) -> list[float]:
        cells = [
            replace(
                cell,
                cluster=change(float(FACTORS[place])),
                planned_on=cell.planned_on or cell.cluster,
            )
            for place in places
        ]
        return [one.iteration_seconds for one in steady_seconds(cells)]

    wide = range(0, len(FACTORS), WIDE)
    ends = played(wide)
    sign = 1 if target >= ends[0] else -1  # of what grows with the factor, or falls
    reached = sign * np.array(ends) >= sign * target
    if reached[0] or not reached.any():
        return 1.0 if reached[0] else None
    first = int(reached.argmax())
    places = range(wide[first - 1], wide[first] + 1)
    seconds = [ends[first - 1], *played(places[1:-1]), ends[first]]
    within = int((sign * np.array(seconds) >= sign * target).argmax())
    share = (target - seconds[within - 1]) / (seconds[within] - seconds[within - 1])
    before, after = (float(FACTORS[places[within - step]]) for step in (1, 0))
    return float(before * (after / before) ** share)


def _suspect(effect: str, change: Change, cell: Cell, factor: float) -> Suspect:
    cluster = cell.cluster
    if effect in (SLOW_WORKER, SLOW_LINK):
        what = "one worker" if effect == SLOW_WORKER else "the link of one node"
        return Suspect(
            effect,
            f"{what} slower than the others",
            factor,
            math.log(factor) / (math.log(WITHIN) / Z90),
            TESTS[effect],
            "equal ones",
            f"one {factor:.2g} times as slow",
            change(factor),
        )
    declared = EFFECTS[effect]
    unit = declared.unit
    now, then = (getattr(one.effects, effect) for one in (cluster, change(factor)))
    fit = cluster.intervals.get(effect)
    known = fit is not None and 0 < fit.low < fit.high < math.inf
    fitted = math.log(fit.high / fit.low) / 2 if fit and known else math.log(unit.within)
    spread = math.hypot(fitted, math.log(CHANGED))
    return Suspect(
        effect,
        declared.meaning,
        factor,
        math.log(factor) / (spread / Z90),
        TESTS[_test_of(declared)],
        unit.show(now),
        unit.show(then) + _as_slow_as(effect, then),
        change(factor),
    )


def _as_slow_as(effect: str, rate: float) -> str:
    """Return the network whose rate a suspect's bandwidth is, which the traffic may take."""
    if effect not in BETWEEN:
        return ""
    near = {
        name: abs(math.log(rate / one.line_rate))
        for name, one in interconnects().items()
        if one.protocol.name == "TCP"
    }
    name = min(near, key=lambda one: near[one])
    return f" (about {name}: do bytes take that interface?)" if near[name] < SAME_RATE else ""


def _outside(seconds: float) -> Suspect:
    return Suspect(
        OUTSIDE,
        "time outside the training step, such as loading data or writing logs",
        math.nan,
        math.nan,
        TESTS[OUTSIDE],
        "none",
        f"{show_seconds(seconds)} per iteration",
    )


TESTS = {
    SLOW_WORKER: "time the forward and backward pass of every rank by itself, and compare "
    "(`ddlnb measure profile` on each node).",
    SLOW_LINK: "measure the bandwidth between all pairs of nodes (iperf3, or all_reduce_perf on "
    "pairs), and compare.",
    OUTSIDE: "train on one batch that stays in memory, without logging: the iteration becomes "
    "shorter by so much.",
    "compute": "train on one GPU alone: its throughput shows the computation "
    "(`ddlnb measure profile --device cuda`); in another precision than forecast (autocast, "
    "allow_tf32, --precision) it is several times as slow.",
    "contention": "time an all-reduce of 100 MB alone and during a backward pass.",
    "bandwidth between": "all_reduce_perf or iperf3 between two nodes with messages of 64 MB; also "
    "check that the traffic takes the interface that you mean.",
    "bandwidth inside": "all_reduce_perf on the GPUs of one node with messages of 64 MB; "
    "`nvidia-smi topo -m` shows how they are joined.",
    "latency": "all_reduce_perf with messages of 1 KB, on the same workers.",
    "server": "push and pull one tensor of 4 MB to one server, alone and from all nodes at once.",
    "update": "time the optimizer's step alone.",
}


def _test_of(effect: Effect) -> str:
    """Return what tells whether an effect is as it is said to be: one of TESTS."""
    if effect.kind in ("compute", "update"):
        return effect.kind
    if effect.kind.startswith("server"):
        return "server"
    return f"bandwidth {effect.kind}" if effect.group == "bandwidth" else effect.group
