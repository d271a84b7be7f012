"""The physical effects that a simulated cluster has: one named number each, which declares itself.

An effect is one entry of EFFECTS: what it is, which way it gets worse, to which group of costs it
belongs, and what it adds. The simulator sums up what the entries say; what is part of how links and
servers are joined (a hop's latency, a link's rate) is read by its name where that is written down.
Breakdowns, counterfactuals, explanations and draws read the declaration, and nothing reads names.

Every default means "this effect is not there", so that a cluster lists what matters to it.
``inside`` is a link between two GPUs of one node (PCIe, NVLink, shared memory), ``between`` one
direction of the link of a node to the network.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np

from ddlnb.errors import InputError, require, require_known
from ddlnb.plans.plan import Order
from ddlnb.registry import register_entry
from ddlnb.units import bandwidth_from, seconds_from, show_bandwidth, show_seconds

UNLIMITED = math.inf
Group = Literal["computation", "contention", "latency", "bandwidth"]
Kind = Literal["compute", "update", "inside", "between", "server link", "server", "software"]
Direction = Literal["up", "down"]
Architecture = Literal["A2A", "PS", ""]
# What a formula gives, of the effect's value and of what stands in brackets.
Where = Literal[
    "task factor",  # (workers) of the seconds of computation
    "task seconds",  # (tasks: `simulator.tasks.Tasks`) besides, of every task
    "collective latency",  # (workers) seconds of every collective, which methods plan with
    "message latency",  # (messages: `simulator.path.Messages`) seconds before each one's bytes
    "message work",  # (messages) seconds beside those of its bytes, slowed while workers compute
    "message share",  # (messages) share of the links' rates that is left while workers compute
]


# What a formula of one's own may give, the rest from 0 on.
BOUNDS: dict[Where, tuple[float, float]] = {
    "message share": (1e-9, 1.0),
    "task factor": (1e-9, 1e9),
}


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
DEVIATION = Unit("a relative deviation", 0.0, 10.0, _number_from, _plain, 1.5, 0.0, "up")
PARTS = Unit("a number of parts from 1 to 100", 1.0, 100.0, _number_from, _plain, 2.0, 1.0, "down")


@dataclass(frozen=True)
class Effect:
    """An effect and what it declares.

    ``kind`` is the part of the cluster that it is of, ``group`` the costs that go when it goes:
    what computation and communication take from one another, latencies and software, bytes, or
    none of these. Its values get ``worse`` in one direction, and at its ``default`` it is not
    there; both are the unit's unless given. ``formulas`` say what it costs: see `Where`.
    """

    name: str
    unit: Unit
    kind: Kind
    group: Group
    meaning: str
    worse: Direction | None = None
    default: float = math.nan
    formulas: Mapping[Where, Callable[..., Any]] = field(default_factory=dict, compare=False)
    architecture: Architecture = ""

    def __post_init__(self) -> None:
        if self.worse is None:
            object.__setattr__(self, "worse", self.unit.worse)
        if math.isnan(self.default):
            object.__setattr__(self, "default", self.unit.absent)

    def require_sound(self, value: Any, shown: Any) -> None:
        """Raise InputError, with the value as it is ``shown``, for one that physics forbids."""
        unit = self.unit
        try:
            is_sound = unit.least <= value <= unit.most
        except TypeError:  # no number
            is_sound = False
        if not is_sound:  # a fit makes thousands: nothing is put into words early
            raise InputError(
                f"{self.name} {shown!r} must be {unit.name}, from {unit.least:g} to {unit.most:g}"
            )

    def cost(self, where: Where, value: float, of: Any) -> Any:
        """Return what it gives in a place. Raises InputError for what one's own cannot give."""
        found = self.formulas[where](value, of)
        if self is not SHIPPED.get(self.name):
            least, most = BOUNDS.get(where, (0.0, sys.float_info.max))
            try:
                given = np.asarray(found, float)  # nothing is no number
            except (OverflowError, TypeError, ValueError):
                given = np.full(1, math.nan)
            require(
                bool(((given >= least) & (given <= most)).all()),
                f"effect {self.name!r} gives {found!r} as {where}; give numbers of {least:g} to "
                f"{most:g}, one or as many as there are messages or tasks",
            )
        return found

    def worsened(self, value: float, factor: float) -> float:
        """Return a value that is so many times as bad, below 1 so many times as good, in bounds.

        >>> EFFECTS["between_bandwidth"].worsened(8e9, 4.0), EFFECTS["rank_latency"].worsened(1, 4)
        (2000000000.0, 4)
        """
        changed = value * factor if self.worse == "up" else value / factor
        return min(max(changed, self.unit.least), self.unit.most)


