"""Every claim of section 4.2 is judged on forecasts and published cells, or says why not."""

import pytest

from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import RATE
from ddlnb.survey import sec4_2_findings as section
from ddlnb.survey.claims import CLAIMS
from ddlnb.survey.testbed import BATCHES, CLUSTERS
from tests.toy_forecasts import cells, forecasts


def test_single_gpu_rows_follow_from_throughput_and_speed_up():
    rows = section.with_single(forecasts())
    alone = rows[rows["method"] == "single"]
    assert len(alone) == len(BATCHES) * len(CLUSTERS)
    assert alone[RATE].tolist() == pytest.approx([100.0] * len(alone))
    assert set(alone["gpus"]) == {1}
    assert len(rows) == len(forecasts()) + len(alone)


def test_every_claim_is_judged_or_says_why_not():
    found = section.verdicts(forecasts(), published=cells().iloc[:0])
    assert list(found) == ["simulated"]
    assert list(found["simulated"]["claim"]) == list(CLAIMS)
    table = section.verdicts_table(found)
    verdicts = table["simulated"]["verdict"]
    assert set(verdicts) == {"holds", "fails", "not judged"}
    # For want of a second batch; and where the forecasts of two methods are the same.
    assert list(table.index[verdicts == "not judged"]) == ["A51", "A57", "A58"]
    said = section.claim_findings(found)
    assert said.startswith(f"- Of {len(CLAIMS)} claims, judged on simulated cells, ")
    assert "3 are not judged (A51, A57, A58)." in said
    assert "second local_batch" in section.contradictions(found).loc["A57", "is"]


def test_a_larger_batch_judges_its_claim_and_no_other():
    larger = forecasts().query("model == 'bert-large'").assign(local_batch=128)
    larger = larger.assign(speedup=larger["speedup"] * 1.2, **{RATE: 5 * larger[RATE]})
    before = section.verdicts(forecasts())["simulated"].set_index("claim")
    after = section.verdicts(forecasts(), larger)["simulated"].set_index("claim")
    assert after.loc["A57", "holds"] is True
    assert after.drop("A57").equals(before.drop("A57"))


def test_the_failing_cells_are_those_that_the_verdicts_count():
    found = section.verdicts(forecasts())["simulated"].set_index("claim")
    failing = section.failing_cells(forecasts())
    fails = found[[holds is False for holds in found["holds"]]]
    assert len(fails) > 2
    counted = failing.groupby("claim").size()
    expected = ((1 - fails["share"]) * fails["cells"]).round()
    assert counted.to_dict() == expected.to_dict()
    places = section.failing_by_place(failing)
    assert places["model"].sum(axis=1).to_dict() == expected.to_dict()
    assert section.failing_by_place(failing.iloc[:0]).empty


def test_published_cells_are_judged_beside_the_forecasts():
    found = section.verdicts(forecasts(), published=cells())
    assert list(found) == ["simulated", "published"]
    table = section.verdicts_table(found)
    assert set(table["published"]["verdict"]) == {"holds", "fails", "not judged"}
    judged = table["simulated"]["verdict"] != "not judged"
    assert (table["published"]["cells"] <= table["simulated"]["cells"])[judged].all()
    assert table.loc["A44", ("survey", "says")] == CLAIMS["A44"].text
    said = section.claim_findings(found)
    assert "The survey's own cells with up to 8 GPUs contradict" in said


def test_methods_whose_forecasts_are_the_same_are_not_compared():
    """A claim that is true of equals, or false of them, by construction says nothing."""
    rows = section.forecast_figure()
    found = section.verdicts(rows)["simulated"].set_index("claim")
    for claim in section.NOT_TOLD_APART:
        assert found.loc[claim, "holds"] is None
        assert "do not tell" in found.loc[claim, "reason"]
    rates = rows.set_index(["model", "network", "gpus", "method"])[RATE].unstack()
    assert (rates["WFBP-PS"] == rates["ByteScheduler-PS"]).all()


def test_four_gpus_on_nvlink_scale_better_at_the_large_batch():
    rows = section.forecast_nvlink()
    assert set(rows["gpus"]) == {4}
    assert set(rows["method"]) == {m.name for m in SURVEYED.values() if m.architecture == "A2A"}
    small = section.forecast_nvlink(8)
    assert (rows["speedup"] > small["speedup"]).all()
    quoted = section.quotes_beside(rows.iloc[:0], rows)
    assert list(quoted.index) == ["A43"]
    assert quoted.loc["A43", "the fit"] == "has not seen it"


def test_findings_carry_the_verdict_on_every_claim_from_every_source():
    found = section.verdicts(forecasts(), published=cells())
    items = section.claim_findings(found).items
    assert [(one.item, one.how) for one in items] == [
        (claim, source) for source in ("simulated", "published") for claim in CLAIMS
    ]
    words = {True: "holds", False: "contradicted", None: None}
    judged = [holds for frame in found.values() for holds in frame["holds"]]
    assert [one.verdict for one in items] == [words[holds] for holds in judged]
    assert all(one.said for one in items)
