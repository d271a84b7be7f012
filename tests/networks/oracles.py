"""The slow and obvious ways beside the compiled ones: fair rates, and messages event by event.

Rates are max-min fair when no flow can be given more without taking from one that has no more.
They are unique, and easy to recognise: every flow runs at its own cap, or crosses a link that is
full and on which no flow is faster (Bertsekas & Gallager, Data Networks, 2nd edition, 1992,
section 6.5.2). `max_min_rates` fills links progressively, `unfair` checks the certificate.

`play_plain` plays messages as one would by hand. A message leaves at its rate, and arrives when
start-up and latencies have passed after its last byte. Between two events all rates stand still;
an event is a message that begins, has left, or has arrived.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.networks.flows import Channels
from ddlnb.networks.network import Numbers
from ddlnb.networks.play import SAME_TIME, Times, Traffic

CLOSE = 1e-9
"""Rates and loads that differ by less than this share are equal."""


@dataclass(frozen=True)
class Flow:
    """A flow on its links, by their numbers, which is never faster than ``cap`` bytes per second.

    A flow that is split over paths puts the part ``shares[i]`` of its rate on ``links[i]``: 1 where
    all of it passes. All its paths are as fast as the slowest of them lets them be.

    Raises InputError for shares outside of (0, 1], a link that is named twice, and a cap of zero.
    """

    links: tuple[int, ...]
    shares: tuple[float, ...]
    cap: float = math.inf


def max_min_rates(flows: Sequence[Flow], bandwidths: Numbers) -> Numbers:
    """Return the max-min fair rate of every flow, in bytes per second.

    All rates grow from zero alike. When a link is full, the flows on it stop growing; a flow also
    stops at its cap. A flow without links has its cap, or an infinite rate.
    """
    rates = np.zeros(len(flows))
    room = np.array(bandwidths, dtype=float)
    growing = [number for number, flow in enumerate(flows) if flow.links]
    rates[[number for number, flow in enumerate(flows) if not flow.links]] = [
        flow.cap for flow in flows if not flow.links
    ]
    level = 0.0
    while growing:
        weight = np.zeros(len(room))
        for number in growing:
            np.add.at(weight, list(flows[number].links), flows[number].shares)
        used = np.flatnonzero(weight)
        growth = min(
            (room[used] / weight[used]).min(), min(flows[number].cap for number in growing) - level
        )
        level += growth
        room -= growth * weight
        limited = np.isfinite(bandwidths)
        full = {
            int(link) for link in used if limited[link] and room[link] <= 1e-12 * bandwidths[link]
        }
        stopped = [
            number
            for number in growing
            if flows[number].cap <= level or not full.isdisjoint(flows[number].links)
        ]
        rates[growing] = level
        growing = [number for number in growing if number not in stopped]
    return rates


def unfair(flows: Sequence[Flow], bandwidths: Numbers, rates: Numbers) -> list[str]:
    """Return what is wrong with the rates, a sentence each; nothing if they are max-min fair.

    Fair is what exceeds neither its cap nor a link, and is held: by its cap, or by a full link on
    which no flow is faster.

    >>> two = [Flow((0,), (1.0,)), Flow((0, 1), (1.0, 1.0))]
    >>> unfair(two, np.array([2.0, 9.0]), np.array([1.0, 1.0]))
    []
    >>> unfair(two, np.array([2.0, 9.0]), np.array([0.5, 1.5]))
    ['flow 0 of rate 0.5 has no full link on which it is among the fastest']
    """
    carried, fastest = np.zeros(len(bandwidths)), np.zeros(len(bandwidths))
    for flow, rate in zip(flows, rates, strict=True):
        if flow.links:
            np.add.at(carried, list(flow.links), rate * np.array(flow.shares))
            np.maximum.at(fastest, list(flow.links), rate)
    wrong = [
        f"link {link} carries {carried[link]:g} of its {bandwidths[link]:g} bytes per second"
        for link in np.flatnonzero(carried > (1 + CLOSE) * bandwidths)
    ]
    full = carried >= (1 - CLOSE) * bandwidths
    for number, (flow, rate) in enumerate(zip(flows, rates, strict=True)):
        named = f"flow {number} of rate {rate:g}"
        if rate > (1 + CLOSE) * flow.cap:
            wrong.append(f"{named} exceeds its cap {flow.cap:g}")
        elif rate < (1 - CLOSE) * flow.cap and not any(
            full[link] and rate >= (1 - CLOSE) * fastest[link] for link in flow.links
        ):
            wrong.append(f"{named} has no full link on which it is among the fastest")
    return wrong


def flow_of(channels: Channels, number: int) -> Flow:
    """Return a channel as a flow."""
    row = slice(channels.start[number], channels.start[number + 1])
    links, shares = channels.link[row].tolist(), channels.share[row].tolist()
    return Flow(tuple(links), tuple(shares), float(channels.cap[number]))


@dataclass(frozen=True, eq=False)
class Moment:
    """From one event to the next, in seconds: the messages that flow, and their rates."""

    start: float
    stop: float
    messages: tuple[int, ...]
    rates: Numbers


@dataclass(frozen=True, eq=False)
class PlainTimes(Times):
    """Times of messages, with all that was between them."""

    moments: tuple[Moment, ...] = ()


def play_plain(traffic: Traffic) -> PlainTimes:
    """Return when messages begin, leave and arrive."""
    count = len(traffic.sizes)
    order, data = waits_in_order(traffic), waits_for_data(traffic)
    flows = [flow_of(traffic.channels, number) for number in range(len(traffic.channels.cap))]
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
    return PlainTimes(start, left, stop, tuple(moments))


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
