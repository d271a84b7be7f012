"""All methods on emulated clusters: against the baselines, and against their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.calibration.micro_benchmark import micro_benchmark, read_micro_benchmark
from ddlnb.calibration.twin import calibrate_here
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.launch.site import Site, emulated
from ddlnb.results.published import fig4_cells
from ddlnb.studies.simulated_here import compare_here, errors_here, kept_comparison
from ddlnb.workloads.replay import replayed

if TYPE_CHECKING:
    import pandas as pd

BASELINES = ("DDP", "horovod")
DRAWS = 50  # of the twin's effects, for the intervals of its forecasts
PARTITION, CREDIT = "256KB", "1MB"  # the usual ones are as large as these models
WARMUP = 1  # iteration: connections open in it, and nothing else has to get warm


@dataclass(frozen=True)
class Case:
    """A network, the scale at which this machine emulates it, and the profiles replayed on it."""

    scale: float
    profiles: tuple[str, ...]

    def site(self, network: str) -> Site:
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
    only_kept: bool = False,
    progress: bool = False,
) -> pd.DataFrame:
    """Rows of `study` for these networks, each kept in a folder of its own.

    With ``only_kept`` nothing runs: the rows are those of the networks that the folder has.
    """
    import pandas as pd

    found = []
    for network in networks:
        case = NETWORKS[network]
        site = case.site(network)
        there = Path(folder) / site.name
        if only_kept and not there.exists():
            continue
        if only_kept:
            _, clusters = calibrate_here(read_micro_benchmark(there, site))
            found.append(kept_comparison(clusters, there, draws=DRAWS))
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
        found.append(study(there, case.profiles, settings, workers=workers, progress=progress))
    return pd.concat(found, ignore_index=True)


def study(
    folder: str | Path,
    profiles: Sequence[str],
    settings: MeasurementSettings,
    *,
    workers: Sequence[int],
    progress: bool = False,
) -> pd.DataFrame:
    """Return emulated rows of all methods and baselines, and simulated rows of the methods.

    The twin that forecasts is calibrated by a micro-benchmark of made-up models on the same links.
    There are as many parameter servers as workers, on nodes of their own, as in the survey.
    Everything is kept in the folder; a second call completes it.
    """
    settings = settings.changed(warmup=WARMUP)
    probed = micro_benchmark(
        folder,
        workers=workers,
        settings=settings.changed(iterations=3, repetitions=1, baselines=False),
        server_per_worker=True,
        progress=progress,
    )
    _, clusters = calibrate_here(probed)
    return compare_here(
        clusters,
        folder,
        models=[replayed(profile) for profile in profiles],
        settings=settings,
        server_per_worker=True,
        draws=DRAWS,
        progress=progress,
    )


def three_views(
    folder: str | Path,
    network: str,
    profiles: Sequence[str],
    *,
    workers: Sequence[int] = (4,),
    scale: float = 1.0,
    iterations: int = 2,
    repetitions: int = 1,
    progress: bool = False,
) -> pd.DataFrame:
    """The same cells published (where they are in data), simulated and emulated, as tidy rows.

    Emulated nodes have one worker each, where the survey's had four GPUs. The column ``settings``
    of emulated rows says at which scale. Raises what `measure` raises.
    """
    import pandas as pd

    settings = MeasurementSettings(
        site=emulated(network, scale),
        iterations=iterations,
        repetitions=repetitions,
        baselines=("single", "DDP"),
    )
    rows = study(folder, profiles, settings, workers=workers, progress=progress)
    cells = fig4_cells()
    alike = cells["network"].eq(network) & cells["model"].isin(rows["model"].unique())
    published = cells[alike & cells["gpus"].isin([1, *workers])]
    return pd.concat([published, rows] if len(published) else [rows], ignore_index=True)


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
