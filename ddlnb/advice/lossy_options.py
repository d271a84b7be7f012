"""Options that compute something else: compression and local steps, with the iterations they need.

How many iterations such a method needs on your model nobody knows before training. What is known is
how many it needed on digits, against BSP, with learning rates tuned for each
(data/measured/2026-11-21_digits_orderings).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ddlnb.advice.question import Question
from ddlnb.errors import InputError
from ddlnb.paths import DATA
from ddlnb.results.statistics import Interval, ratio_interval
from ddlnb.simulator.draws import draw_clusters
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.cost.iteration import IterationCost
from ddlnb.training.cost.time_to_target import DENSE, iterations_to_target
from ddlnb.training.method import training_method

if TYPE_CHECKING:
    import pandas as pd

CURVES = DATA / "measured" / "2026-11-21_digits_orderings" / "curves.csv"
TASK = "digits"
TARGET = 0.2  # a test loss that BSP reaches after a fifth of the steps of the curves
LOSSY = (
    "bsp + powersgd(4) + feedback",
    "bsp + top-k(0.01) + feedback",
    "bsp + qsgd(127)",
    "local(4)",
)


@dataclass(frozen=True)
class LossyOption:
    """A lossy method, what one of its iterations costs, and how many it needed on digits.

    ``seconds`` is a 90 % interval of an iteration in so many ``draws``, without ends if in none.
    ``iterations`` is the number over that of BSP, at ``workers`` workers.
    """

    name: str
    cost: IterationCost
    seconds: Interval
    draws: int
    iterations: Interval
    workers: int


def lossy_options(
    question: Question, methods: Sequence[str] = LOSSY, *, draws: int = 0, seed: int = 0
) -> tuple[list[LossyOption], list[str]]:
    """Return the lossy methods that the workload and the cluster can take, and why not the others.

    Compression is free of cost, which is a bound. A method is left out that needs what is not
    known, such as the shapes of tensors; its reason begins with its name. Intervals are those of
    methods whose messages overlap the backward pass; others are played by their own loop, which
    takes too long to be drawn often.
    """
    errors = np.random.default_rng([seed, draws]).standard_normal(draws)
    found, left_out = [], []
    for name in methods if question.cluster.workers > 1 else ():
        try:
            cost = iteration_cost(question.workload, question.cluster, name)
        except InputError as error:  # unknown shapes, gradients in half precision
            left_out.append(f"{name}, as {error}")
            continue
        overlaps = training_method(name).overlaps
        drawn = [
            iteration_cost(question.workload, cluster, name).iteration_seconds
            * math.exp(question.cluster.model_error * error)
            for cluster, error in zip(
                draw_clusters(question.cluster, draws, seed) if overlaps else (),
                errors,
                strict=False,
            )
        ]
        low, high = np.quantile(drawn, (0.05, 0.95)) if drawn else (math.nan, math.nan)
        ratio, workers = measured_iterations(name, question.cluster.workers)
        seconds = Interval(cost.iteration_seconds, float(low), float(high))
        found.append(LossyOption(name, cost, seconds, len(drawn), ratio, workers))
    return found, left_out


def measured_iterations(method: str, workers: int) -> tuple[Interval, int]:
    """Return the iterations of a method over those of BSP on digits, and at how many workers.

    That number of measured workers is the nearest one. The interval is of 95 % over seeds; the
    estimate is infinite where a run never reached the target, and NaN for a method that was not
    measured.
    """
    needed = _needed()
    measured = sorted(set(needed["workers"]))
    nearest = min(measured, key=lambda count: abs(math.log(count / workers)))
    at = needed[needed["workers"] == nearest]
    brackets = {
        name: rows.sort_values("seed")[["since", "iterations"]].to_numpy()
        for name, rows in at.groupby("method")
    }
    name = str(training_method(method))
    if name not in brackets:
        return Interval(math.nan), nearest
    if not np.isfinite(brackets[name]).all():
        return Interval(math.inf), nearest
    return ratio_interval(brackets[name], brackets[DENSE]), nearest


@cache
def _needed() -> pd.DataFrame:
    import pandas as pd

    return iterations_to_target(pd.read_csv(CURVES), TARGET)
