"""What of a collective follows one another: its seconds where links are all alike."""

from __future__ import annotations

import numpy as np

from ddlnb.networks.collectives.base import Counts
from ddlnb.networks.transfers import Collective
from ddlnb.plans.alpha_beta import AlphaBeta


def in_turn(collective: Collective) -> Counts:
    """Return the steps, and the bytes that follow one another, as a multiple of the message.

    In every step these are the bytes of the rank that sends or receives most, if a rank does both
    at the same time and no two ranks share a link.

    >>> from ddlnb.networks.collectives.catalogue import get_collective
    >>> in_turn(get_collective("tree", 8))
    Counts(steps=6, sent=6.0)
    """
    rows, ranks = collective.transfers, collective.ranks
    most = np.zeros(collective.steps)
    for end in ("source", "target"):
        place = rows["step"].astype(np.int64) * ranks + rows[end]
        parts = np.bincount(place, rows["stop"] - rows["first"], minlength=len(most) * ranks)
        most = np.maximum(most, parts.reshape(-1, ranks).max(axis=1, initial=0.0))
    return Counts(collective.steps, float(most.sum()) / collective.parts)


def step_by_step(collective: Collective, link: AlphaBeta) -> AlphaBeta:
    """Return the seconds of a collective whose steps wait for each other, on links all alike.

    ``link`` is the cost of one message. The formulas of `ddlnb.plans.alpha_beta` are of this kind.

    >>> from ddlnb.networks.collectives.catalogue import get_collective
    >>> print(step_by_step(get_collective("halving-doubling", 4), AlphaBeta(1e-4, 1e-9)))
    400 us + M / (5.33 Gb/s)
    """
    steps, moved = in_turn(collective)
    return AlphaBeta(steps * link.latency_seconds, moved * link.seconds_per_byte)
