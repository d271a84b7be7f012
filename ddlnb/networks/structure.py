"""What a network is by its cables alone: distances, cuts, and what is left after failures.

Cables count as they are, whatever they carry. Source: survey of Shi et al. 2020, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow, shortest_path

from ddlnb.errors import require, require_whole
from ddlnb.networks.network import Network

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """The cables of a network; hosts are numbered as its ranks are, cables as in the network.

    >>> from ddlnb.networks.topologies import BCube
    >>> found = Structure(BCube(4, 2).network(1e9))
    >>> found.diameter, found.weakest_host
    (4, 2)
    """

    network: Network

    @cached_property
    def hosts(self) -> Whole:
        """Return the devices that ranks run on."""
        return np.array(self.network.endpoints)

    @cached_property
    def _entries(self) -> Whole:
        """Return where hosts are entered: a GPU, which passes nothing on, is left elsewhere."""
        count = len(self.network.devices)
        ends = np.arange(count)
        gpus = [i for i, device in enumerate(self.network.devices) if device.kind == "gpu"]
        ends[gpus] = count + np.arange(len(gpus))
        return ends

    @cached_property
    def _size(self) -> int:
        return int(max(self._entries.max() + 1, len(self.network.devices)))

    @cached_property
    def cables(self) -> tuple[tuple[int, int], ...]:
        """Return the devices at both ends of every cable."""
        return tuple((link.start, link.end) for link in self.network.links[::2])

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return the neighbours of every device, in order."""
        found: list[list[int]] = [[] for _ in self.network.devices]
        for one, other in self.cables:
            found[one].append(other)
            found[other].append(one)
        return tuple(tuple(sorted(near)) for near in found)

    def degree(self, device: int) -> int:
        """Return the number of cables that a device has."""
        return len(self.neighbours[device])

    @cached_property
    def hops(self) -> Whole:
        """Return the links on a shortest path, hosts x hosts."""
        found = shortest_path(self._matrix(), unweighted=True, indices=self.hosts)
        hops = found[:, self._entries[self.hosts]]
        np.fill_diagonal(hops, 0)
        return np.asarray(hops.astype(np.int64))

    @property
    def diameter(self) -> int:
        """Return the links between the two hosts that are farthest apart."""
        return int(self.hops.max())

    @property
    def mean_hops(self) -> float:
        """Return the links between two different hosts, averaged over all pairs."""
        count = len(self.hosts)
        return float(self.hops.sum() / (count * (count - 1)))

    def cut(self, left: Sequence[int], right: Sequence[int]) -> int:
        """Return the fewest cables whose loss parts all hosts of one side from the other."""
        require(not set(left) & set(right), "a host cannot be on both sides of a cut")
        source, sink = self._size, self._size + 1
        most = 2 * len(self.cables)
        ends = [(source, int(self.hosts[host]), most) for host in left]
        ends += [(int(self._entries[self.hosts[host]]), sink, most) for host in right]
        arcs = [
            (a, int(self._entries[b]), 1)
            for one, other in self.cables
            for a, b in ((one, other), (other, one))
        ]
        start, stop, capacity = np.array(arcs + ends).T
        size = self._size + 2
        matrix = csr_array((capacity.astype(np.int32), (start, stop)), shape=(size, size))
        return int(maximum_flow(matrix, source, sink).flow_value)

    @property
    def bisection(self) -> int:
        """Return the cables between the first and the second half of the hosts.

        The halves are those of the numbering, which in generated networks are whole pods, whole
        sub-cubes or whole rows.
        """
        hosts = range(len(self.hosts))
        return self.cut(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])

    @property
    def weakest_host(self) -> int:
        """Return the fewest failures of cables that part host 0 from another one.

        In generated networks all hosts are alike. As many paths without a common cable lead from
        it to any other host (Menger).
        """
        require(len(self.hosts) > 1, f"{self.network!r} has one host, which nothing cuts off")
        return min(self.cut([0], [other]) for other in range(1, len(self.hosts)))

    def connects_all(self, lost: set[int]) -> bool:
        """Return whether all hosts reach one another without the cables of these numbers."""
        first = shortest_path(self._matrix(lost), unweighted=True, indices=self.hosts[0])
        return bool(np.isfinite(first[self._entries[self.hosts[1:]]]).all())

    def survival(self, failures: int, draws: int = 1000) -> float:
        """Return the share of random sets of this many lost cables that leave all connected."""
        require_whole(0, failures=failures)
        require_whole(draws=draws)
        count = len(self.cables)
        require(failures <= count, f"{failures} failures exceed {count} cables")
        random = np.random.default_rng(0)
        kept = sum(
            self.connects_all(set(random.choice(count, failures, replace=False).tolist()))
            for _ in range(draws)
        )
        return kept / draws

    def _matrix(self, lost: set[int] | frozenset[int] = frozenset()) -> Any:
        kept = [cable for number, cable in enumerate(self.cables) if number not in lost]
        start, stop = np.array(kept, dtype=np.int64).reshape(-1, 2).T
        ones = np.ones(2 * len(kept), dtype=np.int32)
        into = self._entries[np.concatenate([stop, start])]
        both = (np.concatenate([start, stop]), into)
        return csr_array((ones, both), shape=(self._size, self._size))
