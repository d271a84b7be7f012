"""What the strategies' study says: bubbles by formula, layouts by their parts, rows in words."""

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.survey.scale_strategies import (
    executed_strategies,
    execution_findings,
    played_layouts,
    played_schedules,
    schedule_table,
    split_findings,
    split_table,
)

SCHEDULES = ("pp4 gpipe acc8", "pp4 1f1b acc8", "pp4 vpp2 acc8", "pp4 zero-bubble acc8")


@pytest.fixture(scope="module")
def layouts():
    return split_table(
        played_layouts(["dp8 acc4", "dp8 zero3 acc4", "tp8 acc32", "pp4 acc32"], nodes=1)
    )


def test_played_bubbles_are_those_of_the_formulas():
    table = schedule_table(played_schedules(SCHEDULES))
    assert table["bubble"].tolist() == pytest.approx(table["formula"].tolist(), abs=0.001)
    assert table["kept"].tolist() == [8, 4, 5.5, 4]
    assert table["bubble"].is_monotonic_decreasing


def test_parts_of_layouts_add_up_and_say_why(layouts):
    last = ["seconds", "tokens_per_second", "memory_gib"]
    assert layouts.drop(columns=last).sum(axis=1).tolist() == pytest.approx(
        layouts["seconds"].tolist()
    )
    assert layouts.loc["tp8 acc32", "tp"] > 0
    assert layouts.loc["pp4 acc32", "bubble"] > 0
    assert layouts.loc["dp8 zero3 acc4", "memory_gib"] < layouts.loc["dp8 acc4", "memory_gib"]
    said = split_findings(layouts)
    assert f"`{layouts['tokens_per_second'].idxmax()}` is quickest" in said
    assert f"`{layouts['memory_gib'].idxmin()}` needs least memory" in said


def test_ranks_across_nodes_wait_longer():
    along, across = played_layouts(
        ["dp2 tp8 acc4", "dp2 tp8 acc4 order=dp-cp-pp-tp"], nodes=2
    ).values()
    assert across.seconds("wait") > 1.5 * along.seconds("wait")


@pytest.mark.parametrize(
    ("ask", "given", "problem"),
    [
        (played_layouts, ["dp32"], "needs 32 ranks, and network"),
        (played_schedules, ["pp16"], "pp 16 times vpp 1 is more than the 8 layers"),
        (executed_strategies, ["tensors"], "did you mean 'tensor'"),  # before ranks start
    ],
)
def test_what_cannot_be_played_is_refused(ask, given, problem):
    with pytest.raises(InputError, match=problem):
        ask(given, nodes=1) if ask is played_layouts else ask(given)


def test_findings_count_what_is_equal():
    rows = pd.DataFrame(
        [
            ("right", "loss", 0.0, 1e-16, True),
            ("right", "bytes send", 10.0, 10.0, True),
            ("right", "memory activations", 99.0, 100.0, True),
            ("wrong", "parameters", 0.0, 1e-3, False),
            ("wrong", "calls send", 1.0, 2.0, False),
            ("wrong", "memory gradients", 100.0, 80.0, False),
        ],
        columns=["strategy", "quantity", "predicted", "counted", "equal"],
    ).assign(layout="dp2")
    said = execution_findings(rows)
    assert "1 of 2 strategies do on every rank" in said
    assert "2 calls, 10 bytes" in said
    assert "further than 1e-03" in said
    assert "at most 25.0% (gradients, wrong)" in said
