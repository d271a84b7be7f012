"""What the survey says of topologies (section 3.3.2 and Table 1), from simulated exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt

import numpy as np
import pandas as pd

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import require
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.network import Network
from ddlnb.networks.play import Played, play
from ddlnb.networks.structure import (
    Ring,
    Structure,
    bcube_rings,
    fat_tree_ring,
    hosts_on,
    torus_rings,
)
from ddlnb.networks.topologies import BCube, FatTree, Topology, Torus
from ddlnb.plans.transfers import Collective
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled, ties
from ddlnb.units import MB, bandwidth_from, counted

SAME = 1.01  # times: equal but for the last digits


def topologies_of(hosts: int) -> dict[str, Topology]:
    """Return the three networks of Table 1 with this many hosts; raises InputError if one has not.

    >>> topologies_of(16)
    {'fat-tree': FatTree(ports=4), 'BCube': BCube(ports=4, levels=2), 'torus': Torus(rows=4, \
columns=4, layers=1)}
    """
    side, ports = isqrt(hosts), round((4 * hosts) ** (1 / 3))
    require(
        side * side == hosts and ports**3 == 4 * hosts and ports % 2 == 0,
        f"{hosts} hosts do not fit all three networks; 16 and 1024 do",
    )
    return {"fat-tree": FatTree(ports), "BCube": BCube(side, 2), "torus": Torus(side, side)}


def exchange_times(
    hosts: int = 16, size: int = 100 * MB, bandwidth: str = "10 Gb/s"
) -> dict[tuple[str, str], Played]:
    """Return how every exchange of `EXCHANGES` runs on every network, by network and exchange.

    ``size`` are the bytes of a worker's message; each cable carries ``bandwidth`` each way. There
    are no latencies: what is compared is what links carry.
    """
    found = {}
    for name, topology in topologies_of(hosts).items():
        network = topology.network(bandwidth_from(bandwidth))
        for exchange, collective in EXCHANGES.items():
            found[name, exchange] = play(collective(network, topology), network, size)
    return found


def rings_of(topology: Topology) -> list[Ring]:
    """Return the rings that fit one of these networks at once."""
    if isinstance(topology, FatTree):
        return fat_tree_ring(topology.ports)
    if isinstance(topology, BCube):
        return bcube_rings(topology.ports)
    return torus_rings(isqrt(topology.hosts))


def rings_at_once(orders: Sequence[Sequence[int]], hosts: int) -> Collective:
    """Return all-reduces round rings of these hosts at once, each of an equal part of the message.

    Rings are of equal length, and may have hosts in common.
    """
    ring = get_collective("ring", len(orders[0]))
    transfers = np.tile(ring.transfers, (len(orders), 1))
    for number, (order, rows) in enumerate(zip(orders, transfers, strict=True)):
        for end in ("source", "target"):
            rows[end] = np.array(order)[rows[end]]
        for part in ("first", "stop"):
            rows[part] += number * ring.parts
    parts = len(orders) * ring.parts
    return Collective("rings", "all-reduce", hosts, parts, transfers.ravel())


EXCHANGES: dict[str, Callable[[Network, Topology], Collective]] = {
    "one ring": lambda _, topology: get_collective("ring", topology.hosts),
    "all rings that fit": lambda network, topology: rings_at_once(
        [hosts_on(network, ring) for ring in rings_of(topology)], topology.hosts
    ),
    "torus, both sides at once": lambda _, topology: get_collective(
        f"torus({isqrt(topology.hosts)}, {isqrt(topology.hosts)})", topology.hosts
    ),
    "servers on all hosts": lambda _, topology: get_collective("direct", topology.hosts),
    "hierarchical": lambda _, topology: get_collective(
        "hierarchical", topology.hosts, per_node=isqrt(topology.hosts)
    ),
}
"""Ways to all-reduce: one ring in the order of hosts, a part of the message on each of the rings
that share no link, rings along both sides of the square, every host a server for one part
(several parameter servers), and rings inside groups of neighbours, then across."""


def seconds_table(played: dict[tuple[str, str], Played]) -> pd.DataFrame:
    """Return milliseconds by exchange (rows) and network (columns)."""
    rows = {(exchange, network): 1e3 * one.seconds for (network, exchange), one in played.items()}
    return pd.Series(rows).unstack(sort=False).rename_axis("milliseconds").round(1)


def link_loads(
    played: dict[tuple[str, str], Played], exchange: str
) -> dict[str, tuple[Network, np.ndarray]]:
    """Return networks and the utilisation of their links in an exchange, by title of a panel."""
    return {
        f"{network}: {exchange}, {1e3 * one.seconds:.0f} ms": (one.network, one.utilisation)
        for (network, of), one in played.items()
        if of == exchange
    }


@tabled(index=["hosts", "network"])
def cost_table(hosts: Sequence[int] = (16, 1024)) -> Rows:
    """Return what the networks are made of: switches, their ports, cables, ports of a host."""
    for count in hosts:
        for name, topology in topologies_of(count).items():
            network = topology.network(1.0)
            ports = Structure(network).degree(network.endpoints[0])
            yield {
                "hosts": count,
                "network": name,
                "switches": network.switches,
                "ports of switches": 2 * network.cables - ports * count,
                "cables": network.cables,
                "ports of a host": ports,
            }


def verdicts(played: dict[tuple[str, str], Played]) -> pd.DataFrame:
    """Return what the survey says, the numbers that decide, and whether it holds here.

    Columns: item, claim, numbers, verdict.
    """
    seconds = pd.Series({key: one.seconds for key, one in played.items()}).unstack()
    rings = seconds["one ring"] / seconds["all rings that fit"]
    side = seconds.loc["torus", "one ring"] / seconds.loc["torus", "torus, both sides at once"]
    on_bcube = seconds.loc["BCube"] / seconds.loc["fat-tree"]
    servers, groups = on_bcube["servers on all hosts"], on_bcube["hierarchical"]
    both = on_bcube["torus, both sides at once"]
    # Of two networks whose hosts have equal bandwidth, cables are slower where there are more.
    cables = _ports(played["BCube", "one ring"]) / _ports(played["fat-tree", "one ring"])
    rows = [
        (
            "A34",
            "Two rings at once do not fit a fat-tree; they fit a BCube",
            f"rings that fit are {rings['fat-tree']:.2f} times as fast as one on the fat-tree, "
            f"{rings['BCube']:.2f} on BCube, {rings['torus']:.2f} on the torus",
            rings["fat-tree"] < SAME and rings["BCube"] > 2 / SAME,
        ),
        *(
            (
                "A35",
                f"BCube suits {what} better than a fat-tree, with {equal}",
                f"it takes {more * one:.2f} of the time{how}",
                more * one < 1 / SAME,
            )
            for what, one, how in (
                ("several parameter servers", servers, " with a server on every host"),
                ("hierarchical synchronisation", min(groups, both), " in the better of two orders"),
            )
            for equal, more in (("equal cables", 1.0), ("equal bandwidth of hosts", cables))
        ),
        (
            "A36",
            "Reducing halves along both sides of a torus at once halves the time",
            f"{side:.2f} times as fast as one ring",
            side > 2 / SAME,
        ),
    ]
    return judged(rows)


def _ports(played: Played) -> int:
    """Return how many cables a host has."""
    return Structure(played.network).degree(played.network.endpoints[0])


def judged(rows: Sequence[tuple[str, str, str, bool]]) -> pd.DataFrame:
    """Return rows of item, claim, numbers, and whether it holds as a table with a verdict."""
    table = pd.DataFrame(rows, columns=["item", "claim", "numbers", "holds"])
    verdict = table.pop("holds").map({True: Verdict.HOLDS, False: Verdict.CONTRADICTED})
    return table.assign(verdict=verdict).set_index("item")


def topology_findings(played: dict[tuple[str, str], Played]) -> Findings:
    """Return the best exchange of every network, in words, and what it costs in ports.

    With it travel the verdicts on items A34 to A36.
    """
    told = []
    for name in dict.fromkeys(network for network, _ in played):
        times = {exchange: one.seconds for (of, exchange), one in played.items() if of == name}
        seconds = pd.Series(times)
        ports = counted(_ports(played[name, seconds.idxmin()]), "port")
        quickest = ties(seconds, seconds.min())
        told.append(f"{name} {1e3 * seconds.min():.0f} ms ({quickest}; {ports} per host)")
    table = verdicts(played)
    items = []
    for item, part in table.groupby(level="item"):
        words = set(part["verdict"])
        verdict = Verdict(words.pop()) if len(words) == 1 else Verdict.UNDECIDED
        said = "; ".join(f"{one.claim}: {one.verdict}" for one in part.itertuples())
        items.append(item_verdict(str(item), [verdict], "simulated", said))
    return findings("The quickest exchange of each: " + "; ".join(told) + ".", items=items)
