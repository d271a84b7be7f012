"""How quick forecasts are: the cells of Fig. 4 warm and cold, cost against workers and classes.

    python -m benchmarks.forecast_speed [--repetitions 9] [--csv FILE]

Cold is a new process with the compiled code on disk, from the start of Python to the last cell.
"""

import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.repeated import in_turns, seconds_of
from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.events import play_prepared, prepared
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, plan_on, steady_seconds
from ddlnb.simulator.workers import workers_of
from ddlnb.survey.testbed import as_run, fig4_cells_to_forecast, fig4_workload

WORKERS = tuple(4**power for power in range(1, 8))
CLASSES, ITERATIONS = (1, 2, 4), 20
ARCHITECTURES = (
    ("all-to-all", "WFBP-A2A", None),
    ("a server for every node", "WFBP-PS", None),
    ("eight servers", "WFBP-PS", 8),
)
COLD = "from benchmarks.forecast_speed import all_cells; all_cells()"


def all_cells() -> int:
    """The number of cells of Fig. 4, after all of them have been read, planned and simulated."""
    return len(steady_seconds(fig4_cells_to_forecast()))


def cost_against_workers(repetitions: int = 5) -> pd.DataFrame:
    """Seconds that one cell costs, by architecture and number of workers.

    WFBP on ResNet-50: all-to-all, parameter servers as many as nodes of four, and eight of them.
    """
    workload, survey, rows = fig4_workload("resnet50"), get_cluster("survey-100GbE"), []
    for workers, (what, method, servers) in product(WORKERS, ARCHITECTURES):
        cluster = replace(survey, nodes=max(1, workers // 4), workers=workers)
        cell = Cell(workload, cluster, as_run(METHODS[method]), servers)
        seconds = in_turns(
            {"one": lambda cell=cell: steady_seconds([cell], keep=True)}, repetitions
        )
        median, messages = seconds["one"].median(), len(cell.plan.messages)
        rows.append((what, workers, messages, median))
    return pd.DataFrame(rows, columns=["architecture", "workers", "messages", "seconds"])


def cost_against_classes(repetitions: int = 5) -> pd.DataFrame:
    """Milliseconds of an iteration of one class of workers, by how many classes there are.

    All play as many iterations: computation changes in each, and in all but the first row by rank.
    """
    cluster, workload = get_cluster("survey-100GbE", 32), fig4_workload("resnet50")
    rows = []
    for classes in CLASSES:

        def slower(rank: int, step: int, workers: int, classes: int = classes) -> float:
            return 1 + rank % classes / 10 + step / 1000

        workers = workers_of(cluster, slower, ITERATIONS)
        row: dict[str, float] = {"classes": len(workers.classes)}
        for name in ("WFBP-A2A", "WFBP-PS", "ByteScheduler-A2A", "ByteScheduler-PS"):
            plan = plan_on(cluster, workload, as_run(METHODS[name]))
            (ready,) = prepared(replace(lower(workload, cluster, plan), workers=workers))
            play_prepared(ready)
            play = partial(play_prepared, ready)
            seconds = min(seconds_of(play, time.thread_time) for _ in range(repetitions))
            played = len(workers.classes) * (ITERATIONS + 1)  # the first one twice
            row[name] = 1e3 * seconds / played
        rows.append(row)
    return pd.DataFrame(rows).set_index("classes")


def _in_new_process() -> None:
    subprocess.run([sys.executable, "-c", COLD], check=True)


def main(*, repetitions: int = 9, csv: Path | None = None) -> None:
    """Print medians. The cost against workers is written to --csv as well."""
    listed = fig4_cells_to_forecast()
    warm = in_turns({"warm": lambda: steady_seconds(listed, keep=True)}, repetitions)["warm"]
    cold = pd.Series([seconds_of(_in_new_process) for _ in range(max(3, repetitions // 3))])
    for name, found in (("warm", warm), ("cold", cold)):
        middle, most = 1e3 * found.median(), 1e3 * found.max()
        print(f"{len(listed)} cells, {name}: {middle:.0f} ms (to {most:.0f} ms)")
    table = cost_against_workers()
    if csv:
        table.to_csv(csv, index=False)
    wide = table.pivot(index="workers", columns="architecture", values="seconds")
    print("\nmilliseconds of one cell, WFBP on ResNet-50")
    print((1e3 * wide).to_string(float_format=lambda value: f"{value:.2f}"))
    print("\nmilliseconds of an iteration of one class, ResNet-50 on 32 workers")
    print(cost_against_classes().to_string(float_format=lambda value: f"{value:.3f}"))


if __name__ == "__main__":
    command(main)
