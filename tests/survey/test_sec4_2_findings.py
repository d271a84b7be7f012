"""Every claim of section 4.2 is judged on forecasts and published cells, or says why not."""

from __future__ import annotations

import pytest

from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import RATE
from ddlnb.survey import sec4_2_findings
from ddlnb.survey.claims import CLAIMS
from ddlnb.survey.testbed import BATCHES, CLUSTERS
from tests.toy_forecasts import cells, forecasts


def test_single_gpu_rows_follow_from_throughput_and_speed_up():
    rows = sec4_2_findings.with_single(forecasts())
    alone = rows[rows["method"] == "single"]
    assert len(alone) == len(BATCHES) * len(CLUSTERS)
    assert alone[RATE].tolist() == pytest.approx([100.0] * len(alone))
    assert set(alone["gpus"]) == {1}
    assert len(rows) == len(forecasts()) + len(alone)


def test_every_claim_is_judged_or_says_why_not():
    found = sec4_2_findings.verdicts(forecasts(), published=cells().iloc[:0])
    assert list(found) == ["simulated"]
    assert list(found["simulated"]["claim"]) == list(CLAIMS)
    table = sec4_2_findings.verdicts_table(found)
    verdicts = table["simulated"]["verdict"]
    assert set(verdicts) == {"holds", "fails", "not judged"}
    # For want of a second batch; and where the forecasts of two methods are the same.
    assert list(table.index[verdicts == "not judged"]) == ["A51", "A57", "A58"]
    said = sec4_2_findings.claim_findings(found)
    assert said.startswith(f"- Of {len(CLAIMS)} claims, judged on simulated cells, ")
    assert "3 are not judged (A51, A57, A58)." in said
    assert table.loc["A57", ("simulated", "verdict")] == "not judged"
    assert "second local_batch" in sec4_2_findings.contradictions(found).loc["A57", "is"]


def test_a_larger_batch_judges_its_claim_and_no_other():
    larger = forecasts().query("model == 'bert-large'").assign(local_batch=128)
    larger = larger.assign(speedup=larger["speedup"] * 1.2, **{RATE: 5 * larger[RATE]})
    before = sec4_2_findings.verdicts(forecasts())["simulated"].set_index("claim")
    after = sec4_2_findings.verdicts(forecasts(), larger)["simulated"].set_index("claim")
    assert after.loc["A57", "holds"] is True
    assert after.drop("A57").equals(before.drop("A57"))


def test_the_failing_cells_are_those_that_the_verdicts_count():
    found = sec4_2_findings.verdicts(forecasts())["simulated"].set_index("claim")
    failing = sec4_2_findings.failing_cells(forecasts())
    fails = found[[holds is False for holds in found["holds"]]]
    assert len(fails) > 2
    counted = failing.groupby("claim").size()
    expected = ((1 - fails["share"]) * fails["cells"]).round()
    assert counted.to_dict() == expected.to_dict()
    places = sec4_2_findings.failing_by_place(failing)
    assert places["model"].sum(axis=1).to_dict() == expected.to_dict()
    assert sec4_2_findings.failing_by_place(failing.iloc[:0]).empty


def test_published_cells_are_judged_beside_the_forecasts():
    found = sec4_2_findings.verdicts(forecasts(), published=cells())
    assert list(found) == ["simulated", "published"]
    table = sec4_2_findings.verdicts_table(found)
    assert set(table["published"]["verdict"]) == {"holds", "fails", "not judged"}
    judged = table["simulated"]["verdict"] != "not judged"
    assert (table["published"]["cells"] <= table["simulated"]["cells"])[judged].all()
    assert table.loc["A44", ("survey", "says")] == CLAIMS["A44"].text
    said = sec4_2_findings.claim_findings(found)
    assert "The survey's own cells with up to 8 GPUs contradict" in said


def test_methods_whose_forecasts_are_the_same_are_not_compared():
    """A claim that is true of equals, or false of them, by construction says nothing."""
    found = sec4_2_findings.verdicts(sec4_2_findings.forecast_figure())["simulated"]
    found = found.set_index("claim")
    for claim in sec4_2_findings.NOT_TOLD_APART:
        assert found.loc[claim, "holds"] is None
        assert "do not tell" in found.loc[claim, "reason"]
    rows = sec4_2_findings.forecast_figure().set_index(["model", "network", "gpus", "method"])[RATE]
    two = [rows.xs(name, level="method") for name in ("WFBP-PS", "ByteScheduler-PS")]
    assert two[0].equals(two[1])


def test_best_speed_ups_keep_the_order_of_the_figure():
    best = sec4_2_findings.best_speedups(forecasts())
    assert list(best.index) == list(CLUSTERS)
    assert list(best.columns) == list(BATCHES)
    assert best.loc["10GbE", "resnet50"] == pytest.approx(0.95 * 32)


def test_four_gpus_on_nvlink_scale_better_at_the_large_batch():
    rows = sec4_2_findings.forecast_nvlink()
    assert set(rows["gpus"]) == {4}
    assert set(rows["method"]) == {m.name for m in SURVEYED.values() if m.architecture == "A2A"}
    small = sec4_2_findings.forecast_nvlink(8)
    assert (rows["speedup"] > small["speedup"]).all()
    quoted = sec4_2_findings.quotes_beside(rows.iloc[:0], rows)
    assert list(quoted.index) == ["A43"]
    assert quoted.loc["A43", "the fit"] == "has not seen it"


def test_findings_carry_the_verdict_on_every_claim_from_every_source():
    found = sec4_2_findings.verdicts(forecasts(), published=cells())
    items = sec4_2_findings.claim_findings(found).items
    assert [(one.item, one.how) for one in items] == [
        (claim, source) for source in ("simulated", "published") for claim in CLAIMS
    ]
    words = {True: "holds", False: "contradicted", None: None}
    judged = [holds for frame in found.values() for holds in frame["holds"]]
    assert [one.verdict for one in items] == [words[holds] for holds in judged]
    assert all(one.said for one in items)
