"""The physical effects that a simulated cluster has: one named number each, which declares itself.

Every default means "this effect is not there", so that a cluster lists what matters to it.
``inside`` is a link between two GPUs of one node (PCIe, NVLink, shared memory), ``between`` one
direction of the link of a node to the network. An effect is declared where it is defined: what it
is, which way it gets worse, and to which group of costs it belongs. Breakdowns, counterfactuals,
explanations and draws read the declaration, and nothing reads names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from ddlnb.errors import InputError, require
from ddlnb.units import bandwidth_from, seconds_from, show_bandwidth, show_seconds

UNLIMITED = math.inf
Group = Literal["computation", "contention", "latency", "bandwidth"]
Kind = Literal["compute", "update", "inside", "between", "server link", "server", "software"]
Direction = Literal["up", "down"]


@dataclass(frozen=True)
class Unit:
    """How values of an effect are read and shown, and between which bounds physics allows them.

    A value without an interval is assumed to be known ``within`` this factor, up and down, with
    90 % certainty. The factors are those of usual priors of the survey's testbed
    (data/calibration/survey.yaml). An effect with the value ``absent`` is not there; values get
    ``worse`` in this direction.
    """

    name: str
    least: float
    most: float
    parse: Callable[[str], float]
    show: Callable[[float], str]
    within: float
    absent: float
    worse: Direction


def _number_from(text: str) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


_plain = "{:.3g}".format
SECONDS = Unit("seconds", 0.0, 10.0, seconds_from, show_seconds, 4.0, 0.0, "up")
BANDWIDTH = Unit(
    "bytes per second", 1e3, UNLIMITED, bandwidth_from, show_bandwidth, 2.0, UNLIMITED, "down"
)
FACTOR = Unit("a factor from 0.01 to 100", 0.01, 100.0, _number_from, _plain, 1.5, 1.0, "up")
SHARE = Unit("a share", 0.01, 1.0, _number_from, _plain, 1.5, 1.0, "down")


class Effect(NamedTuple):
    """What an effect declares.

    ``kind`` is the part of the cluster that it is of, ``group`` the costs that go when it goes:
    what computation and communication take from one another, latencies and software, bytes, or
    none of these. Its values get ``worse`` in one direction.
    """

    unit: Unit
    kind: Kind
    group: Group
    worse: Direction
    meaning: str

    def worsened(self, value: float, factor: float) -> float:
        """Return a value that is so many times as bad, below 1 so many times as good, in bounds.

        >>> EFFECTS["between_bandwidth"].worsened(8e9, 4.0), EFFECTS["rank_latency"].worsened(1, 4)
        (2000000000.0, 4)
        """
        changed = value * factor if self.worse == "up" else value / factor
        return min(max(changed, self.unit.least), self.unit.most)


def _effect(unit: Unit, kind: Kind, group: Group, meaning: str, worse: str = "") -> Any:
    effect = Effect(unit, kind, group, worse or unit.worse, meaning)  # type: ignore[arg-type]
    return field(default=unit.absent, metadata={"effect": effect})


@dataclass(frozen=True)
class Effects:
    """The numbers, in seconds, bytes per second and shares between 0 and 1."""

    inside_latency: float = _effect(
        SECONDS, "inside", "latency", "latency of one hop between two GPUs of a node"
    )
    inside_bandwidth: float = _effect(
        BANDWIDTH,
        "inside",
        "bandwidth",
        "bandwidth of one direction of the link between two GPUs of a node",
    )
    inside_share: float = _effect(
        SHARE,
        "inside",
        "contention",
        "share of that bandwidth that is left while the worker computes",
    )
    closed_ring_share: float = _effect(
        SHARE,
        "inside",
        "bandwidth",
        "share of the inside bandwidth in a ring that one node's GPUs close",
    )
    between_latency: float = _effect(
        SECONDS, "between", "latency", "latency of one hop between two nodes"
    )
    between_bandwidth: float = _effect(
        BANDWIDTH,
        "between",
        "bandwidth",
        "bandwidth of one direction of a node's link to the network",
    )
    between_share: float = _effect(
        SHARE,
        "between",
        "contention",
        "share of that bandwidth that is left while the worker computes",
    )
    connection_bandwidth: float = _effect(
        BANDWIDTH, "server link", "bandwidth", "cap of one connection between a node and a server"
    )
    duplex_bandwidth: float = _effect(
        BANDWIDTH, "between", "bandwidth", "cap of both directions of a node's link together"
    )
    operation_latency: float = _effect(
        SECONDS, "software", "latency", "software cost of one message on the network"
    )
    rank_latency: float = _effect(
        SECONDS,
        "software",
        "latency",
        "software cost of one all-reduce for each rank that takes part",
    )
    priority_latency: float = _effect(
        SECONDS,
        "software",
        "latency",
        "further software cost of a message that is scheduled by priority",
    )
    scheduler_latency: float = _effect(
        SECONDS,
        "software",
        "latency",
        "time of a scheduler's own thread to start a message and to see its end",
    )
    message_compute: float = _effect(
        SECONDS,
        "compute",
        "latency",
        "time that handing over one message takes from the computation",
    )
    copy_bandwidth: float = _effect(
        BANDWIDTH, "inside", "bandwidth", "bandwidth of the copies into and out of a merged message"
    )
    server_latency: float = _effect(
        SECONDS, "server", "latency", "software cost of one push on the server"
    )
    server_bandwidth: float = _effect(
        BANDWIDTH,
        "server link",
        "bandwidth",
        "bandwidth of one direction of a server's link, if below a node's",
    )
    sum_bandwidth: float = _effect(
        BANDWIDTH, "server", "bandwidth", "rate at which a server adds what it receives"
    )
    update_latency: float = _effect(
        SECONDS, "update", "computation", "optimizer cost of one tensor"
    )
    update_bandwidth: float = _effect(
        BANDWIDTH, "update", "computation", "rate at which the optimizer goes through the gradients"
    )
    latency_share: float = _effect(
        SHARE,
        "software",
        "contention",
        "speed of latencies while the worker computes, over that while it does not",
    )
    occupied_share: float = _effect(
        SHARE,
        "software",
        "latency",
        "share of an all-reduce's latency in which the next one cannot start",
        worse="up",
    )
    compute_share: float = _effect(
        SHARE,
        "compute",
        "contention",
        "speed of computation while the network carries a message, over that alone",
    )
    compute_factor: float = _effect(
        FACTOR,
        "compute",
        "computation",
        "seconds of computation here over those of the workload's profile",
    )
    parallel_factor: float = _effect(
        FACTOR,
        "compute",
        "computation",
        "seconds of computation of one of several workers over those of one alone",
    )

    def __post_init__(self) -> None:
        for name, unit in UNITS.items():  # a fit makes thousands: nothing is put into words early
            value = getattr(self, name)
            try:
                is_sound = unit.least <= value <= unit.most
            except TypeError:  # no number
                is_sound = False
            if not is_sound:
                raise InputError(
                    f"{name} {value!r} must be {unit.name}, from {unit.least:g} to {unit.most:g}"
                )


EFFECTS: dict[str, Effect] = {one.name: one.metadata["effect"] for one in fields(Effects)}
UNITS = {name: effect.unit for name, effect in EFFECTS.items()}


def of_kind(unit: Unit, *kinds: Kind) -> tuple[str, ...]:
    """Return the names of the effects with this unit that are of these parts of a cluster.

    >>> of_kind(BANDWIDTH, "between", "server link")
    ('between_bandwidth', 'connection_bandwidth', 'duplex_bandwidth', 'server_bandwidth')
    """
    return tuple(name for name, one in EFFECTS.items() if one.unit is unit and one.kind in kinds)


def without(*groups: Group) -> dict[str, float]:
    """Return the effects of these groups, each with the value at which it is not there."""
    return {name: one.unit.absent for name, one in EFFECTS.items() if one.group in groups}


def effect_from(effect: str, text: str) -> float:
    """Return the value of an effect that is written as a text, with its unit.

    Raises InputError that names the effect, the text and the rule.

    >>> effect_from("between_bandwidth", "10 Gb/s"), effect_from("between_share", "0.5")
    (1250000000.0, 0.5)
    """
    unit = UNITS[effect]
    try:
        value = unit.parse(text)
    except InputError as error:
        raise InputError(f"{effect}: {error}") from error
    require(
        not math.isnan(value) and unit.least <= value <= unit.most,
        f"{effect} {text!r} must be {unit.name}, from {unit.least:g} to {unit.most:g}",
    )
    return value
