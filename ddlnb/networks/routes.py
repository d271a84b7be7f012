"""Routes through a network: which links a flow takes, and what share of it each one carries.

GPUs pass nothing on; switches, NICs and hosts do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import NamedTuple

from ddlnb.errors import InputError, look_up
from ddlnb.networks.network import Network
from ddlnb.seeding import mixed


class NoRoute(InputError):
    """Two devices that no route joins any more: hosts that have lost each other."""


@dataclass(frozen=True)
class Route:
    """The links from one device to another, by number, and the share of the bytes on each.

    Shares are 1 on a single path. Where the flow is split, links are listed in the order in which
    they are reached, and ``latency`` is that of the longest path, in seconds.
    """

    links: tuple[int, ...]
    shares: tuple[float, ...]
    latency: float


def route(network: Network, source: int, target: int) -> Route:
    """Return the route between two devices by the routing of the network; kept once found.

    Raises NoRoute, with the names of both, when nothing joins them; UnknownName for a routing that
    does not exist.
    """
    return _router(network).between(source, target)


@lru_cache(maxsize=32)
def _router(network: Network) -> _Router:
    return _Router(network)


class _Router:
    """The routes of one network that were asked for."""

    def __init__(self, network: Network):
        self.network = network
        self._find = look_up("routing", network.routing, ROUTINGS)
        self._known: dict[tuple[int, int], Route] = {}
        self._searches: dict[int, _Search] = {}
        self._nearer: dict[tuple[int, int], list[int]] = {}
        count = len(network.devices)
        self.following: list[dict[int, int]] = [{} for _ in range(count)]  # device: link
        self.before: list[list[int]] = [[] for _ in range(count)]
        for number, link in enumerate(network.links):
            self.following[link.start][link.end] = number
            self.before[link.end].append(link.start)
        self.passes_on = [device.kind != "gpu" for device in network.devices]

    def between(self, source: int, target: int) -> Route:
        """Return the route, found or known."""
        pair = (source, target)
        if pair not in self._known:
            self._known[pair] = self._find(self, source, target)
        return self._known[pair]

    def hops(self, source: int, target: int) -> dict[int, int] | None:
        """Return the links to the target from all devices as near as the source; None if lost."""
        if target not in self._searches:
            self._searches[target] = _Search({target: 0}, deque([target]))
        found, queue = self._searches[target]
        while queue and source not in found:
            here = queue.popleft()
            if not self.passes_on[here] and here != target:
                continue
            for near in self.before[here]:
                if near not in found:
                    found[near] = found[here] + 1
                    queue.append(near)
        return found if source in found else None

    def nearer(self, here: int, target: int) -> list[int]:
        """Return the neighbours that are one link nearer to the target, by number.

        Raises NoRoute when no route leads there.
        """
        if (here, target) not in self._nearer:
            hops = self.hops(here, target)
            if hops is None:
                raise self.lost(here, target)
            self._nearer[here, target] = sorted(
                near
                for near in self.following[here]
                if hops.get(near, -1) == hops[here] - 1 and (near == target or self.passes_on[near])
            )
        return self._nearer[here, target]

    def along(self, path: list[int]) -> Route:
        """Return the route along these devices."""
        links = tuple(self.following[one][other] for one, other in pairwise(path))
        latency = sum(self.network.links[link].latency for link in links)
        return Route(links, (1.0,) * len(links), latency)

    def lost(
        self,
        source: int,
        target: int,
        why: str = "no route joins them; restore a cable between them",
    ) -> NoRoute:
        """Return the error for two devices that have lost each other."""
        one, other = (self.network.devices[end].name for end in (source, target))
        return NoRoute(f"{one} and {other} have lost each other in {self.network.name!r}: {why}")


class _Search(NamedTuple):
    """A search in breadth from a target that goes on when somebody farther off asks."""

    found: dict[int, int]
    queue: deque[int]


def _one(router: _Router, source: int, target: int, by_hash: bool) -> Route:
    """Return one shortest path: at every device the neighbour with the lowest number.

    ``by_hash`` it is drawn instead, by a hash of source, target and device.
    """
    path = [source]
    while path[-1] != target:
        near = router.nearer(path[-1], target)
        path.append(near[mixed(source, target, path[-1]) % len(near) if by_hash else 0])
    return router.along(path)


def _split(router: _Router, source: int, target: int) -> Route:
    """Return all shortest paths: every device splits evenly among the neighbours on one.

    Where only one cable leads from the source or to the target, the rest of the route is that of
    others too, and is kept.
    """
    following, before = router.following, router.before
    try:
        if source != target and len(following[source]) == 1:
            ((near, link),) = following[source].items()
            if near == target or (router.passes_on[near] and len(following[near]) > 1):
                return _joined(router, link, router.between(near, target), first=True)
        if source != target and len(before[target]) == 1:
            (near,) = before[target]
            if near == source or (router.passes_on[near] and len(before[near]) > 1):
                link = following[near][target]
                return _joined(router, link, router.between(source, near), first=False)
        return _split_among_many(router, source, target)
    except NoRoute as error:
        raise router.lost(source, target) from error


def _joined(router: _Router, link: int, rest: Route, first: bool) -> Route:
    """Return a route with one link more, as its first or its last."""
    links = (link, *rest.links) if first else (*rest.links, link)
    shares = (1.0, *rest.shares) if first else (*rest.shares, 1.0)
    return Route(links, shares, rest.latency + router.network.links[link].latency)


def _split_among_many(router: _Router, source: int, target: int) -> Route:
    share, longest, order = {source: 1.0}, {source: 0.0}, deque([source])
    links: dict[int, float] = {}
    while order:  # by distance, so that all that reaches a device is known before it is left
        here = order.popleft()
        near = router.nearer(here, target) if here != target else []
        for following in near:
            link = router.following[here][following]
            links[link] = links.get(link, 0.0) + share[here] / len(near)
            if following not in share:
                order.append(following)
            share[following] = share.get(following, 0.0) + share[here] / len(near)
            latency = longest[here] + router.network.links[link].latency
            longest[following] = max(longest.get(following, 0.0), latency)
    return Route(tuple(links), tuple(links.values()), longest.get(target, 0.0))


def _between_hosts(router: _Router, source: int, target: int) -> tuple[list[int], list[int]]:
    """Return the ways from an endpoint up to its host, and from the other's host down to it."""

    def up(device: int) -> list[int]:
        here = router.network.devices[device]
        if here.kind != "gpu":
            return [device]
        hosts = (
            near for near in router.following[device] if router.network.devices[near].kind == "host"
        )
        return [device, next(hosts)]

    return up(source), up(target)[::-1]


