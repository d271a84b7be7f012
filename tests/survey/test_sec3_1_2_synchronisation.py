"""Waiting, lead and staleness on a virtual clock, and what they cost in convergence."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import InputError
from ddlnb.survey.sec3_1_2_synchronisation import (
    BOUNDS,
    RANDOM,
    SERVED,
    at_equal,
    converging,
    judge,
    law_verdicts,
    local_methods,
    mean_staleness,
    period_table,
    same_traffic,
    slow_worker_findings,
    slowdowns,
    staleness,
    synchronisation_findings,
    timed,
    virtual_clock,
    waits,
)
from ddlnb.survey.time_to_target import made_up_cluster
from ddlnb.training.runs.compare import Comparison
from ddlnb.training.runs.summaries import final_losses, runs_by
from tests.toy import TOY

LEARNT = ("bsp on PS", "ssp(2)", "asp", *local_methods((1, 2, 4)))


@pytest.fixture(scope="module")
def learnt() -> Comparison:
    return converging(LEARNT, workers=2, steps=12, seeds=2, jobs=1)


@pytest.mark.parametrize("bound", [0, 1, 3, 7])
def test_behind_a_slow_worker_the_lead_is_the_bound(bound):
    run = timed(f"ssp({bound})", virtual_clock("one-slow(5)"), 4, 8 * bound + 8)
    assert run.lead == bound


@pytest.mark.parametrize("straggler", [*RANDOM, "one-slow(3)", "alternating(4)"])
def test_waiting_falls_with_the_bound_on_the_same_delays(straggler):
    table = waits(BOUNDS, [straggler], workers=5, steps=30, seeds=2)
    for _, part in table.groupby("seed"):
        assert (part["waiting_seconds"].diff().dropna() <= 1e-9).all()
        assert part["waiting_seconds"].iloc[0] > part["waiting_seconds"].iloc[-1]
    assert (table["lead"] <= table["bound"]).all()


@pytest.mark.item("A17", how="simulated")
def test_nobody_waits_without_a_bound_and_a_barrier_waits_for_the_slow_worker():
    run = timed("asp", virtual_clock("log-normal(0.5)", 0.25), 4, 20)
    assert run.waiting_seconds == pytest.approx(0.25)
    run = timed("bsp on PS", virtual_clock("one-slow(3)", 0.1), 4, 10)
    assert run.waiting_seconds == pytest.approx(0.1 + 2 * 3 / 4)
    assert run.lead == 0


@pytest.mark.item("A23", how="simulated")
@pytest.mark.parametrize("straggler", ["constant", "one-slow(3)", "log-normal(0.5)"])
@pytest.mark.parametrize("workers", [2, 8])
def test_without_waits_the_mean_staleness_is_n_minus_one_whatever_the_speeds(straggler, workers):
    # Between two pushes of a worker lie all those of others; only the ends of the run differ.
    run = timed("asp", virtual_clock(straggler, 0.0), workers, 400)
    until = min(n for n in range(len(run.done)) if run.done[n][2] == run.steps)
    kept = run.staleness[:until]
    assert sum(kept) / len(kept) == pytest.approx(workers - 1, rel=0.02)


def test_the_histogram_counts_every_push():
    table = staleness(workers=4, steps=25)
    assert table.groupby("method")["pushes"].sum().tolist() == [100] * len(SERVED)
    r2sp = table[table["method"] == "r2sp on PS"]
    assert r2sp["staleness"].max() == 3
    assert mean_staleness(table)["r2sp on PS"] == pytest.approx((24 * 4 * 3 + 0 + 1 + 2 + 3) / 100)


def test_equal_seconds_leave_out_what_came_later_and_rivals_send_as_much(learnt):
    rows = at_equal(learnt.curves, "seconds")
    least = learnt.curves.groupby(["method", "seed"])["seconds"].max().min()
    assert (rows["seconds"] <= least).all()
    assert len(rows) == 2 * len(LEARNT)
    assert at_equal(learnt.curves)["step"].eq(12).all()
    rivals = same_traffic(4, workers=2, steps=8, seeds=1, jobs=1)
    last = rivals.groupby("method").tail(1).set_index("method")
    assert last["bytes_sent"].nunique() == 1
    assert (last["step"] * last["local_batch"]).nunique() == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda curves: at_equal(curves, "second"), "unknown cost 'second'"),
        (lambda curves: at_equal(curves.assign(seconds=math.nan), "seconds"), "train on a clock"),
        (lambda curves: period_table(curves, (1, 8)), r"no local\(8\) on PS"),
    ],
)
def test_curves_that_do_not_tell_are_refused(learnt, call, said):
    with pytest.raises(InputError, match=said):
        call(learnt.curves)


def test_laws_and_learning_are_judged_by_their_rows(learnt):
    waited = waits((0, 1, 2), RANDOM[:1], workers=3, steps=10, seeds=1)
    stale, periods = staleness(workers=4, steps=60), period_table(learnt.curves, (1, 2, 4))
    names = ["bsp on PS", "local(4) on PS"]
    rivals = learnt.curves[learnt.curves["method"].isin(names)]
    judged = judge(waited, stale, periods, learnt.curves, rivals, 4)
    assert set(judged.loc["law", "verdict"]) == {Verdict.HOLDS}
    learning = judged.loc["learning"]
    assert set(learning["verdict"]) <= set(Verdict)
    cells = runs_by(learnt.curves, "method")
    losses = [final_losses(cells[name,]) for name in ("asp on PS", "bsp on PS")]
    expected = (losses[0] - losses[1]).mean()
    assert float(learning["found"].iloc[0].split()[0]) == pytest.approx(expected, abs=6e-4)
    said = synchronisation_findings(judged)
    assert said.startswith("- 4 of 4 laws hold: the mean staleness")
    assert all(expected in said for expected in learning.index)
    rising = waited.assign(waiting_seconds=-waited["waiting_seconds"])
    broken = law_verdicts(rising, stale.assign(staleness=9), periods.assign(traffic=1.0), 4)
    assert broken["verdict"].tolist() == [Verdict.HOLDS, *[Verdict.CONTRADICTED] * 3]


def test_it_is_said_what_one_slow_worker_costs_who_waits_and_who_does_not():
    """On free links who waits goes at the rate of the slowest, and ASP adds up the rates."""
    slow = ("BSP-A2A", "WFBP-PS", "ByteScheduler-A2A", "local(4) on A2A", "asp on PS")
    free = made_up_cluster("unlimited", "0 s", workers=4)
    free = replace(free, server_place="extra machines")
    table = slowdowns((1, 2, 4), slow, workload=TOY, cluster=free, workers=4, steps=32)
    said = slow_worker_findings(table)
    assert "With 4 workers, one of which takes 4 times as long, the lossless methods take" in said
    assert "asp on PS is quicker than the quickest lossless method from 2 times on" in said
    assert "local(4) on A2A is quicker than the quickest lossless method at none" in said
    assert said.items == ()


@pytest.mark.parametrize(
    ("in_turn", "verdict"), [((0.9, 1.8), "holds"), ((1.2, 2.4), "contradicted")]
)
def test_serving_in_turn_is_judged_by_seconds(in_turn, verdict):
    rows = [
        ("WFBP-PS", 1, 1.0),
        ("WFBP-PS", 2, 2.0),
        ("r2sp on PS", 1, in_turn[0]),
        ("r2sp on PS", 2, in_turn[1]),
    ]
    table = pd.DataFrame(rows, columns=["method", "factor", "iteration_seconds"])
    [found] = slow_worker_findings(table.assign(computing_seconds=1.0, workers=4)).items
    assert (found.item, found.verdict, found.how) == ("A29", verdict, "simulated")
