"""Large batches at equal epochs: what they cost in accuracy, and what layer-wise rates bring back.

All recipes see the same number of samples, so a batch k times as large takes 1/k of the steps. The
batch grows on the same workers, which also makes communication rarer; to grow it by more workers
is the same average, and `by_division` shows that it learns the same. SGD has the momentum that LARS
has, or the comparison would be one of momentum. Source: survey of Shi et al. 2020, section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlnb.errors import UnknownName, require, require_whole
from ddlnb.results.statistics import t_interval
from ddlnb.studies.time_to_target import digits_workload
from ddlnb.training.optimizers import default_rate
from ddlnb.training.runs.by_cell import final_losses, runs_by
from ddlnb.training.runs.kept_runs import Run
from ddlnb.training.runs.orderings import paired_verdict
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.runs.tuning import tuned_rate
from ddlnb.training.schedules import LinearScaling, get_schedule
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask
from ddlnb.workloads.intensity import c2c, intensity

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


SCALINGS = ("same", "linear", "tuned")
WARM_UP_SHARE = 0.2  # of the steps
BATCHES = (64, 256, 1024)
METHOD = "bsp"


@dataclass(frozen=True)
class Recipe:
    """How the learning rate follows the batch.

    ``scaling`` same keeps the rate that was tuned at the smallest batch, linear multiplies it by
    the ratio of batches (Goyal et al. 2017), tuned looks for one at every batch. A warm-up is
    linear over the first fifth of the steps, from one k-th of the rate with linear scaling, else
    from zero.
    """

    name: str
    optimizer: str
    scaling: str
    warm_up: bool = False

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise UnknownName("scaling", self.scaling, SCALINGS)

    def schedule(self, times: float, steps: int) -> str:
        """The text of the schedule at a batch ``times`` as large, over so many steps."""
        over = max(1, round(WARM_UP_SHARE * steps))
        if not self.warm_up:
            return "constant"
        linear = self.scaling == "linear"
        return f"linear-scaling({times!r}, {over})" if linear else f"warm-up({over})"


SAME = Recipe("SGD, same rate", "momentum", "same")
LINEAR = Recipe("SGD, linear scaling", "momentum", "linear")
WARM = Recipe("SGD, linear scaling, warm-up", "momentum", "linear", warm_up=True)
TUNED = Recipe("SGD, tuned, warm-up", "momentum", "tuned", warm_up=True)
LARS = Recipe("LARS, tuned, warm-up", "lars", "tuned", warm_up=True)
LAMB = Recipe("LAMB, tuned, warm-up", "lamb", "tuned", warm_up=True)
RECIPES = (SAME, LINEAR, WARM, TUNED, LARS, LAMB)


@dataclass(frozen=True, eq=False)
class LargeBatches:
    """``curves``: those of `train`, with ``recipe``, ``batch`` (global) and ``epochs``.

    ``tuning``: one row per rate tried, with the recipe and the batch that it was tried for.
    """

    curves: pd.DataFrame
    tuning: pd.DataFrame


def steps_for(task: LearningTask, epochs: float, batch: int) -> int:
    """Steps in which so many epochs go by, rounded, with a global batch of this size."""
    require(epochs > 0, f"epochs {epochs!r} must be above 0")
    return max(1, round(epochs * len(task.samples().labels) / batch))


def large_batches(
    batches: Sequence[int] = BATCHES,
    *,
    epochs: float = 10,
    workers: int = 4,
    seeds: int = 5,
    task: str | LearningTask = "digits",
    recipes: Sequence[Recipe] = RECIPES,
    jobs: int | None = None,
    progress: bool = False,
) -> LargeBatches:
    """Every recipe at every global batch, over the seeds, at equal epochs.

    Rates are tuned as by `study` (`ddlnb.training.runs.tuning`). Raises InputError for batches that do
    not rise or that the workers cannot share equally.
    """
    import pandas as pd

    task, batches = get_learning_task(task), list(batches)
    require_whole(workers=workers, seeds=seeds)
    require(
        len(batches) > 1 and batches == sorted(set(batches)),
        f"batches {batches} must be at least two, rising",
    )
    shared = [batch for batch in batches if batch < 1 or batch % workers]
    require(not shared, f"{workers} workers cannot share batches {shared} equally; take multiples")
    require(bool(recipes), "there are no recipes to compare")

    def run_of(recipe: Recipe, batch: int) -> Run:
        steps = steps_for(task, epochs, batch)
        return Run(
            task,
            METHOD,
            workers,
            steps,
            default_rate(task, recipe.optimizer),
            0,
            local_batch=batch // workers,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule(batch / batches[0], steps),
            evaluate_every=steps,
        )

    cells = [(recipe, batch) for recipe in recipes for batch in batches]
    places = {cell: _tuned_at(*cell, batches[0]) for cell in cells}
    searches = {place: run_of(*place) for place in places.values()}
    found = in_parallel(tuned_rate, [(run,) for run in searches.values()], jobs, progress, "tuning")
    rates = dict(zip(searches, (rate for rate, _ in found), strict=True))
    runs = []
    for (recipe, batch), place in places.items():
        # A schedule that rises to the scaled rate brings the factor itself.
        times = batch / batches[0] if recipe.scaling == "linear" and not recipe.warm_up else 1.0
        rate = times * rates[place]
        runs += [replace(run_of(recipe, batch), lr=rate, seed=seed) for seed in range(seeds)]
    curves = in_parallel(Run.curve, [(run,) for run in runs], jobs, progress)
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


def _tuned_at(recipe: Recipe, batch: int, smallest: int) -> tuple[Recipe, int]:
    """Where the rate of a recipe is looked for: there, or once for all at the smallest batch."""
    if recipe.scaling == "tuned":
        return recipe, batch
    return Recipe("at the smallest batch", recipe.optimizer, "tuned"), smallest


def quality(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per recipe and batch, over its seeds, at the end.

    Columns: steps, learning_rate (the largest that is reached), seeds, diverged, and test_loss and
    test_accuracy with the half widths of 95 % t-intervals. A run that diverged has an
    infinite loss and the accuracy that it had then.
    """
    import pandas as pd

    rows = []
    for (recipe, batch), part in curves.groupby(["recipe", "batch"], sort=False):
        last = ends(part)
        row: dict[str, Any] = {
            "recipe": recipe,
            "batch": batch,
            "steps": int(part["step"].max()),
            "learning_rate": float(last["learning_rate"].iloc[0]) * _top(last["schedule"].iloc[0]),
            "seeds": len(last),
            "diverged": int(last["diverged"].sum()),
        }
        for measure in ("test_loss", "test_accuracy"):
            mean, half = t_interval(last[measure].to_numpy(dtype=float))
            row |= {measure: mean, f"{measure}_half_width": half}
        rows.append(row)
    return pd.DataFrame(rows).assign(source="measured in lockstep")


