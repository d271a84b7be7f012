"""Seconds of collectives on ranks of this machine, beside torch's own all-reduce.

python -m benchmarks.collective_seconds [--workers 4] [--also NAME] [--bytes 1024 1048576]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from ddlnb.files import machine
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.units import MS, show_bytes

TORCH = "torch's own"
NAMES = ("ring", "tree", "double-tree", "recursive-doubling", "halving-doubling", "direct")


def alternate(
    context: RankContext, names: Sequence[str], sizes: Sequence[int], repetitions: int
) -> dict[tuple[str, int], list[float]]:
    """Return this rank's seconds of every repetition; each runs all collectives once."""
    import torch
    import torch.distributed as dist

    from ddlnb.engines.transports.collective import CollectiveTransport
    from ddlnb.engines.transports.rank_schedule import RankSchedule
    from ddlnb.launch.rank import process_group
    from ddlnb.networks.collectives.catalogue import get_collective

    found: dict[tuple[str, int], list[float]] = {}
    with (
        process_group(context, context.store(), context.count),
        CollectiveTransport(context.host, context.timeout_seconds) as transport,
    ):
        schedules = {
            name: RankSchedule(get_collective(name, context.count), context.rank) for name in names
        }
        run = {
            name: lambda tensor, schedule=schedule: transport.carry(schedule, 0, tensor).wait()
            for name, schedule in schedules.items()
        }
        for repetition in range(-1, repetitions):  # the first opens connections
            for size in sizes:
                for name, all_reduce in {TORCH: dist.all_reduce, **run}.items():
                    tensor = torch.ones(max(1, size // 4))
                    dist.barrier()
                    start = time.perf_counter()
                    all_reduce(tensor)
                    if repetition >= 0:
                        found.setdefault((name, size), []).append(time.perf_counter() - start)
    return found


def main() -> None:
    """Print the median of the slowest rank and the quartiles around it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << k for k in (10, 17, 20, 24)])
    parser.add_argument("--repetitions", type=int, default=21)
    options = parser.parse_args()
    with Ranks(options.workers) as ranks:
        found = ranks.run(alternate, [*NAMES, *options.also], options.bytes, options.repetitions)
    print(f"{options.workers} workers on {machine()}, ms: median (quartiles)")
    for name, size in found[0]:
        slowest = [max(each) for each in zip(*(rank[name, size] for rank in found), strict=True)]
        low, middle, high = (seconds / MS for seconds in statistics.quantiles(slowest, n=4))
        print(f"{show_bytes(size):>10}  {name:20} {middle:8.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
