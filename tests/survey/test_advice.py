"""The worked cases of advice: sentences say what tables hold."""

import pytest

from ddlnb.errors import InputError
from ddlnb.survey.advice import (
    answer,
    explanation,
    other_network,
    published,
    slow_run,
    two_machines,
)


@pytest.fixture(scope="module")
def gap():
    return slow_run("bert-large_b8_rtx2080ti", "survey-100GbE", "WFBP-PS", 8, draws=40)


def test_the_slow_run_is_the_published_cell(gap):
    assert gap.measured == published("bert-large", "100GbE", 8)["WFBP-PS"]
    assert gap.measured < gap.low
    assert all(str(one) in explanation(gap) for one in gap.suspects[:3])


def test_a_suspect_has_the_rate_of_the_other_network(gap):
    """The published throughput on 100GbE is that on 10GbE; the rate is found from it alone."""
    said = other_network(gap, "bert-large", "10GbE", 8)
    beside = published("bert-large", "10GbE", 8)["WFBP-PS"]
    assert f"{beside:.4g} samples/s" in said
    assert abs(gap.measured / beside - 1) < 0.02
    assert "No suspect" in other_network(gap, "bert-large", "1GbE", 8)


def test_a_cell_that_is_not_published_is_refused_with_those_that_are():
    with pytest.raises(InputError, match=r"no published cell of 'DeAR' .* there are BSP"):
        slow_run("bert-large_b8_rtx2080ti", "survey-100GbE", "DeAR", 8, draws=20)


def test_two_machines_get_an_answer_without_a_measurement():
    found = two_machines("small-conv", "RTX 3090", "1GbE", 32, draws=20)
    assert found.question.cluster.workers == 2
    said = answer(found)
    assert found.options["option"].iloc[0] in said
    assert "Not known: " in said
