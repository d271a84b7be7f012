"""What the pages on training scripts and traces quote is what the kept rows say."""

import pandas as pd
import pytest

from benchmarks.train_with_it import (
    BUCKETS,
    KEPT,
    OURS,
    RUN,
    WATCHED,
    WATCHED_SHARDS,
    compared,
    summary,
)
from ddlnb.files import ROOT


@pytest.fixture(scope="module", params=[OURS, BUCKETS, WATCHED, WATCHED_SHARDS])
def kept(request):
    return request.param, compared(pd.read_csv(KEPT[request.param]))


def test_the_page_quotes_the_sentence_about_the_kept_rows(kept):
    rival, table = kept
    page = "traces" if rival.startswith(WATCHED) else "train_with_it"
    assert summary(table, rival) in (ROOT / "docs" / f"{page}.md").read_text()


def test_all_cells_are_kept_and_none_is_slower_than_ddp_beyond_noise(kept):
    rival, table = kept
    assert list(table["cell"]) == list(RUN[rival])
    assert (table["high"] > 1).all()
    if rival == BUCKETS:  # the gain is forecast, too
        off = (table["plain over it"] / table["forecast"] - 1).abs()
        assert off.median() < 0.03
        assert off.max() < 0.08


def test_a_ratio_is_that_of_pairs_of_runs():
    rows = pd.DataFrame(
        {
            "cell": "one",
            "repetition": [0, 0, 1, 1],
            "method": ["DDP", "DistributedModel"] * 2,
            "iteration_seconds": [2.0, 1.0, 8.0, 4.0],
            "plan": [None, "searched"] * 2,
            "messages": [None, 3] * 2,
        }
    )
    [row] = compared(rows).to_dict("records")
    assert row["plain over it"] == pytest.approx(2.0)
    assert (row["plan"], row["messages"]) == ("searched", 3)
