"""Runs of a table are told apart by every setting, or the table is refused."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.survey.sec3_1_2_synchronisation import at_equal, period_table
from ddlnb.survey.sec5_2_relaxed_compression import at_equal_bytes
from ddlnb.survey.sec5_3_compression_level import level_verdicts
from ddlnb.training.cost.time_to_target import iterations_to_target
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import SETTINGS, final_losses, runs_by, summary
from ddlnb.training.runs.train import train


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    options = {"seeds": 2, "steps": 4, "workers": 2, "evaluate_every": 2, "jobs": 1}
    return compare("quadratic", ["bsp", "local(2)"], **options).curves


def other(curves: pd.DataFrame, name: str) -> pd.DataFrame:
    """The curves twice, the second time with another value of that setting."""
    value = curves[name].iloc[0]
    changed = f"{value}'" if isinstance(value, str) else 2 * value
    return pd.concat([curves, curves.assign(**{name: changed})])


def test_every_setting_of_a_curve_is_known(curves):
    measured = {"seed", "step", "train_loss", "test_loss", "test_accuracy", "consensus_distance"}
    measured |= {"seconds", "bytes_sent", "diverged", "bytes_received"}
    measured |= {"averaging_bytes_sent", "averaging_bytes_received", "averaging_seconds"}
    parts = {"synchronisation", "compression", "feedback", "architecture"}  # of the method
    assert set(curves) - measured - parts == set(SETTINGS)


@pytest.mark.parametrize("name", [one for one in SETTINGS if one != "method"])
def test_a_setting_that_varies_is_named(curves, name):
    mixed = other(curves, name)
    with pytest.raises(InputError, match=f"method bsp on A2A vary in {name} "):
        runs_by(mixed, "method")
    told_apart = runs_by(mixed, "method", name)
    assert len(told_apart) == 4
    assert all(len(runs) == 2 for runs in told_apart.values())
    assert len(summary(mixed)) == 4


@pytest.mark.parametrize(
    "judge",
    [
        lambda table: iterations_to_target(table, 1.0),
        at_equal,
        lambda table: period_table(table, [2]),
        lambda table: at_equal_bytes(table, [1]),
        lambda table: level_verdicts(table, table, 1.0),
    ],
)
@pytest.mark.parametrize("name", ["learning_rate", "split", "local_batch"])
def test_nobody_mixes_them(curves, judge, name):
    with pytest.raises(InputError, match=f"vary in {name} "):
        judge(other(curves, name))


def test_rows_may_come_in_any_order(curves):
    again = runs_by(curves.sample(frac=1, random_state=0), "method")
    for cell, runs in runs_by(curves, "method").items():
        for seed, run in runs.items():
            pd.testing.assert_frame_equal(again[cell][seed], run)
            assert run["step"].is_monotonic_increasing


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda table: pd.concat([table, table[table["seed"] == 1]]), "a step of seed 1 more than"),
        (lambda table: table.drop(columns="seed"), r"lack the columns \['seed'\]"),
        (lambda table: table.iloc[:0], "no curves"),
        (lambda table: table.assign(test_loss="high"), "'test_loss' of the curves has 'high'"),
        (lambda table: table.assign(workers="high"), "'workers' of the curves has 'high'"),
    ],
)
def test_tables_that_are_none_are_refused(curves, broken, told):
    with pytest.raises(InputError, match=told):
        runs_by(broken(curves), "method")


def test_a_run_that_diverged_lost_everything():
    wild = train("quadratic", "bsp", steps=200, lr=3.0, evaluate_every=50)
    assert final_losses(runs_by(wild, "method")["bsp on A2A",]).tolist() == [math.inf]
