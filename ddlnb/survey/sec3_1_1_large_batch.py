"""Large batches: what they cost in accuracy, and what layer-wise rates bring back (3.1.1).

All recipes see the same number of samples, so a batch k times as large takes 1/k of the steps. The
batch grows on the same workers, which also makes communication rarer. Growing it by more workers
gives the same average; `by_division` shows that it learns the same. SGD has the momentum of LARS,
so that the comparison is not one of momentum. Source: survey, section 3.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ddlnb.calibration.statistics import Verdict, mean_interval, paired_comparison
from ddlnb.errors import require, require_known, require_whole
from ddlnb.figures.style import (
    PALETTE,
    bars_of,
    doubling_axis,
    legend,
    over_seeds,
    say_source,
    styled,
)
from ddlnb.files import DATA, require_writable, write_atomically
from ddlnb.results.schema import read_frame
from ddlnb.survey.items import Findings, Rows, findings, item_verdict, tabled, with_half_widths
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.survey.time_to_target import digits_workload
from ddlnb.training.optimizers import LinearScaling, get_optimizer as get_optimizer, get_schedule
from ddlnb.training.runs.compare import tuned
from ddlnb.training.runs.runner import Runner, in_parallel
from ddlnb.training.runs.summaries import final_losses, runs_by
from ddlnb.training.runs.train import run
from ddlnb.training.settings import TrainingSettings, training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.tasks.task import LearningTask
from ddlnb.workloads.workload import c2c, intensity

SCALINGS = ("same", "linear", "tuned")
WARM_UP_SHARE = 0.2  # Share of the steps in which the learning rate rises.


@dataclass(frozen=True)
class Recipe:
    """A rule for how the learning rate follows the batch.

    ``scaling`` "same" keeps the rate that was tuned at the smallest batch, "linear" multiplies it
    by the ratio of the batches (Goyal et al. 2017), "tuned" tunes one at every batch. A warm-up
    is linear over WARM_UP_SHARE of the steps, and starts from the unscaled rate with linear
    scaling, else from zero.
    """

    name: str
    optimizer: str
    scaling: str
    warm_up: bool = False

    def __post_init__(self) -> None:
        require_known("scaling", self.scaling, SCALINGS)

    def schedule(self, times: float, steps: int) -> str:
        """Return the schedule, as text, for a batch ``times`` as large and this number of steps."""
        over = max(1, round(WARM_UP_SHARE * steps))
        linear = self.scaling == "linear"
        if not self.warm_up or (linear and times == 1):
            return "constant"
        return f"linear-scaling({times!r}, {over})" if linear else f"warm-up({over})"


SAME = Recipe("SGD, same rate", "momentum", "same")
LINEAR = Recipe("SGD, linear scaling", "momentum", "linear")
WARM = Recipe("SGD, linear scaling, warm-up", "momentum", "linear", warm_up=True)
TUNED = Recipe("SGD, tuned, warm-up", "momentum", "tuned", warm_up=True)
LARS = Recipe("LARS, tuned, warm-up", "lars", "tuned", warm_up=True)
LAMB = Recipe("LAMB, tuned, warm-up", "lamb", "tuned", warm_up=True)
RECIPES = (SAME, LINEAR, WARM, TUNED, LARS, LAMB)


def tuned_at(recipe: Recipe, batch: int, smallest: int) -> tuple[Recipe, int]:
    """Return the recipe and batch to tune for this cell; untuned recipes share the smallest one."""
    if recipe.scaling == "tuned":
        return recipe, batch
    return Recipe("at the smallest batch", recipe.optimizer, "tuned"), smallest


@tabled(source="measured in lockstep")
def quality(curves: pd.DataFrame) -> Rows:
    """Return one row per recipe and batch, over its seeds, at the end of training.

    Columns: steps, learning_rate (the largest that is reached), seeds, diverged, and test_loss and
    test_accuracy with the half widths of 95 % t-intervals. A run that diverged has an infinite loss
    and an accuracy of 0.
    """
    for (recipe, batch), last in ends(curves).groupby(["recipe", "batch"], sort=False):
        row: dict[str, Any] = {
            "recipe": recipe,
            "batch": batch,
            "steps": int(last["step"].max()),
            "learning_rate": float(last["learning_rate"].iloc[0]) * _top(last["schedule"].iloc[0]),
            "seeds": len(last),
            "diverged": int(last["diverged"].sum()),
        }
        for measure in reversed(MEASURES):
            found = mean_interval(last[measure].to_numpy(dtype=float))
            row |= {measure: found.estimate, f"{measure}_half_width": found.half_width}
        yield row


def quality_table(found: pd.DataFrame) -> pd.DataFrame:
    """Return `quality` by recipe and batch, each measure with its interval, to be read."""
    table = found.set_index(["recipe", "batch"]) if "recipe" in found else found
    shown = table[["steps", "learning_rate", "seeds", "diverged"]].round(4)
    named = shown.rename(columns={"learning_rate": "learning rate"})
    return named.join(with_half_widths(table, *reversed(MEASURES)))


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of every run, by recipe and batch; runs in the order of their seeds.

    What diverged has learnt nothing: its loss is infinite and its accuracy 0.
    """
    cells = runs_by(curves, "recipe", "batch").values()
    found = pd.concat(
        [
            pd.concat([run.tail(1) for run in cell.values()]).assign(test_loss=final_losses(cell))
            for cell in cells
        ],
        ignore_index=True,
    )
    is_number = np.isfinite(found["test_loss"])
    return found.assign(test_accuracy=found["test_accuracy"].where(is_number, 0.0))


