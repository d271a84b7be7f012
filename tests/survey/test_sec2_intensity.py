"""The audit of the intensities that the survey prints (A06, A10, A11)."""

from __future__ import annotations

import pytest

from ddlnb.errors import UnknownName
from ddlnb.survey.sec2_intensity import (
    AUDITED_MODELS,
    audit,
    c2c_table,
    intensity_findings,
    intensity_table,
    ordering_holds,
)
from ddlnb.workloads.models import TASKS
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


@pytest.mark.item("A06", verdict="contradicted")
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


@pytest.mark.item("A11", verdict="contradicted")
def test_the_survey_disagrees_with_itself_by_a_tenth(rows):
    own = rows["the survey's own FLOPs", "bert-large"]
    assert own.intensity == pytest.approx(222, abs=0.5)
    assert own.relative_error == pytest.approx(-0.10, abs=0.01)


def test_published_values_stand_in_their_own_column(rows):
    published = {model: row.published for (_, model), row in rows.items()}
    assert published == {"resnet50": 470, "bert-base": 249, "bert-large": 248}


def test_only_models_of_the_survey_can_be_audited():
    assert set(AUDITED_MODELS) <= set(TASKS)
    with pytest.raises(UnknownName, match="intensity of small-conv"):
        audit([trace("small-conv")])


def test_tables_and_findings_are_those_of_the_rows(rows):
    audited = list(rows.values())
    table = intensity_table(audited)
    assert table.loc[("bert-large", "the survey's own FLOPs"), "verdict"] == "too low"
    said = intensity_findings(audited)
    assert "none with all three" in said
    assert "intensity of 222, where the survey prints 248" in said
    ratios = c2c_table(audited, {"resnet50": 64, "bert-base": 64, "bert-large": 8})
    assert ratios["relative, published"]["bert-base"] == pytest.approx(2, abs=0.2)
