"""A block's score is made without the block, and without rows of more nodes than may be seen."""

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.collective_scores import (
    FITTED_NODES,
    OF_RUN,
    SCORES,
    collective_scores,
    nominal,
    scores_by_group,
)
from ddlnb.calibration.collective_tables import SECONDS, bus_factor, read_published
from ddlnb.errors import InputError
from ddlnb.files import CALIBRATION
from ddlnb.units import MIB
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


def test_nominal_seconds_are_the_bytes_of_a_ring_over_the_slowest_sheet():
    row = {"collective": "all_reduce", "size_bytes": 2.0**30, "gpu": "A100", "gpus_per_node": 8}
    row |= {"nodes": 4, "ranks": 32, "network": "RoCE 8x200 Gb/s"}  # 200 GB/s, less than NVLink's
    assert nominal(row) == pytest.approx(2.0**30 * bus_factor("all_reduce", 32) / 200e9)


@pytest.mark.thorough
@pytest.mark.slow
def test_published_blocks_that_are_left_out_are_forecast_better_than_by_sheets():
    scores = collective_scores(draws=200)
    large = scores[scores["size_bytes"] >= MIB]
    error, trivial = (
        (large[how] / large["measured"] - 1).abs().median() for how in ("forecast", "trivial")
    )
    assert error < 0.1
    assert error < 0.6 * trivial


def test_kept_scores_are_within_what_was_reached():
    kept = pd.read_csv(CALIBRATION / "collectives_left_out.csv")
    found = {row["messages"]: row["median error"] for row in scores_by_group(kept)}
    reached = {"more nodes than fitted, 1 MiB and more": 12.6, "1 to 16 MiB": 18.0, "all": 11.4}
    for messages, most in reached.items():
        assert float(str(found[messages]).rstrip("%")) <= most
