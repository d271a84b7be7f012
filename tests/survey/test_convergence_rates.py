"""Convergence rates: the fit of slopes on curves that are known, and laws on tiny runs.

How fast gossip mixes: tables and the figure of them.

The published pattern of gossip algorithms and compressions, and the rule that reads it.
"""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from ddlnb.calibration.statistics import Interval
from ddlnb.compression.catalogue import get_compressor
from ddlnb.figures import convergence_rates
from ddlnb.survey.convergence_rates import (
    AGREES,
    ALGORITHMS,
    AT_MEAN,
    AT_WORKERS,
    COLUMNS,
    DISAGREES,
    FAILS,
    NOISE,
    OPEN,
    PROBLEMS,
    PUBLISHED_EXACT,
    RATES,
    WORKS,
    consensus_rounds,
    divergence_pattern,
    get_problem,
    gradient_norms,
    outcome,
    pattern_verdicts,
    rate_slopes,
    rate_study,
    slope_interval,
    verdict,
)
from ddlnb.training.gossip import make_graph, spectral_gap
from ddlnb.training.method import training_method
from ddlnb.training.tasks.built_in import SPECTRUM


def synthetic(slope_t: float, slope_n: float, spread: float = 0.0, runs: int = 6) -> pd.DataFrame:
    """The table of a study whose gradients fall exactly so, with log-normal noise."""
    cells = [(4, 500), (4, 1000), (4, 2000), (2, 2000), (8, 2000)]
    rows = [(workers, steps, run) for workers, steps in cells for run in range(runs)]
    table = pd.DataFrame(rows, columns=["workers", "steps", "run"])
    noise = np.exp(spread * np.random.default_rng(5).standard_normal(len(table)))
    value = table["steps"] ** slope_t * table["workers"] ** slope_n * noise
    known = {"problem": "made-up", "method": "bsp on A2A", "source": "simulated"}
    return table.assign(**known, **{AT_MEAN: value, AT_WORKERS: value})


def mean_norm(method: str, workers: int, steps: int, runs: int = 8) -> float:
    problem = get_problem("quadratic")
    norms = gradient_norms(problem, method, workers=workers, steps=steps, runs=runs)
    return float(norms.at_mean.mean())


