"""Curves: what they evaluate at which price, how they end, and what is judged by them.

Where no worker has the model that is evaluated, everybody counts the average that it takes. Runs of
a table are told apart by every setting, or the table is refused. Orderings are judged by
differences of seeds, and a run that diverged is the worse one.
"""

import math
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn

from ddlnb.errors import InputError
from ddlnb.plans.requests import AllReduce, PushPull
from ddlnb.survey.sec3_1_2_synchronisation import at_equal, period_table
from ddlnb.survey.sec5_2_relaxed_compression import at_equal_bytes, link_bytes
from ddlnb.survey.sec5_3_compression_level import level_verdicts
from ddlnb.survey.time_to_target import made_up_cluster, made_up_digits
from ddlnb.training.cost.estimate import cluster_clock
from ddlnb.training.cost.requests import push_pull_seconds
from ddlnb.training.cost.time_to_target import iterations_to_target
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import training_method
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import (
    ORDERINGS,
    SETTINGS,
    Ordering,
    final_losses,
    judged,
    methods_of,
    runs_by,
    spent,
    summary,
    to_target,
)
from ddlnb.training.runs.train import Averaging, train
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.built_in import classification_loss, evaluate_classifier, quadratic
from ddlnb.training.tasks.task import Constants, Evaluation, LearningTask, Samples

OVERFLOWING = (  # by whom what is no number any more is found: the loss, or a compressor
    *("bsp", "bsp + top-k(0.1) + feedback", "bsp + qsgd(127)", "bsp + dgc(0.1, 0.9, None, 9)"),
    *("local(2) + signsgd", "asp + top-k(0.1)", "choco(complete) + top-k(0.1)"),
    *("dcd-psgd + qsgd(7)", "bsp + powersgd(1) + feedback", "bsp + gtop-k(0.1) + feedback"),
)


@pytest.mark.parametrize("method", OVERFLOWING)
@pytest.mark.parametrize("lr", [1e4, 1e38])
def test_numbers_that_cannot_be_compressed_are_a_run_that_diverged(method, lr, monkeypatch):
    monkeypatch.setattr("ddlnb.training.settings.RATE_SPAN", math.inf)
    curve = train("digits", method, workers=2, steps=12, lr=lr, evaluate_every=2)
    assert curve["diverged"].tolist() == [False] * (len(curve) - 1) + [True]
    assert 0 < curve["step"].iloc[-1] < 12


# One of every way to wait: for all, for a server, for neighbours, and with several requests.
WAITING = ("bsp + qsgd(127)", "asp + top-k(0.1)", "dcd-psgd + qsgd(7)", OVERFLOWING[-1])


@pytest.mark.ranks
@pytest.mark.parametrize("method", WAITING)
def test_real_processes_that_diverge_say_so_and_nobody_waits(six_ranks, method, monkeypatch):
    monkeypatch.setattr("ddlnb.training.settings.RATE_SPAN", math.inf)
    settings = {"workers": 2, "steps": 6, "evaluate_every": 1, "lr": 1e38}
    curve = train("digits", method, executor="distributed", ranks=six_ranks, **settings)
    assert curve["diverged"].tolist() == [False] * (len(curve) - 1) + [True]
    assert curve["step"].iloc[-1] < 6
    assert len(six_ranks.pids) == 6


def in_parts(seed: int, normalised: bool) -> nn.Module:
    """A first layer that is frozen, or running statistics behind it, which are buffers."""
    torch.manual_seed(seed)
    first = nn.Linear(6, 12).requires_grad_(normalised)
    between = nn.BatchNorm1d(12) if normalised else nn.Identity()
    return nn.Sequential(first, between, nn.ReLU(), nn.Linear(12, 2))


def six_numbers() -> Samples:
    inputs = 3 + torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    labels = (inputs.sum(1) > 18).long()
    return Samples((inputs, labels), labels)


def evaluated(module: nn.Module) -> Evaluation:
    module.eval()
    found = evaluate_classifier(module, *six_numbers().tensors)
    module.train()
    return found


