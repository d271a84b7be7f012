"""All methods on emulated clusters: against the baselines, and against their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.here import calibrate_here, compare_here, errors_here, kept_comparison
from ddlnb.micro_benchmark import micro_benchmark, read_micro_benchmark
from ddlnb.replay import replayed
from ddlnb.setting import Setting, emulated

if TYPE_CHECKING:
    import pandas as pd

BASELINES = ("DDP", "horovod")
PARTITION, CREDIT = "256KB", "1MB"  # the usual ones are as large as these models
WARMUP = 2  # iterations: connections open in the first, nothing else has to get warm


@dataclass(frozen=True)
class Case:
    """A network, the scale at which this machine emulates it, and the profiles replayed on it."""

    scale: float
    profiles: tuple[str, ...]

    def setting(self, network: str) -> Setting:
        """Where the case is run."""
        return emulated(network, self.scale)


_QUICK = ("small-conv_b64_cpu-1thread", "small-transformer_b16_cpu-1thread")
_LONG = ("small-conv_b1024_cpu-1thread", "small-transformer_b128_cpu-1thread")
# Batches are such that computing takes about as long as an all-reduce; more nodes than four at
# 1 Gb/s are more than two cores can carry, so there the world runs at a fifth of its speed.
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
    draws: int = 50,
    only_kept: bool = False,
    progress: bool = False,
) -> pd.DataFrame:
    """Emulated rows of all methods and baselines, and simulated rows of the methods.

    There are as many parameter servers as workers, on nodes of their own, as in the survey. The
    twin that forecasts is calibrated by a micro-benchmark of made-up models on the same links.
    Everything is kept in the folder, one for each network; a second call completes it.
    """
    import pandas as pd

    found = []
    for network in networks:
        case = NETWORKS[network]
        setting = case.setting(network)
        there = Path(folder) / setting.name
        if only_kept:
            probed = read_micro_benchmark(there, setting)
        else:
            probed = micro_benchmark(
                there,
                workers=workers,
                servers=None,
                partition=PARTITION,
                credit=CREDIT,
                iterations=3,
                warmup=WARMUP,
                repetitions=2,
                setting=setting,
                progress=progress,
            )
        _, clusters = calibrate_here(probed)
        if only_kept:
            found.append(kept_comparison(clusters, there, draws=draws))
            continue
        found.append(
            compare_here(
                clusters,
                there,
                models=[replayed(profile) for profile in case.profiles],
                servers=None,
                partition=PARTITION,
                credit=CREDIT,
                iterations=iterations,
                warmup=WARMUP,
                repetitions=repetitions,
                draws=draws,
                setting=setting,
                baselines=BASELINES,
                progress=progress,
            )
        )
    return pd.concat(found, ignore_index=True)


def against(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per network, model and number of workers: our best method over each baseline.

    Ratios are of median throughputs of the same alternating run.
    """
    import pandas as pd

    done = rows[rows["source"] == "emulated"]
    found = []
    for (network, model, gpus), cell in done.groupby(["network", "model", "gpus"], sort=False):
        rate = cell.set_index("method")["throughput_samples_per_s"]
        ours = rate.drop(labels=list(BASELINES), errors="ignore")
        row = {"network": network, "model": model, "gpus": gpus, "best": ours.idxmax()}
        for baseline in BASELINES:
            row[f"over {baseline}"] = ours.max() / rate.get(baseline, float("nan"))
        found.append(row)
    return pd.DataFrame(found)


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """Emulated and simulated seconds of every cell, and their relative difference."""
    import pandas as pd

    return pd.concat(
        [
            errors_here(of_network).assign(network=network)
            for network, of_network in rows.groupby("network", sort=False)
        ],
        ignore_index=True,
    )


def summary(ratios: pd.DataFrame, errors: pd.DataFrame) -> str:
    """The figures of both tables in words."""
    import numpy as np

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
