"""The longer of two times that run beside each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST = 1e-30  # seconds: against dividing by the 0 of stages that are not there
SHARPNESS = 8  # of the maximum: a norm of this order


def longer_of(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the longer of two times, more where they are alike: a norm of order `SHARPNESS`."""
    longer = np.maximum(one, other)
    ratio = np.minimum(one, other) / np.maximum(longer, LEAST)
    return np.asarray(longer * (1 + ratio**SHARPNESS) ** (1 / SHARPNESS))
