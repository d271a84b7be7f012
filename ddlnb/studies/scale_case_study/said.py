"""What the case and the published runs showed, in sentences computed from their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.studies.findings import Findings, findings
from ddlnb.studies.scale_case_study.fitting import fit_sentences
from ddlnb.studies.scale_case_study.published import days_sentences, published_sentences
from ddlnb.studies.scale_case_study.splitting import split_sentences
from ddlnb.studies.scale_case_study.yielding import yield_sentences

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.parallelism.forecast.layouts import Ranking


def case_findings(memory: pd.DataFrame, ranking: Ranking, yields: pd.DataFrame) -> Findings:
    """Return whether the model fits, how fast the best split is and why, what it yields, costs."""
    gpus = int(ranking.outlook.cases.gpus[0])
    return findings(
        *fit_sentences(memory), *split_sentences(ranking), *yield_sentences(yields, gpus)
    )


def published_findings(rows: pd.DataFrame, days: pd.DataFrame) -> Findings:
    """Return how far off forecasts of published runs are, and days of training by three ways."""
    return findings(*published_sentences(rows), *days_sentences(days))