def task_in_parts(normalised: bool) -> LearningTask:
    build = partial(in_parts, normalised=normalised)
    parts = (six_numbers, classification_loss, evaluated, Constants)
    return LearningTask("in-parts", build, *parts, local_batch=16, learning_rate=0.1, about="")


@pytest.mark.parametrize("normalised", [False, True], ids=["frozen", "normalised"])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_evaluated_is_the_workers_model_whatever_it_is_made_of(normalised, seed):
    task = task_in_parts(normalised)
    settings = {"workers": 1, "steps": 40, "seed": seed}
    last = train(task, "bsp", **settings).iloc[-1]
    job = training_settings(task, "bsp", **settings).job()
    worker = job.worker(0)
    Lockstep([worker], job.method.synchronisation.loop, 40).run()
    assert last["test_loss"] == evaluated(worker.module).loss


def test_running_statistics_are_averaged_over_the_workers():
    task = task_in_parts(True)
    settings = {"workers": 3, "steps": 10}
    last = train(task, "bsp", **settings).iloc[-1]
    job = training_settings(task, "bsp", **settings).job()
    crew = [job.worker(rank) for rank in range(3)]
    Lockstep(crew, job.method.synchronisation.loop, 10).run()
    norms = [worker.module[1] for worker in crew]
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(norm, name).double() for norm in norms]).mean(0)
        assert not torch.allclose(mean.float(), getattr(norms[0], name))
        getattr(norms[0], name).copy_(mean)
    assert last["test_loss"] == evaluated(crew[0].module).loss


@pytest.mark.ranks
def test_real_processes_show_their_running_statistics(six_ranks):
    settings = {"workers": 2, "steps": 6, "evaluate_every": 3}
    here, there = (
        train(task_in_parts(True), "local(3)", executor=executor, ranks=ranks, **settings)
        for executor, ranks in (("lockstep", None), ("distributed", six_ranks))
    )
    same = ["step", "test_loss", "test_accuracy", "consensus_distance"]
    pd.testing.assert_frame_equal(here[same], there[same], rtol=1e-5)


# The price of the model that is evaluated.


WORKERS = 4
SIZE = 4 * 20  # bytes of the quadratic's parameters
RING = 2 * (WORKERS - 1) / WORKERS * SIZE


def seconds(kind: type, bytes_: int, workers: int) -> float:
    return {AllReduce: 3.0, PushPull: 1.0}[kind]


def curve(method: str, **options) -> pd.DataFrame:
    options = {"steps": 8, "evaluate_every": 1, "clock": Clock(communicate=seconds)} | options
    return train("quadratic", method, workers=WORKERS, **options)


@pytest.mark.parametrize("method", ["bsp", "bsp on PS", "bsp + top-k(0.5)", "local(1)"])
def test_where_all_workers_agree_nothing_is_added(method):
    found = curve(method, clock=None)
    assert (found["consensus_distance"] == 0).all()
    assert (found["averaging_bytes_sent"] == 0).all()
    assert (found["averaging_seconds"] == 0).all()


def test_an_average_has_the_price_of_its_cluster_and_way():
    found = curve("local(4)")
    within = found["step"] % 4 > 0
    for way in ("sent", "received"):
        assert found[f"averaging_bytes_{way}"].tolist() == [RING * one for one in within]
    assert found["averaging_seconds"].tolist() == [3.0 * one for one in within]
    averages = spent(found, "bytes") / (2 * RING)
    assert averages.tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert spent(found, "seconds").tolist() == [0, 4, 5, 6, 7, 11, 12, 13, 14]
    assert spent(found, "step").tolist() == found["step"].tolist()
    found = curve("local(4) on PS")
    assert found["averaging_bytes_sent"].max() == SIZE
    assert found["averaging_seconds"].max() == 2.0
    for method in ("ssp(2)", "asp"):
        free = curve(method, clock=None)
        assert free["consensus_distance"].max() > 0
        assert (free["averaging_bytes_sent"] == 0).all()
    found = curve("d-psgd(ring)", clock=None)
    assert (found["averaging_bytes_sent"][1:] == RING).all()
    workload = made_up_digits(1000)
    here = replace(made_up_cluster("1 Gb/s", "50 us", 4), server_place="extra machines")
    size = 4 * workload.parameters
    for method in ("local(4) on PS", "bsp on PS"):
        clock = cluster_clock(workload, here, method)
        found = Averaging.of(training_method(method), 4, workload.parameters, clock)
        assert found.seconds == pytest.approx(push_pull_seconds(workload, here, size))
        assert found.seconds >= size / here.effects.between_bandwidth


