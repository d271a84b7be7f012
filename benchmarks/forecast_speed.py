"""How quick forecasts are: the cells of Fig. 4 warm and cold, and cost against workers.

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

import pandas as pd

from ddlnb.clusters.file import get_cluster
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.survey.testbed import as_run, fig4_cells_to_forecast, fig4_workload

WORKERS = tuple(4**power for power in range(1, 8))
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


def _seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _in_new_process() -> None:
    subprocess.run([sys.executable, "-c", COLD], check=True)


if __name__ == "__main__":
    main()