def _top(schedule: str) -> float:
    """Return the largest factor of a schedule."""
    chosen = get_schedule(schedule)
    return chosen.times if isinstance(chosen, LinearScaling) else 1.0


BATCHES = (64, 256, 1024)
TASK, METHOD = "digits", "bsp"
MEASURES = ("test_accuracy", "test_loss")


@dataclass(frozen=True, eq=False)
class LargeBatches:
    """The runs of a study of large batches.

    ``curves`` are those of `train`, with the columns ``recipe``, ``batch`` (global) and ``epochs``;
    ``tuning`` has one row per rate tried, with the recipe and the batch that it was tried for.
    """

    curves: pd.DataFrame
    tuning: pd.DataFrame


def kept_large_batches(folder: Path = DATA / "measured") -> LargeBatches:
    """Return the newest study that is kept. Raises InputError if there is none."""
    kept = sorted(folder.glob("*large-batches*"))
    require(bool(kept), f"{folder} has no folder *large-batches*; run from a checkout")
    tables = (
        read_frame(kept[-1] / name, "task", "recipe") for name in ("curves.csv", "tuning.csv")
    )
    return LargeBatches(*tables)


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
    task: str = TASK,
    recipes: Sequence[Recipe] = RECIPES,
    jobs: int | None = None,
    folder: str | Path | None = None,
) -> LargeBatches:
    """Train by every recipe at every global batch and with every seed, at equal epochs.

    Rates are tuned by the rule of `ddlnb.training.runs.compare`. ``task`` is the name of one of
    `ddlnb train --list`. Finished runs are kept in ``folder``, where the same call goes on after an
    interruption, and which has both tables of the result in the end, as curves.csv and tuning.csv.
    Raises UnknownName, and InputError for batches that do not rise or that the workers cannot
    share equally.
    """
    batches = list(batches)
    require_whole(workers=workers, seeds=seeds)
    require(
        len(batches) > 1 and batches == sorted(set(batches)),
        f"batches {batches} must be at least two, rising",
    )
    shared = [batch for batch in batches if batch < 1 or batch % workers]
    require(not shared, f"{workers} workers cannot share batches {shared} equally; take multiples")
    require(bool(recipes), "recipes is empty; give at least one recipe")

    cells = [(recipe, batch) for recipe in recipes for batch in batches]
    tuned_for = {cell: tuned_at(*cell, batches[0]) for cell in cells}
    searches = {
        (recipe, batch): _settings(recipe, batch, batch / batches[0], workers, epochs, task)
        for recipe, batch in tuned_for.values()
    }
    if folder is not None:
        require_writable(folder)
    runner = Runner(None if folder is None else Path(folder), jobs)
    found = dict(zip(searches, tuned(list(searches.values()), runner), strict=True))
    runs = []
    for (recipe, batch), sought in tuned_for.items():
        grown = batch / batches[0]
        # With a warm-up the schedule itself rises by the factor.
        times = grown if recipe.scaling == "linear" and not recipe.warm_up else 1.0
        settings = _settings(recipe, batch, grown, workers, epochs, task)
        own = replace(settings, lr=times * found[sought].best)
        runs += [(recipe, batch, replace(own, seed=seed)) for seed in range(seeds)]
    # Rules of the rate agree at the smallest batch.
    different = list(dict.fromkeys(settings for *_, settings in runs))
    made = dict(zip(different, runner.curves(different, "runs"), strict=True))
    curves = [
        made[settings].assign(recipe=recipe.name, batch=batch, epochs=epochs)
        for recipe, batch, settings in runs
    ]
    tuning = [
        search.frame().assign(recipe=recipe.name, batch=batch)
        for (recipe, batch), search in found.items()
    ]
    study = LargeBatches(pd.concat(curves, ignore_index=True), pd.concat(tuning, ignore_index=True))
    if folder is not None:
        for name, table in (("curves.csv", study.curves), ("tuning.csv", study.tuning)):
            write_atomically(Path(folder) / name, table.to_csv(index=False))
    return study


