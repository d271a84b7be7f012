"""The worked cases of advice: sentences say what tables hold."""

from ddlnb.survey.advice import (
    answer,
    explanation,
    other_network,
    published,
    slow_run,
    two_machines,
)


def test_the_slow_run_is_the_published_cell_and_its_suspect_the_rate_of_the_other_network():
    """The published throughput on 100GbE is that on 10GbE; the rate is found from it alone."""
    gap = slow_run("bert-large_b8_rtx2080ti", "survey-100GbE", "WFBP-PS", 8, draws=40)
    assert gap.measured == published("bert-large", "100GbE", 8)["WFBP-PS"]
    assert gap.measured < gap.low
    assert all(str(one) in explanation(gap) for one in gap.suspects[:3])
    said = other_network(gap, "bert-large", "10GbE", 8)
    beside = published("bert-large", "10GbE", 8)["WFBP-PS"]
    assert f"{beside:.4g} samples/s" in said
    assert abs(gap.measured / beside - 1) < 0.02
    assert "No suspect" in other_network(gap, "bert-large", "1GbE", 8)


def test_two_machines_get_an_answer_without_a_measurement():
    found = two_machines("small-conv", "RTX 3090", "1GbE", 32, draws=20)
    assert found.question.cluster.workers == 2
    said = answer(found)
    assert found.options["option"].iloc[0] in said
    assert "Not known: " in said
