"""Rates are found on held-out training samples, with one budget, and only stable ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.training.runs.compare import (
    CONFIRM,
    EXTENSIONS,
    HALVINGS,
    SCAN,
    SCANNED,
    TUNING_SEEDS,
    Search,
    compare,
    is_stable,
    tuned,
    tuned_rate,
)
from ddlnb.training.runs.runner import Runner
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.built_in import quadratic
from ddlnb.training.tasks.catalogue import LEARNING_TASKS
from ddlnb.training.tasks.task import SHARE, Samples, get_split, validation_task

METHODS = ["bsp", "bsp + top-k(0.25) + feedback"]
QUICK = {"workers": 2, "steps": 20, "evaluate_every": 5, "jobs": 1}
CELL = training_settings(quadratic(), "bsp", workers=2, steps=10, lr=1.0)


@pytest.mark.parametrize("task", LEARNING_TASKS.values(), ids=LEARNING_TASKS)
def test_held_out_samples_are_not_trained_on(task):
    whole, kept = task.samples(), validation_task(task).samples()
    held_out = len(whole.labels) - len(kept.labels)
    assert held_out == round(SHARE * len(whole.labels))
    assert sum(map(len, get_split("iid").shards(kept.labels, 8, 0))) == len(kept.labels)
    one = validation_task(task).evaluate(task.build(0)).loss
    assert one == validation_task(task).evaluate(task.build(0)).loss
    assert math.isfinite(one)


def number(count: int) -> Samples:
    values = torch.arange(float(count))
    return Samples((values,), values.long())


def held_mean(module: torch.nn.Module, batch: tuple) -> torch.Tensor:
    return batch[0].mean()


@pytest.mark.parametrize("count", [5, 1437, 4000])
def test_samples_are_kept_or_held_out_and_weigh_the_same(count):
    def samples() -> Samples:
        return number(count)

    held = validation_task(replace(quadratic(), samples=samples, loss=held_mean))
    kept = held.samples().tensors[0]
    assert kept.unique().numel() == len(kept) == count - round(SHARE * count)
    others = set(range(count)) - set(kept.long().tolist())
    loss = held.evaluate(torch.nn.Identity()).loss
    assert loss == pytest.approx(np.mean(list(others)))


def test_tuning_never_looks_at_what_methods_are_compared_on():
    def never(module: torch.nn.Module) -> None:
        raise AssertionError("tuning evaluated on the test set")

    rate, _ = tuned_rate(replace(CELL, task=replace(LEARNING_TASKS["digits"], evaluate=never)))
    assert rate > 0


def test_too_few_samples_are_refused():
    few = replace(quadratic(), samples=lambda: number(2))
    with pytest.raises(InputError, match="2 training samples are too few"):
        validation_task(few).samples()


def test_every_method_is_tuned_with_the_same_budget(tmp_path):
    result = compare("quadratic", METHODS, seeds=2, tune=True, folder=tmp_path, **QUICK)
    assert not set(TUNING_SEEDS) & set(result.curves["seed"])
    base = LEARNING_TASKS["quadratic"].learning_rate
    for method, tried in result.tuning.groupby("method"):
        scanned, confirmed = (tried[tried["stage"] == stage] for stage in (SCAN, CONFIRM))
        assert set(base * np.array(SCANNED)) <= set(scanned["learning_rate"])
        assert (scanned["steps"] == QUICK["steps"] // 2).all()
        assert (confirmed["steps"] == QUICK["steps"]).all()
        assert (confirmed["seeds"] == len(TUNING_SEEDS)).all()
        best = scanned.loc[scanned["validation_loss"].idxmin(), "learning_rate"]
        assert confirmed["learning_rate"].max() == best
        (chosen,) = tried.loc[tried["chosen"], "learning_rate"]
        used = result.curves.loc[result.curves["method"] == method, "learning_rate"]
        assert set(used) == {chosen}
    again = compare("quadratic", METHODS, seeds=2, tune=True, folder=tmp_path, **QUICK)
    pd.testing.assert_frame_equal(again.tuning, result.tuning, check_exact=True)
    rows = result.summary()
    assert (rows["rates_tried"] >= len(SCANNED) + 2).all()
    assert rows["rate_stable"].all()


@pytest.mark.parametrize(("best", "reaches"), [(1e-9, 4.0**-5 / 2), (1e9, 4.0**5 * 2)])
def test_a_scan_goes_beyond_an_end_and_stops(best, reaches):
    search = Search(CELL)
    while rates := search.next_scanned():
        for rate in rates:
            search.scanned[rate] = abs(math.log(rate / best))
    assert len(search.scanned) == len(SCANNED) + EXTENSIONS + 2
    assert search.next_confirmed() == [pytest.approx(reaches)]


@pytest.mark.parametrize("best", [0.01, 0.3, 0.4, 1.0, 2.5, 60.0])
def test_a_scan_ends_within_a_factor_of_the_best(best):
    """Rates are a factor of 2 apart at last: none is nearer than the square root of it."""
    search = Search(CELL)
    while rates := search.next_scanned():
        search.scanned |= {rate: abs(math.log(rate / best)) for rate in rates}
    (found,) = search.next_confirmed()
    assert abs(math.log2(found / best)) <= 0.5 + 1e-9


def test_a_rate_that_is_not_stable_is_halved_until_one_is():
    search = Search(CELL, scanned={0.25: 3.0, 1.0: 1.0, 4.0: 2.0})
    tried = []
    while rates := search.next_confirmed():
        tried += rates
        search.confirmed[rates[0]] = 1.0 if rates[0] < 0.3 else math.inf
    assert tried == [1.0, 0.5, 0.25]
    assert (search.best, search.stable) == (0.25, True)
    frame = search.frame()
    assert frame.loc[frame["chosen"], "learning_rate"].tolist() == [0.25]


def test_where_none_is_stable_it_is_said():
    search = Search(CELL, scanned={1.0: math.inf})
    while rates := search.next_confirmed():
        search.confirmed[rates[0]] = math.inf
    assert len(search.confirmed) == 1 + HALVINGS
    assert not search.stable
    assert not search.frame()["stable"].any()


@pytest.mark.parametrize(
    ("losses", "diverged", "stable"),
    [
        ([2.3, 0.5, 0.1], False, True),
        ([2.3, 0.1, 0.31], False, True),
        ([2.3, 0.1, 0.4], False, False),
        ([2.3, 0.3, 67.0], False, False),
        ([2.3, 0.3, 0.1], True, False),
        ([2.3, 2.4, 2.5], False, False),
        ([-1.0, -3.0, -2.9], False, True),
        ([2.3, math.nan, math.nan], False, False),
    ],
)
def test_a_stable_run_keeps_nine_tenths_of_its_gain(losses, diverged, stable):
    curve = pd.DataFrame({"test_loss": losses, "diverged": [False, False, diverged]})
    assert is_stable(curve) == stable


class Grows(Runner):
    """As ECD with coarse quantisation: a large rate is best in half the steps, and then explodes.

    With the second seed a rate that is half as large still does.
    """

    def curves(self, runs, what):
        found = []
        for run in runs:
            limit = 0.6 if run.seed == TUNING_SEEDS[0] else 0.3
            late = run.steps == CELL.steps and run.lr > limit
            losses = [2.3, 0.3 / run.lr, 67.0 if late else 0.29 / run.lr]
            found.append(pd.DataFrame({"test_loss": losses, "diverged": run.lr > 1}))
        return found


def test_a_rate_that_grows_after_half_the_steps_is_not_taken():
    [search] = tuned([CELL], Grows())
    assert min(search.scanned, key=search.scanned.__getitem__) == 1.0
    assert sorted(search.scanned) == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert sorted(search.confirmed) == [0.25, 0.5, 1.0]
    assert (search.best, search.stable) == (0.25, True)