def _settings(
    recipe: Recipe, batch: int, times: float, workers: int, epochs: float, task: str = TASK
) -> TrainingSettings:
    """Return the settings of a global batch, ``times`` as large as the smallest one."""
    steps = steps_for(get_learning_task(task), epochs, batch)
    return training_settings(
        task,
        METHOD,
        workers=workers,
        steps=steps,
        local_batch=batch // workers,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule(times, steps),
        evaluate_every=steps,
    )


def by_division(
    batch: int,
    counts: Sequence[int],
    lr: float,
    *,
    epochs: float = 10,
    seeds: int = 5,
    task: str = TASK,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return the `quality` of one global batch that different numbers of workers share.

    They train by SGD at this rate with warm-up. Raises InputError if they cannot share it equally.
    """
    rough = [count for count in counts if batch % count]
    require(not rough, f"{rough} workers cannot share a batch of {batch} equally")
    runs = [
        replace(_settings(TUNED, batch, 1.0, count, epochs, task), lr=lr, seed=seed)
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
    steps = [steps_for(task, epochs, batch) for batch in batches]
    local = [batch // workers for batch in batches]
    columns = {
        "local_batch": local,
        "steps": steps,
        "c2c": [c2c(intensity(workload), one, ring) for one in local],
        "megabytes": [count * ring * workload.gradient_bytes / 1e6 for count in steps],
    }
    return pd.DataFrame(columns, pd.Index(batches, name="batch")).assign(source="computed")


_EXPECTED = (
    ("a larger batch at the same rate loses", SAME, SAME, True, "survey 3.1.1, A20"),
    ("linear scaling gives part of it back", LINEAR, SAME, False, "Goyal et al. 2017 [k]"),
    ("linear scaling still loses", WARM, WARM, True, "survey 3.1.1, A20"),
    ("warm-up helps linear scaling", WARM, LINEAR, False, "Goyal et al. 2017 [k]"),
    ("SGD loses even with a rate tuned there", TUNED, TUNED, True, "survey 3.1.1, A20"),
    ("LARS recovers part of what linear scaling lost", LARS, WARM, False, "survey 3.1.1, A20"),
    ("LARS is better than SGD at the same rate", LARS, SAME, False, "survey 3.1.1, A20"),
    ("LARS is better than SGD tuned as well", LARS, TUNED, False, "survey 3.1.1, A20"),
    ("LAMB is better than SGD tuned as well", LAMB, TUNED, False, "You et al. 2020 [k]"),
)


def verdicts(curves: pd.DataFrame, measure: str = "test_accuracy") -> pd.DataFrame:
    """Judge every expectation about the largest batch on pairs of runs with equal seeds.

    ``measure`` is test_accuracy or test_loss; ``difference`` is how much better the better side is,
    in units of the measure, with the half width of its 95 % t-interval. A side is a recipe and a
    batch; to lose is to be worse than itself at the smallest batch. A run that diverged counts as
    infinitely bad in loss, and with an accuracy of 0. Raises UnknownName.
    """
    require_known("measure", measure, MEASURES)
    cells = dict(list(ends(curves).groupby(["recipe", "batch"])[measure]))
    smallest, largest = curves["batch"].min(), curves["batch"].max()
    sign = -1.0 if measure == "test_accuracy" else 1.0
    rows = []
    for said, one, other, loses, source in _EXPECTED:
        sides = [(one.name, smallest if loses else largest), (other.name, largest)]
        if not cells.keys() >= set(sides):
            continue
        better, worse = (sign * cells[side].to_numpy(dtype=float) for side in sides)
        rows.append(
            {
                "expected": said,
                "better": "{}, {}".format(*sides[0]),
                "worse": "{}, {}".format(*sides[1]),
                "measure": measure,
                **paired_comparison(better, worse).columns(),
                "source": source,
            }
        )
    require(bool(rows), "the curves have no two recipes that something is expected of")
    return pd.DataFrame(rows)


def verdict_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on accuracy and on loss, to be read."""
    both = pd.concat([verdicts(curves, measure) for measure in MEASURES])
    table = both.set_index(["measure", "expected"])
    return table.rename(columns=lambda name: name.replace("_", " ")).round(4)


LARGEST_SHARE = 1 / 4  # of all samples in a batch that is to tell of large ones


def large_batch_findings(*studies: pd.DataFrame) -> Findings:
    """Say what the largest batch costs each recipe in accuracy, and which expectations hold.

    Each of ``studies`` has the curves of one task. Those whose largest batch is more than
    LARGEST_SHARE of the samples decide nothing, and are left out of the verdict if others do.
    """
    sentences, decisive, empty = [], [], []
    for curves in studies:
        means = _mean_accuracies(curves)
        smallest, largest = means.columns.min(), means.columns.max()
        change = 100 * (means[largest] - means[smallest])
        changes = [f"{recipe}: {points:+.0f}" for recipe, points in change.items()]
        task, judged = str(curves["task"].iloc[0]), verdicts(curves)
        sentences.append(
            f"{task.capitalize()}: from batch {smallest} to batch {largest} mean accuracies change "
            f"by percentage points ({'; '.join(changes)})."
        )
        for verdict, expected in judged.groupby("verdict")["expected"].agg("; ".join).items():
            sentences.append(f"{task.capitalize()}, {verdict} in accuracy: {expected}.")
        samples = len(get_learning_task(task).samples().labels)
        for row in judged[judged["source"].str.endswith("A20")].to_dict("records"):
            said = f"{row['expected']}, in accuracy on {task}: {row['verdict']}"
            if largest <= LARGEST_SHARE * samples:
                decisive.append(item_verdict("A20", [row["verdict"]], "measured", said))
            else:
                said += f"; a batch of {largest} of {samples} samples decides nothing"
                empty.append(item_verdict("A20", [Verdict.UNDECIDED], "measured", said))
    return findings(*sentences, items=decisive or empty)


def recovered(curves: pd.DataFrame) -> pd.Series:
    """Return by recipe which share of the accuracy lost by linear scaling it has, of means.

    The loss is that of linear scaling with warm-up, from the smallest batch to the largest; 0 is as
    bad, 1 all of it back. NaN where nothing was lost. Raises InputError without that recipe.
    """
    means = _mean_accuracies(curves)
    smallest, largest = means.columns.min(), means.columns.max()
    require(WARM.name in means.index, f"the curves have no {WARM.name!r}")
    start, end = means.loc[WARM.name, [smallest, largest]]
    lost = start - end if start > end else float("nan")
    shares = (means[largest].drop(WARM.name) - end) / lost
    return shares.rename(f"recovered at batch {largest}")


def _mean_accuracies(curves: pd.DataFrame) -> pd.DataFrame:
    return ends(curves).pivot_table("test_accuracy", "recipe", "batch", sort=False)


QUALITIES = {"test_loss": ("test loss", 1.0), "test_accuracy": ("test accuracy (%)", 100.0)}
APART = 1.02  # between neighbouring recipes, so that their intervals do not hide one another


@styled
def large_batch_quality(quality: pd.DataFrame, remark: str = "") -> plt.Figure:
    """Final test loss and accuracy against the global batch, a line per recipe.

    ``quality`` is that of `ddlnb.survey.sec3_1_1_large_batch`. Bars are 95 % t-intervals over
    seeds, of two their range, cut where no loss or accuracy can be. Where runs diverged the mean
    loss is infinite: a cross on the upper edge, no point.
    """
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4))
    recipes = list(quality.groupby("recipe", sort=False))
    for ax, measure in zip(panels, QUALITIES, strict=True):
        for number, (_, part) in enumerate(recipes):
            apart = APART ** (number - (len(recipes) - 1) / 2)
            colour = PALETTE[number % len(PALETTE)]
            _draw_quality(ax, part.sort_values("batch"), measure, colour, apart)
        doubling_axis(ax, sorted(set(quality["batch"])))
        if measure == "test_loss":
            ax.set_yscale("log")
        ax.set(xlabel="global batch", ylabel=QUALITIES[measure][0])
    legend(figure, where="upper left", columns=3)
    said = ["equal epochs", remark, over_seeds(int(quality["seeds"].max())), "x: diverged"]
    return say_source(figure, quality, "; ".join(filter(None, said)))


