"""All-to-all: everyone has something else for everyone. Three ways, by steps and by bytes.

The message is what all send together: part s * n + t goes from worker s to worker t, 1 / n of it
is a worker's own, and 1 / n of that stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlnb.networks.collectives.base import Algorithm, powers
from ddlnb.networks.collectives.halving_doubling import powers_only
from ddlnb.plans.transfers import Collective, Primitive, transfers

Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class Rotating(Algorithm):
    """In step s everyone sends to the rank s + 1 behind it: n - 1 steps, (n - 1) / n^2 M bytes.

    In every step everyone sends one message and gets one.
    """

    name = "rotating"
    primitives = ("all-to-all",)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = "all-to-all"
    ) -> Collective:
        """Return the transfers."""
        step, source = np.arange(workers - 1)[:, None], np.arange(workers)[None, :]
        target = self._target(source, step, workers)
        part = source * workers + target
        rows = transfers(step, source, target, part, part + 1, False)
        return self.made(primitive, workers, workers**2, rows)

    def _target(self, source: Ranks, step: Ranks, workers: int) -> Ranks:
        return (source + step + 1) % workers


@dataclass(frozen=True)
class Pairwise(Rotating):
    """In step s the ranks r and r xor (s + 1) swap: as many steps and bytes as `Rotating`.

    Needs a power of two. Source: Thakur, Rabenseifner and Gropp 2005, section 4.
    """

    name = "pairwise"

    def refuses(self, workers: int, per_node: int = 1) -> str:
        """Return that the number of workers must be a power of two."""
        return powers_only(self.name, workers, "rotating")

    def _target(self, source: Ranks, step: Ranks, workers: int) -> Ranks:
        return source ^ (step + 1)


@dataclass(frozen=True)
class Bruck(Algorithm):
    """What has to go d ranks on goes 1, 2, 4, ... at a time, as the bits of d say.

    ceil(log2 n) steps; for powers of two log2 n / (2 n) M bytes, because parts travel through
    others. For short messages. Source: Bruck et al. 1997.
    """

    name = "bruck"
    primitives = ("all-to-all",)

    def collective(
        self, workers: int, per_node: int = 1, primitive: Primitive = "all-to-all"
    ) -> Collective:
        """Return the transfers."""
        begin, away = np.arange(workers)[:, None], np.arange(workers)[None, :]
        part = begin * workers + (begin + away) % workers
        rows = []
        for step, distance in enumerate(powers(workers)):
            going = (away & distance) > 0
            source = (begin + (away & (distance - 1))) % workers
            row = transfers(step, source, (source + distance) % workers, part, part + 1, False)
            rows.append(row[np.broadcast_to(going, row.shape)])
        return self.made(primitive, workers, workers**2, *rows)
