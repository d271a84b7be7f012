"""Our methods against the defaults of DDP and Horovod on emulated links, measured and forecast.

    python -m benchmarks.emulated [--out FOLDER] [--networks ...] [--workers 4 8]

For each network a simulated twin is calibrated by a micro-benchmark alone, then all contenders run
in turn on replayed models, every repetition beginning with another one. Everything is kept in the
folder; a second call completes what is missing and prints the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command import command
from ddlnb.calibration.calibrated_model import calibrate_here, read_micro_benchmark
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.files import BUILD
from ddlnb.launch.options import LaunchOptions, emulated
from ddlnb.survey.simulated_here import calibrate_and_compare, forecast_errors, saved_comparison
from ddlnb.workloads.replay import replayed

BASELINES = ("DDP", "horovod")
DRAWS = 50  # of the twin's effects, for the intervals of its forecasts
PARTITION, CREDIT = "256KB", "1MB"  # the usual ones are as large as these models


@dataclass(frozen=True)
class Case:
    """A network, the scale at which this machine emulates it, and the profiles replayed on it."""

    scale: float
    profiles: tuple[str, ...]

    def site(self, network: str) -> LaunchOptions:
        """Return where the case is run."""
        return emulated(network, self.scale)


_QUICK = ("small-conv_b64_cpu-1thread", "small-transformer_b16_cpu-1thread")
_LONG = ("small-conv_b1024_cpu-1thread", "small-transformer_b128_cpu-1thread")
# Batches are such that computing takes about as long as an all-reduce. Two cores cannot carry more
# than four nodes at 1 Gb/s, so links and computation run at a fifth of their speed there.
NETWORKS: dict[str, Case] = {
    "1Gb/s 50us": Case(0.2, _QUICK),
    "1Gb/s 1ms": Case(0.2, _QUICK),
    "100Mb/s 50us": Case(1.0, _LONG),
    "100Mb/s 1ms": Case(1.0, _LONG),
}


def run(
    folder: str | Path,
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    workers: Sequence[int] = (4, 8),
    iterations: int = 5,
    repetitions: int = 3,
    only_kept: bool = False,
    progress: bool = False,
) -> pd.DataFrame:
    """Return measured and forecast rows of these networks, each kept in a folder of its own.

    With ``only_kept`` nothing runs: the rows are those of the networks that the folder has.
    """
    found = []
    for network in networks:
        case = NETWORKS[network]
        site = case.site(network)
        kept = Path(folder) / site.name
        if only_kept:
            if kept.exists():
                _, clusters = calibrate_here(read_micro_benchmark(kept, site))
                found.append(saved_comparison(clusters, kept, draws=DRAWS))
            continue
        settings = MeasurementSettings(
            site=site,
            partition=PARTITION,
            credit=CREDIT,
            topology="mesh",
            iterations=iterations,
            repetitions=repetitions,
            baselines=BASELINES,
        )
        models = [replayed(profile) for profile in case.profiles]
        found.append(
            calibrate_and_compare(
                kept, models, settings, workers=workers, draws=DRAWS, progress=progress
            )
        )
    return pd.concat(found, ignore_index=True)


def against(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per network, model and number of workers: our best method over each baseline.

    Ratios are of median throughputs of the same alternating run.
    """
    done = rows[rows["source"] == "emulated"]
    cells = ["network", "model", "gpus"]
    rates = done.pivot_table("throughput_samples_per_s", cells, "method", sort=False)
    ours = rates.drop(columns=list(BASELINES), errors="ignore")
    over = {f"over {name}": ours.max(axis=1) / rates.get(name, float("nan")) for name in BASELINES}
    return pd.DataFrame({"best": ours.idxmax(axis=1), **over}).reset_index()


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """Return emulated and simulated seconds of every cell, and their relative difference."""
    parts = rows.groupby("network", sort=False)
    errors = [forecast_errors(part).assign(network=network) for network, part in parts]
    return pd.concat(errors, ignore_index=True)


def summary(ratios: pd.DataFrame, errors: pd.DataFrame) -> str:
    """Return the numbers of both tables in words."""
    lines = []
    for baseline in BASELINES:
        over = ratios[f"over {baseline}"].dropna()
        mean = float(np.exp(np.log(over).mean()))
        lines.append(
            f"best of ours over {baseline} default: geometric mean {mean:.3f}, "
            f"least {over.min():.3f}, most {over.max():.3f}, {len(over)} cells"
        )
    size = errors["error"].abs()
    lines.append(
        f"simulated against emulated: median error {size.median():.1%}, within 10 %: "
        f"{(size <= 0.1).sum()} of {len(size)}, largest {size.max():.1%}"
    )
    return "\n".join(lines)


def main(
    *,
    out: Path = BUILD / "emulated",
    networks: Sequence[str] = tuple(NETWORKS),
    workers: Sequence[int] = (4, 8),
    iterations: int = 5,
    repetitions: int = 3,
    kept: bool = False,
) -> None:
    """Run what is missing, or nothing with --kept, and print ratios and errors."""
    rows = run(
        out,
        networks=networks,
        workers=workers,
        iterations=iterations,
        repetitions=repetitions,
        only_kept=kept,
        progress=True,
    )
    ratios, errors = against(rows), agreement(rows)
    print(ratios.round(3).to_string(index=False))
    print(errors.round(3).to_string(index=False))
    print(summary(ratios, errors))


if __name__ == "__main__":
    command(main)
