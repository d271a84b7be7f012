"""Algorithms for powers of two among any number of workers: the extra ones lean on a neighbour."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlnb.networks.collectives.phases import Numbers
from ddlnb.networks.transfers import Transfers, transfers


class Paired(NamedTuple):
    """``ranks`` are those that take part, a power of two of them.

    ``before``, in step 0, adds what the others have to theirs; ``result`` brings them the sum.
    """

    ranks: Numbers
    before: Transfers
    result: Transfers

    @property
    def levels(self) -> int:
        """Return the binary logarithm of the number of ranks that take part."""
        return len(self.ranks).bit_length() - 1

    @property
    def lead(self) -> int:
        """Return the steps before the ranks that take part begin: 1 if there are others."""
        return int(len(self.before) > 0)


def paired(workers: int, parts: int) -> Paired:
    """Return who takes part: of the first 2 x workers, x beyond a power of two, the odd ones.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4; so does MPICH.

    >>> paired(6, 1).ranks.tolist()
    [1, 3, 4, 5]
    """
    extra = workers - (1 << (workers.bit_length() - 1))
    even = 2 * np.arange(extra)
    ranks = np.concatenate([even + 1, np.arange(2 * extra, workers)])
    before = transfers(0, even, even + 1, 0, parts, True)
    return Paired(ranks, before, transfers(0, even + 1, even, 0, parts, False))
