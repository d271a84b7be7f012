"""`ddlnb.DistributedModel` against DistributedDataParallel in a training script, emulated links.

    python -m benchmarks.train_with_it [--out FILE.csv] [--cells NAME ...] [--repetitions 9]
    python -m benchmarks.train_with_it --kept

On every rank of a cell one script holds both, each with a model and an optimizer of its own, and
trains by them in turn: some iterations by DDP with its defaults, as many by ours, whose plan is
searched for what the ranks measure when they start. Computation is replayed; hooks, messages and
updates are real. A row is a repetition; the file is kept cell by cell, and a second call completes
what is missing. Printed are medians, and geometric means of ratios of pairs with 95 % intervals.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.searched_cells import CELLS, Cell
from benchmarks.searched_emulated import ratio
from ddlnb.engines.settings import MEASURING
from ddlnb.errors import require_known
from ddlnb.files import DATA, write_atomically
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.results.statistics import Interval
from ddlnb.search.space import SEARCHED
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.task import Task

KEPT = DATA / "measured" / "2026-11-24_two-cores_distributed-model" / "rows.csv"
OURS, THEIRS = "DistributedModel", "DDP"
SECONDS = 300.0  # after which a rank that does not answer is given up
# Four nodes with both models on all networks, and eight with the model that computes less.
CHOSEN = [
    name
    for name, one in CELLS.items()
    if not one.change and (one.workers == 4 or one.workload.model == "small-conv")
]


def run_cell(cell: Cell, iterations: int, repetitions: int) -> list[dict[str, object]]:
    """Return a row for every repetition: seconds of an iteration by each, and the plan's messages.

    What takes longest on any rank counts.
    """
    site = cell.site(cell.workers)
    # Computation is slowed as the links are, and the script knows nothing of it.
    slow = cell.workload.scaled(1 / site.scale, "slowed as the emulated links are")
    with Ranks.at(site, cell.workers, imports=MEASURING, timeout_seconds=SECONDS) as ranks:
        found = ranks.run(_script, replayed(slow), iterations, repetitions)
    plan, messages = found[0][0]
    timed = [max(pairs) for pairs in zip(*(rows for _, rows in found), strict=True)]
    return [
        {
            "cell": cell.name,
            "repetition": number // 2,
            "method": (THEIRS, OURS)[number % 2],
            "iteration_seconds": seconds,
            "plan": plan if number % 2 else None,
            "messages": messages if number % 2 else None,
        }
        for number, seconds in enumerate(timed)
    ]


def _script(
    context: RankContext, task: Task, iterations: int, repetitions: int
) -> tuple[tuple[str, int], list[float]]:
    """Train by both in turn; return our plan, its messages, and the seconds, DDP's first."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from ddlnb.engines.distributed_model import DistributedModel
    from ddlnb.launch.rank import process_group

    os.environ["MASTER_ADDR"] = context.host  # as torchrun says it to a script
    batch = task.batch(task.local_batch, context.rank)

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = task.build()
        return module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    with process_group(context, context.store(), context.count):
        module, optimizer = made()
        theirs = DistributedDataParallel(module)
        ours = DistributedModel(*made(), SEARCHED, task=task)

        def by_ddp() -> None:
            task.loss(theirs, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

        def by_ours() -> None:
            task.loss(ours, batch).backward()
            ours.step()

        def timed(step, finish) -> float:
            step()  # the clock starts between iterations whose messages may overlap
            dist.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                step()
            finish()
            return (time.perf_counter() - start) / iterations

        seconds = []
        for number in range(repetitions + 1):
            pair = timed(by_ddp, lambda: None), timed(by_ours, ours.synchronize)
            seconds += pair if number else ()  # the first is a warm-up
        plan = ours.plan.method, len(ours.plan.messages)
        ours.close()
    return plan, seconds


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell: medians in ms, and how many times as long DDP takes."""
    found = []
    for name, cell in rows.groupby("cell", sort=False):
        wide = cell.pivot_table("iteration_seconds", "repetition", "method")
        over: Interval = ratio(wide[THEIRS], wide[OURS])
        found.append(
            {
                "cell": name,
                "plan": cell["plan"].dropna().iloc[0],
                "messages": int(cell["messages"].max()),
                "DDP ms": 1e3 * wide[THEIRS].median(),
                "ours ms": 1e3 * wide[OURS].median(),
                "DDP over ours": over.estimate,
                "low": over.low,
                "high": over.high,
            }
        )
    return pd.DataFrame(found)


def summary(table: pd.DataFrame) -> str:
    """Return the geometric mean, and in how many cells ours is beyond noise, in a sentence."""
    over = table["DDP over ours"]
    mean = over.prod() ** (1 / len(over))
    return (
        f"DDP takes {mean:.3f} times as long as DistributedModel, geometric mean of {len(table)} "
        f"cells ({over.min():.3f} to {over.max():.3f}); beyond noise ours is quicker in "
        f"{(table['low'] > 1).sum()} and slower in {(table['high'] < 1).sum()}"
    )


def main(
    *,
    out: str = str(KEPT),
    cells: Sequence[str] = tuple(CHOSEN),
    iterations: int = 8,
    repetitions: int = 9,
    kept: bool = False,
) -> pd.DataFrame:
    """Run what is missing, or nothing with --kept, and print medians and ratios."""
    for name in cells:
        require_known("cell", name, CELLS)
    path = Path(out)
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["cell"])
    for name in [] if kept else [one for one in cells if one not in set(rows["cell"])]:
        more = pd.DataFrame(run_cell(CELLS[name], iterations, repetitions))
        rows = pd.concat([rows, more], ignore_index=True) if len(rows) else more
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, rows.to_csv(index=False))
        print(compared(more).round(3).to_string(index=False, header=True), flush=True)
    table = compared(rows)
    print(table.to_string(index=False, float_format="{:.3f}".format))
    print(summary(table))
    return table


if __name__ == "__main__":
    command(main)
