"""Seconds of collectives on ranks of this machine, beside torch's own all-reduce.

python -m benchmarks.collective_seconds [--workers 4] [--also NAME] [--bytes 1024 1048576]
"""

import statistics
from collections.abc import Sequence

import pandas as pd

from benchmarks.command import command
from ddlnb.collective_transport.transport import time_collectives
from ddlnb.files import machine
from ddlnb.launch.ranks import Ranks
from ddlnb.units import MS, show_bytes

NAMES = ("", "ring", "tree", "double-tree", "recursive-doubling", "halving-doubling", "direct")


def main(
    *,
    workers: int = 4,
    also: Sequence[str] = (),
    bytes: Sequence[int] = tuple(1 << power for power in (10, 17, 20, 24)),
    repetitions: int = 21,
) -> None:
    """Print the median of the slowest rank and the quartiles around it."""
    with Ranks(workers) as ranks:
        found = ranks.run(time_collectives, [*NAMES, *also], list(bytes), repetitions)
    print(f"{workers} workers on {machine()}, ms: median (quartiles)")
    slowest = pd.DataFrame(map(pd.Series, found)).max().groupby(level=[0, 1], sort=False)
    for (name, size), seconds in slowest:
        low, middle, high = (value / MS for value in statistics.quantiles(seconds, n=4))
        by = name or "torch's own"
        print(f"{show_bytes(size):>10}  {by:20} {middle:8.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    command(main)
