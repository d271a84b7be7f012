"""Training with large batches at equal epochs.

All recipes see the same number of samples, so a batch k times as large takes 1/k of the steps. The
batch grows on the same workers, which also makes communication rarer. Growing it by more workers
gives the same average; `by_division` shows that it learns the same. SGD has the momentum of LARS,
so that the comparison is not one of momentum. Source: survey, section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ddlnb.errors import require, require_whole
from ddlnb.studies.sec3_1_1_large_batch.quality import quality
from ddlnb.studies.sec3_1_1_large_batch.recipes import RECIPES, TUNED, Recipe, tuned_at
from ddlnb.studies.time_to_target import digits_workload
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.train import run
from ddlnb.training.runs.tuning import tuned_rate
from ddlnb.training.settings import TrainingSettings, training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask
from ddlnb.workloads.intensity import c2c, intensity

BATCHES = (64, 256, 1024)
TASK, METHOD = "digits", "bsp"


@dataclass(frozen=True, eq=False)
class LargeBatches:
    """The runs of a study of large batches.

    ``curves`` are those of `train`, with the columns ``recipe``, ``batch`` (global) and ``epochs``;
    ``tuning`` has one row per rate tried, with the recipe and the batch that it was tried for.
    """

    curves: pd.DataFrame
    tuning: pd.DataFrame


def steps_for(task: LearningTask, epochs: float, batch: int) -> int:
    """Return the rounded number of steps that the epochs take with a global batch of this size."""
    require(epochs > 0, f"epochs {epochs!r} must be above 0")
    return max(1, round(epochs * len(task.samples().labels) / batch))


def large_batches(
    batches: Sequence[int] = BATCHES,
    *,
    epochs: float = 10,
    workers: int = 4,
    seeds: int = 5,
    recipes: Sequence[Recipe] = RECIPES,
    jobs: int | None = None,
) -> LargeBatches:
    """Train by every recipe at every global batch and with every seed, at equal epochs.

    Rates are tuned by the rule of `ddlnb.training.runs.tuning`. Raises InputError for batches that
    do not rise or that the workers cannot share equally.
    """
    task, batches = get_learning_task(TASK), list(batches)
    require_whole(workers=workers, seeds=seeds)
    require(
        len(batches) > 1 and batches == sorted(set(batches)),
        f"batches {batches} must be at least two, rising",
    )
    shared = [batch for batch in batches if batch < 1 or batch % workers]
    require(not shared, f"{workers} workers cannot share batches {shared} equally; take multiples")
    require(bool(recipes), "recipes is empty; give at least one recipe")

    def run_of(recipe: Recipe, batch: int) -> TrainingSettings:
        steps = steps_for(task, epochs, batch)
        return training_settings(
            task,
            METHOD,
            workers=workers,
            steps=steps,
            local_batch=batch // workers,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule(batch / batches[0], steps),
            evaluate_every=steps,
        )

    cells = [(recipe, batch) for recipe in recipes for batch in batches]
    tuned_for = {cell: tuned_at(*cell, batches[0]) for cell in cells}
    searches = {sought: run_of(*sought) for sought in tuned_for.values()}
    found = in_parallel(tuned_rate, [(one,) for one in searches.values()], jobs)
    rates = dict(zip(searches, (rate for rate, _ in found), strict=True))
    runs = []
    for (recipe, batch), sought in tuned_for.items():
        # With a warm-up the schedule itself rises by the factor.
        times = batch / batches[0] if recipe.scaling == "linear" and not recipe.warm_up else 1.0
        rate = times * rates[sought]
        runs += [replace(run_of(recipe, batch), lr=rate, seed=seed) for seed in range(seeds)]
    different = list(dict.fromkeys(runs))  # rules of the rate agree at the smallest batch
    made = dict(zip(different, in_parallel(run, [(one,) for one in different], jobs), strict=True))
    curves = [made[one] for one in runs]
    named = [cell for cell in cells for _ in range(seeds)]
    return LargeBatches(
        pd.concat(
            [
                curve.assign(recipe=recipe.name, batch=batch, epochs=epochs)
                for (recipe, batch), curve in zip(named, curves, strict=True)
            ],
            ignore_index=True,
        ),
        pd.concat(
            [
                frame.assign(recipe=recipe.name, batch=batch)
                for (recipe, batch), (_, frame) in zip(searches, found, strict=True)
            ],
            ignore_index=True,
        ),
    )


def by_division(
    batch: int,
    counts: Sequence[int],
    lr: float,
    *,
    epochs: float = 10,
    seeds: int = 5,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return the `quality` of one global batch that different numbers of workers share.

    They train by SGD at this rate with warm-up. Raises InputError if they cannot share it equally.
    """
    task = get_learning_task(TASK)
    steps = steps_for(task, epochs, batch)
    rough = [count for count in counts if batch % count]
    require(not rough, f"{rough} workers cannot share a batch of {batch} equally")
    schedule = TUNED.schedule(1.0, steps)
    runs = [
        training_settings(
            task,
            METHOD,
            workers=count,
            steps=steps,
            lr=lr,
            seed=seed,
            local_batch=batch // count,
            optimizer="momentum",
            schedule=schedule,
            evaluate_every=steps,
        )
        for count in counts
        for seed in range(seeds)
    ]
    curves = in_parallel(run, [(one,) for one in runs], jobs)
    parts = [
        curve.assign(recipe=f"{one.workers} x {one.local_batch}", batch=batch)
        for one, curve in zip(runs, curves, strict=True)
    ]
    found = quality(pd.concat(parts)).rename(columns={"recipe": "workers x local batch"})
    return found.set_index("workers x local batch")


def communication(batches: Sequence[int], *, epochs: float, workers: int) -> pd.DataFrame:
    """Return the C2C ratio and the traffic of the digits task, one row per global batch.

    ``c2c`` is f(n) / (local batch x I), with f(n) = 2 (n - 1) / n of a ring and the intensity I of
    the model that is trained, in FLOPs per parameter and sample with FMA = 1; ``megabytes`` is what
    a worker sends in all the epochs. Source: survey, section 2, and claim A57 of section 4.2.1.
    """
    task, workload = get_learning_task(TASK), digits_workload(iterations=1)
    ring = 2 * (workers - 1) / workers
    rows = []
    for batch in batches:
        steps = steps_for(task, epochs, batch)
        rows.append(
            {
                "batch": batch,
                "local_batch": batch // workers,
                "steps": steps,
                "c2c": c2c(intensity(workload), batch // workers, ring),
                "megabytes": steps * ring * workload.gradient_bytes / 1e6,
            }
        )
    return pd.DataFrame(rows).assign(source="computed").set_index("batch")


def communication_table(batches: Sequence[int], *, epochs: float, workers: int) -> pd.DataFrame:
    """Return `communication` with units in its headers, rounded."""
    headers = {"local_batch": "local batch", "c2c": "C2C", "megabytes": "sent per worker (MB)"}
    table = communication(batches, epochs=epochs, workers=workers).round(4)
    return table.rename(columns=headers)
