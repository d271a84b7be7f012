"""What one small all-reduce costs: seconds, and processor time on every rank.

python -m benchmarks.message_cost [--workers 4] [--bytes 256] [--count 600]
"""

from __future__ import annotations

import argparse
import os
import time

from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.provenance import machine


def cost(context: RankContext, size: int, count: int) -> tuple[float, float]:
    """Return wall-clock and processor seconds of one all-reduce, the mean over a burst."""
    import torch
    import torch.distributed as dist

    from ddlnb.engines.process_group import process_group

    with process_group(context, context.store(), context.count):
        tensors = [torch.zeros(max(1, size // 4)) for _ in range(count)]
        dist.barrier()
        start, used = time.perf_counter(), os.times()
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        seconds, now = time.perf_counter() - start, os.times()
    return seconds / count, (now.user + now.system - used.user - used.system) / count


def main() -> None:
    """Print both, for the mean rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=256)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with Ranks(options.workers) as ranks:
        for _ in range(options.repetitions):
            found = ranks.run(cost, options.bytes, options.count)
            wall, processor = (
                1e3 * sum(values) / len(found) for values in zip(*found, strict=True)
            )
            print(
                f"{options.bytes} bytes among {options.workers} workers on {machine()}: "
                f"{wall:.2f} ms, {processor:.2f} ms of processor time on every rank"
            )


if __name__ == "__main__":
    main()
