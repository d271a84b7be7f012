"""Sections 5.1 to 5.3: adaptive periods, relaxed synchronisation with compression, densities."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.figures.sec5_challenges import (
    gradient_histograms,
    level_curves,
    loss_by_bytes,
    period_bars,
)
from ddlnb.studies.sec3_2_architectures import made_up_workload
from ddlnb.studies.sec5_challenges import density as level_study
from ddlnb.studies.sec5_challenges import equal_bytes, gradient_sizes, periods
from ddlnb.training.cost.cluster_clock import cluster_clock
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.executors.stragglers import LogNormal
from ddlnb.training.job import learning_job
from ddlnb.training.method import training_method
from ddlnb.training.runs.study import study
from ddlnb.training.runs.train import train
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.workloads.workload import read_profile

CLUSTER = "survey-10GbE"
WORKLOAD = read_profile("resnet50_b64_rtx2080ti")


def runs_of(method: str, losses: dict[int, list[float]], **more) -> pd.DataFrame:
    """Curves with these losses by seed, at steps 0, 10, 20, ..."""
    rows = [
        {
            "task": "quadratic",
            "method": str(training_method(method)),
            "workers": 8,
            "seed": seed,
            "step": 10 * number,
            "test_loss": loss,
            "diverged": False,
            "consensus_distance": 0.0,
            "bytes_sent": 140.0 * number,  # one round of 80 bytes among eight
            "averaging_bytes_sent": 0.0,
            "bytes_received": 140.0 * number,
            "averaging_bytes_received": 0.0,
            "averaging_seconds": 0.0,
        }
        | more
        for seed, values in losses.items()
        for number, loss in enumerate(values)
    ]
    return pd.DataFrame(rows)


# 5.1


@pytest.mark.parametrize("method", ["bsp", "local(4)", "adaptive-local(1, 8, rare)"])
def test_seconds_of_the_cost_model_are_those_of_a_run_in_the_clusters_time(method):
    workload = made_up_workload(1, 80)  # as large as the task's own gradient
    clock = cluster_clock(workload, CLUSTER, method, workers=8)
    curve = train("quadratic", method, workers=8, steps=16, evaluate_every=4, clock=clock)
    if method == "bsp":
        with pytest.raises(InputError, match="not local SGD"):
            periods.on_cluster(curve, workload, CLUSTER)
        return
    timed = periods.on_cluster(curve, workload, CLUSTER)
    over = curve["consensus_distance"] == 0  # elsewhere one average more makes the model of the row
    np.testing.assert_allclose(timed["seconds"][over], curve["seconds"][over], rtol=1e-6)
    assert (timed["seconds"][~over] > curve["seconds"][~over]).all()
    assert (timed["rounds"].diff()[1:] >= 0).all()
    if method == "local(4)":
        assert timed["rounds"].tolist() == [0, 1, 2, 3, 4]


def test_fewer_rounds_for_as_many_steps_win_where_a_round_is_dear():
    falls = {seed: [2.0] * 20 + [0.4] for seed in range(3)}
    often = runs_of("local(1)", falls).assign(
        bytes_sent=lambda c: 14 * 10 * c["step"], bytes_received=lambda c: 14 * 10 * c["step"]
    )
    seldom = runs_of("local(8)", falls)
    late = runs_of("adaptive-local(1, 8, rare)", {seed: [2.0] * 20 + [0.9] for seed in range(3)})
    curves = pd.concat([often, seldom, late], ignore_index=True)
    times = periods.period_times(curves, 0.5, WORKLOAD, [CLUSTER]).set_index("method")
    assert times.loc["local(8) on A2A", "best_fixed"]
    assert times.loc["local(1) on A2A", "verdict"] == periods.SLOWER
    assert times.loc["local(1) on A2A", "rounds"] == 200
    assert times.loc["local(8) on A2A", "rounds"] == 20
    assert times.loc["adaptive-local(1, 8, rare, 0.5) on A2A", "verdict"] == periods.SLOWER
    figure = period_bars(times.reset_index())
    assert [text.get_text() for text in figure.axes[0].texts] == ["not in all runs"]
    with pytest.raises(InputError, match="no fixed H reaches"):
        periods.period_times(curves, 0.1, WORKLOAD, [CLUSTER])


def test_a_tie_has_no_verdict():
    same = {seed: [2.0, 0.4] for seed in range(3)}
    curves = pd.concat([runs_of("local(1)", same), runs_of("local(2)", same)], ignore_index=True)
    times = periods.period_times(curves, 0.5, WORKLOAD, [CLUSTER])
    assert set(times["verdict"]) == {"", periods.OPEN}


def test_periods_have_both_ends_and_both_directions():
    assert periods.period_methods([2, 16])[2:] == [
        "adaptive-local(2, 16, frequent)",
        "adaptive-local(2, 16, rare)",
    ]
    with pytest.raises(InputError, match="two or more"):
        periods.period_methods([4])


# 5.2


@pytest.fixture(scope="module")
def combined() -> pd.DataFrame:
    methods = equal_bytes.combined_methods(["bsp", "ssp(2)"], ["", " + ef-sign + feedback"])
    clock = Clock(LogNormal(0.5))
    return study(
        "quadratic", methods, seeds=2, workers=4, steps=20, evaluate_every=5, clock=clock, jobs=1
    ).curves


def test_bytes_are_counted_in_both_directions(combined):
    counted = equal_bytes.link_bytes(combined)
    ends = counted[(counted["step"] == 20) & (counted["seed"] == 0)].set_index("method")
    dense, sign = 4 * 20, 4 + 3
    assert ends.loc["bsp on A2A", "link_bytes"] == 20 * 2 * 1.5 * dense
    assert ends.loc["bsp + ef-sign + feedback on A2A", "link_bytes"] == 20 * 2 * 3 * sign
    slow = ends.loc["ssp(2) + ef-sign + feedback on PS", "link_bytes"]
    assert slow == pytest.approx(20 * (sign + dense), rel=0.2)  # a fast worker may be ahead
    with pytest.raises(InputError, match=r"lack the columns \['bytes_received'\]"):
        equal_bytes.link_bytes(combined.drop(columns="bytes_received"))


def test_at_equal_bytes_every_method_is_within_the_budget(combined):
    table = equal_bytes.at_equal_bytes(combined, [5, 20])
    dense = table[table["method"] == "bsp on A2A"].set_index("dense_iterations")
    assert dense["steps"].tolist() == [5, 20]
    assert (dense["gap"] == 0).all()
    few = table[table["dense_iterations"] == 5].set_index("method")
    assert few.loc["bsp + ef-sign + feedback on A2A", "steps"] >= 20
    assert few.loc["bsp + ef-sign + feedback on A2A", "ended"]
    with pytest.raises(InputError, match="lack 'bsp on A2A'"):
        equal_bytes.at_equal_bytes(combined[combined["synchronisation"] != "bsp"], [5])


def test_a_gap_is_judged_by_its_interval():
    dense = runs_of("bsp", {0: [2, 1.0], 1: [2, 1.1], 2: [2, 1.2]})
    better = runs_of("local(2)", {0: [2, 0.5], 1: [2, 0.61], 2: [2, 0.69]})
    lost = runs_of("local(4)", {0: [2, 9], 1: [2, 9], 2: [2, 9]}, diverged=True)
    open_ = runs_of("local(8)", {0: [2, 1.5], 1: [2, 0.5], 2: [2, 1.2]})
    curves = pd.concat([dense, better, lost, open_], ignore_index=True)
    table = equal_bytes.at_equal_bytes(curves, [10]).set_index("method")
    assert table.loc["local(2) on A2A", "verdict"] == equal_bytes.BETTER
    assert table.loc["local(4) on A2A", "verdict"] == equal_bytes.WORSE
    assert table.loc["local(8) on A2A", "verdict"] == equal_bytes.OPEN


@pytest.fixture(scope="module")
def sizes() -> pd.DataFrame:
    return gradient_sizes.gradient_sizes(
        "logistic",
        ["bsp", "ssp(2)"],
        workers=3,
        steps=30,
        last=20,
        seeds=3,
        clock=Clock(LogNormal(0.5)),
    )


def test_histograms_hold_all_entries_and_runs_of_one_method_are_alike(sizes):
    totals = sizes.groupby(["method", "seed", "measure"])["share"].sum()
    np.testing.assert_allclose(totals, 1, rtol=1e-5)
    found = gradient_sizes.similarity(sizes).set_index(["measure", "method"])
    itself = found.loc[("scaled", "bsp on A2A")]
    assert itself["overlap"] == itself["base_overlap"]
    assert itself["alike"]
    assert found["overlap"].between(0.5, 1).all()
    with pytest.raises(InputError, match="fewer than two runs"):
        gradient_sizes.similarity(sizes[sizes["seed"] == 0])


def test_histograms_tell_gradients_of_other_sizes_apart(sizes):
    other = sizes[sizes["method"] == "bsp on A2A"].assign(method="ssp(2) on PS")
    other["share"] = other.groupby(["seed", "measure"])["share"].shift(4, fill_value=0.0)
    both = pd.concat([sizes[sizes["method"] == "bsp on A2A"], other])
    found = gradient_sizes.similarity(both).set_index(["measure", "method"])
    assert not found.loc[("raw", "ssp(2) on PS"), "alike"]


def trained(watching: bool) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Where worker 0 ends, and which gradients were seen, by rank and step."""
    job = learning_job("quadratic", "local(2)", workers=2, steps=6)
    crew = [job.worker(rank) for rank in range(2)]
    loop, seen = job.method.synchronisation.loop, []
    watched = partial(gradient_sizes.watched, loop, lambda w, g: seen.append((w.rank, w.step)))
    Lockstep(crew, watched if watching else loop, 6).run()
    return crew[0].parameters, seen


