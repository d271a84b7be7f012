"""Forecasts of Fig. 4 as a test wants them, and published cells beside them."""

import math

import pandas as pd

from ddlnb.plans.methods import METHODS
from ddlnb.results.schema import KEY, RATE
from ddlnb.survey.testbed import BATCHES, CLUSTERS


def forecasts(gpus: tuple[int, ...] = (4, 8, 32)) -> pd.DataFrame:
    """All panels; a method farther down the list is slower, BERT-Large the slowest model."""
    lines = [
        {"model": model, "local_batch": batch, "network": network, "method": name, "gpus": count}
        | {"speedup": count * (0.95 - 0.1 * place) * (1 - 0.2 * rank)}
        for rank, (model, batch) in enumerate(BATCHES.items())
        for network in CLUSTERS
        for count in gpus
        for place, name in enumerate(METHODS)
    ]
    frame = pd.DataFrame(lines).assign(source="simulated", machine="twin", chance_best=math.nan)
    rate = 100 * frame["speedup"]
    return frame.assign(**{RATE: rate, "low": 0.9 * rate, "high": 1.1 * rate})


def cells(factor: float = 1.05) -> pd.DataFrame:
    found = forecasts((4, 8))[[*KEY, RATE]].astype({"gpus": float})
    found[RATE] *= factor
    return found.assign(std=math.nan, source="published")
