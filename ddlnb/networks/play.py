"""Plays a collective, or plain flows, on a network: how long it takes, and what each link carries.

Simulated, not measured: transfers are max-min fair flows (`ddlnb.networks.flows`), and
arrive after the start-up of the message and the latencies of its route.

More bandwidth on a link helps for sure where messages share no link, or one only. In general it can
slow a collective, as fair shares let one message gain what another one loses for good; a test in
``tests/networks/test_play_laws.py`` has an example.

Rows of a collective with the same step, source and target are one message (`Traffic`). Who waits
for whom is said by `Gates`: when all that feed a gate have come, it opens to others. With gates
the number of relations grows with the number of transfers; listed one by one, each of n messages
of a step would wait for each of n messages of the step before. A `Replay` plays the events one
after the other, compiled: messages begin, leave and arrive.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlnb.compiling import compiled
from ddlnb.errors import require
from ddlnb.networks.flows import (
    NO_CAP,
    NO_STARTUP,
    Cap,
    Channels,
    Indices,
    Sharing,
    Startup,
    channels_between,
    join,
    leave,
    refill,
    sharing,
)
from ddlnb.networks.network import Network, Numbers
from ddlnb.plans.transfers import Collective


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages, one element of each array for each, in the order of steps, sources and targets.

    ``sizes`` are bytes; ``delay`` the seconds of start-up and latencies; ``release`` the seconds
    before which a message does not begin. Message m carries the parts ``first[i]`` to
    ``stop[i]`` - 1 for i from ``pieces[m]`` to ``pieces[m + 1]`` - 1: whoever sends a part has
    received what earlier steps send it of that part. Plain flows are all of one step, and carry no
    parts.
    """

    name: str
    network: Network
    channels: Channels
    step: Indices
    source: Indices
    target: Indices
    channel: Indices
    sizes: Numbers
    delay: Numbers
    release: Numbers
    pieces: Indices
    first: Indices
    stop: Indices


def of_collective(
    collective: Collective,
    network: Network,
    message_bytes: float,
    startup: Startup,
    cap: Cap,
    placement: Sequence[int] | None,
) -> Traffic:
    """Return the messages of a collective, with the arguments of `ddlnb.networks.play.play`."""
    require(
        0 <= message_bytes < math.inf,
        f"message_bytes {message_bytes} must be a finite number of bytes, not negative",
    )
    rows, ranks = collective.transfers, collective.ranks
    places = _places(collective, network, placement)
    key, message = np.unique(
        (rows["step"].astype(np.int64) * ranks + rows["source"]) * ranks + rows["target"],
        return_inverse=True,
    )
    source, target = key // ranks % ranks, key % ranks
    channels, channel, delay = channels_between(
        collective.name, network, places[source], places[target], key % ranks**2, startup, cap
    )
    order = np.argsort(message, kind="stable")
    pieces = np.bincount(message, minlength=len(key))
    parts = np.bincount(message, rows["stop"] - rows["first"], minlength=len(key))
    return Traffic(
        name=collective.name,
        network=network,
        channels=channels,
        step=key // ranks**2,
        source=source,
        target=target,
        channel=channel,
        sizes=(parts * (message_bytes / collective.parts)).astype(np.float64),
        delay=delay,
        release=np.zeros(len(key)),
        pieces=np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64),
        first=rows["first"][order].astype(np.int64),
        stop=rows["stop"][order].astype(np.int64),
    )