def test_watching_sees_every_gradient_and_changes_nothing():
    (alone, _), (seen_end, seen) = trained(False), trained(True)
    assert torch.equal(alone, seen_end)
    assert sorted(seen) == [(rank, step) for rank in (0, 1) for step in range(1, 7)]


# 5.3


def swept(seconds_by_density: dict[float, list[float]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table and curves in which an iteration takes a second, so that iterations are seconds."""
    rows, curves = [], []
    for density, steps in {1.0: [50.0, 50.0, 50.0], **seconds_by_density}.items():
        name = "bsp" if density == 1 else f"bsp + top-k({density}) + feedback"
        method = str(training_method(name))
        rows.append((method, density, density == 1, float(np.mean(steps)), 1.0))
        for seed, step in enumerate(steps):
            steps_and_losses = [(step - 1, 0.9), (step, 0.1)] if step < math.inf else [(100, 0.9)]
            curves += [("quadratic", method, 8, seed, *one, 0.0) for one in steps_and_losses]
    table = pd.DataFrame(
        rows, columns=["method", "density", "is_dense", "seconds", "iteration_seconds"]
    ).assign(machine="m", network="n", iterations=lambda t: t["seconds"], workers=8)
    names = ["task", "method", "workers", "seed", "step", "test_loss", "averaging_bytes_sent"]
    return table.assign(model="toy", target=0.5, source="s"), pd.DataFrame(curves, columns=names)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({0.01: [90, 91, 92], 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.INTERIOR),
        ({0.01: [30, 31, 32], 0.1: [90, 91, 92], 0.3: [95, 96, 97]}, level_study.AT_LEAST),
        ({0.01: [90, 91, 92], 0.1: [60, 61, 60], 0.3: [30, 31, 32]}, level_study.AT_MOST),
        ({0.01: [33, 25, 40], 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.OPEN),
        ({0.01: [math.inf] * 3, 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.INTERIOR),
    ],
)
def test_a_minimum_is_where_the_intervals_say(seconds, said):
    table, curves = swept(seconds)
    (row,) = level_study.level_verdicts(table, curves, 0.5).to_dict("records")
    assert row["verdict"] == said
    assert row["beats_dense"] == (row["seconds"] < 50)


def test_times_are_iterations_times_seconds_and_grow_with_the_density_on_a_slow_network():
    methods = level_study.level_methods([0.001, 0.01, 0.1])
    curves = study(
        "logistic", methods, seeds=2, workers=8, steps=40, evaluate_every=4, jobs=1
    ).curves
    target = float(curves.loc[curves["step"] == 40, "test_loss"].max())
    table = level_study.level_times(curves, target, WORKLOAD, [CLUSTER])
    assert table["density"].tolist() == [0.001, 0.01, 0.1, 1.0]
    sparse = table[~table["is_dense"]]
    assert (sparse["iteration_seconds"].diff()[1:] > 0).all()
    np.testing.assert_allclose(table["seconds"], table["iterations"] * table["iteration_seconds"])
    assert len(level_curves(table).axes[0].lines) == 4
    with pytest.raises(InputError, match="no interior"):
        level_study.level_methods([0.1, 0.01])


def test_figures_show_every_method_and_say_their_source(combined, sizes):
    figure = loss_by_bytes(equal_bytes.link_bytes(combined))
    assert [ax.get_title() for ax in figure.axes] == ["bsp", "ssp(2)"]
    assert figure.get_supxlabel().startswith("source: lockstep, bytes counted")
    figure = gradient_histograms(sizes)
    assert [len(ax.lines) for ax in figure.axes] == [6, 6]
    assert get_learning_task("quadratic").name in set(combined["task"])
