"""DDP with its defaults against something else in a training script, on emulated links.

    python -m benchmarks.train_with_it [--rival NAME] [--out FILE.csv] [--repetitions 9]
    python -m benchmarks.train_with_it [--rival NAME] --kept

Rivals are `ddlnb.DistributedModel`, whose plan is searched for what the ranks measure when they
start; ``buckets``, DDP with the bucket_cap_mb that `ddlnb advise` takes for the cell; and
``watched``, DDP as it is in `ddlnb.watch`, which shows what watching costs. ``watched FSDP`` stands
beside FSDP, every layer of which is sharded by `fully_shard`.

On every rank of a cell one script holds both, each with a model and an optimizer of its own, and
trains by them in turn, as many iterations by each. Computation is replayed; hooks, messages and
updates are real. A row is a repetition; the file is kept cell by cell, and a second call completes
what is missing. Printed are medians, and geometric means of ratios of pairs with 95 % intervals.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command import command
from benchmarks.searched_cells import CELLS, Cell
from benchmarks.searched_emulated import ratio
from ddlnb.advice.options import bucket_option
from ddlnb.advice.question import Prices, Question
from ddlnb.calibration.statistics import Interval
from ddlnb.engines.settings import MEASURING
from ddlnb.errors import require_known
from ddlnb.files import DATA, write_atomically
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import BASELINES
from ddlnb.search.space import SEARCHED
from ddlnb.simulator.simulate import steady_seconds
from ddlnb.workloads.models import RandomImages, build_published, image_loss
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.task import Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

OURS, THEIRS, BUCKETS, WATCHED = "DistributedModel", "DDP", "buckets", "watched"
SHARDED, WATCHED_SHARDS = "FSDP", "watched FSDP"
KEPT = {
    OURS: DATA / "measured" / "2026-11-24_two-cores_distributed-model" / "rows.csv",
    BUCKETS: DATA / "measured" / "2026-11-27_two-cores_buckets" / "rows.csv",
    WATCHED: DATA / "measured" / "2026-11-27_two-cores_watched" / "rows.csv",
    WATCHED_SHARDS: DATA / "measured" / "2026-11-27_two-cores_watched-fsdp" / "rows.csv",
}
SECONDS = 300.0  # after which a rank that does not answer is given up
# Four nodes with both models on all networks, and eight with the model that computes less.
CHOSEN = [
    name
    for name, one in CELLS.items()
    if not one.change and (one.workers == 4 or one.workload.model == "small-conv")
]
VIT_S = Task(
    "vit-small",
    partial(
        build_published,
        "ViTForImageClassification",
        {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    ),
    RandomImages(),
    image_loss,
    8,
    "images",
    "ViT-S/16 (Touvron et al. 2021, arXiv 2012.12877, table 1)",
)


@dataclass(frozen=True)
class Large(Cell):
    """ViT-S, 88 MB, of which computing takes ``times`` as long as an all-reduce of all of it."""

    times: float = 1.0

    @property
    def name(self) -> str:
        """The cell in words, by which it is asked for."""
        return f"{self.network} ViT-S x{self.times:g} {self.workers}"

    @property
    def workload(self) -> Workload:
        """ViT-S with the shares of an A100 in the seconds of its layers."""
        found = estimate(trace(VIT_S), "A100")
        sent = sum(one.elements * one.bytes_per_element for one in found.gradients)
        takes = 2 * (self.workers - 1) / self.workers * sent / 125e6  # by 1 Gb/s
        return found.scaled(self.times * takes / found.compute_seconds, self.name)


LARGE = {
    one.name: one
    for network in ("1Gb/s 50us", "1Gb/s 1ms")
    for workers in (4, 8)
    for one in (Large(network, "", workers, times=times) for times in (0.5, 1.0, 1.5))
}
RUN = {OURS: {name: CELLS[name] for name in CHOSEN}, BUCKETS: LARGE}
RUN[WATCHED] = RUN[WATCHED_SHARDS] = dict(list(RUN[OURS].items())[:2])


def theirs_of(rival: str) -> str:
    """Return the name of what stands beside a rival."""
    return SHARDED if rival == WATCHED_SHARDS else THEIRS


def rival_of(cell: Cell, rival: str, folder: Path) -> tuple[str, float | None]:
    """Return what runs beside DDP, and how many times as long DDP takes by the forecast."""
    if rival != BUCKETS:
        return rival, None
    asked = Question(cell.workload, cell.twin(folder), Prices())
    [best] = bucket_option(asked)
    cells = [replace(best.cell, method=BASELINES[THEIRS]), best.cell]
    seconds = [one.iteration_seconds for one in steady_seconds(cells)]
    return best.name, seconds[0] / seconds[1]


def run_cell(
    cell: Cell, rival: str, forecast: float | None, iterations: int, repetitions: int
) -> list[dict[str, object]]:
    """Return a row for every repetition: seconds of an iteration by each, and the plan's messages.

    What takes longest on any rank counts.
    """
    site = cell.site(cell.workers)
    # Computation is slowed as the links are, and the script knows nothing of it.
    slow = cell.workload.scaled(1 / site.scale, "slowed as the emulated links are")
    with Ranks.at(site, cell.workers, imports=MEASURING, timeout_seconds=SECONDS) as ranks:
        found = ranks.run(_script, replayed(slow), rival, iterations, repetitions)
    plan, messages = found[0][0]
    timed = [max(pairs) for pairs in zip(*(rows for _, rows in found), strict=True)]
    return [
        {
            "cell": cell.name,
            "repetition": number // 2,
            "method": (theirs_of(rival), rival)[number % 2],
            "iteration_seconds": seconds,
            "plan": plan if number % 2 else None,
            "messages": messages if number % 2 else None,
            "forecast": forecast,
        }
        for number, seconds in enumerate(timed)
    ]


def _script(
    context: RankContext, task: Task, rival: str, iterations: int, repetitions: int
) -> tuple[tuple[str, int | None], list[float]]:
    """Train by both in turn; return our plan, its messages, and the seconds, the plain first."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    from ddlnb.engines.distributed_model import DistributedModel
    from ddlnb.launch.rank import process_group
    from ddlnb.traces.watch import watch

    os.environ["MASTER_ADDR"] = context.host  # as torchrun says it to a script
    batch = task.batch(task.local_batch, context.rank)

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = task.build()
        return module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    def plain(**options: float) -> tuple[Module, Callable[[], None], Callable[[], None]]:
        if rival == WATCHED_SHARDS:
            model = task.build()
            for layer in reversed(list(model.modules())):  # the model itself last
                if layer is model or layer._parameters:
                    fully_shard(layer, reshard_after_forward=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        else:
            module, optimizer = made()
            model = DistributedDataParallel(module, **options)

        def step() -> None:
            task.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step, lambda: None

    def ours() -> tuple[Module, Callable[[], None], Callable[[], None]]:
        model = DistributedModel(*made(), SEARCHED, task=task)

        def step() -> None:
            task.loss(model, batch).backward()
            model.step()

        return model, step, model.synchronize

    def timed(step: Callable[[], None], finish: Callable[[], None]) -> float:
        if rival == OURS:
            step()  # the clock starts between iterations whose messages may overlap
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            step()
        finish()
        return (time.perf_counter() - start) / iterations

    with process_group(context, context.store(), context.count):
        _, *theirs = plain()
        size = re.search(r"bucket_cap_mb=(\d+)", rival)
        given = {"bucket_cap_mb": int(size[1])} if size else {}
        model, *its = ours() if rival == OURS else plain(**given)
        watching = watch(model) if rival.startswith(WATCHED) else nullcontext()
        seconds = []
        with watching:
            for number in range(repetitions + 1):
                pair = timed(*theirs), timed(*its)
                seconds += pair if number else ()  # the first is a warm-up
        if rival != OURS:
            return (rival, None), seconds
        plan = model.plan.method, len(model.plan.messages)
        model.close()
    return plan, seconds


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each cell: medians in ms, and how many times as long DDP takes."""
    found = []
    for name, cell in rows.groupby("cell", sort=False):
        wide = cell.pivot_table("iteration_seconds", "repetition", "method")
        [its] = [one for one in wide if one not in (THEIRS, SHARDED)]
        [theirs] = wide.columns.drop(its)
        over: Interval = ratio(wide[theirs], wide[its])
        found.append(
            {
                "cell": name,
                "plan": cell["plan"].dropna().iloc[0],
                "messages": cell["messages"].max(),
                "plain ms": 1e3 * wide[theirs].median(),
                "its ms": 1e3 * wide[its].median(),
                "plain over it": over.estimate,
                "low": over.low,
                "high": over.high,
                **({"forecast": cell["forecast"].iloc[0]} if "forecast" in cell else {}),
            }
        )
    return pd.DataFrame(found)


def summary(table: pd.DataFrame, rival: str = OURS) -> str:
    """Return the geometric mean, and in how many cells the rival is beyond noise, in a sentence.

    The 95 % interval of the mean is that of these cells, each with the noise of its repetitions.
    """
    over = table["plain over it"]
    mean = over.prod() ** (1 / len(over))
    noise = np.linalg.norm(np.log(table["high"] / table["low"]) / 2) / len(over)
    low, high = mean * np.exp([-noise, noise])
    return (
        f"{theirs_of(rival)} takes {mean:.3f} times as long as {rival} (95 % interval {low:.3f} to "
        f"{high:.3f}), geometric mean of {len(table)} cells ({over.min():.3f} to "
        f"{over.max():.3f}); beyond noise it is quicker in {(table['low'] > 1).sum()} and "
        f"slower in {(table['high'] < 1).sum()}"
    )


def main(
    *,
    rival: str = OURS,
    out: str = "",
    cells: Sequence[str] = (),
    iterations: int = 8,
    repetitions: int = 9,
    kept: bool = False,
) -> pd.DataFrame:
    """Run what is missing, or nothing with --kept, and print medians and ratios."""
    require_known("rival", rival, RUN)
    for name in cells:
        require_known("cell", name, RUN[rival])
    path = Path(out) if out else KEPT[rival]
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["cell"])
    missing = [name for name in cells or RUN[rival] if name not in set(rows["cell"])]
    for name in [] if kept else missing:
        cell = RUN[rival][name]
        its, forecast = rival_of(cell, rival, path.parent)
        more = pd.DataFrame(run_cell(cell, its, forecast, iterations, repetitions))
        rows = pd.concat([rows, more], ignore_index=True) if len(rows) else more
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, rows.to_csv(index=False))
        print(compared(more).round(3).to_string(index=False, header=True), flush=True)
    table = compared(rows)
    print(table.to_string(index=False, float_format="{:.3f}".format))
    print(summary(table, rival))
    return table


if __name__ == "__main__":
    command(main)