@functools.cache
def slowest_of(workers: int) -> float:
    """Return how many standard deviations the slowest of so many lies above the mean.

    The expected maximum of normal numbers, by G. Blom (Statistical estimates and transformed
    beta-variables, 1958), within 5 % of it.

    >>> slowest_of(1), round(slowest_of(8), 2), round(slowest_of(1000), 2)
    (0.0, 1.43, 3.23)
    """
    return NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def _copying(bandwidth: float, messages: Any) -> Any:
    """Return the seconds of copies into and out of merged messages."""
    copies = 1 if messages.plan.is_split else 2  # together before the first half, apart afterwards
    return (messages.pieces > 1) * (copies * messages.bytes / bandwidth)


def _by_servers(seconds: float, messages: Any) -> float:
    return seconds if messages.plan.exchange == "push_pull" else 0.0


def _by_priority(seconds: float, messages: Any) -> float:
    plan = messages.plan
    return seconds if plan.order is Order.PRIORITY or plan.credit_bytes is not None else 0.0


_SHIPPED = (
    Effect(
        "inside_latency",
        SECONDS,
        "inside",
        "latency",
        "latency of one hop between two GPUs of a node",
    ),
    Effect(
        "inside_bandwidth",
        BANDWIDTH,
        "inside",
        "bandwidth",
        "bandwidth of one direction of the link between two GPUs of a node",
    ),
    Effect(
        "inside_share",
        SHARE,
        "inside",
        "contention",
        "share of that bandwidth that is left while the worker computes",
    ),
    Effect(
        "closed_ring_share",
        SHARE,
        "inside",
        "bandwidth",
        "share of the inside bandwidth in a ring that one node's GPUs close",
    ),
    Effect(
        "between_latency", SECONDS, "between", "latency", "latency of one hop between two nodes"
    ),
    Effect(
        "between_bandwidth",
        BANDWIDTH,
        "between",
        "bandwidth",
        "bandwidth of one direction of a node's link to the network",
    ),
    Effect(
        "between_share",
        SHARE,
        "between",
        "contention",
        "share of that bandwidth that is left while the worker computes",
    ),
    Effect(
        "stream_bandwidth",
        BANDWIDTH,
        "between",
        "bandwidth",
        "cap of a collective's connection from one node to the next",
        architecture="A2A",
    ),
    Effect(
        "doubling_share",
        SHARE,
        "between",
        "bandwidth",
        "share of a collective's rate between nodes that is left on twice as many, beyond two",
        architecture="A2A",
    ),
    Effect(
        "connection_bandwidth",
        BANDWIDTH,
        "server link",
        "bandwidth",
        "cap of one connection between a node and a server",
        architecture="PS",
    ),
    Effect(
        "duplex_bandwidth",
        BANDWIDTH,
        "between",
        "bandwidth",
        "cap of both directions of a node's link together",
        architecture="PS",
    ),
    Effect(
        "operation_latency",
        SECONDS,
        "software",
        "latency",
        "software cost of one message on the network",
        formulas={
            "collective latency": lambda value, workers: value,
            "message latency": _by_servers,
        },
    ),
    Effect(
        "rank_latency",
        SECONDS,
        "software",
        "latency",
        "software cost of one all-reduce for each rank that takes part",
        formulas={"collective latency": lambda value, workers: value * workers},
        architecture="A2A",
    ),
    Effect(
        "level_latency",
        SECONDS,
        "software",
        "latency",
        "software cost of one all-reduce for each doubling of the ranks that take part",
        formulas={"collective latency": lambda value, workers: value * math.log2(workers)},
        architecture="A2A",
    ),
    Effect(
        "priority_latency",
        SECONDS,
        "software",
        "latency",
        "further software cost of a message that is scheduled by priority",
        formulas={"message latency": _by_priority},
    ),
    Effect(
        "scheduler_latency",
        SECONDS,
        "software",
        "latency",
        "time of a scheduler's own thread to start a message and to see its end",
        architecture="A2A",
    ),
    Effect(
        "message_compute",
        SECONDS,
        "compute",
        "latency",
        "time that handing over one message takes from the computation",
        formulas={"task seconds": lambda value, tasks: tasks.readied * value},
    ),
    Effect(
        "copy_bandwidth",
        BANDWIDTH,
        "inside",
        "bandwidth",
        "bandwidth of the copies into and out of a merged message",
        formulas={"message latency": _copying},
    ),
    Effect(
        "server_latency",
        SECONDS,
        "server",
        "latency",
        "software cost of one push on the server",
        architecture="PS",
    ),
    Effect(
        "server_bandwidth",
        BANDWIDTH,
        "server link",
        "bandwidth",
        "bandwidth of one direction of a server's link, if below a node's",
        architecture="PS",
    ),
    Effect(
        "sum_bandwidth",
        BANDWIDTH,
        "server",
        "bandwidth",
        "rate at which a server adds what it receives",
        architecture="PS",
    ),
    Effect(
        "update_latency",
        SECONDS,
        "update",
        "computation",
        "optimizer cost of one tensor",
        formulas={"task seconds": lambda value, tasks: tasks.updated_tensors * value},
    ),
    Effect(
        "update_bandwidth",
        BANDWIDTH,
        "update",
        "computation",
        "rate at which the optimizer goes through the gradients",
        formulas={"task seconds": lambda value, tasks: tasks.updated_bytes / value},
    ),
    Effect(
        "latency_share",
        SHARE,
        "software",
        "contention",
        "speed of latencies while the worker computes, over that while it does not",
    ),
    Effect(
        "occupied_share",
        SHARE,
        "software",
        "latency",
        "share of an all-reduce's latency in which the next one cannot start",
        worse="up",
        architecture="A2A",
    ),
    Effect(
        "parts_in_flight",
        PARTS,
        "software",
        "latency",
        "parts in which an all-reduce moves: one is sent while another is on its way",
        architecture="A2A",
    ),
    Effect(
        "compute_share",
        SHARE,
        "compute",
        "contention",
        "speed of computation while the network carries a message, over that alone",
    ),
    Effect(
        "compute_factor",
        FACTOR,
        "compute",
        "computation",
        "seconds of computation here over those of the workload's profile",
        formulas={"task factor": lambda value, workers: value},
    ),
    Effect(
        "parallel_factor",
        FACTOR,
        "compute",
        "computation",
        "seconds of computation of one of several workers over those of one alone",
        formulas={"task factor": lambda value, workers: value if workers > 1 else 1.0},
    ),
    Effect(
        "jitter",
        DEVIATION,
        "compute",
        "computation",
        "standard deviation of a worker's seconds of computation: all wait for the slowest",
        formulas={"task factor": lambda value, workers: 1 + value * slowest_of(workers)},
    ),
)
SHIPPED = {effect.name: effect for effect in _SHIPPED}
EFFECTS = dict(SHIPPED)


