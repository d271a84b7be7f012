"""The physical effects that a simulated cluster has: one named number each, with unit and bounds.

Every default means "this effect is not there", so that a cluster lists what matters to it.
``inside`` is a link between two GPUs of one node (PCIe, NVLink, shared memory), ``between`` one
direction of the link of a node to the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from ddlnb.errors import InputError, require
from ddlnb.units import bandwidth_from, seconds_from, show_bandwidth, show_seconds

UNLIMITED = math.inf


@dataclass(frozen=True)
class Unit:
    """How values of an effect are read and shown, and between which bounds physics allows them.

    A value without an interval is assumed to be known ``within`` this factor, up and down, with
    90 % certainty. The factors are those of usual priors of the survey's testbed
    (data/calibration/survey.yaml).
    """

    name: str
    least: float
    most: float
    parse: Callable[[str], float]
    show: Callable[[float], str]
    within: float


def _number_from(text: str) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


SECONDS = Unit("seconds", 0.0, 10.0, seconds_from, show_seconds, 4.0)
BANDWIDTH = Unit("bytes per second", 1e3, UNLIMITED, bandwidth_from, show_bandwidth, 2.0)
FACTOR = Unit("a factor from 0.01 to 100", 0.01, 100.0, _number_from, "{:.3g}".format, 1.5)
SHARE = Unit("a share", 0.01, 1.0, _number_from, "{:.3g}".format, 1.5)


@dataclass(frozen=True)
class Effects:
    """The numbers, in seconds, bytes per second and shares between 0 and 1."""

    inside_latency: float = 0.0
    inside_bandwidth: float = UNLIMITED
    inside_share: float = 1.0
    closed_ring_share: float = 1.0
    between_latency: float = 0.0
    between_bandwidth: float = UNLIMITED
    between_share: float = 1.0
    connection_bandwidth: float = UNLIMITED
    duplex_bandwidth: float = UNLIMITED
    operation_latency: float = 0.0
    rank_latency: float = 0.0
    priority_latency: float = 0.0
    scheduler_latency: float = 0.0
    message_compute: float = 0.0
    copy_bandwidth: float = UNLIMITED
    server_latency: float = 0.0
    server_bandwidth: float = UNLIMITED
    sum_bandwidth: float = UNLIMITED
    update_latency: float = 0.0
    update_bandwidth: float = UNLIMITED
    latency_share: float = 1.0
    occupied_share: float = 1.0
    compute_share: float = 1.0
    compute_factor: float = 1.0
    parallel_factor: float = 1.0

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


MEANINGS = {
    "inside_latency": "latency of one hop between two GPUs of a node",
    "inside_bandwidth": "bandwidth of one direction of the link between two GPUs of a node",
    "inside_share": "share of that bandwidth that is left while the worker computes",
    "closed_ring_share": "share of the inside bandwidth in a ring that one node's GPUs close",
    "between_latency": "latency of one hop between two nodes",
    "between_bandwidth": "bandwidth of one direction of a node's link to the network",
    "between_share": "share of that bandwidth that is left while the worker computes",
    "connection_bandwidth": "cap of one connection between a node and a server",
    "duplex_bandwidth": "cap of both directions of a node's link together",
    "operation_latency": "software cost of one message on the network",
    "rank_latency": "software cost of one all-reduce for each rank that takes part",
    "priority_latency": "further software cost of a message that is scheduled by priority",
    "scheduler_latency": "time of a scheduler's own thread to start a message and to see its end",
    "message_compute": "time that handing over one message takes from the computation",
    "copy_bandwidth": "bandwidth of the copies into and out of a merged message",
    "server_latency": "software cost of one push on the server",
    "server_bandwidth": "bandwidth of one direction of a server's link, if below a node's",
    "sum_bandwidth": "rate at which a server adds what it receives",
    "update_latency": "optimizer cost of one tensor",
    "update_bandwidth": "rate at which the optimizer goes through the gradients",
    "latency_share": "speed of latencies while the worker computes, over that while it does not",
    "occupied_share": "share of an all-reduce's latency in which the next one cannot start",
    "compute_factor": "seconds of computation here over those of the workload's profile",
    "parallel_factor": "seconds of computation of one of several workers over those of one alone",
    "compute_share": "speed of computation while the network carries a message, over that alone",
}


def _unit_of(name: str) -> Unit:
    endings = {"bandwidth": BANDWIDTH, "share": SHARE, "factor": FACTOR}
    return endings.get(name.rpartition("_")[2], SECONDS)


UNITS = {field.name: _unit_of(field.name) for field in fields(Effects)}


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
