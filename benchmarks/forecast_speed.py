"""How quick forecasts are: the cells of Fig. 4 warm and cold, cost against workers and classes.

    python -m benchmarks.forecast_speed [--repetitions 9] [--csv FILE]

Cold is a new process with the compiled code on disk, from the start of Python to the last cell.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pandas as pd

from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.events import play_prepared, prepared
from ddlnb.simulator.program import lower
from ddlnb.simulator.simulate import Cell, plan_on, steady_seconds
from ddlnb.simulator.workers import workers_of
from ddlnb.survey.testbed import as_run, fig4_cells_to_forecast, fig4_workload

WORKERS = tuple(4**power for power in range(1, 8))
CLASSES, ITERATIONS = (1, 2, 4), 20
COLD = "from benchmarks.forecast_speed import all_cells; all_cells()"


def all_cells() -> int:
    """The number of cells of Fig. 4, after all of them have been read, planned and simulated."""
    return len(steady_seconds(fig4_cells_to_forecast()))


def cost_against_workers(repetitions: int = 5) -> pd.DataFrame:
    """Seconds that one cell costs, by architecture and number of workers.

    WFBP on ResNet-50: all-to-all, parameter servers as many as nodes of four, and eight of them.
    """
    workload = fig4_workload("resnet50")
    survey = get_cluster("survey-100GbE")
    rows = []
    for workers in WORKERS:
        cluster = replace(survey, nodes=max(1, workers // 4), workers=workers)
        for what, method, servers in (
            ("all-to-all", "WFBP-A2A", None),
            ("a server for every node", "WFBP-PS", None),
            ("eight servers", "WFBP-PS", 8),
        ):
            cell = Cell(workload, cluster, as_run(METHODS[method]), servers)
            steady_seconds([cell], keep=True)
            seconds = []
            for _ in range(repetitions):
                start = time.perf_counter()
                steady_seconds([cell], keep=True)
                seconds.append(time.perf_counter() - start)
            rows.append(
                {
                    "architecture": what,
                    "workers": workers,
                    "messages": len(cell.plan.messages),
                    "seconds": statistics.median(seconds),
                }
            )
    return pd.DataFrame(rows)


def cost_against_classes(repetitions: int = 5) -> pd.DataFrame:
    """Milliseconds of an iteration of one class of workers, by how many classes there are.

    All play as many iterations: computation changes in each, and in all but the first row by rank.
    """
    on, rows = get_cluster("survey-100GbE", 32), []
    workload = fig4_workload("resnet50")
    for classes in CLASSES:
        row: dict[str, float] = {"classes": classes}

        def slower(rank: int, step: int, workers: int, classes: int = classes) -> float:
            return 1 + rank % classes / 10 + step / 1000

        for name in ("WFBP-A2A", "WFBP-PS", "ByteScheduler-A2A", "ByteScheduler-PS"):
            program = lower(workload, on, plan_on(on, workload, as_run(METHODS[name])))
            program = replace(program, workers=workers_of(on, slower, ITERATIONS))
            played = len(program.workers.classes) * (ITERATIONS + 1)  # the first one twice
            ready = prepared(program)
            play_prepared(ready)
            seconds = [
                _seconds(partial(play_prepared, ready), time.thread_time)
                for _ in range(repetitions)
            ]
            row["classes"] = len(program.workers.classes)
            row[name] = 1e3 * min(seconds) / played
        rows.append(row)
    return pd.DataFrame(rows).set_index("classes")


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--csv", help="write the cost against workers to this file")
    options = parser.parse_args()
    listed = fig4_cells_to_forecast()
    cells = len(steady_seconds(listed, keep=True))
    warm = sorted(
        _seconds(lambda: steady_seconds(listed, keep=True)) for _ in range(options.repetitions)
    )
    cold = sorted(_seconds(_in_new_process) for _ in range(max(3, options.repetitions // 3)))
    for name, found in (("warm", warm), ("cold", cold)):
        middle = statistics.median(found)
        print(f"{cells} cells, {name}: {1e3 * middle:.0f} ms (to {1e3 * found[-1]:.0f} ms)")
    table = cost_against_workers()
    if options.csv:
        table.to_csv(options.csv, index=False)
    wide = table.pivot(index="workers", columns="architecture", values="seconds")
    print("\nmilliseconds of one cell, WFBP on ResNet-50")
    print((1e3 * wide).to_string(float_format=lambda value: f"{value:.2f}"))
    print("\nmilliseconds of an iteration of one class, ResNet-50 on 32 workers")
    print(cost_against_classes().to_string(float_format=lambda value: f"{value:.3f}"))


def _seconds(work, clock=time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def _in_new_process() -> None:
    subprocess.run([sys.executable, "-c", COLD], check=True)


if __name__ == "__main__":
    main()