def register_effect(effect: Effect) -> None:
    """Add an effect to EFFECTS: from then on clusters have it, in files and by `with_effects`.

    Registering one anew, as a notebook does whose cell runs again, replaces its formulas. Raises
    InputError for a name that is none in Python or that another effect has.

    >>> from ddlnb.clusters.effects import BANDWIDTH, Effect, register_effect
    >>> register_effect(
    ...     Effect(
    ...         "checksum_bandwidth", BANDWIDTH, "software", "bandwidth",
    ...         "rate at which checksums of messages are computed",
    ...         formulas={"message latency": lambda value, messages: messages.bytes / value},
    ...     )
    ... )
    >>> del EFFECTS["checksum_bandwidth"]
    """
    require(
        effect.name.isidentifier() and (effect.name in EFFECTS or not hasattr(NONE, effect.name)),
        f"effect {effect.name!r} needs a name that an attribute of Effects can have",
    )
    for where in effect.formulas:
        require_known("place of a cost", where, get_args(Where))
    register_entry("effect", effect, EFFECTS)


@dataclass(frozen=True, init=False)
class Effects:
    """The numbers of a cluster by name, in seconds, bytes per second and shares between 0 and 1.

    Each of EFFECTS is an attribute; ``there`` are those that differ from their defaults. Raises
    UnknownName for an effect that there is not, InputError for a value that it cannot have.

    >>> Effects(between_latency=1e-5).between_latency, Effects().between_bandwidth
    (1e-05, inf)
    """

    there: Mapping[str, float]

    def __init__(self, **values: float) -> None:
        for name, value in values.items():
            require_known("effect", name, EFFECTS)
            EFFECTS[name].require_sound(value, value)
        known = {name: values.get(name, effect.default) for name, effect in EFFECTS.items()}
        there = {name: value for name, value in known.items() if value != EFFECTS[name].default}
        vars(self).update(known, there=there)

    def __getattr__(self, name: str) -> float:
        """Return the default of an effect that was registered when the numbers were there."""
        if name not in EFFECTS:
            raise AttributeError(f"there is no effect {name!r}")
        return EFFECTS[name].default

    def __hash__(self) -> int:
        return hash(tuple(self.there.items()))

    @classmethod
    def columns(cls, several: Sequence[Effects]) -> Effects:
        """Return effects that are columns, with a row for each of these, which have the same ones.

        What is computed of them has a row for each, too. They are SHIPPED: an effect of one's own
        may do with its number what a column does not take.
        """
        found = cls()
        there: dict[str, Any] = {
            name: np.array([[one.there[name]] for one in several]) for name in several[0].there
        }
        vars(found).update(there, there=there)
        return found

    def but(self, **values: float) -> Effects:
        """Return the same numbers except for these."""
        return Effects(**{**self.there, **values})

    def terms(self, where: Where, of: Any) -> Iterator[Any]:
        """Yield what every effect that is there gives in this place: see `Where`.

        >>> list(Effects(rank_latency=2.0, operation_latency=1.0).terms("collective latency", 4))
        [1.0, 8.0]
        """
        for name, value in self.there.items():
            if where in EFFECTS[name].formulas:
                yield EFFECTS[name].cost(where, value, of)


