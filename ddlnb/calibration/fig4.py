"""The forecast of Fig. 4: its cells as the survey ran them, with the values that were fitted.

The fit kept in data/calibration is all that it knows; cells with more than 8 GPUs were never seen.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.calibration.parameters import ParameterValues
from ddlnb.calibration.quantities import with_values
from ddlnb.calibration.testbed import (
    BATCHES,
    CLUSTERS,
    GPUS,
    cell_as_run,
    fig4_clusters,
    fig4_workload,
    survey_setup,
)
from ddlnb.errors import ResultsError, require
from ddlnb.paths import CALIBRATION
from ddlnb.plans.methods import SURVEYED
from ddlnb.progress import Show
from ddlnb.results.schema import Column, Kind, Schema
from ddlnb.simulator.simulate import Cell

if TYPE_CHECKING:
    import pandas as pd

FORECAST_COLUMNS = [
    *("model", "local_batch", "network", "method", "gpus"),
    *("throughput_samples_per_s", "low", "high"),
]
AS_RUN = "as-run"  # in the column settings: by the scripts of the survey's authors
FITTED = CALIBRATION / "survey_fitted.csv"  # the values of parameters: fitted, and drawn
HELD_OUT = CALIBRATION / "survey_held_out.csv"  # predictions of cells that were not fitted


def fitted_values(path: Path = FITTED) -> list[ParameterValues]:
    """Return the fitted values of the survey's parameters, followed by draws of them.

    Raises ResultsError for a file that is not of the parameters in data/calibration/survey.yaml.
    """
    parameters = survey_setup().parameters
    names = [parameter.name for parameter in parameters]
    schema = Schema(
        tuple(Column(name, Kind.POSITIVE) for name in names),
        exact=True,
        what="table of fitted values",
        way_out="fit them again: ddlnb calibrate survey --write",
    )
    rows = schema.read(path).to_numpy(float).tolist()
    if not rows:
        raise ResultsError(f"{path} has no values; {schema.way_out}")
    return [ParameterValues(parameters, tuple(row)) for row in rows]


def fig4_cells_to_forecast(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    values: ParameterValues | None = None,
) -> list[Cell]:
    """Return the cells of Fig. 4 as run, 252 by default, in the order of the figure's panels.

    ``values`` are those of the fit by default.
    """
    values = fitted_values()[0] if values is None else values
    clusters = {network: fig4_clusters(network) for network in networks}
    return [
        with_values(cell_as_run(workload, clusters[network][count], method), values)
        for workload in map(fig4_workload, models)
        for network in networks
        for count in gpus
        for method in SURVEYED
    ]


def forecast_fig4(
    models: tuple[str, ...] = tuple(BATCHES),
    networks: tuple[str, ...] = tuple(CLUSTERS),
    gpus: tuple[int, ...] = GPUS,
    *,
    draws: int = 200,
    seed: int = 0,
    progress: Show = None,
) -> pd.DataFrame:
    """Forecast cells of Fig. 4 as run: the rows of `ddlnb.forecast`, with settings AS_RUN.

    Draws are those of all parameters together that the fit left; raises InputError for more than it
    left.
    """
    from ddlnb.simulator.forecast import forecast_cells

    fitted, *drawn = fitted_values()
    require(
        draws <= len(drawn), f"draws {draws} must be at most {len(drawn)}, those in {FITTED.name}"
    )
    cells = fig4_cells_to_forecast(models, networks, gpus, fitted)
    rows = forecast_cells(
        cells,
        draws=draws,
        seed=seed,
        progress=progress,
        drawn=(
            [replace(with_values(cell, values), planned_on=cell.cluster) for cell in cells]
            for values in drawn[:draws]
        ),
    )
    return rows.assign(settings=(AS_RUN + " " + rows["settings"]).str.strip())


def write_forecast(
    path: str | Path | None, *, draws: int = 200, seed: int = 0, progress: Show = None
) -> pd.DataFrame:
    """Forecast all cells of Fig. 4, and write them as CSV with the columns FORECAST_COLUMNS.

    The forecast is made from the files in data alone.
    """
    from ddlnb.files import write_atomically

    rows = forecast_fig4(draws=draws, seed=seed, progress=progress)
    if path is not None:
        text = rows[FORECAST_COLUMNS].to_csv(index=False, float_format="%.6g")
        write_atomically(path, text)
    return rows
