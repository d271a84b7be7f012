"""What the strategies' study says: bubbles by formula, layouts by their parts, rows in words."""

import pandas as pd
import pytest

from ddlnb.survey.scale_strategies import (
    execution_findings,
    played_layouts,
    played_schedules,
    schedule_table,
    split_findings,
    split_table,
)


def test_parts_of_layouts_add_up_and_say_why():
    asked = ["dp8 acc4", "dp8 zero3 acc4", "tp8 acc32", "pp4 acc32"]
    layouts = split_table(played_layouts(asked, nodes=1))
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


def test_bubbles_are_those_of_the_papers():
    found = schedule_table(played_schedules(["pp4 gpipe acc8", "pp4 vpp2 acc8", "pp4 1f1b acc2"]))
    assert found["bubble"].tolist() == pytest.approx(found["formula"].tolist(), abs=0.001)
    found = schedule_table(played_schedules(["pp4 zero-bubble acc8", "pp8 zero-bubble acc16"]))
    assert found["bubble"].tolist() == pytest.approx(found["formula"].tolist(), abs=0.001)


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
