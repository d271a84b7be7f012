"""Every claim of section 4.2 is judged on published cells, beside forecasts, or says why not."""

import pytest

from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import RATE
from ddlnb.survey import sec4_2_findings as section
from ddlnb.survey.claims import CLAIMS, evaluate_claims
from ddlnb.survey.testbed import BATCHES, CLUSTERS
from tests.toy_forecasts import cells, forecasts

LARGER = (
    forecasts()
    .query("model == 'bert-large'")
    .assign(
        local_batch=128,
        speedup=lambda rows: 1.2 * rows["speedup"],
        **{RATE: lambda rows: 5 * rows[RATE]},
    )
)


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
    verdicts = section.verdicts_table(found)["simulated"]["verdict"]
    assert list(verdicts.index[verdicts == "not judged"]) == ["A57"]  # for want of a second batch
    said = section.claim_findings(found)
    assert said.startswith(f"- Of {len(CLAIMS)} claims, judged on simulated cells, ")
    assert "1 is not judged (A57)." in said
    assert "second local_batch" in found["simulated"].set_index("claim").loc["A57", "reason"]


def test_a_larger_batch_judges_its_claim_and_no_other():
    before = section.verdicts(forecasts())["simulated"].set_index("claim")
    after = section.verdicts(forecasts(), LARGER)["simulated"].set_index("claim")
    assert after.loc["A57", "holds"] is True
    assert after.drop("A57").equals(before.drop("A57"))


def test_published_cells_judge_and_the_simulator_agrees_or_not():
    """Published cells are the forecasts times a factor, but BSP-A2A, which they have faster."""
    other = cells()
    other.loc[other["method"] == "BSP-A2A", RATE] *= 2
    found = section.verdicts(forecasts(), published=other)
    assert list(found) == ["published", "simulated"]
    agrees = section.agreement(found)
    assert agrees["A44"] is False
    assert agrees["A46"] is True
    assert agrees["A57"] is None
    table = section.verdicts_table(found)
    assert table.loc["A44", ("survey", "says")] == CLAIMS["A44"].text
    assert table.loc["A44", ("published", "verdict")] == "holds"
    assert table.loc["A44", ("simulated", "agrees")] == "no"
    said = section.claim_findings(found)
    assert said.startswith(f"- Of {len(CLAIMS)} claims, judged on published cells, ")
    assert "The simulator agrees on " in said
    assert "it disagrees on A44" in said


def test_methods_whose_forecasts_are_the_same_are_not_compared():
    """A claim that is true of equals, or false of them, by construction says nothing."""
    rows = forecasts()
    alike = rows.set_index(["model", "network", "gpus", "method"])[RATE].unstack()
    same = rows["method"] == "ByteScheduler-PS"
    keys = rows.loc[same, ["model", "network", "gpus"]].itertuples(index=False, name=None)
    rows.loc[same, RATE] = [alike.loc[key, "WFBP-PS"] for key in keys]
    found = section.verdicts(rows)["simulated"].set_index("claim")
    for claim in section.ABOUT_EQUALS:
        assert found.loc[claim, "holds"] is None
        assert "do not tell" in found.loc[claim, "reason"]


def test_the_published_cells_decide_these_claims():
    """What noise or suspicious cells may turn is undecided; A57 needs a larger batch."""
    judged = evaluate_claims(section.trusted_cells(), whole=section.judged_cells())
    words = section.verdict_words(judged)
    by_word = judged["claim"].groupby(words).agg(list).to_dict()
    assert by_word == {
        "holds": ["A44", "A45", "A55", "A56"],
        "fails": ["A46", "A48", "A50", "A54"],
        "undecided": ["A47", "A49", "A51", "A52", "A53", "A58"],
        "not judged": ["A57"],
    }


def test_four_gpus_on_nvlink_scale_better_at_the_large_batch():
    rows = section.forecast_nvlink()
    assert set(rows["gpus"]) == {4}
    assert set(rows["method"]) == {m.name for m in SURVEYED.values() if m.architecture == "A2A"}
    small = section.forecast_nvlink(8)
    assert (rows["speedup"] > small["speedup"]).all()


def test_the_index_has_verdicts_of_published_cells_and_no_refutation_by_a_simulation():
    found = section.verdicts(forecasts(), LARGER, published=cells())
    items = section.claim_findings(found).items
    assert [(one.item, one.how) for one in items] == [
        (claim, source) for source in ("published", "simulated") for claim in CLAIMS
    ]
    words = {True: "holds", False: "contradicted", None: None}
    theirs = [one.verdict for one in items if one.how == "published"]
    assert theirs == [words[holds] for holds in found["published"]["holds"]]
    ours = {one.item: one.verdict for one in items if one.how == "simulated"}
    # Without single rows and a second batch published cells judge neither; forecasts support both.
    assert {claim for claim, verdict in ours.items() if verdict is not None} == {"A55", "A57"}
    assert set(ours.values()) == {None, "holds"}
    assert all(one.said for one in items)
