"""Rings through small networks, found by trying all orders of their hosts."""

from ddlnb.errors import require
from ddlnb.networks.network import Network
from ddlnb.networks.structure import Ring, Structure
from ddlnb.networks.topologies import BCube


def paired_ring_exists(ports: int, levels: int = 2) -> bool:
    """Whether some ring of a small BCube enters every host by one link, leaves by another, and
    uses no link of a switch twice, in either direction: all orders of hosts are tried.

    Meant for up to sixteen hosts.
    """
    network = BCube(ports, levels).network(1.0)
    structure = Structure(network)
    require(network.ranks <= 16, f"{network!r} has too many hosts to try all orders")
    free = {frozenset(cable) for cable in structure.cables}

    def grow(host: int, came_by: int | None, passed: set[int], first: int | None) -> bool:
        for switch in structure.neighbours[host]:
            if switch == came_by or frozenset((host, switch)) not in free:
                continue
            for near in structure.neighbours[switch]:
                closes = near == 0 and len(passed) == network.ranks
                if near == host or frozenset((near, switch)) not in free:
                    continue
                if closes and switch != first:
                    return True
                if near in passed:
                    continue
                taken = {frozenset((host, switch)), frozenset((near, switch))}
                free.difference_update(taken)
                if grow(near, switch, passed | {near}, switch if first is None else first):
                    return True
                free.update(taken)
        return False

    return grow(0, None, {0}, None)


def two_way_rings(network: Network) -> list[Ring] | None:
    """Two rings of a small BCube that share no direction of a link, found by search; or None.

    They need not be each other's reverse. Meant for nine hosts or so.
    """
    require(network.ranks <= 9, f"{network!r} has too many hosts to try all orders")
    structure = Structure(network)
    used: set[tuple[int, int]] = set()

    def grow(ring: list[int], rings: list[Ring]) -> list[Ring] | None:
        host = ring[-1]
        for switch in structure.neighbours[host]:
            if (host, switch) in used:
                continue
            for near in structure.neighbours[switch]:
                closes = near == 0 and len(ring) == 2 * network.ranks - 1
                if (switch, near) in used or (near in ring and not closes) or near == host:
                    continue
                taken = {(host, switch), (switch, near)}
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
