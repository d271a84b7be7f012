"""How large the entries of gradients are: histograms of methods, and how alike they are.

Section 5.2 of the survey asks whether gradients under relaxed synchronisation are distributed as
under BSP, for which compressors were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddlnb.errors import InputError, require, require_whole
from ddlnb.plans.requests import Flow
from ddlnb.studies.findings import Findings, findings
from ddlnb.studies.sec5_2_relaxed_compression.equal_bytes import STRAGGLERS, SYNCHRONISATIONS
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.loop import NextGradient
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import Worker

if TYPE_CHECKING:
    import pandas as pd

DECADES, PER_DECADE = 8, 4
BINS = DECADES * PER_DECADE
LARGEST = 2.0  # decades above the root mean square at which histograms end
RAW, SCALED = "raw", "scaled"
See = Callable[[Worker, Tensor], None]


def gradient_sizes(
    task: str | LearningTask,
    methods: Sequence[str | TrainingMethod],
    *,
    workers: int = 8,
    steps: int = 100,
    last: int = 20,
    seeds: int = 3,
    clock: Clock | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Return rows of method, seed, measure, bin (log10, the middle) and share of the entries.

    The gradients are those that workers compute in their ``last`` steps, before they are used.
    Measure "raw" is log10 |entry|, "scaled" the same in units of the root mean square of its
    gradient, so that only the shape counts. Entries below the least bin, zeros too, count in it,
    larger ones than the largest in that one. ``settings`` are those of `train`. Raises InputError.
    """
    import pandas as pd

    require_whole(steps=steps, last=last, seeds=seeds)
    require(last <= steps, f"last {last} steps must be at most all {steps}")
    parts = [
        _histograms(training_method(method), seed, task, workers, steps, last, clock, settings)
        for method in methods
        for seed in range(seeds)
    ]
    require(bool(parts), "there are no methods to run")
    return pd.concat(parts, ignore_index=True).assign(source="lockstep")


def watched(loop: Callable[[Worker], Flow], see: See, worker: Worker) -> Flow:
    """Run the loop of a worker, calling ``see(worker, gradient)`` with every gradient it gets."""
    flow, answer = loop(worker), None
    while True:
        request = flow.send(answer)
        answer = yield request
        if isinstance(request, NextGradient):
            see(worker, answer)


class _Counts:
    def __init__(self, after: int):
        self.after = after
        self.raw, self.scaled = torch.zeros(BINS), torch.zeros(BINS)

    def __call__(self, worker: Worker, gradient: Tensor) -> None:
        if worker.step <= self.after:
            return
        scale = float(gradient.square().mean().sqrt())
        require(scale > 0, "a gradient is zero throughout, so that its entries have no sizes")
        self.raw += _counted(gradient)
        self.scaled += _counted(gradient / scale)


def _counted(values: Tensor) -> Tensor:
    least = LARGEST - DECADES
    sizes = values.abs().clamp(10**least, 10**LARGEST).log10()
    return torch.histc(sizes, BINS, least, LARGEST)


def _histograms(
    method: TrainingMethod,
    seed: int,
    task: str | LearningTask,
    workers: int,
    steps: int,
    last: int,
    clock: Clock | None,
    settings: dict[str, Any],
) -> pd.DataFrame:
    import pandas as pd

    job = training_settings(task, method, workers=workers, steps=steps, seed=seed, **settings).job()
    team = [job.worker(rank) for rank in range(workers)]
    counts = _Counts(steps - last)
    loop = partial(watched, method.synchronisation.loop, counts)
    Lockstep(team, loop, steps, rule=job.rule(), clock=clock).run()
    middles = LARGEST - DECADES + (np.arange(BINS) + 0.5) / PER_DECADE
    return pd.concat(
        pd.DataFrame(
            {
                "method": str(method),
                "seed": seed,
                "measure": measure,
                "bin": middles,
                "share": (counted / counted.sum()).numpy(),
            }
        )
        for measure, counted in ((RAW, counts.raw), (SCALED, counts.scaled))
    )


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the common area of two histograms of shares: 1 if equal, 0 if nothing is shared.

    >>> overlap(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5]))
    0.5
    """
    return float(np.minimum(one, other).sum())


def similarity(sizes: pd.DataFrame, base: str = "bsp") -> pd.DataFrame:
    """Return a row per measure and method: how much of its histogram is common with the base's.

    ``overlap`` is the mean over all pairs of runs of different seeds, ``base_overlap`` that of the
    base with itself, and ``base_least`` its least. ``alike`` if the mean overlap is no less than
    that least one: the method then differs from the base no more than two runs of the base do.
    Raises InputError for fewer than two seeds, and if the base is missing.
    """
    import pandas as pd

    name = str(training_method(base))
    rows = []
    for measure, part in sizes.groupby("measure", sort=False):
        shares = {
            str(method): {
                seed: run.sort_values("bin")["share"].to_numpy()
                for seed, run in runs.groupby("seed")
            }
            for method, runs in part.groupby("method", sort=False)
        }
        if name not in shares or len(shares[name]) < 2:
            raise InputError(f"histograms hold fewer than two runs of {name!r}; add seeds")
        own = _overlaps(shares[name], shares[name])
        for method, runs in shares.items():
            common = own if method == name else _overlaps(runs, shares[name])
            rows.append(
                {
                    "measure": measure,
                    "method": method,
                    "overlap": float(np.mean(common)),
                    "least": float(np.min(common)),
                    "base_overlap": float(np.mean(own)),
                    "base_least": float(np.min(own)),
                    "alike": bool(np.mean(common) >= np.min(own)),
                }
            )
    return pd.DataFrame(rows)


def _overlaps(some: dict[int, np.ndarray], others: dict[int, np.ndarray]) -> list[float]:
    return [
        overlap(some[one], others[other])
        for one, other in product(some, others)
        if one != other  # of one seed they would share batches and the first model
    ]


def train_watched(*, workers: int, seeds: int, steps: int) -> pd.DataFrame:
    """Train digits with every synchronisation, dense, and return the sizes of its gradients."""
    return gradient_sizes(
        "digits", SYNCHRONISATIONS, workers=workers, steps=steps, seeds=seeds, clock=STRAGGLERS
    )


def similarity_table(alike: pd.DataFrame) -> pd.DataFrame:
    """Return `similarity` to read, by measure and method."""
    import pandas as pd

    table = alike.set_index(["measure", "method"])
    return pd.DataFrame(
        {
            "in common with BSP": table["overlap"].round(3),
            "two runs of BSP": table["base_overlap"].round(3),
            "least of two runs of BSP": table["base_least"].round(3),
            "alike": table["alike"].map({True: "yes", False: "no"}),
        }
    )


def similarity_findings(alike: pd.DataFrame) -> Findings:
    """Return which gradients are distributed as those of BSP, by the rule of `similarity`."""
    names = {RAW: "size", SCALED: "shape"}
    others = alike[alike["overlap"] != alike["base_overlap"]]
    return findings(
        *(
            f"By {names[row['measure']]}, gradients of {row['method']} are "
            f"{'alike' if row['alike'] else 'unlike'} those of BSP: {row['overlap']:.1%} in "
            f"common, where two runs of BSP have {row['base_overlap']:.1%}, "
            f"{row['base_least']:.1%} at least."
            for row in others.to_dict("records")
        )
    )