NONE = Effects()


def of_kind(unit: Unit, *kinds: Kind) -> tuple[str, ...]:
    """Return the names of the effects with this unit that are of these parts of a cluster.

    >>> of_kind(BANDWIDTH, "between", "server link")
    ('between_bandwidth', 'stream_bandwidth', 'connection_bandwidth', 'duplex_bandwidth', \
'server_bandwidth')
    """
    return tuple(name for name, one in EFFECTS.items() if one.unit is unit and one.kind in kinds)


def idle(architecture: str, nodes: int) -> dict[str, float]:
    """Return the effects that no plan of an architecture meets on so many nodes, with defaults.

    >>> "server_latency" in idle("A2A", 2), "stream_bandwidth" in idle("A2A", 2)
    (True, False)
    """
    outside = ("between", "server link", "server") if nodes == 1 else ()
    return {
        name: one.default
        for name, one in EFFECTS.items()
        if one.kind in outside or one.architecture not in ("", architecture)
    }


def without(*groups: Group) -> dict[str, float]:
    """Return the effects of these groups, each with the value at which it is not there."""
    return {name: one.default for name, one in EFFECTS.items() if one.group in groups}


def effect_from(effect: str, text: str) -> float:
    """Return the value of an effect that is written as a text, with its unit.

    Raises InputError that names the effect, the text and the rule.

    >>> effect_from("between_bandwidth", "10 Gb/s"), effect_from("between_share", "0.5")
    (1250000000.0, 0.5)
    """
    declared = EFFECTS[effect]
    try:
        value = declared.unit.parse(text)
    except InputError as error:
        raise InputError(f"{effect}: {error}") from error
    declared.require_sound(value, text)
    return value
