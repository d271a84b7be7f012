"""Messages on a network: a collective or plain flows, lowered for the players.

Rows of a collective with the same step, source and target are one message. It waits for others,
pays its start-up and the latencies of its route, and then shares the links with all that is on
them. The players, plain and compiled, play what is made here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlnb.errors import require
from ddlnb.networks.channels import Cap, Channels, Indices, Startup, channels_between
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.transfers import Collective


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages, one element of each array for each, in the order of steps, sources and targets.

    ``sizes`` are bytes; ``delay`` the seconds of start-up and latencies; ``release`` the seconds
    before which a message does not begin. Message m carries the parts ``first[i]`` to
    ``stop[i]`` - 1 for i from ``pieces[m]`` to ``pieces[m + 1]`` - 1: whoever sends a part has
    received what earlier steps send it of that part. Plain flows carry no parts and wait for none.
    """

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
    name: str


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
    step, source, target = (rows[name].astype(np.int64) for name in ("step", "source", "target"))
    key, message = np.unique((step * ranks + source) * ranks + target, return_inverse=True)
    order = np.argsort(message, kind="stable")
    parts = (rows["stop"] - rows["first"]).astype(np.float64)
    count = len(key)
    source, target = key // ranks % ranks, key % ranks
    channels, channel, delay = channels_between(
        collective.name, network, places[source], places[target], startup, cap
    )
    return Traffic(
        network,
        channels,
        key // ranks**2,
        source,
        target,
        channel,
        np.bincount(message, parts, minlength=count) * (message_bytes / collective.parts),
        delay,
        np.zeros(count),
        np.concatenate([[0], np.cumsum(np.bincount(message, minlength=count))]).astype(np.int64),
        rows["first"][order].astype(np.int64),
        rows["stop"][order].astype(np.int64),
        collective.name,
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
    source, target = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    ends = np.array(network.endpoints, dtype=np.int64)
    channels, channel, delay = channels_between(
        "flows", network, ends[source], ends[target], startup, cap, together=False
    )
    none = np.zeros(0, np.int64)
    pieces = np.zeros(len(table) + 1, np.int64)
    return Traffic(
        network,
        channels,
        np.arange(len(table)),
        source,
        target,
        channel,
        table[:, 2],
        delay,
        table[:, 3],
        pieces,
        none,
        none,
        "flows",
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
