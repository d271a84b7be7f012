"""A sweep of our own engine that is killed at random moments, forecast before it runs.

python -m benchmarks.fault_forecast --out FOLDER [--kept]

`ddlnb measure` writes each finished cell at once; killed with SIGKILL and started again, it goes on
with the first one that is missing. One undisturbed sweep tells how long it takes to start and how
long a cell takes. From these and from moments drawn before, `tests.parallelism.finish`
forecasts when a sweep is done that is killed at those moments; then it is run and killed so.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import pandas as pd

from ddlnb.files import provenance
from ddlnb.parallelism.goodput.failures import useful_share
from ddlnb.parallelism.goodput.simulate import Job
from tests.parallelism.finish import finish, lives

LOOK_SECONDS = 0.02
PROFILE = "small-conv_b64_cpu-1thread"


@dataclass(frozen=True)
class Pace:
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


def mean_pace(paces: list[Pace]) -> Pace:
    """Return the mean of several."""
    start, cell, end = (
        sum(values) / len(paces) for values in zip(*map(astuple, paces), strict=True)
    )
    return Pace(start, cell, end)


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


def measured(options: argparse.Namespace, file: Path) -> None:
    """Calibrate, write down all forecasts, and only then run the sweeps; write each row at once."""
    rate, seeds = 1 / options.life, range(options.seed, options.seed + options.runs)
    with tempfile.TemporaryDirectory(prefix="fault-forecast-") as name:
        folder = Path(name)
        pace = mean_pace(
            [
                calibrate(folder, number, options.calibration, options.iterations)
                for number in range(options.calibrations)
            ]
        )
        common = {"cells": options.cells, "mean_life_seconds": options.life,
                  "start_seconds": pace.start, "cell_seconds": pace.cell}  # fmt: skip
        rows = [
            {"seed": seed, **common, **forecast(pace, options.cells, rate, seed)} for seed in seeds
        ]
        print(pd.DataFrame(rows).round(2).to_string(index=False), flush=True)
        for done, row in enumerate(rows, 1):
            seed = int(row["seed"])
            row |= disturbed(folder, options.cells, options.iterations, rate, seed) | provenance()
            pd.DataFrame(rows[:done]).to_csv(file, index=False)
            print(f"seed {seed}: {row['seconds']:.1f} s, {row['kills']} kills", flush=True)


def on_average(row: pd.Series) -> float:
    """Return the mean over moments, in closed form: a first start, cells, and restarts."""
    life, start, cell = row["mean_life_seconds"], row["start_seconds"], row["cell_seconds"]
    first = life * math.expm1(start / life)
    return first + row["cells"] * cell / useful_share(cell, 0.0, life, start)


def sentences(rows: pd.DataFrame) -> str:
    """Return how far off forecasts are, beside the trivial ones."""

    rows = rows.assign(forecast_on_average=rows.apply(on_average, axis=1))

    def off(column: str) -> str:
        errors = (rows[column] / rows["seconds"] - 1).abs()
        return f"{errors.median():.1%} in the median, {errors.max():.1%} at most"

    cells, kills = rows["cells"].iloc[0], rows["kills"].sum()
    return (
        f"{len(rows)} sweeps of {cells} cells, killed {kills} times:\n"
        f"  forecast at the moments of the kills: off by {off('forecast_seconds')}\n"
        f"  forecast of the mean over moments:    off by {off('forecast_on_average')}\n"
        f"  as if nothing failed:                 off by {off('without_faults')}"
    )


def main() -> None:
    """Measure into a folder, or print what is kept there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--kept", action="store_true", help="print what was measured there")
    parser.add_argument("--cells", type=int, default=10)
    parser.add_argument("--calibrations", type=int, default=2, help="undisturbed sweeps")
    parser.add_argument("--calibration", type=int, default=4, help="cells of each of them")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--life", type=float, default=75.0, help="mean seconds until a kill")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the first sweep")
    options = parser.parse_args()
    file = options.out / "fault_forecast.csv"
    if not options.kept:
        options.out.mkdir(parents=True, exist_ok=True)
        measured(options, file)
    print(sentences(pd.read_csv(file)))


if __name__ == "__main__":
    main()
