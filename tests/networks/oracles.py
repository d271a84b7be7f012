"""What is true of fair rates, and of messages that wait for one another, each by its definition.

Rates are max-min fair when no flow can be given more without taking from one that has no more.
They are unique, and easy to recognise: every flow runs at its own cap, or crosses a link that is
full and on which no flow is faster (Bertsekas & Gallager, Data Networks, 2nd edition, 1992,
section 6.5.2). `unfair` checks this certificate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.networks.flows import Channels, join, refill, sharing
from ddlnb.networks.network import Numbers
from ddlnb.networks.play import Traffic

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


def rates_of(flows: Sequence[Flow], bandwidths: Numbers) -> Numbers:
    """Return the compiled rate of every flow if all of them flow."""
    on = sharing(joined(flows), bandwidths)
    for channel in range(len(flows)):
        join(on, channel)
    refill(on)
    return np.array(on.channels["rate"])


def joined(flows: Sequence[Flow]) -> Channels:
    """Return flows as channels."""
    lengths = [len(flow.links) for flow in flows]
    return Channels(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array([link for flow in flows for link in flow.links], np.int64),
        np.array([share for flow in flows for share in flow.shares], np.float64),
        np.array([flow.cap for flow in flows]),
    )


def flow_of(channels: Channels, number: int) -> Flow:
    """Return a channel as a flow."""
    row = slice(channels.start[number], channels.start[number + 1])
    links, shares = channels.link[row].tolist(), channels.share[row].tolist()
    return Flow(tuple(links), tuple(shares), float(channels.cap[number]))


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