def by_division(
    batch: int,
    counts: Sequence[int],
    lr: float,
    *,
    epochs: float = 10,
    seeds: int = 5,
    task: str | LearningTask = "digits",
    jobs: int | None = None,
) -> pd.DataFrame:
    """The same global batch from different numbers of workers: `quality`, indexed by workers.

    Of SGD with this rate and warm-up. Raises InputError if workers cannot share it equally.
    """
    import pandas as pd

    task = get_learning_task(task)
    steps = steps_for(task, epochs, batch)
    rough = [count for count in counts if batch % count]
    require(not rough, f"{rough} workers cannot share a batch of {batch} equally")
    schedule = TUNED.schedule(1.0, steps)
    runs = [
        Run(
            task,
            METHOD,
            count,
            steps,
            lr,
            seed,
            local_batch=batch // count,
            optimizer="momentum",
            schedule=schedule,
            evaluate_every=steps,
        )
        for count in counts
        for seed in range(seeds)
    ]
    curves = in_parallel(Run.curve, [(run,) for run in runs], jobs)
    parts = [
        curve.assign(recipe=f"{run.workers} x {run.local_batch}", batch=batch)
        for run, curve in zip(runs, curves, strict=True)
    ]
    found = quality(pd.concat(parts)).rename(columns={"recipe": "workers x local batch"})
    return found.set_index("workers x local batch")


def communication(batches: Sequence[int], *, epochs: float, workers: int) -> pd.DataFrame:
    """One row per global batch on so many workers: the C2C ratio, and the traffic, of digits.

    ``c2c`` is f(n) / (local batch x I), with f(n) = 2 (n - 1) / n of a ring and the intensity I of
    the model that is trained, in FLOPs per parameter and sample with FMA = 1; ``megabytes`` is what
    a worker sends in all the epochs. Source: survey, section 2, and claim A57 of section 4.2.1.
    """
    import pandas as pd

    task, workload = get_learning_task("digits"), digits_workload(iterations=1)
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


