"""Rings through small networks, found by trying all orders of their servers."""

from __future__ import annotations

from ddlnb.errors import require
from ddlnb.studies.table1_attributes.networks import NetworkGraph, bcube
from ddlnb.studies.table1_attributes.rings import Ring


def paired_ring_exists(ports: int, levels: int = 2) -> bool:
    """Whether some ring of a small BCube enters every server by one link, leaves by another, and
    uses no link of a switch twice, in either direction: all orders of servers are tried.

    Meant for up to sixteen servers.
    """
    network = bcube(ports, levels)
    require(network.servers <= 16, f"{network!r} has too many servers to try all orders")
    free = {frozenset(link) for link in network.links}

    def grow(server: int, came_by: int | None, passed: set[int], first: int | None) -> bool:
        for switch in network.neighbours[server]:
            if switch == came_by or frozenset((server, switch)) not in free:
                continue
            for near in network.neighbours[switch]:
                closes = near == 0 and len(passed) == network.servers
                if near == server or frozenset((near, switch)) not in free:
                    continue
                if closes and switch != first:
                    return True
                if near in passed:
                    continue
                taken = {frozenset((server, switch)), frozenset((near, switch))}
                free.difference_update(taken)
                if grow(near, switch, passed | {near}, switch if first is None else first):
                    return True
                free.update(taken)
        return False

    return grow(0, None, {0}, None)


def two_way_rings(network: NetworkGraph) -> list[Ring] | None:
    """Two rings of a small BCube that share no direction of a link, found by search; or None.

    They need not be each other's reverse. Meant for nine servers or so.
    """
    require(network.servers <= 9, f"{network!r} has too many servers to try all orders")
    used: set[tuple[int, int]] = set()

    def grow(ring: list[int], rings: list[Ring]) -> list[Ring] | None:
        server = ring[-1]
        for switch in network.neighbours[server]:
            if (server, switch) in used:
                continue
            for near in network.neighbours[switch]:
                closes = near == 0 and len(ring) == 2 * network.servers - 1
                if (switch, near) in used or (near in ring and not closes) or near == server:
                    continue
                taken = {(server, switch), (switch, near)}
                used.update(taken)
                if closes:
                    done = [*rings, (*ring, switch)]
                    found = done if len(done) == 2 else grow([0], done)
                else:
                    found = grow([*ring, switch, near], rings)
                if found is not None:
                    return found
                used.difference_update(taken)
        return None

    return grow([0], [])