def test_targets_and_equal_costs_within_the_first_round_take_an_average():
    """local(32) seemed to reach a target before it had sent anything."""
    found = curve("local(32)")
    target = float(found["test_loss"].iloc[3])
    assert found["bytes_sent"].iloc[3] == 0
    assert to_target(found, target, "bytes") == 2 * RING
    assert to_target(found, target, "seconds") == 3 + 3.0
    row = summary(found, target).iloc[0]
    assert row["bytes_to_target"] == row["bytes"] == 2 * RING
    assert link_bytes(found)["link_bytes"].iloc[3] == 2 * RING
    curves = pd.concat([curve("bsp", steps=2), curve("local(8)", steps=6)])
    rows = at_equal(curves, "bytes").set_index("method")
    assert rows["step"].to_dict() == {"bsp on A2A": 1, "local(8) on A2A": 6}
    rows = at_equal(curves, "seconds").set_index("method")
    assert rows["step"].to_dict() == {"bsp on A2A": 2, "local(8) on A2A": 5}


# Cells of a table.


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    options = {"seeds": 2, "steps": 4, "workers": 2, "evaluate_every": 2, "jobs": 1}
    return compare("quadratic", ["bsp", "local(2)"], **options).curves


def other(curves: pd.DataFrame, name: str) -> pd.DataFrame:
    """The curves twice, the second time with another value of that setting."""
    value = curves[name].iloc[0]
    changed = f"{value}'" if isinstance(value, str) else 2 * value
    return pd.concat([curves, curves.assign(**{name: changed})])


def test_every_setting_of_a_curve_is_known_and_rows_may_come_in_any_order(curves):
    measured = {"seed", "step", "train_loss", "test_loss", "test_accuracy", "consensus_distance"}
    measured |= {"seconds", "bytes_sent", "diverged", "bytes_received"}
    measured |= {"averaging_bytes_sent", "averaging_bytes_received", "averaging_seconds"}
    parts = {"synchronisation", "compression", "feedback", "architecture"}  # of the method
    assert set(curves) - measured - parts == set(SETTINGS)
    again = runs_by(curves.sample(frac=1, random_state=0), "method")
    for cell, runs in runs_by(curves, "method").items():
        for seed, run in runs.items():
            pd.testing.assert_frame_equal(again[cell][seed], run)
            assert run["step"].is_monotonic_increasing


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
        lambda table: judged(table, [Ordering("bsp", "local(2)", "made up", "here")]),
    ],
)
@pytest.mark.parametrize("name", ["learning_rate", "split", "local_batch"])
def test_nobody_mixes_them(curves, judge, name):
    with pytest.raises(InputError, match=f"vary in {name} "):
        judge(other(curves, name))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda table: pd.concat([table, table[table["seed"] == 1]]), "a step of seed 1 more than"),
        (lambda table: table.drop(columns="seed"), r"lack the columns \['seed'\]"),
        (lambda table: table.iloc[:0], "no curves"),
        (lambda table: table.assign(test_loss="high"), "'test_loss' of the curves has 'high'"),
        (lambda table: table.assign(workers="high"), "'workers' of the curves has 'high'"),
        (lambda table: table[table["method"] == "bsp on A2A"], "no two methods"),
    ],
)
def test_tables_that_are_none_are_refused(curves, broken, told):
    with pytest.raises(InputError, match=told):
        judged(broken(curves))