def ends(runs: pd.DataFrame) -> pd.DataFrame:
    """The last row of every seed of one recipe and batch, with an infinite loss if it diverged."""
    import pandas as pd

    [found] = runs_by(runs, "recipe", "batch").values()
    last = pd.concat([run.tail(1) for run in found.values()])
    return last.assign(test_loss=final_losses(found))


def _top(schedule: str) -> float:
    """The largest factor of a schedule."""
    chosen = get_schedule(schedule)
    return chosen.times if isinstance(chosen, LinearScaling) else 1.0


# What is expected of large batches, and whether it holds on curves of `large_batches`.
_EXPECTED = (
    ("a larger batch at the same rate loses", SAME, SAME, True, "survey 3.1.1, A20"),
    ("linear scaling gives part of it back", LINEAR, SAME, False, "Goyal et al. 2017 [k]"),
    ("linear scaling still loses", WARM, WARM, True, "survey 3.1.1, A20"),
    ("warm-up helps linear scaling", WARM, LINEAR, False, "Goyal et al. 2017 [k]"),
    ("SGD loses even with a rate tuned there", TUNED, TUNED, True, "survey 3.1.1, A20"),
    ("LARS recovers part of what linear scaling lost", LARS, WARM, False, "survey 3.1.1, A20"),
    ("LARS is better than SGD tuned as well", LARS, TUNED, False, "survey 3.1.1, A20"),
    ("LAMB is better than SGD tuned as well", LAMB, TUNED, False, "You et al. 2020 [k]"),
)


def verdicts(curves: pd.DataFrame, measure: str = "test_accuracy") -> pd.DataFrame:
    """One row per expectation about the largest batch: does it hold, by pairs of equal seeds?

    ``measure`` is test_accuracy or test_loss; ``difference`` is how much better the better side is,
    in units of the measure, with the half width of its 95 % t-interval. A side is a recipe and a
    batch; to lose is to be worse than itself at the smallest batch. A run that diverged counts as
    infinitely bad in loss, and with the accuracy that it had then. Raises UnknownName.
    """
    import pandas as pd

    if measure not in ("test_accuracy", "test_loss"):
        raise UnknownName("measure", measure, ("test_accuracy", "test_loss"))
    smallest, largest = int(curves["batch"].min()), int(curves["batch"].max())
    sign = -1.0 if measure == "test_accuracy" else 1.0
    rows = []
    for said, one, other, loses, source in _EXPECTED:
        sides = [(one.name, smallest if loses else largest), (other.name, largest)]
        if not all(((curves["recipe"] == r) & (curves["batch"] == b)).any() for r, b in sides):
            continue
        better, worse = (sign * _by_seed(curves, *side, measure) for side in sides)
        rows.append(
            {
                "expected": said,
                "better": "{}, {}".format(*sides[0]),
                "worse": "{}, {}".format(*sides[1]),
                "measure": measure,
                **paired_verdict(better, worse),
                "source": source,
            }
        )
    require(bool(rows), "the curves have no two recipes that something is expected of")
    return pd.DataFrame(rows)


def recovered(curves: pd.DataFrame) -> pd.Series:
    """The share of the accuracy that linear scaling lost which others have, by recipe, of means.

    The loss is that of linear scaling with warm-up, from the smallest batch to the largest; 0 is as
    bad, 1 all of it back. NaN where nothing was lost. Raises InputError without that recipe.
    """
    import pandas as pd

    smallest, largest = int(curves["batch"].min()), int(curves["batch"].max())
    require(bool((curves["recipe"] == WARM.name).any()), f"the curves have no {WARM.name!r}")
    start, end = (
        _by_seed(curves, WARM.name, batch, "test_accuracy").mean() for batch in (smallest, largest)
    )
    names = [name for name in dict.fromkeys(curves["recipe"]) if name != WARM.name]
    means = [_by_seed(curves, name, largest, "test_accuracy").mean() for name in names]
    shares = [(mean - end) / (start - end) if start > end else float("nan") for mean in means]
    return pd.Series(shares, index=names, name=f"recovered at batch {largest}")


def _by_seed(curves: pd.DataFrame, recipe: str, batch: int, measure: str) -> np.ndarray:
    last = ends(curves[(curves["recipe"] == recipe) & (curves["batch"] == batch)])
    return last[measure].to_numpy(dtype=float)
