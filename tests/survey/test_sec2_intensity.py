"""The audit of the intensities that the survey prints (A06, A10, A11)."""

import pytest

from ddlnb.survey.sec2_intensity import (
    AUDITED_MODELS,
    audit,
    intensity_findings,
    ordering_holds,
)
from ddlnb.workloads.models import TASKS

AS_COUNTED = "forward + backward, FMA = 1"


@pytest.fixture(scope="module")
def rows():
    return audit()


@pytest.fixture(scope="module")
def by_name(rows):
    return rows.set_index(["convention", "model"])


@pytest.mark.parametrize(
    ("convention", "resnet50", "bert_base", "bert_large"),
    [
        (AS_COUNTED, 475, 192, 193),
        ("3x forward, FMA = 1", 480, 192, 193),
        ("4x forward, FMA = 1", 640, 256, 257),
        ("3x forward, FMA = 2, encoder only", None, 300, 348),
    ],
)
def test_each_convention_gives_its_intensities(
    by_name, convention, resnet50, bert_base, bert_large
):
    found = by_name["intensity"][convention].reindex(AUDITED_MODELS).round()
    assert found.astype(object).where(found.notna(), None).tolist() == [
        *(resnet50, bert_base, bert_large)
    ]


@pytest.mark.item("A06", verdict="contradicted")
def test_no_convention_agrees_with_all_three_published_values(by_name):
    agrees = by_name["verdict"] == "agrees"
    assert agrees.groupby("convention").sum().max() == 2
    assert by_name["verdict"][AS_COUNTED, "resnet50"] == "agrees"
    assert by_name["verdict"][AS_COUNTED, "bert-base"] == "too low"


def test_the_ordering_holds_under_every_convention_for_all_three(rows):
    assert set(AUDITED_MODELS) <= set(TASKS)
    assert list(ordering_holds(rows).values()) == [True] * 4


@pytest.mark.item("A11", verdict="contradicted")
def test_the_survey_disagrees_with_itself_by_a_tenth(by_name):
    own = by_name.loc[("the survey's own FLOPs", "bert-large")]
    assert own["intensity"] == pytest.approx(222, abs=0.5)
    assert own["relative_error"] == pytest.approx(-0.10, abs=0.01)
    assert own["published"] == 248
    assert own["verdict"] == "too low"


def test_findings_are_those_of_the_rows(rows):
    said = intensity_findings(rows)
    assert "none with all three" in said
    assert "intensity of 222, where the survey prints 248" in said
