"""Tables: plans counted anew, claims about speed with their noise, published cells."""

from __future__ import annotations

import pandas as pd
import pytest

from ddlnb.plans.methods import METHODS
from ddlnb.studies.fig4_throughput import about_published, beside_published, claims_here
from ddlnb.studies.sec4_methods import plans, plans_table
from tests.toy import COST, TOY


def rows(fast: float, slow: float, std: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["BSP-A2A", "BSP-PS"],
            "gpus": 2,
            "throughput_samples_per_s": [fast, slow],
            "std": std,
        }
    )


def test_every_plan_sends_every_element_once():
    table = plans_table(plans(TOY, COST, partition=40, credit=80))
    assert list(table.index) == list(METHODS)
    assert (table[["least_times_sent", "most_times_sent"]] == 1).all(axis=None)
    assert (table["elements"] == TOY.parameters).all()


@pytest.mark.parametrize(
    ("fast", "slow", "std", "said"),
    [
        (200.0, 100.0, 1.0, "as claimed"),
        (100.0, 200.0, 1.0, "the other way round"),
        (101.0, 100.0, 5.0, "within the spread"),
    ],
)
def test_a_claim_is_only_judged_outside_its_spread(fast, slow, std, said):
    [claim] = claims_here(rows(fast, slow, std)).to_dict("records")
    assert claim["here"] == said
    assert claim["ratio"] == pytest.approx(fast / slow)


def test_a_single_run_judges_no_claim():
    once = rows(200.0, 100.0, float("nan"))
    assert list(claims_here(once)["here"]) == ["one run says nothing"]
    once.loc[0, "std"] = 1.0
    assert list(claims_here(once)["here"]) == ["one run says nothing"]


def test_claims_about_methods_that_did_not_run_are_left_out():
    assert claims_here(rows(2, 1, 0).iloc[:1]).empty


def test_absent_published_cells_are_said_to_be_absent(monkeypatch):
    nothing = pd.DataFrame({"model": []})
    monkeypatch.setattr("ddlnb.studies.fig4_throughput.fig4_cells", lambda: nothing)
    ours = rows(2, 1, 0)
    assert "not in this edition" in about_published()
    assert beside_published(ours) is ours


def test_published_cells_stand_beside_ours_when_they_are_there(monkeypatch):
    cells = pd.DataFrame({"model": ["resnet50", "bert-base"], "source": "published"})
    monkeypatch.setattr("ddlnb.studies.fig4_throughput.fig4_cells", lambda: cells)
    assert about_published().startswith("2 published cells")
    assert len(beside_published(rows(2, 1, 0), model="resnet50")) == 3
