"""The routes in use by messages, joined in arrays, and what a message meets beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import require
from ddlnb.networks.flows import Flow
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.routes import NoRoute, route

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Startup:
    """Seconds that a message costs before its first byte leaves, by where its ends are.

    Raises InputError for seconds that are negative or not finite.
    """

    inside: float = 0.0
    between: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 <= self.inside < math.inf and 0 <= self.between < math.inf,
            f"{self} of a message must be finite seconds, not negative",
        )


@dataclass(frozen=True)
class Cap:
    """Bytes per second that one message never exceeds, as a copy engine or one connection.

    Raises InputError for caps that are not positive.
    """

    inside: float = math.inf
    between: float = math.inf

    def __post_init__(self) -> None:
        require(
            self.inside > 0 and self.between > 0,
            f"{self} of a message must be positive bytes per second",
        )


@dataclass(frozen=True, eq=False)
class Channels:
    """The routes in use, one for each pair of ranks, in joined rows.

    Row c lies from ``start[c]`` to ``start[c + 1]`` in ``link`` and ``share``; ``cap`` is in bytes
    per second.
    """

    start: Indices
    link: Indices
    share: Numbers
    cap: Numbers

    def flow(self, number: int) -> Flow:
        """Return a channel as a flow."""
        row = slice(self.start[number], self.start[number + 1])
        links, shares = self.link[row].tolist(), self.share[row].tolist()
        return Flow(tuple(links), tuple(shares), float(self.cap[number]))

    def carried(self, channel: Indices, sizes: Numbers, links: int) -> Numbers:
        """Return the bytes on each of so many links, of messages with these channels and bytes."""
        sent = np.bincount(channel, sizes, minlength=len(self.cap))
        on_rows = np.repeat(sent, np.diff(self.start)) * self.share
        return np.bincount(self.link, on_rows, minlength=links).astype(np.float64)


NO_STARTUP, NO_CAP = Startup(), Cap()


def channels_between(
    name: str,
    network: Network,
    source: Indices,
    target: Indices,
    lane: Indices,
    startup: Startup,
    cap: Cap,
) -> tuple[Channels, Indices, Numbers]:
    """Return the channels from devices to others, the one of each message, and its delay (seconds).

    Messages with the same number in ``lane`` have one channel; they go one after the other, between
    the same devices. Raises NoRoute, with the name of what is played.
    """
    _, some, channel = np.unique(lane, return_index=True, return_inverse=True)
    begin, end = source[some], target[some]
    try:
        routes = [
            route(network, one, other)
            for one, other in zip(begin.tolist(), end.tolist(), strict=True)
        ]
    except NoRoute as error:
        raise NoRoute(f"{name}: {error}") from error
    lengths = np.array([len(found.links) for found in routes], np.int64)
    links = chain.from_iterable(found.links for found in routes)
    shares = chain.from_iterable(found.shares for found in routes)
    latency = np.array([found.latency for found in routes], np.float64)
    node = np.array([-1 if device.node is None else device.node for device in network.devices])
    inside = node[begin] == node[end]
    delay = latency + np.where(inside, startup.inside, startup.between)
    channels = Channels(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.fromiter(links, np.int64, int(lengths.sum())),
        np.fromiter(shares, np.float64, int(lengths.sum())),
        np.where(inside, cap.inside, cap.between),
    )
    return channels, channel.astype(np.int64), delay[channel]
