"""Rings through small networks, found by trying all orders of their hosts."""

from ddlnb.errors import require
from ddlnb.networks.network import Network
from ddlnb.networks.structure import Ring, Structure


def rings_found(network: Network, count: int, both_ways: bool = False) -> list[Ring] | None:
    """So many rings of a small network that share no direction of a link, or None.

    Between two hosts they pass one switch. With ``both_ways`` a link that is used one way is not
    free the other way either: each ring could be closed in reverse, too.
    """
    require(network.ranks <= 16, f"{network!r} has too many hosts to try all orders")
    neighbours, used = Structure(network).neighbours, set()

    def taken(start: int, stop: int) -> frozenset[int] | tuple[int, int]:
        return frozenset((start, stop)) if both_ways else (start, stop)

    def grow(ring: list[int], rings: list[Ring]) -> list[Ring] | None:
        host = ring[-1]
        for switch in neighbours[host]:
            for near in neighbours[switch]:
                links = {taken(host, switch), taken(switch, near)}
                closes = near == 0 and len(ring) == 2 * network.ranks - 1
                if len(links) < 2 or links & used or (near in ring and not closes):
                    continue
                used.update(links)
                done = [*rings, (*ring, switch)] if closes else rings
                if len(done) == count:
                    return done
                found = grow([0] if closes else [*ring, switch, near], done)
                if found is not None:
                    return found
                used.difference_update(links)
        return None

    return grow([0], [])
