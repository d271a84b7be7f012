"""How often to write a checkpoint: Young's and Daly's intervals, and what each leaves of the time.

Symbols: C seconds to write a checkpoint, M mean time to failure, R seconds to detect a failure and
to start again, tau seconds of work between checkpoints.
"""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from ddlnb.errors import require, require_positive


def young_interval(checkpoint_seconds: float, mean_time_to_failure: float) -> float:
    """Return Young's interval, sqrt(2 C M), in seconds of work (CACM 17(9), 1974).

    >>> round(young_interval(60.0, 7200.0), 1)
    929.5
    """
    require_positive(
        checkpoint_seconds=checkpoint_seconds, mean_time_to_failure=mean_time_to_failure
    )
    return math.sqrt(2 * checkpoint_seconds * mean_time_to_failure)


def daly_interval(checkpoint_seconds: float, mean_time_to_failure: float) -> float:
    """Return Daly's interval of higher order, in seconds of work (FGCS 22(3), 2006, eq. 37).

    It is sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C for C < 2M, else M.
    """
    ratio = checkpoint_seconds / (2 * mean_time_to_failure)
    if ratio >= 1:
        return mean_time_to_failure
    first = young_interval(checkpoint_seconds, mean_time_to_failure)
    return first * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def useful_share(
    interval: float, checkpoint_seconds: float, mean_time_to_failure: float, restart_seconds: float
) -> float:
    """Return the share of time that is work which is kept, for failures at a constant rate.

    A segment of work with its checkpoint takes M e^(R/M) (e^((tau + C)/M) - 1) on average, as a
    failure may come while it is redone or while the job restarts (Daly, eq. 13).

    >>> round(useful_share(930.0, 60.0, 7200.0, 300.0), 3)
    0.841
    """
    require(
        interval > 0 and checkpoint_seconds >= 0 and restart_seconds >= 0,
        f"interval {interval!r} must be positive, and seconds of checkpoints "
        f"{checkpoint_seconds!r} and restarts {restart_seconds!r} not negative",
    )
    exponent = (interval + checkpoint_seconds) / mean_time_to_failure
    if exponent > math.log(1e12):
        return 0.0  # a segment never ends
    segment = mean_time_to_failure * math.exp(restart_seconds / mean_time_to_failure)
    return interval / (segment * math.expm1(exponent))


def best_interval(
    checkpoint_seconds: float, mean_time_to_failure: float, restart_seconds: float
) -> float:
    """Return the interval that leaves most time for work, found on the closed form."""
    start = daly_interval(checkpoint_seconds, mean_time_to_failure)
    found = minimize_scalar(
        lambda log: (
            -useful_share(math.exp(log), checkpoint_seconds, mean_time_to_failure, restart_seconds)
        ),
        bounds=(math.log(start / 20), math.log(start * 20)),
        method="bounded",
    )
    return math.exp(float(found.x))
