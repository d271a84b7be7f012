"""Items A06 to A11 and A16 of the survey, and the audit of its intensities."""

from __future__ import annotations

import pytest

from ddlnb.errors import InputError, UnknownName
from ddlnb.results.published import quoted
from ddlnb.studies.sec2_intensity import AUDITED_MODELS, audit, ordering_holds
from ddlnb.workloads.intensity import c2c, intensity
from ddlnb.workloads.tasks import TASKS
from ddlnb.workloads.tracing import trace

AS_COUNTED = "forward + backward, FMA = 1"
THREE_FORWARD = "3x forward, FMA = 1"
FOUR_FORWARD = "4x forward, FMA = 1"
ENCODER_ONLY = "3x forward, FMA = 2, encoder only"


@pytest.fixture(scope="module")
def rows():
    return {(row.convention, row.model): row for row in audit()}


@pytest.mark.parametrize(
    ("convention", "resnet50", "bert_base", "bert_large"),
    [
        (AS_COUNTED, 475, 192, 193),
        (THREE_FORWARD, 480, 192, 193),
        (FOUR_FORWARD, 640, 256, 257),
        (ENCODER_ONLY, None, 300, 348),
    ],
)
def test_each_convention_gives_its_intensities(rows, convention, resnet50, bert_base, bert_large):
    for model, value in zip(AUDITED_MODELS, (resnet50, bert_base, bert_large), strict=True):
        row = rows.get((convention, model))
        assert (row and round(row.intensity)) == value


def test_no_convention_agrees_with_all_three_published_values(rows):
    agreeing = {convention: 0 for convention, _ in rows}
    for (convention, _), row in rows.items():
        agreeing[convention] += row.verdict == "agrees"
    assert max(agreeing.values()) == 2
    assert rows[AS_COUNTED, "resnet50"].verdict == "agrees"
    assert rows[AS_COUNTED, "bert-base"].verdict == "too low"


def test_the_ordering_holds_under_every_convention_for_all_three(rows):
    holds = ordering_holds(rows.values())
    assert len(holds) == 4
    assert all(holds.values())


def test_the_survey_disagrees_with_itself_by_a_tenth(rows):
    own = rows["the survey's own FLOPs", "bert-large"]
    assert own.intensity == pytest.approx(222, abs=0.5)
    assert own.relative_error == pytest.approx(-0.10, abs=0.01)


def test_published_values_stand_in_their_own_column(rows):
    published = {model: row.published for (_, model), row in rows.items()}
    assert published == {"resnet50": 470, "bert-base": 249, "bert-large": 248}


def test_intensity_does_not_depend_on_the_batch():
    assert intensity(trace("small-conv", 8)) == intensity(trace("small-conv", 1))
    assert intensity(trace("small-conv"), 2) == 2 * intensity(trace("small-conv"))
    with pytest.raises(InputError, match="1 or 2 FLOPs"):
        intensity(trace("small-conv"), 3)


def test_communication_per_computation_has_the_quoted_ratios():
    resnet, base, large = (quoted("A06", f"intensity of {model}") for model in AUDITED_MODELS)
    assert c2c(base, 64) / c2c(resnet, 64) == pytest.approx(2, abs=0.15)  # A08: "about 2x"
    assert c2c(large, 8) / c2c(base, 64) == pytest.approx(8, abs=0.05)  # A09: "about 8x"
    assert c2c(base, 64, traffic=2) == 2 * c2c(base, 64)
    with pytest.raises(InputError, match="batch 0"):
        c2c(base, 0)


def test_the_parameter_counts_and_size_are_the_quoted_ones():
    workloads = {model: trace(model) for model in AUDITED_MODELS}
    for model, workload in workloads.items():
        assert workload.parameters == pytest.approx(
            quoted("A16", f"parameters of {model}"), rel=0.003
        )
    assert workloads["bert-large"].gradient_bytes / 1e9 == pytest.approx(
        quoted("A10", "fp32 size of bert-large"), abs=0.006
    )


def test_only_models_of_the_survey_can_be_audited():
    assert set(AUDITED_MODELS) <= set(TASKS)
    with pytest.raises(UnknownName, match="intensity of small-conv"):
        audit([trace("small-conv")])
