"""Messages on a network: a collective or plain flows, lowered for the players.

Rows of a collective with the same step, source and target are one message. It waits for others,
shares the links with all that is on them, and arrives after its start-up and the latencies of its
route. The players, plain and compiled, play what is made here.
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