def of_flows(
    network: Network,
    flows: Sequence[tuple[int, int, float, float]],
    startup: Startup,
    cap: Cap,
) -> Traffic:
    """Return plain flows as messages, with the arguments of `ddlnb.networks.play.share`."""
    for source, target, sizes, start in flows:
        require(
            0 <= source < network.ranks and 0 <= target < network.ranks and source != target,
            f"a flow from {source} to {target} needs two different ranks of the "
            f"{network.ranks} of network {network.name!r}",
        )
        require(
            0 <= sizes < math.inf and 0 <= start < math.inf,
            f"a flow of {sizes} bytes at {start} s needs finite numbers, not negative",
        )
    table = np.array(flows, dtype=np.float64).reshape(-1, 4)
    one, other = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    ends = np.array(network.endpoints, dtype=np.int64)
    channels, channel, delay = channels_between(
        "flows", network, ends[one], ends[other], np.arange(len(table)), startup, cap
    )
    return Traffic(
        name="flows",
        network=network,
        channels=channels,
        step=np.zeros(len(table), np.int64),
        source=one,
        target=other,
        channel=channel,
        sizes=table[:, 2],
        delay=delay,
        release=table[:, 3],
        pieces=np.zeros(len(table) + 1, np.int64),
        first=np.zeros(0, np.int64),
        stop=np.zeros(0, np.int64),
    )


def _places(collective: Collective, network: Network, placement: Sequence[int] | None) -> Indices:
    """Return the device of every rank."""
    if placement is None:
        require(
            collective.ranks <= network.ranks,
            f"{collective.name} of {collective.ranks} ranks needs as many endpoints, and network "
            f"{network.name!r} has {network.ranks}; take fewer ranks, a larger network, or a "
            f"placement that puts several on one",
        )
        placement = range(collective.ranks)
    require(
        len(placement) == collective.ranks
        and all(0 <= place < network.ranks for place in placement),
        f"placement {list(placement)} must give each of the {collective.ranks} ranks of "
        f"{collective.name} one of the {network.ranks} endpoints of network {network.name!r}",
    )
    return np.array(network.endpoints, dtype=np.int64)[np.array(placement, dtype=np.int64)]


class Gates(NamedTuple):
    """Gates, and the messages before and after them.

    A message that has left feeds the gates ``order[order_start[m]:order_start[m + 1]]``, one that
    has arrived those in ``data``, likewise. Gate g waits for ``needs[g]`` messages and then opens
    to ``opened[opened_start[g]:opened_start[g + 1]]``; message m waits for ``waits[m]`` gates.
    """

    order_start: Indices
    order: Indices
    data_start: Indices
    data: Indices
    needs: Indices
    opened_start: Indices
    opened: Indices
    waits: Indices


def gates(traffic: Traffic) -> Gates:
    """Return the gates of a traffic.

    A gate stands between the sends of a rank in one step and in its next one, and between what a
    rank receives of a part and its next sends of that part. What it sends after those has waited
    for them already, as they have begun.
    """
    messages = len(traffic.sizes)
    senders, sent, later, behind = _in_order(traffic)
    receivers, received, after, through = _by_data(traffic)
    first = int(behind.max(initial=-1)) + 1
    received, through = received + first, through + first
    opening, openers = np.concatenate([later, after]), np.concatenate([behind, through])
    number = int(openers.max(initial=-1)) + 1
    opens_any = np.zeros(max(number, int(received.max(initial=-1)) + 1), np.bool_)
    opens_any[openers] = True
    receivers, received = receivers[opens_any[received]], received[opens_any[received]]
    return Gates(
        *_rows(senders, sent, messages),
        *_rows(receivers, received, messages),
        np.bincount(np.concatenate([sent, received]), minlength=number),
        *_rows(openers, opening, number),
        np.bincount(opening, minlength=messages),
    )


