"""Plays messages on a network event by event, as one would by hand: the reference.

A message leaves at its rate, and arrives when start-up and latencies have passed after its last
byte. Between two events all rates stand still; an event is a message that begins, has left, or has
arrived.
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
    """From one event to the next, in seconds: the messages that flow, and their rates."""

    start: float
    stop: float
    messages: tuple[int, ...]
    rates: Numbers


@dataclass(frozen=True, eq=False)
class Course:
    """When each message began, when its last byte left and when that arrived, in seconds.

    ``moments`` are all that were between; the compiled player keeps none.
    """

    start: Numbers
    left: Numbers
    stop: Numbers
    moments: tuple[Moment, ...] = ()


def play_plain(traffic: Traffic) -> Course:
    """Return when messages begin, leave and arrive."""
    count = len(traffic.sizes)
    order, data = waits_in_order(traffic), waits_for_data(traffic)
    flows = [traffic.channels.flow(number) for number in range(len(traffic.channels.cap))]
    start, left, stop = (np.full(count, np.nan) for _ in range(3))
    moments = []
    unsent, sent, arrived = list(range(count)), set[int](), set[int]()
    to_send: dict[int, float] = {}  # bytes that have not left yet, of messages that flow
    on_the_way: dict[int, float] = {}  # when messages arrive that have left
    now = 0.0
    while len(arrived) < count:
        same = now * (1 + SAME_TIME)
        for message in [message for message, seconds in on_the_way.items() if seconds <= same]:
            del on_the_way[message]
            stop[message] = now
            arrived.add(message)
        free = [
            message for message in unsent if order[message] <= sent and data[message] <= arrived
        ]
        for message in free:
            if traffic.release[message] <= same:
                unsent.remove(message)
                start[message] = now
                to_send[message] = traffic.sizes[message]
        flying = tuple(to_send)
        rates = max_min_rates(
            [flows[traffic.channel[message]] for message in flying], traffic.network.bandwidths
        )
        ends = {
            message: now + to_send[message] / rate
            for message, rate in zip(flying, rates, strict=True)
        }
        releases = (traffic.release[message] for message in free if message in unsent)
        following = min((*ends.values(), *on_the_way.values(), *releases), default=now)
        moments.append(Moment(now, following, flying, rates))
        for message, rate in zip(flying, rates, strict=True):
            if ends[message] <= following * (1 + SAME_TIME):
                del to_send[message]
                left[message] = following
                sent.add(message)
                on_the_way[message] = following + traffic.delay[message]
            else:
                to_send[message] -= rate * (following - now)
        now = following
    return Course(start, left, stop, tuple(moments))


def waits_in_order(traffic: Traffic) -> list[set[int]]:
    """Return for every message what its source sends in earlier steps: it has to leave before."""
    return [
        {
            earlier
            for earlier in range(message)
            if traffic.step[earlier] < traffic.step[message]
            and traffic.source[earlier] == traffic.source[message]
        }
        for message in range(len(traffic.sizes))
    ]


def waits_for_data(traffic: Traffic) -> list[set[int]]:
    """Return for every message what its source receives in earlier steps of the parts it sends."""
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
            and traffic.target[earlier] == traffic.source[message]
            and not parts[earlier].isdisjoint(parts[message])
        }
        for message in range(len(traffic.sizes))
    ]
