"""What machines cost by the hour, and with that what training costs by the sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddlnb.errors import InputError

HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True)
class Prices:
    """Prices per hour of one GPU and of one machine that runs a parameter server.

    Any currency does; NaN stands for a price that nobody gave. Raises InputError for a price below
    zero and for one that is no number.

    >>> Prices(gpu_hour=2.25).per_million_samples(gpus=8, server_machines=0, samples_per_s=4000.0)
    1.25
    """

    gpu_hour: float = math.nan
    server_hour: float = math.nan

    def __post_init__(self) -> None:
        for name, of in (("gpu_hour", "a GPU"), ("server_hour", "a server")):
            value = getattr(self, name)
            if not isinstance(value, int | float) or value < 0 or math.isinf(value):
                raise InputError(
                    f"the price of {of} per hour, {value!r}, must be a number from 0, in any "
                    f"currency ({name})"
                )

    @property
    def are_given(self) -> bool:
        """Whether there is a price of a GPU, without which nothing has a cost."""
        return not math.isnan(self.gpu_hour)

    @property
    def has_servers(self) -> bool:
        """Whether there is a price of a machine that runs a parameter server."""
        return not math.isnan(self.server_hour)

    def per_hour(self, gpus: int, server_machines: int) -> float:
        """Return what these machines cost by the hour; NaN where a price of them is missing."""
        servers = server_machines * self.server_hour if server_machines else 0.0
        return gpus * self.gpu_hour + servers

    def per_million_samples(self, gpus: int, server_machines: int, samples_per_s: float) -> float:
        """Return what a million samples cost at this throughput; NaN where a price is missing."""
        return self.per_hour(gpus, server_machines) / HOUR / samples_per_s * MILLION
