"""The published pattern of gossip algorithms and compressions, and the rule that reads it."""

from __future__ import annotations

import math

import pytest

from ddlnb.compression.catalogue import get_compressor
from ddlnb.errors import UnknownName
from ddlnb.studies.convergence_rates.divergence import (
    ALGORITHMS,
    COLUMNS,
    FAILS,
    PUBLISHED_EXACT,
    WORKS,
    divergence_pattern,
    methods_of,
    outcome,
    pattern_verdicts,
)
from ddlnb.training.method import training_method


def test_in_the_published_table_choco_stands_every_compression_and_the_others_do_not():
    outcomes = {
        name: [outcome(column.published[place], PUBLISHED_EXACT) for column in COLUMNS]
        for place, name in enumerate(ALGORITHMS)
    }
    assert set(outcomes["choco"]) == {WORKS}
    assert outcomes["dcd"].count(WORKS) == 7
    assert outcomes["ecd"].count(WORKS) == 1


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_compression_of_the_table_exists_with_all_algorithms(column):
    assert set(methods_of(column)) == set(ALGORITHMS)
    for method in methods_of(column).values():
        assert training_method(method).compressor == get_compressor(column.compressor)


def test_a_scale_makes_an_unbiased_compression_a_contraction():
    for family in ("QSGD", "rand"):
        scales = [column.scale for column in COLUMNS if column.name.startswith(family)]
        assert scales == sorted(scales, reverse=True)
        assert all(0 < scale <= 1 for scale in scales)


def test_a_pattern_has_a_row_per_cell_and_the_exact_algorithm_works():
    pattern = divergence_pattern(["QSGD 16 bit", "QSGD 2 bit"], workers=3, steps=30, jobs=1)
    assert list(pattern["algorithm"]) == ["d-psgd", *ALGORITHMS, *ALGORITHMS]
    assert pattern.iloc[0]["here"] == WORKS
    cell = pattern.set_index(["compression", "algorithm"])["here"]
    assert cell["QSGD 2 bit", "ecd"] == FAILS
    assert cell["QSGD 16 bit", "dcd"] == WORKS
    verdicts = pattern_verdicts(pattern)
    assert list(verdicts.index) == list(ALGORITHMS)
    assert (verdicts["compressions"] == 2).all()


def test_random_coordinates_come_to_the_published_end_with_every_algorithm():
    """Published: DCD stands half of the coordinates and no fewer, ECD none, CHOCO all."""
    names = ["rand 50 %", "rand 10 %", "rand 1 %"]
    pattern = divergence_pattern(names, steps=50, jobs=1)
    lossy = pattern[pattern["compression"] != "none"]
    assert lossy["same"].all(), lossy
    here = lossy.set_index(["algorithm", "compression"])["here"]
    assert here["dcd"].tolist() == [WORKS, FAILS, FAILS]
    assert set(here["ecd"]) == {FAILS}
    assert set(here["choco"]) == {WORKS}


def test_a_run_that_diverged_fails_and_unknown_compressions_are_refused():
    assert outcome(-math.inf, 90.0) == FAILS
    with pytest.raises(UnknownName, match="did you mean"):
        divergence_pattern(["QSGD 3 bit"])
