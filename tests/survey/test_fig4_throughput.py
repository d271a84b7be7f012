"""Fig. 4 on this machine: claims about speed with their noise, and published cells."""

import pandas as pd
import pytest

from ddlnb.survey.fig4_throughput import beside_published, claims_here, speed_findings


def rows(fast: float, slow: float, std: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["BSP-A2A", "BSP-PS"],
            "gpus": 2,
            "throughput_samples_per_s": [fast, slow],
            "std": std,
        }
    )


@pytest.mark.parametrize(
    ("fast", "slow", "std", "said"),
    [
        (200.0, 100.0, 1.0, "as claimed"),
        (100.0, 200.0, 1.0, "the other way round"),
        (101.0, 100.0, 5.0, "within the spread"),
        (200.0, 100.0, float("nan"), "one run says nothing"),
        (200.0, 100.0, [1.0, float("nan")], "one run says nothing"),
    ],
)
def test_a_claim_is_only_judged_outside_its_spread(fast, slow, std, said):
    both = rows(fast, slow, std)
    [claim] = claims_here(both).to_dict("records")
    assert claim["here"] == said
    assert claim["ratio"] == pytest.approx(fast / slow)
    assert claims_here(both.iloc[:1]).empty  # a method that did not run is not judged


def test_published_cells_stand_beside_ours_and_the_fastest_is_said():
    ours = rows(2, 1, 0)
    assert beside_published(ours.assign(model="small-conv")).equals(ours.assign(model="small-conv"))
    both = beside_published(ours.assign(model="resnet50"))
    theirs = both[both["source"] == "published"]
    assert len(both) == len(ours) + len(theirs)
    assert set(theirs["model"]) == {"resnet50"}
    assert len(theirs) == 4 * 3 * 7  # sizes, networks and methods
    said = speed_findings(rows(200.0, 100.0, 1.0).assign(speedup=1.5)).splitlines()
    assert said[0] == (
        "- 2 workers: BSP-A2A is the fastest here, with 200 samples/s and 1.50 times the speed of "
        "one worker."
    )
    assert said[1].endswith("1 as claimed.")
