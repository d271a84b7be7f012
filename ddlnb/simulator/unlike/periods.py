"""From the ends of iterations of unlike workers to the seconds of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ddlnb.simulator.computation import Numbers
from ddlnb.simulator.fast_player import Seconds
from ddlnb.simulator.player import STEADY


def seconds_of(
    ends: Sequence[Sequence[tuple[float, float]]], counts: Numbers, is_steady: bool
) -> Seconds:
    """Return the seconds of the last iteration if iterations are steady, else a mean.

    ``ends`` are those of every lane: when an iteration ended, and the seconds waited by then;
    ``counts`` is how many workers each lane stands for. An iteration is over when its last worker
    is; exposed seconds are a mean over workers. The mean leaves the first iteration out.
    """
    done = min(map(len, ends))
    times = np.array([[(0.0, 0.0), *one[:done]] for one in ends])  # lane, iteration, kind
    last = times[:, :, 0].max(axis=0)
    waited = np.average(times[:, :, 1], axis=0, weights=counts)
    since = done - 1 if is_steady else min(1, done - 1)
    count = done - since
    return Seconds(
        float(last[-1] - last[since]) / count,
        float(waited[-1] - waited[since]) / count,
        is_steady,
    )


def are_steady(ends: Sequence[Sequence[float]]) -> bool:
    """Whether the last two iterations of all lanes took the same time."""
    if min(map(len, ends)) < 3:
        return False
    periods = np.diff(np.array([one[-3:] for one in ends]), axis=1)
    return bool(np.ptp(periods) <= STEADY * periods.max())
