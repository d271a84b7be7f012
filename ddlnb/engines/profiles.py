"""Measurement profiles: how long and how often to measure, and with how many workers, by name.

Importing it loads neither torch nor pandas: the command line takes its defaults from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlnb.engines.settings import DEFAULTS, MeasurementSettings
from ddlnb.errors import UnknownName


@dataclass(frozen=True)
class MeasurementProfile:
    """The numbers of workers to measure, as far as there are that many, and the settings of each.

    ``options`` are fields of `MeasurementSettings`, which checks them.
    """

    workers: tuple[int, ...]
    options: dict[str, Any]

    @property
    def settings(self) -> MeasurementSettings:
        """The settings, with as many workers as the profile goes up to."""
        return DEFAULTS.changed(workers=max(self.workers), **self.options)


# Section 4.1: 10 iterations to warm up, 100 that are timed, 5 runs; on up to 32 GPUs. A run of
# BERT-Large on the slowest of the survey's networks takes minutes, and a queue takes its time.
PAPER = MeasurementProfile(
    workers=(1, 2, 4, 8, 16, 32),
    options={
        "warmup": 10,
        "iterations": 100,
        "repetitions": 5,
        "timeout_seconds": 3600.0,
        "start_timeout_seconds": 86400.0,
    },
)
MEASUREMENT_PROFILES = {"paper": PAPER}


def get_measurement_profile(name: str) -> MeasurementProfile:
    """Return the measurement profile of that name. Raises UnknownName.

    >>> get_measurement_profile("paper").settings.iterations
    100
    """
    if name not in MEASUREMENT_PROFILES:
        raise UnknownName("measurement profile", name, MEASUREMENT_PROFILES)
    return MEASUREMENT_PROFILES[name]