# Orderings.


PAIR = [Ordering("bsp", "local(4)", "made up", "here")]


def curves_of(better: list[float], worse: list[float]) -> pd.DataFrame:
    named = {str(training_method("bsp")): better, str(training_method("local(4)")): worse}
    rows = [
        {"method": name, "workers": 4, "seed": seed, "step": step, "test_loss": loss + 5 - step}
        for name, losses in named.items()
        for seed, loss in enumerate(losses)
        for step in (0, 5)
    ]
    return pd.DataFrame(rows).assign(diverged=lambda f: f["test_loss"].eq(math.inf))


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "holds"),
        ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], "contradicted"),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], "undecided"),
        # Seeds differ by much more than methods do: they are compared in pairs.
        ([1.0, 5.0, 9.0], [1.11, 5.1, 9.09], "holds"),
        ([1.0, 2.0], [math.inf, math.inf], "holds"),
        ([math.inf, math.inf], [1.0, 2.0], "contradicted"),
        ([1.0, 2.0], [math.inf, 2.0], "undecided"),
        ([0.1, 0.1, 0.1], [66.9, math.inf, 110.5], "holds"),
        ([66.9, math.inf, 110.5], [0.1, 0.1, 0.1], "contradicted"),
        ([0.1, math.inf, 0.1], [66.9, math.inf, 110.5], "undecided"),
        ([0.1, 70.0, 0.1], [66.9, math.inf, 0.01], "undecided"),
        ([math.inf, 0.1], [0.1, math.inf], "undecided"),
        ([math.inf, math.inf], [math.inf, math.inf], "undecided"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side(better, worse, verdict):
    (row,) = judged(curves_of(better, worse), PAIR).to_dict("records")
    assert row["verdict"] == verdict
    assert row["seeds"] == len(better)
    assert row["better_diverged"] == better.count(math.inf)
    assert row["worse_diverged"] == worse.count(math.inf)
    assert 0 <= row["p_value"] <= row["p_holm"] <= 1


def test_orderings_are_of_known_methods_and_their_p_values_of_scipy_and_holm():
    from scipy.stats import ttest_rel

    better, worse = [1.0, 1.3, 0.9, 1.2], [1.4, 1.5, 1.6, 1.1]
    other = Ordering("local(4)", "bsp", "the other way round", "here")
    table = judged(curves_of(better, worse), [*PAIR, other])
    expected = ttest_rel(worse, better).pvalue
    assert table["p_value"].tolist() == pytest.approx([expected] * 2)
    assert table["p_holm"].tolist() == pytest.approx([2 * expected] * 2)
    assert len({str(training_method(name)) for name in methods_of()}) == len(methods_of())
    assert all(one.source and one.why for one in ORDERINGS)


def test_the_row_of_a_run_that_diverges_is_no_model_and_no_target_is_reached_with_it():
    """One worker has taken the step there, and the others have not: their mean may be anything."""
    narrow = quadratic((1.0,), noise=0.01)
    found = compare(narrow, "bsp", workers=3, steps=60, lr=3.0, evaluate_every=1, seeds=2, jobs=1)
    last = found.curves[found.curves["diverged"]]
    assert len(last) == 2
    assert last[["test_loss", "consensus_distance"]].isna().all(axis=None)
    assert (last["averaging_bytes_sent"] == 0).all()
    assert found.summary(0.4)["reached"].tolist() == [0]
    needed = iterations_to_target(found.curves, 0.4)
    assert needed["iterations"].tolist() == [math.inf] * 2
    assert needed["diverged"].all()
    assert final_losses(runs_by(found.curves, "method")["bsp on A2A",]).tolist() == [math.inf] * 2
    kept = found.curves.fillna({"test_loss": 0.0})  # as in curves that were written before
    assert iterations_to_target(kept, 0.4)["iterations"].tolist() == [math.inf] * 2