def _rows(key: Indices, value: Indices, count: int) -> tuple[Indices, Indices]:
    """Return where the row of every key starts, and the joined rows of values."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=count))])
    return starts.astype(np.int64), value[np.argsort(key, kind="stable")]


Relations = tuple[Indices, Indices, Indices, Indices]


def _in_order(traffic: Traffic) -> Relations:
    """Return messages and the gates they feed, messages and the gates they wait for."""
    steps = int(traffic.step.max(initial=0)) + 1
    groups, group = np.unique(traffic.source * steps + traffic.step, return_inverse=True)
    follows = np.zeros(len(groups) + 1, np.bool_)
    follows[1:-1] = groups[1:] // steps == groups[:-1] // steps
    messages = np.arange(len(group))
    before, after = follows[1:][group], follows[:-1][group]
    return messages[before], group[before], messages[after], group[after] - 1


def _by_data(traffic: Traffic) -> Relations:
    """Return the same for what is received and sent on."""
    bounds = np.unique(np.concatenate([traffic.first, traffic.stop]))
    low, high = np.searchsorted(bounds, traffic.first), np.searchsorted(bounds, traffic.stop)
    message = np.repeat(np.arange(len(traffic.sizes)), np.diff(traffic.pieces))
    lengths = high - low
    ends = np.cumsum(lengths)
    part = np.arange(int(lengths.sum())) - np.repeat(ends - lengths - low, lengths)
    message = np.repeat(message, lengths)
    steps, parts = int(traffic.step.max(initial=0)) + 1, len(bounds)
    step = traffic.step[message]
    sent = ((traffic.source[message] * parts + part) * steps + step) * 2
    received = ((traffic.target[message] * parts + part) * steps + step) * 2 + 1
    key = np.concatenate([sent, received])
    order = np.argsort(key, kind="stable")
    return _gates_of_parts(key[order], np.concatenate([message, message])[order], steps)


@compiled()
def _gates_of_parts(key: Indices, message: Indices, steps: int) -> Relations:
    """Walk through what each rank sends and receives of each part, step by step."""
    count = len(key)
    feeding, feeders = np.empty(count, np.int64), np.empty(count, np.int64)
    opening, openers = np.empty(count, np.int64), np.empty(count, np.int64)
    fed = opened = 0
    gate, here, used = -1, -1, -1  # the step of the sends that the gate has opened to
    has_gate = False
    for i in range(count):
        if key[i] // (2 * steps) != here:
            here, has_gate = key[i] // (2 * steps), False
        step, is_received = key[i] // 2 % steps, key[i] % 2 == 1
        if is_received:
            if not has_gate or used >= 0:
                gate, used, has_gate = gate + 1, -1, True
            feeding[fed], feeders[fed] = message[i], gate
            fed += 1
        elif has_gate and (used < 0 or used == step):
            used = step
            opening[opened], openers[opened] = message[i], gate
            opened += 1
    return feeding[:fed], feeders[:fed], opening[:opened], openers[:opened]


SAME_TIME = 1e-12
"""Events whose times differ by less than this share are at one time."""


@dataclass(frozen=True, eq=False)
class Times:
    """When each message began, when its last byte left and when that arrived, in seconds."""

    start: Numbers
    left: Numbers
    stop: Numbers


class Replay:
    """A traffic to be played again and again: who waits for whom is found once."""

    def __init__(self, traffic: Traffic):
        self._traffic, self._gates = traffic, gates(traffic)

    def times(self, sizes: Numbers, delay: Numbers, bandwidths: Numbers) -> Times:
        """Return when messages of these bytes and delays begin, leave and arrive.

        ``bandwidths`` are those of the traffic's links, in the order of its network.
        """
        traffic, between = self._traffic, self._gates
        counted_down = between._replace(needs=between.needs.copy(), waits=between.waits.copy())
        on = sharing(traffic.channels, bandwidths)
        # In one layout, or the loop would be compiled again for that of a slice.
        amounts = (np.ascontiguousarray(one) for one in (sizes, delay, traffic.release))
        return Times(*_play(on, counted_down, traffic.channel, *amounts))


@compiled()
def _play(
    on: Sharing,
    between: Gates,
    channel_of: Indices,
    sizes: Numbers,
    delay: Numbers,
    release: Numbers,
) -> tuple[Numbers, Numbers, Numbers]:
    """Return when messages begin, leave and arrive.

    A channel lets one message flow at a time and has one event ahead for it: that it may begin, or
    has left. Those that have left arrive in the same order, after the same delay, so that a channel
    has one more event ahead: the next arrival.
    """
    messages, channels = len(sizes), len(on.channels)
    start, left, stop = np.full(messages, np.nan), np.full(messages, np.nan), np.zeros(messages)
    sending = np.full(channels, -1, np.int64)  # the message that flows, or will be released
    to_send, since = np.zeros(channels), np.zeros(channels)
    arriving, last = np.full(channels, -1, np.int64), np.full(channels, -1, np.int64)
    behind = np.full(messages, -1, np.int64)  # the next one to arrive on the same channel
    free, count = np.empty(messages, np.int64), 0  # those that wait for no gate any more
    due = np.full(2 * channels, np.inf)  # when the event of a channel is, and its next arrival
    ahead = [(0.0, 0)]  # a heap of these, among others that have been put off or forward
    ahead.pop()
    for message in range(messages):
        if between.waits[message] == 0:
            free[count] = message
            count += 1
    now, same = 0.0, 0.0
    while True:
        while True:
            while count > 0:
                count -= 1
                message = free[count]
                channel = channel_of[message]
                sending[channel] = message
                if release[message] > same:
                    _put(ahead, due, release[message], channel)
                    continue
                start[message] = now
                to_send[channel], since[channel] = sizes[message], now
                join(on, channel)
            if _next(ahead, due) > same:
                break
            item = heapq.heappop(ahead)[1]
            due[item] = np.inf
            channel = item % channels
            if item >= channels:  # a message arrives
                message = arriving[channel]
                arriving[channel] = behind[message]
                if arriving[channel] >= 0:
                    _put(ahead, due, stop[arriving[channel]], item)
                stop[message] = now
                count = _feed(message, between.data_start, between.data, between, free, count)
                continue
            message = sending[channel]
            if np.isnan(start[message]):  # it is released
                free[count] = message
                count += 1
                continue
            left[message] = now
            stop[message] = now + delay[message]
            leave(on, channel)
            if arriving[channel] < 0:
                arriving[channel] = message
                _put(ahead, due, stop[message], channels + channel)
            else:
                behind[last[channel]] = message
            last[channel] = message
            count = _feed(message, between.order_start, between.order, between, free, count)
        for i in range(refill(on)):
            channel = on.chosen[i]
            before, rate = on.channels[channel].before, on.channels[channel].rate
            if before == rate:
                continue
            if since[channel] < now:
                to_send[channel] = max(0.0, to_send[channel] - before * (now - since[channel]))
                since[channel] = now
            ends = now + (to_send[channel] / rate if rate < math.inf else 0.0)
            _put(ahead, due, ends, channel)
        now = _next(ahead, due)
        if now == math.inf:
            return start, left, stop
        same = now * (1 + SAME_TIME)


@compiled()
def _put(ahead: list[tuple[float, int]], due: Numbers, when: float, item: int) -> None:
    """Have an event at a time, in place of the time that it had."""
    if due[item] != when:
        due[item] = when
        heapq.heappush(ahead, (when, item))


@compiled()
def _next(ahead: list[tuple[float, int]], due: Numbers) -> float:
    """Return when the next event is, which is first then, of equal ones the lowest; inf if none."""
    while len(ahead) > 0 and due[ahead[0][1]] != ahead[0][0]:
        heapq.heappop(ahead)
    return ahead[0][0] if len(ahead) > 0 else math.inf


@compiled()
def _feed(
    message: int, fed_start: Indices, fed: Indices, between: Gates, free: Indices, count: int
) -> int:
    """Feed the gates of a message; return how many messages are free after that."""
    for i in range(fed_start[message], fed_start[message + 1]):
        gate = fed[i]
        between.needs[gate] -= 1
        if between.needs[gate] == 0:
            for j in range(between.opened_start[gate], between.opened_start[gate + 1]):
                opened = between.opened[j]
                between.waits[opened] -= 1
                if between.waits[opened] == 0:
                    free[count] = opened
                    count += 1
    return count


MESSAGE = np.dtype(
    [
        ("step", np.int32),
        ("source", np.int32),
        ("target", np.int32),
        ("bytes", np.float64),
        ("start", np.float64),
        ("left", np.float64),
        ("stop", np.float64),
    ]
)
"""One message as played: its step, ranks and bytes, and the seconds when it began, when its last
byte left, and when that arrived."""


@dataclass(frozen=True, eq=False)
class Played:
    """What playing found.

    ``seconds`` from the beginning until the last byte has arrived; ``messages`` (of type `MESSAGE`)
    when each one was sent and arrived; ``link_bytes`` the bytes on every link of the network.
    """

    network: Network
    seconds: float
    link_bytes: Numbers = field(repr=False)
    messages: NDArray[np.void] = field(repr=False)

    @property
    def utilisation(self) -> Numbers:
        """Return the share of every link's bandwidth that was used until the end, from 0 to 1."""
        if not self.seconds:
            return np.zeros(len(self.link_bytes))
        return self.link_bytes / (self.network.bandwidths * self.seconds)

    @property
    def busiest(self) -> int:
        """Return the number of the link with the highest utilisation, the first of equal ones."""
        busy = self.utilisation
        return int(np.flatnonzero(busy >= busy.max() * (1 - 1e-9))[0])

    @property
    def busiest_name(self) -> str:
        """Return the devices at the ends of the busiest link, such as ``leaf0 -> spine1``."""
        link, devices = self.network.links[self.busiest], self.network.devices
        return f"{devices[link.start].name} -> {devices[link.end].name}"


