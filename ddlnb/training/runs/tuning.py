"""Find a learning rate of its own for every method, by the same rule.

First a scan: SCANNED times the optimizer's first guess, with one seed and half the steps. While the
best rate is at an end of those tried, one more is tried beyond it, up to EXTENSIONS more; then half
and twice the best. The best of all is confirmed with all the steps and two seeds. If a run is not
stable, the rate is halved, up to HALVINGS times. Losses are those of training samples that are held
out (`ddlnb.training.tasks.task`), and the seeds are used for nothing else. That takes 4.5
runs of full length for most methods, and not more than 14.5.

A run is stable if it did not diverge and ends with nine tenths of what it had gained at its best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddlnb.training.runs.runner import Runner
from ddlnb.training.runs.summaries import final_loss
from ddlnb.training.runs.train import made_by
from ddlnb.training.settings import TrainingSettings
from ddlnb.training.tasks.task import validation_task

if TYPE_CHECKING:
    import pandas as pd

SPACING = 4.0
SCANNED = (1 / SPACING, 1.0, SPACING)
EXTENSIONS = 4
HALVINGS = 4
SCAN_SHARE = 0.5  # of the steps
TUNING_SEEDS = (1_000_003, 1_000_033)
KEPT_GAIN = 0.9
SCAN, CONFIRM = "scan", "confirm"


@dataclass
class Search:
    """The rates tried for one cell, whose own rate is the first guess, and their losses.

    ``scanned`` holds a loss by rate, ``confirmed`` the mean loss over both seeds; infinite where a
    run diverged or was not stable.
    """

    cell: TrainingSettings
    scanned: dict[float, float] = field(default_factory=dict)
    confirmed: dict[float, float] = field(default_factory=dict)
    refined: bool = False

    def next_scanned(self) -> list[float]:
        """Return the rates to scan next; none when the scan is over.

        Where every rate diverged, the best is the smallest one, so that smaller ones are tried.
        """
        if not self.scanned:
            return [self.cell.lr * factor for factor in SCANNED]
        if self.refined:
            return []
        best = _best(self.scanned)
        if len(self.scanned) < len(SCANNED) + EXTENSIONS:
            if best == min(self.scanned):
                return [best / SPACING]
            if best == max(self.scanned):
                return [best * SPACING]
        self.refined = True
        return [best / 2, best * 2]

    def next_confirmed(self) -> list[float]:
        """Return the rate to confirm next; none when one is stable or enough were tried."""
        if not self.confirmed:
            return [_best(self.scanned)]
        if self.stable or len(self.confirmed) > HALVINGS:
            return []
        return [min(self.confirmed) / 2]

    @property
    def best(self) -> float:
        """The rate that was confirmed last: the only stable one, or the smallest of all."""
        return min(self.confirmed)

    @property
    def stable(self) -> bool:
        """Whether that rate is stable."""
        return math.isfinite(self.confirmed[self.best])

    def frame(self) -> pd.DataFrame:
        """Return one row per rate and stage; a scanned rate is ``stable`` if it did not diverge."""
        import pandas as pd

        cell = self.cell
        stages = ((SCAN, self.scanned, TUNING_SEEDS[:1]), (CONFIRM, self.confirmed, TUNING_SEEDS))
        rows = [
            {
                "task": cell.task.name,
                "method": str(cell.method),
                "workers": cell.workers,
                "optimizer": str(cell.optimizer),
                "stage": stage,
                "steps": _steps(cell, stage),
                "seeds": len(seeds),
                "learning_rate": rate,
                "validation_loss": loss,
                "stable": math.isfinite(loss),
                "chosen": stage == CONFIRM and rate == self.best,
                "made_by": made_by(),
            }
            for stage, losses, seeds in stages
            for rate, loss in sorted(losses.items())
        ]
        return pd.DataFrame(rows)


def tuned(cells: Sequence[TrainingSettings], runner: Runner) -> list[Search]:
    """Return the finished search of every cell; runs are kept as "tuning", results as "rates".

    Raises InputError for tasks with too few samples, and for a warm-up of more than half the steps.
    """
    for cell in cells:
        cell.schedule.require_fits(_steps(cell, SCAN), "the search for a rate, with half of them,")
    searches = [Search(cell) for cell in cells]
    while waiting := [(one, rate) for one in searches for rate in one.next_scanned()]:
        for search, rate, [curve] in _tried(waiting, SCAN, TUNING_SEEDS[:1], runner):
            search.scanned[rate] = final_loss(curve)
    while waiting := [(one, rate) for one in searches for rate in one.next_confirmed()]:
        for search, rate, curves in _tried(waiting, CONFIRM, TUNING_SEEDS, runner):
            losses = [final_loss(curve) if is_stable(curve) else math.inf for curve in curves]
            search.confirmed[rate] = sum(losses) / len(losses)
    for search in searches:
        runner.save(search.frame(), search.cell, "rates")
    return searches


def tuned_rate(settings: TrainingSettings) -> tuple[float, pd.DataFrame]:
    """Return the rate found for these settings, and one row per rate tried.

    Their own rate is the first guess. Everything runs in this process, and nothing is kept.
    """
    [search] = tuned([settings], Runner(jobs=1))
    return search.best, search.frame()


def is_stable(curve: pd.DataFrame) -> bool:
    """Return whether a run kept what it had gained, by the rule above."""
    losses = curve["test_loss"].to_numpy(dtype=float)
    if not math.isfinite(final_loss(curve)):
        return False
    first, least, last = losses[0], losses.min(), losses[-1]
    return bool(last - least <= (1 - KEPT_GAIN) * (first - least))


def _tried(
    waiting: Sequence[tuple[Search, float]], stage: str, seeds: Sequence[int], runner: Runner
) -> list[tuple[Search, float, list[pd.DataFrame]]]:
    """Return every search and rate that waits, with the curves of its seeds."""
    runs = [
        replace(
            search.cell,
            task=validation_task(search.cell.task),
            steps=_steps(search.cell, stage),
            lr=rate,
            seed=seed,
        )
        for search, rate in waiting
        for seed in seeds
    ]
    curves = runner.curves(runs, "tuning")
    several = len(seeds)
    return [
        (search, rate, curves[several * number : several * (number + 1)])
        for number, (search, rate) in enumerate(waiting)
    ]


def _steps(cell: TrainingSettings, stage: str) -> int:
    return max(1, round(SCAN_SHARE * cell.steps)) if stage == SCAN else cell.steps


def _best(losses: dict[float, float]) -> float:
    """Return the rate with the least loss, the smaller one of equals."""
    return min(sorted(losses), key=losses.__getitem__)