@pytest.mark.parametrize(
    ("slope", "half_width", "said"),
    [
        (-0.5, 0.05, AGREES),
        (-0.58, 0.01, AGREES),
        (-0.58, 0.05, OPEN),
        (-0.7, 0.05, DISAGREES),
        (-0.3, 0.05, DISAGREES),
        (-0.5, 0.5, OPEN),
        (-0.5, math.nan, OPEN),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(slope, half_width, said):
    assert verdict(Interval(slope, slope - half_width, slope + half_width)) == said


def test_slopes_of_a_study_are_found_within_intervals_that_cover_as_they_say():
    found = rate_slopes(synthetic(-0.5, -0.2)).set_index(["against", "gradient"])
    assert found.loc[("steps", AT_MEAN), "slope"] == pytest.approx(-0.5)
    assert found.loc[("workers", AT_WORKERS), "slope"] == pytest.approx(-0.2)
    assert found.loc[("steps", AT_MEAN), "verdict"] == AGREES
    assert found.loc[("workers", AT_MEAN), "verdict"] == DISAGREES
    assert set(rate_slopes(synthetic(-0.5, -0.5, spread=1.0))["verdict"]) == {OPEN}
    draw, x = np.random.default_rng(1), np.array([1.0, 2.0, 4.0, 8.0])
    runs = x**-0.5 * np.exp(0.2 * draw.standard_normal((300, 6, 4)))
    slopes = [slope_interval(x.tolist(), some) for some in runs]
    covered = sum(slope.low <= -0.5 <= slope.high for slope in slopes)
    # Binomial(300, 0.95): outside of these with a chance below 1e-4.
    assert 268 <= covered <= 299


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_in_closed_form_are_those_of_the_task(name):
    problem = get_problem(name)
    generator = torch.Generator().manual_seed(2)
    points = torch.randn(3, problem.dimensions, generator=generator)
    samples = problem.task.samples()
    count = len(samples.labels)
    chosen = torch.tensor([0, 5, count - 1])
    own = problem.sampled(points, chosen)
    for row, sample, gradient in zip(points, chosen, own, strict=True):
        module = problem.task.build(0)
        (weights,) = module.parameters()
        weights.data.copy_(row)
        batch = tuple(tensor[sample : sample + 1] for tensor in samples.tensors)
        problem.task.loss(module, batch).backward()
        torch.testing.assert_close(weights.grad, gradient)
    each = problem.sampled(points[:1].expand(count, -1), torch.arange(count)).double()
    torch.testing.assert_close(each.mean(0).float(), problem.mean(points[:1])[0])
    assert problem.mean(torch.tensor([problem.task.constants().optimum])).abs().max() < 1e-6
    assert problem.gap > 0


def expected_of_bsp(workers: int, steps: int) -> float:
    """What the mean of |gradient|^2 over BSP's iterations is on the quadratic, in expectation.

    Exactly, coordinate by coordinate: of the start (1 - rate h)^(2t) is left after t steps, and
    noise of variance v/n builds up to rate^2 v/n (1 - (1 - rate h)^(2t)) / (1 - (1 - rate h)^2).
    """
    curvature = torch.tensor(SPECTRUM, dtype=torch.float64)
    rate = get_problem("quadratic").rate(workers, steps)
    left = (1 - rate * curvature).square()
    spread = (1 - left**steps) / (1 - left) / steps  # the mean of what is left over all steps
    noise = rate**2 * NOISE / len(SPECTRUM) / workers / (1 - left) * (1 - spread)
    return float((curvature.square() * (spread + noise)).sum())


def test_bsp_on_the_quadratic_is_what_it_is_expected_to_be():
    problem = get_problem("quadratic")
    runs = gradient_norms(problem, "bsp", workers=2, steps=150, runs=60).at_mean.numpy()
    error = runs.std(ddof=1) / math.sqrt(len(runs))
    # Beyond four standard errors with a chance below 1e-3.
    assert abs(runs.mean() - expected_of_bsp(2, 150)) < 4 * error
    assert runs.mean() + 4 * error < problem.bound(2, 150)


@pytest.mark.parametrize("method", ["local(3)", "d-psgd(ring)", "choco(ring, 0.3) + top-k(0.2)"])
def test_where_gradients_are_linear_the_mean_model_moves_as_that_of_bsp(method):
    asked = partial(gradient_norms, get_problem("quadratic"), workers=4, steps=60, runs=3)
    exact, found = asked("bsp"), asked(method)
    torch.testing.assert_close(found.at_mean, exact.at_mean, rtol=1e-4, atol=0)
    assert (found.at_workers > found.at_mean).all()
    torch.testing.assert_close(exact.at_workers, exact.at_mean)


@pytest.mark.thorough
def test_stale_updates_cost_terms_that_fall_faster_and_quantisation_its_variance():
    """Without barriers gradients are old: more so with many workers, and less so in long runs."""
    excess = [
        mean_norm("asp", 8, steps) / mean_norm("bsp", 8, steps) - 1 for steps in (60, 240, 960)
    ]
    assert excess[0] > 0
    assert excess[-1] < excess[0] / 2
    assert abs(excess[-1]) < 0.1
    exact, quantised = mean_norm("bsp", 2, 300, 6), mean_norm("bsp + qsgd(1)", 2, 300, 6)
    variance = math.sqrt(get_problem("quadratic").dimensions)  # w, of one level
    assert exact < quantised < (1 + variance) * exact


def test_runs_of_every_rate_of_theory_draw_independently_and_repeat_to_the_bit():
    problem, method = get_problem("logistic"), "bsp + top-k(0.1) + feedback"
    first, again = (
        gradient_norms(problem, method, workers=2, steps=30, runs=2).at_mean for _ in range(2)
    )
    assert first[0] != first[1]
    assert torch.equal(first, again)
    for method, (_, tag) in RATES.items():
        assert tag.startswith("[")
        norms = gradient_norms(get_problem("quadratic"), method, workers=3, steps=20, runs=2)
        assert torch.isfinite(norms.at_mean).all()


def test_a_study_has_a_row_per_cell_and_run_and_falls_in_both_directions():
    asked = {"steps": (100, 200, 400), "workers": (1, 2, 4), "runs": 4}
    table = rate_study(["bsp", "local(4)"], **asked, jobs=1)
    assert len(table) == 2 * 2 * 5 * 4
    found = rate_slopes(table)
    assert (found["slope"] < -0.25).all()
    assert set(found["tag"]) == {"[k]"}
    said = convergence_rates(table).get_supxlabel()
    assert said.startswith("source: simulated | mean and standard error of 4")
    promised = found.groupby("method")["promised"].agg(["any", "all"])
    assert promised.loc["bsp on A2A", "all"]
    assert not promised.loc["local(4) on A2A", "any"]


def test_gossip_keeps_within_the_bound_of_the_gap_and_compressed_is_slower_by_round():
    methods = ("d-psgd(ring)", "choco(ring, 0.3) + top-k(0.1)", "d-psgd(complete)")
    rounds = consensus_rounds(methods, workers=8, rounds=12, elements=100)
    of_each = [rows.set_index("round") for _, rows in rounds.groupby("method", sort=False)]
    plain, choco, complete = of_each
    ring = plain["distance"].to_numpy()
    bound = (1 - spectral_gap(make_graph("ring", 8))) ** 2
    assert ring[0] == 1
    assert (ring[1:] <= bound * ring[:-1] * 1.0001).all()
    assert (complete["distance"][1:] < 1e-12).all()  # which agrees at once
    assert ring[12] < choco["distance"][12] < choco["distance"][0]
    assert (plain["bytes_sent"][12], choco["bytes_sent"][12]) == (12 * 2 * 400, 12 * 2 * 80)


def test_in_the_published_table_choco_stands_every_compression_and_the_others_do_not():
    published = np.array([column.published for column in COLUMNS.values()])
    stood = [
        sum(outcome(accuracy, PUBLISHED_EXACT) == WORKS for accuracy in row) for row in published.T
    ]
    assert dict(zip(ALGORITHMS, stood, strict=True)) == {"dcd": 7, "ecd": 1, "choco": len(COLUMNS)}
    assert outcome(-math.inf, 90.0) == FAILS


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_every_compression_of_the_table_exists_with_all_algorithms(column):
    assert set(column.methods) == set(ALGORITHMS)
    for method in column.methods.values():
        assert training_method(method).compressor == get_compressor(column.compressor)
    assert 0 < column.scale <= 1  # which makes an unbiased compression a contraction


@pytest.mark.thorough
def test_a_pattern_has_a_row_per_cell_and_comes_to_the_published_end():
    """Published: DCD stands half of the coordinates and no fewer, ECD none, CHOCO all."""
    pattern = divergence_pattern(["QSGD 16 bit", "QSGD 2 bit"], workers=3, steps=30, jobs=1)
    assert list(pattern["algorithm"]) == ["d-psgd", *ALGORITHMS, *ALGORITHMS]
    assert pattern.iloc[0]["here"] == WORKS
    cell = pattern.set_index(["compression", "algorithm"])["here"]
    assert cell["QSGD 2 bit", "ecd"] == FAILS
    assert cell["QSGD 16 bit", "dcd"] == WORKS
    verdicts = pattern_verdicts(pattern)
    assert list(verdicts.index) == list(ALGORITHMS)
    assert (verdicts["compressions"] == 2).all()
    names = ["rand 50 %", "rand 10 %"]
    pattern = divergence_pattern(names, steps=50, jobs=1)
    lossy = pattern[pattern["compression"] != "none"]
    assert lossy["same"].all(), lossy
    here = lossy.set_index(["algorithm", "compression"])["here"]
    assert here["dcd"].tolist() == [WORKS, FAILS]
    assert set(here["ecd"]) == {FAILS}
    assert set(here["choco"]) == {WORKS}
