"""Large batches: equal samples, rates by rule or tuned, verdicts on pairs of seeds."""

import math

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import InputError
from ddlnb.figures import large_batch_quality
from ddlnb.survey.sec3_1_1_large_batch import (
    LARS,
    LINEAR,
    SAME,
    TUNED,
    WARM,
    Recipe,
    by_division,
    communication,
    kept_large_batches,
    large_batch_findings,
    large_batches,
    quality,
    quality_table,
    recovered,
    steps_for,
    verdict_table,
    verdicts,
)
from ddlnb.training.optimizers import get_schedule
from ddlnb.training.runs import runner
from ddlnb.training.runs.compare import EXTENSIONS, SCAN, SCANNED
from ddlnb.training.tasks.catalogue import get_learning_task

BATCHES = [64, 256]


def test_all_see_as_many_samples_at_rates_by_rule_or_tuned_with_one_budget():
    chosen = (SAME, LINEAR, WARM, TUNED)
    found = large_batches(BATCHES, epochs=1, workers=2, seeds=2, recipes=chosen, jobs=1)
    images = len(get_learning_task("digits").samples().labels)
    ends = found.curves.groupby("batch")["step"].max()
    for batch, steps in ends.items():
        assert steps == steps_for(get_learning_task("digits"), 1, batch)
        assert abs(steps * batch - images) <= batch / 2
    assert (found.curves["local_batch"] * found.curves["workers"] == found.curves["batch"]).all()

    sent = found.curves.groupby("batch")["bytes_sent"].max()
    table = communication(BATCHES, epochs=1, workers=2)
    assert (sent / 1e6).tolist() == pytest.approx(table["megabytes"].tolist())
    assert table["c2c"].iloc[0] == pytest.approx(4 * table["c2c"].iloc[1])

    rates = quality(found.curves).set_index(["recipe", "batch"])["learning_rate"]
    base = rates[SAME.name, 64]
    assert rates[SAME.name, 256] == base
    for recipe in (LINEAR, WARM):
        assert rates[recipe.name, 64] == base
        assert rates[recipe.name, 256] == pytest.approx(4 * base)
    tried = found.tuning
    own = tried[(tried["recipe"] == TUNED.name) & (tried["batch"] == 256) & tried["chosen"]]
    assert own["learning_rate"].tolist() == [rates[TUNED.name, 256]]

    smallest = found.curves[found.curves["batch"] == 64]
    losses = smallest.pivot(index=["seed", "step"], columns="recipe", values="test_loss")
    for recipe in (LINEAR, WARM):
        assert (losses[recipe.name] == losses[SAME.name]).all()

    scans = found.tuning[found.tuning["stage"] == SCAN].groupby(["recipe", "batch"]).size()
    assert set(scans) <= set(range(len(SCANNED) + 2, len(SCANNED) + 2 + EXTENSIONS + 1))
    assert (found.tuning.groupby(["recipe", "batch"])["chosen"].sum() == 1).all()


@pytest.mark.parametrize(
    ("recipe", "first", "last"), [(WARM, 1.15, 4.0), (TUNED, 0.05, 1.0), (LARS, 0.05, 1.0)]
)
def test_warm_up_is_linear_over_a_fifth(recipe, first, last):
    schedule = get_schedule(recipe.schedule(4.0, 100))
    assert schedule.factor(1, 100) == pytest.approx(first)
    assert schedule.factor(20, 100) == last == schedule.factor(100, 100)


