"""Handwritten digits: 1,797 small images with their labels (data/digits says where from)."""

from __future__ import annotations

import numpy as np

from ddlnb.errors import InputError
from ddlnb.paths import DIGITS


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images, (1797, 1, 8, 8) with pixels of 0 to 16 in float32, and labels in int64.

    Raises InputError if the file cannot be read.
    """
    try:
        rows = np.loadtxt(DIGITS, delimiter=",", dtype=np.int64)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the digits are read from {DIGITS}, which cannot be read ({error}); "
            f"it is part of a complete checkout"
        ) from error
    return rows[:, :-1].astype(np.float32).reshape(-1, 1, 8, 8), rows[:, -1]