Digit = tuple[int, int]  # a side, and the coordinate that it is to have


def _by_digits(router: _Router, source: int, target: int, orders: Iterable[list[Digit]]) -> Route:
    """Return the first route that is whole, among those that set sides in one of the orders."""
    first, last = _between_hosts(router, source, target)
    if first[-1] == last[0]:
        return router.along(first + last[1:] if len(first) + len(last) > 2 else [source])
    for order in orders:
        path = _corrected(router, first[-1], order)
        if path is not None and path[-1] == last[0]:
            return router.along(first[:-1] + path + last[1:])
    raise router.lost(
        source,
        target,
        f"routing {router.network.routing!r} goes round no cable that is cut; choose 'ecmp', "
        f"or restore the cable",
    )


def _corrected(router: _Router, here: int, digits: list[Digit]) -> list[int] | None:
    """Return the path that sets one coordinate after the other; None if a cable is missing."""
    path = [here]
    at = _hosts_at(router.network)
    for side, goal in digits:
        while (place := router.network.devices[path[-1]].position)[side] != goal:
            following = _next_along(router.network, place, goal, side)
            step = at[(*place[:side], following, *place[side + 1 :])]
            if step in router.following[path[-1]]:
                path.append(step)
                continue
            between = [
                middle
                for middle in router.following[path[-1]]
                if router.network.devices[middle].kind == "switch"
                and step in router.following[middle]
            ]
            if not between:
                return None
            path += [between[0], step]
    return path


@lru_cache(maxsize=32)
def _hosts_at(network: Network) -> dict[tuple[int, ...], int]:
    return {
        device.position: number
        for number, device in enumerate(network.devices)
        if device.kind == "host"
    }


@lru_cache(maxsize=32)
def _lengths(network: Network) -> tuple[int, ...]:
    """Return the number of hosts along every side of a torus, or the ports of BCube by level."""
    return tuple(1 + max(side) for side in zip(*_hosts_at(network), strict=True))


def _next_along(network: Network, place: tuple[int, ...], goal: int, side: int) -> int:
    """Return the next coordinate: in BCube the goal's at once, on a torus the shorter way round.

    Where both ways are as long, even coordinates go up and odd ones down, so that both directions
    are used.
    """
    if network.routing == "bcube":
        return goal
    length = _lengths(network)[side]
    up = (goal - place[side]) % length
    rises = 2 * up < length or (2 * up == length and sum(place) % 2 == 0)
    return (place[side] + (1 if rises else -1)) % length


def _dimension_order(router: _Router, source: int, target: int) -> Route:
    """Correct the last coordinate first, then the ones before it, and never go round a cut."""
    goal = router.network.devices[_between_hosts(router, source, target)[1][0]].position
    return _by_digits(router, source, target, [list(enumerate(goal))[::-1]])


def _bcube(router: _Router, source: int, target: int) -> Route:
    """Choose at the source among as many paths as levels, none of which share a cable.

    The path of a level corrects its digit first and then those of the levels below, round and
    round. Where that digit is right already, the path leaves by this level all the same, and
    corrects it last. The first path is that of the highest level whose digits differ; the next
    one is taken if a cable is cut (Guo et al. 2009, sections 3.2 and 3.3).
    """
    first, last = _between_hosts(router, source, target)
    here, goal = (router.network.devices[end].position for end in (first[-1], last[0]))
    levels = len(goal)
    differ = [level for level in range(levels) if here[level] != goal[level]]
    if not differ:
        return _by_digits(router, source, target, [])
    begin = differ[-1]
    ports = _lengths(router.network)[0]

    def detours() -> Iterator[list[Digit]]:
        for level in sorted(range(levels), key=lambda one: (begin - one) % levels):
            order = [(level - step) % levels for step in range(levels)]
            fixes: list[Digit] = [(one, goal[one]) for one in order]
            if here[level] == goal[level]:
                fixes = [(level, (goal[level] + 1) % ports), *fixes[1:], fixes[0]]
            yield fixes

    return _by_digits(router, source, target, detours())


ROUTINGS: dict[str, Callable[[_Router, int, int], Route]] = {
    "shortest": partial(_one, by_hash=False),
    "ecmp": _split,
    "ecmp hash": partial(_one, by_hash=True),
    "dimension order": _dimension_order,
    "bcube": _bcube,
}
"""Ways to choose a route: one shortest path, all of them evenly or one by hash (equal-cost
multi-path), one coordinate after the other on a torus, source routing of BCube."""
