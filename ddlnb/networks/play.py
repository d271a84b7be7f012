"""Plays a collective, or plain flows, on a network: how long it takes, and what each link carries.

Simulated, not measured: transfers are max-min fair flows (`ddlnb.networks.flows`), and
arrive after the start-up of the message and the latencies of its route.

More bandwidth on a link helps for sure where messages share no link, or one only. In general it can
slow a collective, as fair shares let one message gain what another one loses for good; a test in
``tests/networks/test_play_laws.py`` has an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlnb.networks.channels import NO_CAP, NO_STARTUP, Cap, Startup
from ddlnb.networks.fast_play import play_fast
from ddlnb.networks.network import Network, Numbers
from ddlnb.networks.traffic import Traffic, of_collective, of_flows
from ddlnb.networks.transfers import Collective

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
    course = play_fast(traffic)
    messages = np.empty(len(traffic.sizes), MESSAGE)
    for name, column in (
        ("step", traffic.step),
        ("source", traffic.source),
        ("target", traffic.target),
        ("bytes", traffic.sizes),
        ("start", course.start),
        ("left", course.left),
        ("stop", course.stop),
    ):
        messages[name] = column
    return Played(
        traffic.network,
        float(course.stop.max(initial=0.0)),
        traffic.channels.carried(traffic.channel, traffic.sizes, len(traffic.network.links)),
        messages,
    )
