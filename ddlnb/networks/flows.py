"""How flows share links: max-min fair rates, compiled, and found again only where they change.

Transfers in flight are taken for flows, and no packets are played: for long transfers this is known
to come close to what TCP does, and to be off for short ones and where acknowledgements meet data
(Velho, Schnorr, Casanova, Legrand, On the validity of flow-level TCP network models for grid and
cloud simulations, ACM TOMACS 23(4), 2013). Rates are max-min fair when every flow has its
certificate: it runs at its own cap, or crosses a link that is full and on which no flow is faster
(Bertsekas & Gallager, Data Networks, 2nd edition, 1992, section 6.5.2).

When flows come and go, most of the others keep their rates. So only those are filled again that
came, and those that were held by a link of one that came or went. Then the certificate decides: a
flow that has lost its bottleneck by this, or keeps another one from its own, is filled with them,
until every flow has its certificate. Such rates are the max-min fair ones, so that nothing is lost
by looking at few of them. Compiled code is cached on disk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.compiling import compiled
from ddlnb.errors import require
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


CLOSE = 1e-11  # loads and rates that differ by a smaller share are equal
SAME = 1e-13  # a rate that changes by a smaller share is kept
CAP, NOTHING = -1, -2  # what holds a channel that is no link: its own cap; it has no rate yet
OUTSIDE, GROWING, STOPPED, ALONE = range(4)


LINK = np.dtype(
    [
        ("bandwidth", np.float64),
        ("room", np.float64),  # what its growing channels may have
        ("weight", np.float64),  # the sum of their shares
        ("level", np.float64),  # the rate at which it became full
        ("growing", np.int64),  # their number
        ("begin", np.int64),  # where its seats begin
        ("seats", np.int64),
        ("is_listed", np.int64),
    ]
)
CHANNEL = np.dtype(
    [
        ("start", np.int64),  # its rows
        ("stop", np.int64),
        ("cap", np.float64),
        ("rate", np.float64),
        ("before", np.float64),  # its rate before it was filled again
        ("held", np.int64),  # the link that holds it, or CAP
        ("state", np.int64),
    ]
)
ROW = np.dtype(
    [
        ("link", np.int64),
        ("channel", np.int64),
        ("share", np.float64),
        ("seat", np.int64),
    ]
)
Records = NDArray[np.void]


class Sharing(NamedTuple):
    """Links, channels, and the rows that say which share of a channel is on which link.

    A row is ``seated`` on its link while its channel flows. ``chosen`` lists channels to fill,
    ``listed`` the links to look at; ``counts`` says how many there are of both.
    """

    links: Records
    channels: Records
    rows: Records
    seated: Indices
    chosen: Indices
    listed: Indices
    counts: Indices


def sharing(channels: Channels, bandwidths: Numbers) -> Sharing:
    """Return links on which no channel flows yet."""
    links = np.zeros(len(bandwidths), LINK)
    links["bandwidth"] = bandwidths
    uses = np.bincount(channels.link, minlength=len(links))
    links["begin"] = np.cumsum(uses) - uses
    all_channels = np.zeros(len(channels.cap), CHANNEL)
    all_channels["start"], all_channels["stop"] = channels.start[:-1], channels.start[1:]
    all_channels["cap"] = channels.cap
    all_channels["held"] = NOTHING
    rows = np.zeros(len(channels.link), ROW)
    rows["link"], rows["share"] = channels.link, channels.share
    rows["channel"] = np.repeat(np.arange(len(channels.cap)), np.diff(channels.start))
    return Sharing(
        links,
        all_channels,
        rows,
        np.zeros(len(rows), np.int64),
        np.zeros(len(all_channels), np.int64),
        np.zeros(len(links), np.int64),
        np.zeros(2, np.int64),
    )


@compiled()
def join(on: Sharing, channel: int) -> None:
    """Let a channel flow; its rate is found by the next `refill`."""
    one = on.channels[channel]
    one.rate, one.held = 0.0, NOTHING
    _choose(on, channel)
    for number in range(one.start, one.stop):
        row = on.rows[number]
        link = on.links[row.link]
        row.seat = link.begin + link.seats
        on.seated[row.seat] = number
        link.seats += 1
        _list(on, row.link)


@compiled()
def leave(on: Sharing, channel: int) -> None:
    """Let a channel flow no more; what that gives to others is found by the next `refill`."""
    one = on.channels[channel]
    for number in range(one.start, one.stop):
        row = on.rows[number]
        link = on.links[row.link]
        link.seats -= 1
        last = on.seated[link.begin + link.seats]
        on.seated[row.seat] = last
        on.rows[last].seat = row.seat
        _list(on, row.link)


@compiled()
def refill(on: Sharing) -> int:
    """Make the rates fair again; return how many of ``on.chosen`` were filled.

    Their fields ``before`` are the rates that they had; where nothing changed they have them still.
    """
    for i in range(on.counts[1]):
        link = on.links[on.listed[i]]
        for seat in range(link.begin, link.begin + link.seats):
            channel = on.rows[on.seated[seat]].channel
            if on.channels[channel].held == on.listed[i]:
                _choose(on, channel)
    _forget_links(on)
    known = 0
    while known < on.counts[0]:
        for i in range(known, on.counts[0]):
            one = on.channels[on.chosen[i]]
            if not _fill_alone(on, one):
                for number in range(one.start, one.stop):
                    _list(on, on.rows[number].link)
        known = on.counts[0]
        if on.counts[1] == 0:
            break
        _fill(on)
        _choose_the_unfair(on)
    _forget_links(on)
    count = int(on.counts[0])
    on.counts[0] = 0
    for i in range(count):
        one = on.channels[on.chosen[i]]
        one.state = OUTSIDE
        if abs(one.rate - one.before) <= SAME * one.before:
            one.rate = one.before
    return count


@compiled()
def _choose(on: Sharing, channel: int) -> None:
    """Have a channel filled again."""
    one = on.channels[channel]
    if one.state == OUTSIDE:
        one.state, one.before = GROWING, one.rate
        on.chosen[on.counts[0]] = channel
        on.counts[0] += 1


@compiled()
def _list(on: Sharing, link: int) -> None:
    if not on.links[link].is_listed:
        on.links[link].is_listed = 1
        on.listed[on.counts[1]] = link
        on.counts[1] += 1


@compiled()
def _forget_links(on: Sharing) -> None:
    for i in range(on.counts[1]):
        on.links[on.listed[i]].is_listed = 0
    on.counts[1] = 0


@compiled()
def _fill_alone(on: Sharing, one: Any) -> bool:
    """Give a channel that shares no link what its links have; say whether it is one."""
    rate, held = one.cap, CAP
    for number in range(one.start, one.stop):
        row = on.rows[number]
        link = on.links[row.link]
        if link.seats > 1:
            return False
        if link.bandwidth < rate * row.share:
            rate, held = link.bandwidth / row.share, row.link
    one.state, one.rate, one.held = ALONE, rate, held
    return True


@compiled()
def _fill(on: Sharing) -> None:
    """Fill the chosen channels progressively, beside all others, which keep their rates."""
    for i in range(on.counts[0]):
        one = on.channels[on.chosen[i]]
        if one.state == STOPPED:
            one.state = GROWING
    # (level, link) or (cap, links + channel), the lowest first. Levels of links only rise while
    # channels stop, so that one is looked at again when it is the lowest.
    links = len(on.links)
    events = [(0.0, 0)]
    events.pop()
    for i in range(on.counts[1]):
        link = on.links[on.listed[i]]
        _measure(on, link)
        link.level = math.inf
        if link.growing > 0:
            heapq.heappush(events, (link.room / link.weight, on.listed[i]))
    for i in range(on.counts[0]):
        one = on.channels[on.chosen[i]]
        if one.state == GROWING and one.cap < math.inf:
            heapq.heappush(events, (one.cap, links + on.chosen[i]))
    while len(events) > 0:
        level, which = heapq.heappop(events)
        if which >= links:
            if on.channels[which - links].state == GROWING:
                _stop(on, which - links, level, CAP)
            continue
        link = on.links[which]
        if link.growing == 0:
            continue
        level = max(0.0, link.room) / link.weight
        if len(events) > 0 and level > events[0][0]:
            heapq.heappush(events, (level, which))
            continue
        _measure(on, link)  # anew, so that differences of large numbers do not add up
        link.level = link.room / link.weight
        for seat in range(link.begin, link.begin + link.seats):
            channel = on.rows[on.seated[seat]].channel
            if on.channels[channel].state == GROWING:
                _stop(on, channel, link.level, which)


@compiled()
def _measure(on: Sharing, link: Any) -> None:
    """Find the room that a link leaves to its growing channels, their weight, and their number."""
    link.room, link.weight, link.growing = link.bandwidth, 0.0, 0
    for seat in range(link.begin, link.begin + link.seats):
        row = on.rows[on.seated[seat]]
        one = on.channels[row.channel]
        if one.state == GROWING:
            link.weight += row.share
            link.growing += 1
        else:
            link.room -= row.share * one.rate
    link.room = max(0.0, link.room)


@compiled()
def _stop(on: Sharing, channel: int, rate: float, held: int) -> None:
    """End the growth of a channel at this rate."""
    one = on.channels[channel]
    one.state, one.rate, one.held = STOPPED, rate, held
    for number in range(one.start, one.stop):
        row = on.rows[number]
        link = on.links[row.link]
        link.room -= row.share * rate
        link.weight -= row.share
        link.growing -= 1


@compiled()
def _choose_the_unfair(on: Sharing) -> None:
    """Choose whoever has no certificate any more, or is faster than one that this link holds."""
    for i in range(on.counts[1]):
        link = on.links[on.listed[i]]
        load, fastest = 0.0, 0.0
        for seat in range(link.begin, link.begin + link.seats):
            row = on.rows[on.seated[seat]]
            load += row.share * on.channels[row.channel].rate
            fastest = max(fastest, on.channels[row.channel].rate)
        is_full = load >= (1 - CLOSE) * link.bandwidth
        for seat in range(link.begin, link.begin + link.seats):
            channel = on.rows[on.seated[seat]].channel
            one = on.channels[channel]
            if one.state != OUTSIDE:
                continue
            is_lost = one.held == on.listed[i] and (not is_full or one.rate < (1 - CLOSE) * fastest)
            if is_lost or one.rate > (1 + CLOSE) * link.level:
                _choose(on, channel)


def link_bytes(
    network: Network, matrix: Numbers, placement: Sequence[int] | None = None
) -> Numbers:
    """Return the bytes on every link when rank i sends ``matrix[i, j]`` bytes to rank j.

    Rank r runs on endpoint ``placement[r]``, by default on endpoint r. Raises InputError for a
    matrix that is not square, or larger than the network, and NoRoute for ranks that are apart.

    >>> from ddlnb.networks.topologies import Star
    >>> link_bytes(Star(2).network(1e9), np.array([[0.0, 5.0], [1.0, 0.0]])).tolist()
    [5.0, 1.0, 1.0, 5.0]
    """
    matrix = np.asarray(matrix, float)
    require(
        matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] <= network.ranks,
        f"a matrix of shape {matrix.shape} must be square, with at most the {network.ranks} ranks "
        f"of network {network.name!r}",
    )
    places = np.arange(len(matrix)) if placement is None else np.asarray(placement)
    require(
        sorted({*places.tolist()} & {*range(network.ranks)}) == sorted(places.tolist())
        and len(places) == len(matrix),
        f"placement {places.tolist()} must give each of {len(matrix)} ranks an endpoint of its "
        f"own, of the {network.ranks} of network {network.name!r}",
    )
    source, target = np.nonzero(matrix)
    ends = np.array(network.endpoints, dtype=np.int64)
    channels, channel, _ = channels_between(
        "traffic",
        network,
        ends[places[source]],
        ends[places[target]],
        np.arange(len(source)),
        NO_STARTUP,
        NO_CAP,
    )
    return channels.carried(channel, matrix[source, target], len(network.links))


def busiest_seconds(
    network: Network, matrix: Numbers, placement: Sequence[int] | None = None
) -> float:
    """Return the seconds that the busiest link needs for its bytes: no order of sending is faster.

    Arguments and errors are those of `link_bytes`.
    """
    return float((link_bytes(network, matrix, placement) / network.bandwidths).max(initial=0.0))
