"""Section 5.1: seconds and rounds of local SGD, and the verdict on an adaptive period."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.figures import period_bars
from ddlnb.survey import sec5_1_adaptive_periods as periods
from ddlnb.survey.sec3_2_architectures import made_up_workload
from ddlnb.training.cost.estimate import cluster_clock
from ddlnb.training.runs.train import train
from ddlnb.workloads.workload import read_profile
from tests.toy_curves import runs_of

CLUSTER = "survey-10GbE"
RESNET = read_profile("resnet50_b64_rtx2080ti")
WORKLOAD = replace(RESNET, model="quadratic")
ENDS = {seed: [2.0, 0.4] for seed in range(3)}
TIED = pd.concat([runs_of("local(1)", ENDS), runs_of("local(2)", ENDS)], ignore_index=True)


@pytest.mark.parametrize("method", ["local(4)", "adaptive-local(1, 8, rare)"])
def test_seconds_of_the_cost_model_are_those_of_a_run_in_the_clusters_time(method):
    workload = made_up_workload(1, 80)  # as large as the task's own gradient
    clock = cluster_clock(workload, CLUSTER, method, workers=8)
    curve = train("quadratic", method, workers=8, steps=16, evaluate_every=4, clock=clock)
    timed = periods.on_cluster(curve, workload, CLUSTER)
    over = curve["consensus_distance"] == 0  # elsewhere one average more makes the model of the row
    np.testing.assert_allclose(timed["seconds"][over], curve["seconds"][over], rtol=1e-6)
    assert (timed["seconds"][~over] > curve["seconds"][~over]).all()
    assert (timed["rounds"].diff()[1:] >= 0).all()
    assert method != "local(4)" or timed["rounds"].tolist() == [0, 1, 2, 3, 4]


def test_fewer_rounds_for_as_many_steps_win_where_a_round_is_dear():
    falls = {seed: [2.0] * 20 + [0.4] for seed in range(3)}
    often = runs_of("local(1)", falls)
    often["bytes_sent"] = often["bytes_received"] = 140.0 * often["step"]
    seldom = runs_of("local(8)", falls)
    late = runs_of("adaptive-local(1, 8, rare)", {seed: [2.0] * 20 + [0.9] for seed in range(3)})
    curves = pd.concat([often, seldom, late], ignore_index=True)
    times = periods.period_times(curves, 0.5, WORKLOAD, [CLUSTER]).set_index("method")
    assert times.loc["local(8) on A2A", "best_fixed"]
    assert times.loc["local(1) on A2A", "verdict"] == periods.SLOWER
    assert times.loc["local(1) on A2A", "rounds"] == 200
    assert times.loc["local(8) on A2A", "rounds"] == 20
    assert times.loc["adaptive-local(1, 8, rare, 0.5) on A2A", "verdict"] == periods.SLOWER
    said = "ms to target: iterations\nand seconds of quadratic"
    assert period_bars(times.reset_index()).axes[0].get_xlabel() == said


def test_a_tie_has_no_verdict():
    times = periods.period_times(TIED, 0.5, WORKLOAD, [CLUSTER])
    assert set(times["verdict"]) == {"", periods.OPEN}


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: periods.period_methods([4]), "two or more"),
        (
            lambda: periods.on_cluster(runs_of("bsp", ENDS), WORKLOAD, CLUSTER),
            "not local SGD",
        ),
        (
            lambda: periods.period_times(TIED, 0.5, RESNET, [CLUSTER]),
            "of quadratic times seconds of resnet50 are the time of no",
        ),
        (lambda: periods.period_times(TIED, 0.1, WORKLOAD, [CLUSTER]), "no fixed H reaches"),
    ],
)
def test_what_is_no_choice_of_periods_is_refused(ask, said):
    with pytest.raises(InputError, match=said):
        ask()
