"""Draws: all cells in some, those that may be the fastest in all, and none differently."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ddlnb.advice.score import contenders, play_contenders
from ddlnb.clusters.cluster import Fit
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.draws import play_cells
from ddlnb.simulator.forecast import methods_on
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.workload import read_profile

SURVEY = get_cluster("survey-10GbE", 8)
DRAWS, FEW = 100, 20


@pytest.fixture(scope="module", params=["resnet50_b64_rtx2080ti", "bert-base_b64_rtx2080ti"])
def cells(request):
    workload = read_profile(request.param)
    return [Cell(workload, SURVEY, one) for one in methods_on(SURVEY) if one.architecture == "A2A"]


@pytest.fixture(scope="module")
def played(cells):
    every = range(len(cells))
    return play_cells(cells, draws=DRAWS), play_contenders(cells, every, draws=DRAWS)


def test_draws_are_those_of_cells_that_are_played_in_all(played):
    full, ours = played
    was_played = ~np.isnan(ours.drawn)
    assert was_played[:FEW].all()
    np.testing.assert_array_equal(ours.drawn[was_played], full.drawn[was_played])
    np.testing.assert_array_equal(ours.seconds, full.seconds)
    np.testing.assert_array_equal(ours.exposed, full.exposed)


def test_what_is_the_fastest_in_any_draw_is_played_in_all(played, cells):
    full, ours = played
    draws = [ours.draws(number) for number in range(len(cells))]
    assert set(draws) == {FEW, DRAWS}, "some went on, and some did not"
    for number in set(full.drawn.argmin(axis=1)):
        assert draws[number] == DRAWS
        assert ours.quantile(number, 0.05) == full.quantile(number, 0.05)


def test_intervals_of_few_draws_are_quantiles_of_these(played, cells):
    full, ours = played
    short = [number for number in range(len(cells)) if ours.draws(number) == FEW]
    for number in short:
        assert ours.quantile(number, 0.95) == np.quantile(full.drawn[:FEW, number], 0.95)


def test_what_is_not_compared_is_played_in_few_draws(cells):
    ours = play_contenders(cells, [2], draws=DRAWS, seed=3)
    assert [ours.draws(number) for number in range(len(cells))] == [
        DRAWS if number == 2 else FEW for number in range(len(cells))
    ]
    again = play_contenders(cells, [2], draws=DRAWS, seed=3)
    np.testing.assert_array_equal(ours.drawn, again.drawn)
    other = play_contenders(cells, [2], draws=DRAWS, seed=4)
    assert (ours.drawn[:, 2] != other.drawn[:, 2]).all()


def test_a_contender_is_as_near_as_its_distance_varies():
    generator = np.random.default_rng(0)
    noise = 0.01 * generator.standard_normal((4000, 3))
    for behind, stays in ((0.01, True), (0.03, True), (0.1, False)):
        drawn = np.exp(noise + np.array([0.0, behind, 2.0]))
        assert contenders(drawn[:40], [0, 1, 2]) == ([0, 1] if stays else [0])
        chance = np.mean(drawn[:, 1] < drawn[:, 0])
        assert stays or chance < 1e-3


def test_the_fastest_column_always_stays():
    generator = np.random.default_rng(1)
    for columns in (1, 2, 40):
        drawn = np.exp(generator.standard_normal((20, columns)))
        assert set(drawn.argmin(axis=1)) <= set(contenders(drawn, range(columns)))
    alike = np.ones((20, 3))
    assert contenders(alike, [0, 2]) == [0, 2]
    assert contenders(np.empty((0, 3)), [0, 1]) == []


def test_clusters_that_differ_only_in_intervals_have_draws_of_their_own():
    """They compare equal, and one had taken the draws of the other."""
    workload = replace(read_profile("resnet50_b64_rtx2080ti"), spread=0.0)
    exact = {name: Fit(value, value, "exact") for name, value in SURVEY.effects.there.items()}
    known = replace(SURVEY, fits=exact, model_error=0.0)
    wide = {**exact, "compute_factor": Fit(0.5, 2.0, "guessed")}
    cells = [Cell(workload, on, METHODS["BSP-A2A"]) for on in (known, replace(known, fits=wide))]
    assert cells[0].cluster == cells[1].cluster
    for listed in (cells, cells[::-1]):
        taken = play_cells(listed, draws=DRAWS).drawn
        assert [np.ptp(column) > 0 for column in taken.T] == [one is cells[1] for one in listed]


def test_without_draws_nothing_is_drawn(cells):
    ours = play_contenders(cells, [0, 1], draws=0)
    assert ours.drawn.shape == (0, len(cells))
    assert math.isnan(ours.quantile(0, 0.5))
    with pytest.raises(InputError, match="draws 7 are too few"):
        play_contenders(cells, [0], draws=7)