def possible(
    means: np.ndarray, half_widths: np.ndarray, measure: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far intervals reach down and up: a loss is not negative, an accuracy 0 to 100 %.

    >>> down, up = possible(np.array([98.0]), np.array([5.0]), "test_accuracy")
    >>> down.tolist(), up.tolist()
    ([5.0], [2.0])
    """
    down = np.minimum(half_widths, means)
    return down, np.minimum(half_widths, 100 - means) if measure == "test_accuracy" else half_widths


def _draw_quality(
    ax: plt.Axes, part: pd.DataFrame, measure: str, colour: str, apart: float
) -> None:
    factor = QUALITIES[measure][1]
    x = part["batch"].to_numpy(dtype=float) * apart
    y = part[measure].to_numpy(dtype=float) * factor
    bars = bars_of(part[f"{measure}_half_width"], int(part["seeds"].max()))
    half = np.nan_to_num(bars.to_numpy(dtype=float)) * factor
    reach, fine = np.array(possible(y, half, measure)), np.isfinite(y)
    ax.errorbar(
        x[fine],
        y[fine],
        yerr=reach[:, fine],
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.5,
        elinewidth=0.9,
        capsize=2,
        label=part["recipe"].iloc[0],
    )
    top = np.full((~fine).sum(), 0.97)
    ax.plot(x[~fine], top, "x", color=colour, transform=ax.get_xaxis_transform())
