"""The board of forecasts: no source gets worse in silence, and digests know no measured value."""

import pandas as pd
import pytest

from ddlnb.survey.board import (
    EVERY,
    FIT,
    JUDGEMENT,
    KINDS,
    SHEET,
    Kind,
    board,
    constants,
    digest,
    judgements,
    read_board,
    replaced,
    source_rows,
    worse,
    write_board,
)

ROWS = pd.DataFrame(
    {
        "source": ["here", "here", "there"],
        "run": ["a", "b", "c"],
        "measured": [100.0, 100.0, 10.0],
        "forecast": [110.0, 70.0, 10.0],
        "low": [90.0, 60.0, 9.0],
        "high": [120.0, 80.0, 11.0],
        "trivial": [200.0, 100.0, 15.0],
        "left_out": ["here", "here", False],
    }
)


def toy(**changed):
    return source_rows(ROWS.assign(**changed)).assign(kind="toy")


def test_a_source_is_scored_beside_its_trivial_forecast():
    here, there = toy().to_dict("records")
    assert (here["rows"], here["median"], here["near"]) == (2, pytest.approx(0.2), 0.5)
    assert (here["inside"], here["trivial"], here["left_out"]) == (0.5, 0.5, True)
    assert (there["median"], there["left_out"]) == (0.0, False)


def test_all_sources_together_are_a_row_that_weighs_every_run_alike(monkeypatch):
    rows = ROWS.assign(left_out=True)
    monkeypatch.setitem(KINDS, "toy", Kind("toy", "", lambda: rows, pooled=True))
    found = board(["toy"])
    assert list(found["source"]) == ["here", "there", EVERY]
    pooled = found.iloc[-1]
    assert (pooled["rows"], pooled["median"]) == (3, pytest.approx(0.1))
    assert (pooled["near"], pooled["inside"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_a_digest_is_of_what_was_forecast_and_of_nothing_measured():
    assert digest(ROWS) == digest(ROWS.assign(measured=1.0, trivial=1.0))
    assert digest(ROWS) != digest(ROWS.assign(high=200.0))
    assert digest(ROWS) != digest(ROWS.assign(forecast=ROWS["forecast"] * 1.01))


def test_what_is_worse_by_over_a_tenth_or_gone_is_named():
    kept = toy()
    assert worse(kept, kept) == []
    assert worse(toy(forecast=[109.0, 72.0, 10.0]), kept) == []
    assert worse(toy(forecast=[110.0, 65.0, 10.0]), kept) == ["toy, here: 22.5%, kept 20.0%"]
    assert [line[:10] for line in worse(kept[:1], kept)] == ["toy, there"]


def test_a_kept_board_is_read_as_made_and_a_kind_takes_the_place_of_its_own_rows(tmp_path):
    made = pd.concat([toy(), toy().assign(kind="testbed")])
    write_board(made, tmp_path / "board.csv")
    kept = read_board(tmp_path / "board.csv")
    assert worse(made, kept) == []
    assert list(kept["digest"]) == list(made["digest"])
    kept = read_board()
    again = replaced(kept, kept[kept["kind"] == "testbed"].assign(rows=1))
    assert list(again["source"]) == list(kept["source"])
    assert set(again["kind"][again["rows"] != kept["rows"]]) == {"testbed"}


def test_the_kept_board_has_kinds_that_make_it_again_and_is_near_for_left_out_runs():
    rows = read_board()
    kept = list(dict.fromkeys(rows["kind"]))
    assert kept == [name for name in KINDS if name in kept]
    assert {name for name, kind in KINDS.items() if kind.quick} < set(kept)
    pooled = rows.set_index("source").loc[EVERY]
    assert pooled["median"] < 0.1
    assert pooled["near"] > 0.7
    assert pooled["inside"] > 0.85


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=[] if kind.quick else pytest.mark.slow)
        for name, kind in KINDS.items()
        if not kind.pooled  # tests/parallelism/forecast/test_fit.py leaves its sources out
    ],
)
def test_no_source_is_worse_by_over_a_tenth_than_it_was(kind):
    assert worse(board([kind]), read_board()) == []


def test_constants_of_gpus_are_of_a_sheet_or_fitted_and_few_are_judged():
    found = constants()
    assert set(found["kind"]) == {SHEET, FIT, JUDGEMENT}
    assert found["source"].str.len().min() > 0
    assert len(judgements(found)) <= 10
