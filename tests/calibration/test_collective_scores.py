"""A block's score is made without the block, and without rows of more nodes than may be seen."""

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.collective_scores import (
    FITTED_NODES,
    OF_RUN,
    SCORES,
    collective_scores,
    scores_by_group,
)
from ddlnb.errors import InputError
from ddlnb.results.collectives import SECONDS, read_published
from tests.calibration.test_collectives import made


def toy_blocks() -> pd.DataFrame:
    parts = [made(2), made(4, block="four"), made(2, block="another", between=-0.1)]
    return pd.concat(parts, ignore_index=True).assign(source="toys")


def test_what_a_block_measured_does_not_change_its_forecast_nor_do_more_nodes():
    rows = toy_blocks()
    four = rows["block"] == "four"
    scores = collective_scores(rows, draws=60)
    other = collective_scores(rows.assign(**{SECONDS: rows[SECONDS] * (1 + 9 * four)}), draws=60)
    assert list(scores.columns) == [*SCORES, *OF_RUN]
    assert not scores[["block", "run"]].duplicated().any()
    assert np.allclose(scores["forecast"], other["forecast"])
    assert (scores["nodes"] > FITTED_NODES).sum() == four.sum()
    assert (scores["low"] < scores["forecast"]).all()
    assert (scores["forecast"] < scores["high"]).all()


def test_a_single_block_cannot_be_left_out():
    with pytest.raises(InputError, match="without block 'made-up'"):
        collective_scores(made(2).assign(source="toys"), draws=60)


def test_errors_of_groups_are_medians_over_their_rows():
    table = pd.DataFrame(
        {
            "nodes": [2, 4, 4],
            "size_bytes": [2.0**20, 2.0**30, 8.0],
            "measured": [1.0, 1.0, 1.0],
            "forecast": [1.1, 0.8, 3.0],
            "low": [0.5, 0.5, 2.0],
            "high": [1.2, 1.2, 4.0],
            "trivial": [0.5, 0.5, 0.5],
        }
    )
    found = {row["messages"]: row for row in scores_by_group(table)}
    assert found["more nodes than fitted, 1 MiB and more"]["median error"] == "20.0%"
    assert found["1 to 16 MiB"]["median error"] == "10.0%"
    assert found["all"]["in the interval"] == "67%"


def test_published_blocks_are_of_many_networks_and_have_times():
    rows = read_published()
    assert (rows[SECONDS] > 0).all()
    assert {2, 4, 8} <= set(rows["nodes"])
    assert rows["network"].str.startswith("TCP").sum() > 20
    assert rows["source_url"].notna().all()
