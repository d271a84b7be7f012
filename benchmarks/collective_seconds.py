"""Seconds of collectives on ranks of this machine, beside torch's own all-reduce.

python -m benchmarks.collective_seconds [--workers 4] [--also NAME] [--bytes 1024 1048576]
"""

from __future__ import annotations

import argparse
import statistics

from ddlnb.engines.probes import time_collectives
from ddlnb.files import machine
from ddlnb.launch.ranks import Ranks
from ddlnb.units import MS, show_bytes

NAMES = ("", "ring", "tree", "double-tree", "recursive-doubling", "halving-doubling", "direct")


def main() -> None:
    """Print the median of the slowest rank and the quartiles around it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << k for k in (10, 17, 20, 24)])
    parser.add_argument("--repetitions", type=int, default=21)
    options = parser.parse_args()
    asked = [*NAMES, *options.also], options.bytes, options.repetitions
    with Ranks(options.workers) as ranks:
        ranks_found = ranks.run(time_collectives, *asked)
    print(f"{options.workers} workers on {machine()}, ms: median (quartiles)")
    slowest: dict[tuple[str, int], list[float]] = {}
    for name, size, repetition in ranks_found[0]:
        seconds = max(found[name, size, repetition] for found in ranks_found)
        slowest.setdefault((name, size), []).append(seconds)
    for (name, size), each in slowest.items():
        low, middle, high = (seconds / MS for seconds in statistics.quantiles(each, n=4))
        by = name or "torch's own"
        print(f"{show_bytes(size):>10}  {by:20} {middle:8.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
