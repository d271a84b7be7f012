"""What the survey adds to a forecast: that its own runs of the same cell were configured otherwise.

A forecast asks for it by the part "remark as run". It stands here as words, not as the plans that
`ddlnb.survey.testbed.as_run` makes, which would be loaded for every forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlnb.units import listed

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method

BATCHES = {"resnet50": 64, "bert-base": 64, "bert-large": 8}
OTHERWISE = ("MG-WFBP", "ByteScheduler-PS", "ByteScheduler-A2A")
CLUSTERS = ("survey-10GbE", "survey-100GbE", "survey-100GbIB")
SCRIPTS = "the settings and schedulers of its authors' scripts"


def as_run(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    """Say that cells of Fig. 4 have another forecast, where methods were run in another way."""
    cells = zip(rows["model"], rows["local_batch"], strict=True)
    is_of_figure = on.name in CLUSTERS and all(BATCHES.get(model) == size for model, size in cells)
    names = [one.name for one in methods if one.name in OTHERWISE]
    if not is_of_figure or not names or on.label != on.name:
        return ""
    return (
        f"Each method is forecast as its paper describes it. In the survey's Fig. 4 "
        f"{listed(names)} ran differently, with "
        f"{SCRIPTS}; --fig4 forecasts that, and shows other numbers for the same cell."
    )
