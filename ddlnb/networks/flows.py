"""How flows share links: max-min fairness by progressive filling, and the proof that rates are so.

Rates are max-min fair when no flow can be given more without taking from one that has no more.
They are unique, and easy to recognise: every flow runs at its own cap, or crosses a link that is
full and on which no flow is faster (Bertsekas & Gallager, Data Networks, 2nd edition, 1992,
section 6.5.2). Transfers in flight are taken for such flows, and no packets are played: for long
transfers this is known to come close to what TCP does, and to be off for short ones and where
acknowledgements meet data (Velho, Schnorr, Casanova, Legrand, On the validity of flow-level TCP
network models for grid and cloud simulations, ACM TOMACS 23(4), 2013).

This file is for reading; `ddlnb.networks.flows` finds the same rates, compiled.

The routes in use by messages, joined in arrays, and what a message meets beside them.

A heap of numbered items by key, compiled: an item is in it once, and its key can change.

Max-min fair rates as `flows` finds them, compiled, and found again only where they change.

When flows come and go, most of the others keep their rates. So only those are filled again that
came, and those that were held by a link of one that came or went. Then the certificate decides: a
flow that has lost its bottleneck by this, or keeps another one from its own, is filled with them,
until every flow has its certificate. Rates with a certificate are the max-min fair ones, so that
nothing is lost by looking at few of them. Compiled code is cached on disk.

What a matrix of traffic puts on every link of a network, whatever the time it is sent at.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ddlnb.errors import require
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.routes import NoRoute, route

CAP = -1
"""Stands for a flow's own cap where `bottlenecks` names links."""

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

    def __post_init__(self) -> None:
        require(
            len(self.links) == len(self.shares) == len(set(self.links)),
            f"a flow on the links {self.links} needs one share for each of them, and each once; "
            f"it has {self.shares}",
        )
        require(
            all(0 < share <= 1 for share in self.shares),
            f"shares {self.shares} of a flow must be above 0 and at most 1",
        )
        require(self.cap > 0, f"cap {self.cap} of a flow must be positive bytes per second")


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


def loads(flows: Sequence[Flow], bandwidths: Numbers, rates: Numbers) -> Numbers:
    """Return the bytes per second on every link."""
    carried = np.zeros(len(bandwidths))
    for flow, rate in zip(flows, rates, strict=True):
        if flow.links:
            np.add.at(carried, list(flow.links), rate * np.array(flow.shares))
    return carried


def bottlenecks(
    flows: Sequence[Flow], bandwidths: Numbers, rates: Numbers
) -> tuple[int | None, ...]:
    """Return what holds each flow: a full link on which no flow is faster, `CAP`, or None.

    Where none is None and no link carries more than its bandwidth, the rates are max-min fair, and
    this is the proof.
    """
    carried = loads(flows, bandwidths, rates)
    full = carried >= (1 - CLOSE) * bandwidths
    fastest = np.zeros(len(bandwidths))
    for flow, rate in zip(flows, rates, strict=True):
        for link in flow.links:
            fastest[link] = max(fastest[link], rate)
    found: list[int | None] = []
    for flow, rate in zip(flows, rates, strict=True):
        holding = (
            link for link in flow.links if full[link] and rate >= (1 - CLOSE) * fastest[link]
        )
        found.append(CAP if rate >= (1 - CLOSE) * flow.cap else next(holding, None))
    return tuple(found)


def unfair(flows: Sequence[Flow], bandwidths: Numbers, rates: Numbers) -> list[str]:
    """Return what is wrong with the rates, a sentence each; nothing if they are max-min fair.

    >>> two = [Flow((0,), (1.0,)), Flow((0, 1), (1.0, 1.0))]
    >>> unfair(two, np.array([2.0, 9.0]), np.array([1.0, 1.0]))
    []
    >>> unfair(two, np.array([2.0, 9.0]), np.array([0.5, 1.5]))
    ['flow 0 of rate 0.5 has no full link on which it is among the fastest']
    """
    carried = loads(flows, bandwidths, rates)
    wrong = [
        f"link {link} carries {carried[link]:g} of its {bandwidths[link]:g} bytes per second"
        for link in np.flatnonzero(carried > (1 + CLOSE) * bandwidths)
    ]
    wrong += [
        f"flow {number} of rate {rates[number]:g} exceeds its cap {flow.cap:g}"
        for number, flow in enumerate(flows)
        if rates[number] > (1 + CLOSE) * flow.cap
    ]
    wrong += [
        f"flow {number} of rate {rates[number]:g} has no full link on which it is among the fastest"
        for number, holding in enumerate(bottlenecks(flows, bandwidths, rates))
        if holding is None
    ]
    return wrong


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