def play(
    collective: Collective,
    network: Network,
    message_bytes: float,
    *,
    startup: Startup = NO_STARTUP,
    cap: Cap = NO_CAP,
    placement: Sequence[int] | None = None,
) -> Played:
    """Return how a collective runs on a network, with a message of so many bytes.

    A transfer begins when its source has received all that earlier steps send it of the parts
    concerned, and its own sends of earlier steps have left. It leaves at the max-min fair rate,
    which never exceeds the cap of a message, and arrives after the start-up of a message and the
    latencies of its route (the longest path where it is split). So latencies of messages overlap.

    Rank r runs on endpoint ``placement[r]``, by default on endpoint r; servers are the ranks after
    the workers. Between ranks on one endpoint no link is used: there only start-up and cap count.

    Raises InputError for ranks that do not fit, NoRoute for hosts that have lost each other.
    """
    return _played(of_collective(collective, network, message_bytes, startup, cap, placement))


def share(
    network: Network,
    flows: Sequence[tuple[int, int, float, float]],
    *,
    startup: Startup = NO_STARTUP,
    cap: Cap = NO_CAP,
) -> Played:
    """Return how plain flows share a network: each a source, a target, bytes, seconds of its start.

    Sources and targets are ranks, which run on the endpoints in their order. The messages of the
    result are in the order of the flows.

    >>> from ddlnb.networks.topologies import Star
    >>> two = share(Star(3).network(bandwidth=1e9), [(0, 2, 1e9, 0.0), (1, 2, 1e9, 0.0)])
    >>> two.seconds, two.busiest_name
    (2.0, 'switch0 -> host2')
    """
    return _played(of_flows(network, flows, startup, cap))


def _played(traffic: Traffic) -> Played:
    times = Replay(traffic).times(traffic.sizes, traffic.delay, traffic.network.bandwidths)
    messages = np.empty(len(traffic.sizes), MESSAGE)
    for name, column in (
        ("step", traffic.step),
        ("source", traffic.source),
        ("target", traffic.target),
        ("bytes", traffic.sizes),
        ("start", times.start),
        ("left", times.left),
        ("stop", times.stop),
    ):
        messages[name] = column
    return Played(
        traffic.network,
        float(times.stop.max(initial=0.0)),
        traffic.channels.carried(traffic.channel, traffic.sizes, len(traffic.network.links)),
        messages,
    )