def curves(ends: dict[tuple[str, int], list[float]], diverged: bool = False) -> pd.DataFrame:
    rows = [
        {
            "task": "digits",
            "recipe": recipe,
            "batch": batch,
            "seed": seed,
            "step": 10,
            "test_loss": 1 - accuracy,
            "test_accuracy": accuracy,
            "diverged": diverged and batch > 64,
            "learning_rate": 0.1,
            "schedule": "constant",
        }
        for (recipe, batch), accuracies in ends.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("measure", ["test_accuracy", "test_loss"])
def test_a_verdict_says_who_is_better_and_by_how_much(measure):
    made = curves(
        {
            (WARM.name, 64): [0.98, 0.97, 0.99],
            (WARM.name, 1024): [0.90, 0.88, 0.91],
            (LARS.name, 1024): [0.94, 0.93, 0.96],
            (LINEAR.name, 1024): [0.91, 0.89, 0.88],
        }
    )
    table = verdicts(made, measure).set_index("expected")
    said = table["verdict"].to_dict()
    assert said == {
        "linear scaling still loses": Verdict.HOLDS,
        "LARS recovers part of what linear scaling lost": Verdict.HOLDS,
        "warm-up helps linear scaling": Verdict.UNDECIDED,
    }
    lost = table.loc["linear scaling still loses"]
    assert lost["difference"] == pytest.approx((0.08 + 0.09 + 0.08) / 3)
    worse = verdicts(made.assign(**{measure: 1 - made[measure]}), measure).set_index("expected")
    assert worse["verdict"]["linear scaling still loses"] == Verdict.CONTRADICTED


def test_runs_that_diverged_are_lost_and_a_share_of_what_was_lost_is_recovered():
    ends = {(SAME.name, 64): [0.9, 0.9], (SAME.name, 256): [0.5, 0.5], (LARS.name, 64): [0.8, 0.7]}
    made = curves(ends, diverged=True)
    made.loc[made["diverged"], "test_accuracy"] = np.nan  # nobody looked
    assert verdicts(made)["difference"].tolist() == [0.9]
    [row] = verdicts(made, "test_loss").to_dict("records")
    assert row["difference"] == math.inf
    assert row["verdict"] == Verdict.HOLDS
    assert np.isinf(quality(made)["test_loss"].iloc[1])
    lines = large_batch_quality(quality(made)).axes[0].lines
    assert any(line.get_marker() == "x" and len(line.get_xdata()) for line in lines)
    ends = {(WARM.name, 64): [1.0, 0.9], (WARM.name, 256): [0.5, 0.6], (LARS.name, 256): [0.8, 0.7]}
    assert recovered(curves(ends))[LARS.name] == pytest.approx(0.5)
    ends[WARM.name, 64] = [0.5, 0.5]
    assert math.isnan(recovered(curves(ends))[LARS.name])


def test_findings_and_tables_are_those_of_the_curves():
    made = curves(
        {
            (WARM.name, 64): [1.0, 1.0],
            (WARM.name, 1024): [0.7, 0.8],
            (TUNED.name, 64): [1.0, 1.0],
            (TUNED.name, 1024): [0.9, 0.9],
        }
    )
    said = large_batch_findings(made)
    assert f"percentage points ({WARM.name}: -25; {TUNED.name}: -10)" in said
    assert "Digits, holds in accuracy: SGD loses even with a rate tuned there" in said
    assert {one.verdict for one in said.items} == {Verdict.UNDECIDED}  # most samples in one batch
    assert all("of 1437 samples decides nothing" in one.said for one in said.items)
    both = large_batch_findings(made, made.assign(task="letters"))  # of which 1,024 are few
    assert "Letters, holds in accuracy: SGD loses" in both
    assert {one.verdict for one in both.items} == {Verdict.HOLDS, Verdict.UNDECIDED}
    assert all("accuracy on letters: " in one.said for one in both.items)
    assert set(verdict_table(made)["verdict"]) <= set(Verdict)
    found = quality(made)
    assert quality_table(found).loc[(TUNED.name, 1024), "test accuracy"] == "0.9000 ± 0.0000"


TWO = {("my own", 64): [0.9], ("my own", 256): [0.5]}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Recipe("mine", "sgd", "linea"), r"unknown scaling 'linea'.*did you mean 'linear'"),
        (lambda: large_batches([256, 64], epochs=1), r"\[256, 64\] must be at least two, rising"),
        (lambda: large_batches([64, 96], workers=3), r"3 workers cannot share batches \[64\]"),
        (lambda: large_batches([64, 128], epochs=0), "epochs 0 must be above 0"),
        (lambda: by_division(64, [1, 3], lr=0.1), r"\[3\] workers cannot share a batch of 64"),
        (lambda: verdicts(curves(TWO), "loss"), "unknown measure 'loss'"),
        (lambda: verdicts(curves(TWO)), "no two recipes"),
        (lambda: recovered(curves({(LARS.name, 64): [0.9]})), "no 'SGD, linear scaling, warm-up'"),
        (lambda: large_batches([8, 16], workers=2, seeds=1, task="letter"), "letter"),
    ],
)
def test_bad_choices_are_named(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_study_of_another_task_is_kept_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    folder = tmp_path / "2026-11-28_here_large-batches"
    asked = {"epochs": 0.002, "workers": 2, "seeds": 1, "task": "text", "recipes": (TUNED,)}
    study = large_batches([8, 16], **asked, jobs=1, folder=folder)
    assert set(study.curves["task"]) == set(study.tuning["task"]) == {"text"}
    pd.testing.assert_frame_equal(kept_large_batches(tmp_path).curves, study.curves)
    removed = sorted((folder / "runs").glob("*.json"))[0]
    removed.unlink()
    made = []
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda one: made.append(one) or run(one))
    again = large_batches([8, 16], **asked, jobs=1, folder=folder)
    assert len(made) == 1
    pd.testing.assert_frame_equal(again.curves, study.curves)
