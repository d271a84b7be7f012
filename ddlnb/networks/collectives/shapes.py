"""Workers as an array of rows and columns: shapes that fit, and the reason of those that do not."""

from __future__ import annotations

import math
from collections.abc import Sequence


def squarest(workers: int) -> tuple[int, int]:
    """Return rows and columns that hold all workers and differ least, rows the fewer.

    >>> squarest(32), squarest(7)
    ((4, 8), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(workers), 0, -1) if workers % rows == 0)
    return rows, workers // rows


def misfit(name: str, shape: Sequence[int], workers: int) -> str:
    """Return why a shape does not hold the workers, or nothing if it does.

    >>> misfit("torus", (2, 3), 8)
    'torus has 2 x 3 = 6 places for 8 workers; give lengths whose product is 8'
    """
    places = math.prod(shape)
    if places == workers and min(shape) > 0:
        return ""
    lengths = " x ".join(map(str, shape))
    return (
        f"{name} has {lengths} = {places} places for {workers} workers; "
        f"give lengths whose product is {workers}"
    )
