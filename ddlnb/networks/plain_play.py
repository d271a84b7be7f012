"""Plays messages on a network event by event, as one would by hand: the reference.

Between two events all rates stand still. An event is a message that begins, one whose first byte
arrives after start-up and latencies, or one whose last byte has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlnb.networks.flows import max_min_rates
from ddlnb.networks.network import Numbers
from ddlnb.networks.traffic import Traffic

SAME_TIME = 1e-12
"""Events whose times differ by less than this share are at one time."""


@dataclass(frozen=True, eq=False)
class Moment:
    """From one event to the next, in seconds: the messages whose bytes flow, and their rates."""

    start: float
    stop: float
    messages: tuple[int, ...]
    rates: Numbers


@dataclass(frozen=True, eq=False)
class Course:
    """When each message began and had arrived, in seconds, and all moments between."""

    start: Numbers
    stop: Numbers
    moments: tuple[Moment, ...] = ()


def play_plain(traffic: Traffic) -> Course:
    """Return when messages begin and arrive."""
    count = len(traffic.sizes)
    waits = waits_for(traffic)
    flows = [traffic.channels.flow(number) for number in range(len(traffic.channels.cap))]
    start, stop = np.full(count, np.nan), np.full(count, np.nan)
    moments = []
    unsent, arrived = list(range(count)), set[int]()
    flows_from: dict[int, float] = {}  # messages before their first byte, and when it flows
    left: dict[int, float] = {}  # messages whose bytes flow, and how many are left
    now = 0.0
    while len(arrived) < count:
        same = now * (1 + SAME_TIME)
        free = [message for message in unsent if waits[message] <= arrived]
        for message in free:
            if traffic.release[message] <= same:
                unsent.remove(message)
                start[message] = now
                flows_from[message] = now + traffic.delay[message]
        for message in [message for message, first in flows_from.items() if first <= same]:
            del flows_from[message]
            left[message] = traffic.sizes[message]
        flying = tuple(left)
        rates = max_min_rates(
            [flows[traffic.channel[message]] for message in flying], traffic.network.bandwidths
        )
        ends = {
            message: now + left[message] / rate for message, rate in zip(flying, rates, strict=True)
        }
        following = min(
            *ends.values(),
            *flows_from.values(),
            *(traffic.release[message] for message in free if message in unsent),
            np.inf,
            np.inf,
        )
        moments.append(Moment(now, following, flying, rates))
        for message, rate in zip(flying, rates, strict=True):
            if ends[message] <= following * (1 + SAME_TIME):
                del left[message]
                stop[message] = following
                arrived.add(message)
            else:
                left[message] -= rate * (following - now)
        now = following
    return Course(start, stop, tuple(moments))


def waits_for(traffic: Traffic) -> list[set[int]]:
    """Return for every message those that have to arrive before it begins.

    These are what its source sends in earlier steps, and what the source receives in earlier steps
    of the parts that it sends.
    """
    parts = [
        {
            part
            for piece in range(traffic.pieces[message], traffic.pieces[message + 1])
            for part in range(traffic.first[piece], traffic.stop[piece])
        }
        for message in range(len(traffic.sizes))
    ]
    return [
        {
            earlier
            for earlier in range(message)
            if traffic.step[earlier] < traffic.step[message]
            and (
                traffic.source[earlier] == traffic.source[message]
                or (
                    traffic.target[earlier] == traffic.source[message]
                    and not parts[earlier].isdisjoint(parts[message])
                )
            )
        }
        for message in range(len(traffic.sizes))
    ]
