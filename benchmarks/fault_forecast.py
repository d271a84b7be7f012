"""A sweep of our own engine that is killed at random moments, forecast before it runs.

python -m benchmarks.fault_forecast --out FOLDER [--kept]

`ddlnb measure` writes each finished cell at once; killed with SIGKILL and started again, it goes on
with the first one that is missing. One undisturbed sweep tells how long it takes to start and how
long a cell takes. From these and from moments drawn before, `tests.parallelism.finish`
forecasts when a sweep is done that is killed at those moments; then it is run and killed so.
"""

import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.command import command
from ddlnb.files import provenance
from ddlnb.parallelism.goodput.failures import useful_share
from ddlnb.parallelism.goodput.simulate import Job
from tests.parallelism.finish import finish, lives

LOOK_SECONDS = 0.02
PROFILE = "small-conv_b64_cpu-1thread"


class Pace(NamedTuple):
    """Seconds from the start of a sweep to its first cell, of a cell, from the last to the end."""

    start: float
    cell: float
    end: float

    def job(self) -> Job:
        """The sweep as a job: a cell is a checkpoint interval, and its row costs nothing more."""
        return Job(
            gpus=1, replica_gpus=1, checkpoint_seconds=0.0, restart_seconds=self.start,
            repair_seconds=0.0, interval_seconds=self.cell,
        )  # fmt: skip


def sweep(out: Path, cells: int, iterations: int) -> list[str]:
    """Return the command of a sweep: replayed computation of two workers, `cells` repetitions."""
    return [
        sys.executable, "-m", "ddlnb", "measure", "--model", "small-conv", "--replay", PROFILE,
        "--method", "MG-WFBP", "--no-baselines", "--workers", "2", "--warmup", "1",
        "--scale", "0.25", "--iterations", str(iterations), "--repeat", str(cells),
        "--out", str(out),
    ]  # fmt: skip


def finished(out: Path) -> int:
    """Return how many cells a sweep has written."""
    runs = out.with_suffix(".runs.csv")
    return max(0, runs.read_text().count("\n") - 1) if runs.exists() else 0


def calibrate(folder: Path, number: int, cells: int, iterations: int) -> Pace:
    """Return the pace of a sweep that nobody disturbs."""
    out = folder / f"undisturbed-{number}.csv"
    started, moments = time.monotonic(), []
    with subprocess.Popen(sweep(out, cells, iterations), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            moments += [time.monotonic()] * (finished(out) - len(moments))
            time.sleep(LOOK_SECONDS)
    ended = time.monotonic()
    if process.returncode or len(moments) != cells:
        raise RuntimeError(f"the sweep ended with {process.returncode} after {len(moments)} cells")
    cell = (moments[-1] - moments[0]) / (cells - 1)
    return Pace(moments[0] - cell - started, cell, ended - moments[-1])


def disturbed(
    folder: Path, cells: int, iterations: int, rate: float, seed: int
) -> dict[str, float]:
    """Return the seconds and the kills of a sweep that is killed at the moments of this seed."""
    out = folder / f"killed-{seed}.csv"
    started, kills = time.monotonic(), 0
    for life in lives(rate, seed):
        until = time.monotonic() + life
        process = subprocess.Popen(sweep(out, cells, iterations), stdout=subprocess.DEVNULL)
        try:
            code = process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            continue
        seconds = time.monotonic() - started
        if code or finished(out) != cells:
            raise RuntimeError(f"the sweep ended with {code} after {finished(out)} cells")
        return {"seconds": seconds, "kills": kills}
    raise AssertionError("lives never end")


def forecast(pace: Pace, cells: int, rate: float, seed: int) -> dict[str, float]:
    """Return the forecasts of a sweep: killed at the moments of this seed, and never."""
    job, work = pace.job(), cells * pace.cell
    found = finish(job, work, rate, seed)
    return {
        "forecast_seconds": found.seconds + pace.end,
        "forecast_kills": found.failures,
        "without_faults": pace.start + work + pace.end,
    }


def measured(
    pace: Pace, folder: Path, file: Path, cells: int, iterations: int, life: float, seeds: range
) -> None:
    """Write down all forecasts, and only then run the sweeps; write each row at once."""
    common = {"cells": cells, "mean_life_seconds": life,
              "start_seconds": pace.start, "cell_seconds": pace.cell}  # fmt: skip
    rows = [{"seed": seed, **common, **forecast(pace, cells, 1 / life, seed)} for seed in seeds]
    print(pd.DataFrame(rows).round(2).to_string(index=False), flush=True)
    for done, (seed, row) in enumerate(zip(seeds, rows, strict=True), 1):
        row |= disturbed(folder, cells, iterations, 1 / life, seed) | provenance()
        pd.DataFrame(rows[:done]).to_csv(file, index=False)
        print(f"seed {seed}: {row['seconds']:.1f} s, {row['kills']} kills", flush=True)


def on_average(row: pd.Series) -> float:
    """Return the mean over moments, in closed form: a first start, cells, and restarts."""
    life, start, cell = row["mean_life_seconds"], row["start_seconds"], row["cell_seconds"]
    first = life * math.expm1(start / life)
    return first + row["cells"] * cell / useful_share(cell, 0.0, life, start)


def sentences(rows: pd.DataFrame) -> str:
    """Return how far off forecasts are, beside the trivial ones."""
    forecasts = {
        "forecast at the moments of the kills:": rows["forecast_seconds"],
        "forecast of the mean over moments:": rows.apply(on_average, axis=1),
        "as if nothing failed:": rows["without_faults"],
    }
    lines = [
        f"{len(rows)} sweeps of {rows['cells'].iloc[0]} cells, killed {rows['kills'].sum()} times:"
    ]
    for what, seconds in forecasts.items():
        off = (seconds / rows["seconds"] - 1).abs()
        lines.append(
            f"  {what:37} off by {off.median():.1%} in the median, {off.max():.1%} at most"
        )
    return "\n".join(lines)


def main(
    *,
    out: Path,
    kept: bool = False,
    cells: int = 10,
    calibrations: int = 2,
    calibration: int = 4,
    iterations: int = 30,
    life: float = 75.0,
    runs: int = 3,
    seed: int = 1,
) -> None:
    """Measure into a folder, or print what is --kept there.

    --calibrations sweeps of --calibration cells are left alone, then --runs sweeps of --cells cells
    are killed after --life seconds on average, the first by moments of this --seed.
    """
    file = out / "fault_forecast.csv"
    if not kept:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fault-forecast-") as name:
            folder = Path(name)
            undisturbed = [
                calibrate(folder, number, calibration, iterations) for number in range(calibrations)
            ]
            pace = Pace(*np.mean(undisturbed, axis=0).tolist())
            measured(pace, folder, file, cells, iterations, life, range(seed, seed + runs))
    print(sentences(pd.read_csv(file)))


if __name__ == "__main__":
    command(main)
