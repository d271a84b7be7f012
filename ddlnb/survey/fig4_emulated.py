"""Fig. 4 on an emulated cluster: the same cells published, simulated and emulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ddlnb.calibration.calibrated_model import load_sentence
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.launch.options import emulated
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.published import about_fig4_cells, fig4_cells
from ddlnb.survey.simulated_here import (
    WARMUP,
    calibrate_and_compare,
    error_sentence,
    error_table as error_table,
    forecast_errors,
)
from ddlnb.workloads.replay import replayed


def three_views(
    folder: str | Path,
    network: str,
    profiles: Sequence[str],
    *,
    workers: Sequence[int] = (4,),
    scale: float = 1.0,
    iterations: int = 2,
    warmup: int = WARMUP,
    repetitions: int = 1,
) -> pd.DataFrame:
    """Return cells published (where they are in data), simulated and emulated, as tidy rows.

    Emulated nodes have one worker each, where the survey's had four GPUs. The column ``settings``
    of emulated rows names the scale. The model that forecasts is calibrated by a micro-benchmark of
    made-up models on the same links. The first of the ``warmup`` iterations opens the connections.
    Runs are kept in the folder. Raises what `ddlnb.measure` raises.
    """
    settings = MeasurementSettings(
        site=emulated(network, scale),
        iterations=iterations,
        repetitions=repetitions,
        baselines=("single", "DDP"),
    )
    models = [replayed(profile) for profile in profiles]
    rows = calibrate_and_compare(folder, models, settings, workers=workers, warmup=warmup)
    cells = fig4_cells()
    alike = cells["network"].isin([network, ""]) & cells["model"].isin(rows["model"].unique())
    published = cells[alike & cells["gpus"].isin([1, *workers])]
    return pd.concat([published, rows] if len(published) else [rows], ignore_index=True)


def view_findings(rows: pd.DataFrame, folder: str | Path) -> Findings:
    """Return how far the forecast is from the emulation, and which published cells there are.

    ``folder`` is that of the runs, which keeps how busy the machine was with other work.
    """
    errors = error_sentence(forecast_errors(rows))
    return findings(errors, load_sentence(folder), about_fig4_cells())
