"""How far off forecasts of the survey's figure are today, in the words of the first notebook."""

from __future__ import annotations

import pandas as pd

from ddlnb.calibration.validation import TRIVIAL_FORECASTS
from ddlnb.survey.calibration import residual_rows
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.score import BLIND, blind_rows, score_table


def forecast_errors() -> Findings:
    """Return mean errors by number of GPUs: of the last blind forecast, and of today's fit.

    Suspicious cells are left out. Every sentence ends with the command that gives its numbers.
    """
    by_gpus = score_table(blind_rows(), "gpus").loc["without"]
    ours = by_gpus.xs(BLIND[-1].name, level="forecast")
    trivial = by_gpus["mean"].unstack("forecast")[list(TRIVIAL_FORECASTS)].min(axis=1)
    fit = residual_rows().query("gpus > 1")
    fitted = 100 * fit["relative_error"].abs().groupby(fit["gpus"]).mean()
    return findings(
        f"Blind forecasts of published cells were off by {_by_gpus(ours['mean'])} on average, the "
        f"best trivial forecast by {_by_gpus(trivial)}; of the cells, "
        f"{_by_gpus(ours['inside'], '.0f')} were within the 90 % intervals "
        f"(`python -m benchmarks.fig4_score`).",
        f"Today's fit, which has seen its cells, is off by {_by_gpus(fitted)} "
        f"(`ddlnb cluster fit survey`).",
    )


def _by_gpus(percent: pd.Series, digits: str = ".1f") -> str:
    """Return percentages in words; the index is the number of GPUs."""
    said = [f"{value:{digits}} % with {gpus:.0f} GPUs" for gpus, value in percent.items()]
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))
