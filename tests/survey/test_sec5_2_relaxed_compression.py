"""Section 5.2: losses at equal bytes, and how alike the gradients of methods are."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.errors import InputError
from ddlnb.figures import gradient_histograms, loss_by_bytes
from ddlnb.survey import sec5_2_relaxed_compression as relaxed
from ddlnb.training.executors.clock import Clock, LogNormal
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import training_method
from ddlnb.training.runs.compare import compare
from ddlnb.training.settings import training_settings
from tests.toy_curves import runs_of


@pytest.fixture(scope="module")
def combined() -> pd.DataFrame:
    methods = relaxed.combined_methods(["bsp", "ssp(2)"], ["", " + ef-sign + feedback"])
    clock = Clock(LogNormal(0.5))
    return compare(
        "quadratic", methods, seeds=2, workers=4, steps=20, evaluate_every=5, clock=clock, jobs=1
    ).curves


def test_bytes_are_counted_in_both_directions(combined):
    counted = relaxed.link_bytes(combined)
    ends = counted[(counted["step"] == 20) & (counted["seed"] == 0)].set_index("method")
    dense, sign = 4 * 20, 4 + 3
    assert ends.loc["bsp on A2A", "link_bytes"] == 20 * 2 * 1.5 * dense
    assert ends.loc["bsp + ef-sign + feedback on A2A", "link_bytes"] == 20 * 2 * 3 * sign
    slow = ends.loc["ssp(2) + ef-sign + feedback on PS", "link_bytes"]
    assert slow == pytest.approx(20 * (sign + dense), rel=0.2)  # a fast worker may be ahead


def test_at_equal_bytes_every_method_is_within_the_budget(combined):
    table = relaxed.at_equal_bytes(combined, [5, 20])
    assert len(loss_by_bytes(relaxed.link_bytes(combined)).axes) == 2  # synchronisations
    dense = table[table["method"] == "bsp on A2A"].set_index("dense_iterations")
    assert dense["steps"].tolist() == [5, 20]
    assert (dense["gap"] == 0).all()
    few = table[table["dense_iterations"] == 5].set_index("method")
    assert few.loc["bsp + ef-sign + feedback on A2A", "steps"] >= 20
    assert few.loc["bsp + ef-sign + feedback on A2A", "ended"]


def test_a_gap_is_judged_by_its_interval():
    dense = runs_of("bsp", {0: [2, 1.0], 1: [2, 1.1], 2: [2, 1.2]})
    better = runs_of("local(2)", {0: [2, 0.5], 1: [2, 0.61], 2: [2, 0.69]})
    lost = runs_of("local(4)", {0: [2, 9], 1: [2, 9], 2: [2, 9]}, diverged=True)
    open_ = runs_of("local(8)", {0: [2, 1.5], 1: [2, 0.5], 2: [2, 1.2]})
    once = runs_of("local(16)", {0: [2, 0.1], 1: [2, 0.1], 2: [2, 0.1]})
    once["diverged"] = (once["seed"] == 2) & (once["step"] == once["step"].max())
    curves = pd.concat([dense, better, lost, open_, once], ignore_index=True)
    table = relaxed.at_equal_bytes(curves, [10]).set_index("method")
    verdicts = table["verdict"].drop("bsp on A2A")
    assert verdicts.tolist() == [relaxed.BETTER, relaxed.WORSE, relaxed.OPEN, relaxed.OPEN]


def test_lines_over_bytes_never_go_back():
    """A model between two averages of local SGD costs an average more than the next one does."""
    settings = {"seeds": 1, "workers": 4, "steps": 16, "evaluate_every": 1, "jobs": 1}
    curves = relaxed.link_bytes(
        compare("quadratic", "local(4) + ef-sign + feedback", **settings).curves
    )
    assert (curves["link_bytes"].diff() < 0).any()
    (ax,) = loss_by_bytes(curves).axes
    drawn = ax.lines[0].get_xdata()
    assert len(drawn) == 4
    assert (np.diff(drawn) > 0).all()


def test_a_run_that_diverged_has_not_run_out_of_steps():
    compressed, both = "bsp + ef-sign + feedback", "local(2) + ef-sign + feedback"
    runs = [
        runs_of(method, {seed: [2, 0.5] for seed in range(3)}, diverged=method == both)
        for method in ("bsp", "local(2)", compressed, both)
    ]
    table = relaxed.at_equal_bytes(pd.concat(runs, ignore_index=True), [10]).set_index("method")
    assert not table.loc[str(training_method(both)), "ended"]
    assert table.loc[str(training_method(both)), "over_parts"] == relaxed.WORSE


@pytest.mark.parametrize(
    ("reached", "ended", "word"),
    [
        (0.3, "", relaxed.BETTER),
        (0.5, "", relaxed.WORSE),  # better than dense BSP, and than local SGD: one part did it
        (0.7, "", relaxed.WORSE),
        (0.3, "bsp + ef-sign + feedback", relaxed.ENDED),  # the part could have got farther
        (0.5, "bsp + ef-sign + feedback", relaxed.WORSE),  # and is ahead already
        (0.5, "local(2) + ef-sign + feedback", relaxed.ENDED),
        (0.3, "local(2) + ef-sign + feedback", relaxed.BETTER),
    ],
)
def test_a_combination_is_judged_beside_each_part_unless_who_is_behind_ran_out_of_steps(
    reached, ended, word
):
    compressed, both = "bsp + ef-sign + feedback", "local(2) + ef-sign + feedback"
    ends = {"bsp": 1.0, "local(2)": 0.6, compressed: 0.4, both: reached}
    runs = [
        runs_of(
            method,
            {seed: [2, loss + seed / 1000] + [0.1] * (method != ended) for seed in range(3)},
        )
        for method, loss in ends.items()
    ]
    table = relaxed.at_equal_bytes(pd.concat(runs, ignore_index=True), [10])
    by_method = table.set_index("method")["over_parts"]
    assert by_method[str(training_method(both))] == word
    assert by_method[str(training_method(compressed))] == ""
    said = relaxed.bytes_findings(table)
    assert ("1 cannot be judged" in said) == (word == relaxed.ENDED)
    assert word == relaxed.ENDED or f"{int(word == relaxed.BETTER)} of 1 combinations" in said


@pytest.fixture(scope="module")
def sizes() -> pd.DataFrame:
    settings = {"workers": 3, "steps": 30, "last": 20, "seeds": 3, "clock": Clock(LogNormal(0.5))}
    return relaxed.gradient_sizes("logistic", ["bsp", "ssp(2)"], **settings)


def test_histograms_hold_all_entries_and_tell_gradients_of_other_sizes_apart(sizes):
    totals = sizes.groupby(["method", "seed", "measure"])["share"].sum()
    np.testing.assert_allclose(totals, 1, rtol=1e-5)
    assert [len(ax.lines) for ax in gradient_histograms(sizes).axes] == [6, 6]
    found = relaxed.similarity(sizes).set_index(["measure", "method"])
    itself = found.loc[("scaled", "bsp on A2A")]
    assert itself["overlap"] == itself["base_overlap"]
    assert itself["alike"]
    assert found["overlap"].between(0.5, 1).all()
    dense = sizes[sizes["method"] == "bsp on A2A"]
    other = dense.assign(method="ssp(2) on PS")
    other["share"] = other.groupby(["seed", "measure"])["share"].shift(4, fill_value=0.0)
    found = relaxed.similarity(pd.concat([dense, other])).set_index(["measure", "method"])
    assert not found.loc[("raw", "ssp(2) on PS"), "alike"]


def test_watching_sees_every_gradient_and_changes_nothing():
    loop, seen, ends = training_method("local(2)").synchronisation.loop, [], []
    watching = partial(relaxed.watched, loop, lambda w, gradient: seen.append((w.rank, w.step)))
    for played in (loop, watching):
        job = training_settings("quadratic", "local(2)", workers=2, steps=6).job()
        team = [job.worker(rank) for rank in range(2)]
        Lockstep(team, played, 6).run()
        ends.append(team[0].parameters)
    assert torch.equal(*ends)
    assert sorted(seen) == [(rank, step) for rank in (0, 1) for step in range(1, 7)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda curves, _: relaxed.link_bytes(curves.drop(columns="bytes_received")),
            r"lack the columns \['bytes_received'\]",
        ),
        (
            lambda curves, _: relaxed.at_equal_bytes(
                curves[curves["synchronisation"] != "bsp"], [5]
            ),
            "lack 'bsp on A2A'",
        ),
        (lambda _, sizes: relaxed.similarity(sizes[sizes["seed"] == 0]), "fewer than two runs"),
    ],
)
def test_what_cannot_be_compared_is_refused(combined, sizes, call, said):
    with pytest.raises(InputError, match=said):
        call(combined, sizes)