class Heap(NamedTuple):
    """``order`` is the heap of items, ``at`` where each one is in it (-1: not), ``key`` its key."""

    order: Indices
    at: Indices
    key: Numbers
    size: Indices


def heap_of(items: int) -> Heap:
    """Return an empty heap for items 0 to ``items`` - 1."""
    none = np.full(items, -1, np.int64)
    return Heap(np.zeros(items, np.int64), none, np.zeros(items), np.zeros(1, np.int64))


@njit(cache=True, nogil=True)
def put(heap: Heap, item: int, key: float) -> None:
    """Put an item in with this key, or change the key that it has."""
    heap.key[item] = key
    if heap.at[item] < 0:
        heap.at[item] = heap.size[0]
        heap.order[heap.size[0]] = item
        heap.size[0] += 1
    _rise(heap, heap.at[item])
    _sink(heap, heap.at[item])


@njit(cache=True, nogil=True)
def pop(heap: Heap) -> int:
    """Take out the item with the lowest key, of equal keys the lowest item."""
    first = int(heap.order[0])
    heap.size[0] -= 1
    last = heap.order[heap.size[0]]
    heap.at[first] = -1
    if last != first:
        heap.order[0] = last
        heap.at[last] = 0
        _sink(heap, 0)
    return first


@njit(cache=True, nogil=True)
def _is_before(heap: Heap, one: int, other: int) -> bool:
    return heap.key[one] < heap.key[other] or (heap.key[one] == heap.key[other] and one < other)


@njit(cache=True, nogil=True)
def _rise(heap: Heap, at: int) -> None:
    item = heap.order[at]
    while at > 0:
        above = (at - 1) // 2
        other = heap.order[above]
        if not _is_before(heap, item, other):
            break
        heap.order[at] = other
        heap.at[other] = at
        at = above
    heap.order[at] = item
    heap.at[item] = at


@njit(cache=True, nogil=True)
def _sink(heap: Heap, at: int) -> None:
    item = heap.order[at]
    while True:
        below = 2 * at + 1
        if below >= heap.size[0]:
            break
        if below + 1 < heap.size[0] and _is_before(heap, heap.order[below + 1], heap.order[below]):
            below += 1
        other = heap.order[below]
        if not _is_before(heap, other, item):
            break
        heap.order[at] = other
        heap.at[other] = at
        at = below
    heap.order[at] = item
    heap.at[item] = at


CLOSE_fast_flows = 1e-11  # loads and rates that differ by a smaller share are equal
SAME = 1e-13  # a rate that changes by a smaller share is kept
NOTHING = -2  # what holds a channel that has no rate yet
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _choose(on: Sharing, channel: int) -> None:
    """Have a channel filled again."""
    one = on.channels[channel]
    if one.state == OUTSIDE:
        one.state, one.before = GROWING, one.rate
        on.chosen[on.counts[0]] = channel
        on.counts[0] += 1


@njit(cache=True, nogil=True)
def _list(on: Sharing, link: int) -> None:
    if not on.links[link].is_listed:
        on.links[link].is_listed = 1
        on.listed[on.counts[1]] = link
        on.counts[1] += 1


@njit(cache=True, nogil=True)
def _forget_links(on: Sharing) -> None:
    for i in range(on.counts[1]):
        on.links[on.listed[i]].is_listed = 0
    on.counts[1] = 0


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _choose_the_unfair(on: Sharing) -> None:
    """Choose whoever has no certificate any more, or is faster than one that this link holds."""
    for i in range(on.counts[1]):
        link = on.links[on.listed[i]]
        load, fastest = 0.0, 0.0
        for seat in range(link.begin, link.begin + link.seats):
            row = on.rows[on.seated[seat]]
            load += row.share * on.channels[row.channel].rate
            fastest = max(fastest, on.channels[row.channel].rate)
        is_full = load >= (1 - CLOSE_fast_flows) * link.bandwidth
        for seat in range(link.begin, link.begin + link.seats):
            channel = on.rows[on.seated[seat]].channel
            one = on.channels[channel]
            if one.state != OUTSIDE:
                continue
            is_lost = one.held == on.listed[i] and (
                not is_full or one.rate < (1 - CLOSE_fast_flows) * fastest
            )
            if is_lost or one.rate > (1 + CLOSE_fast_flows) * link.level:
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
