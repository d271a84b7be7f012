"""The overview of Fig. 3: every example shows what its aspect is about."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest

from ddlnb.figures import techniques_overview
from ddlnb.studies.fig3_overview import COMPRESSORS, SCHEDULES, SYNCHRONISATIONS, overview
from ddlnb.studies.fig3_timelines import EARLY, LATE, overlap


@pytest.fixture(scope="module")
def found():
    return overview()


def test_who_is_bound_less_waits_less(found):
    activity = found.activity
    assert len(activity["method"].unique()) == len(SYNCHRONISATIONS)
    seconds = activity.assign(seconds=activity["stop_seconds"] - activity["start_seconds"])
    waits = seconds[seconds["kind"] == "wait"].groupby("method")["seconds"].sum()
    assert waits["asp on PS"] < waits["ssp(1) on PS"] < waits["bsp on PS"]


def test_compressors_leave_few_values_or_few_coordinates(found):
    signs, levels, largest = (found.compressed[name] for name in COMPRESSORS)
    gradient = found.compressed["gradient"]
    assert len(np.unique(gradient)) == len(gradient)
    assert len(np.unique(signs)) == 2
    assert len(np.unique(levels)) <= 2 * 3 + 1
    kept = largest != 0
    assert kept.sum() == len(gradient) / 4
    assert np.abs(gradient[kept]).min() >= np.abs(gradient[~kept]).max()
    assert largest[kept] == pytest.approx(gradient[kept])


def test_schedules_differ_in_what_they_merge_and_overlap(found):
    facts = {name: overlap(found.schedules[name], 1) for name in SCHEDULES}
    none, each, merged, parts = facts.values()
    assert (none["messages"], none[EARLY], none[LATE]) == (1, 0, 0)
    assert each["messages"] == 5
    assert 1 < merged["messages"] < each["messages"] < parts["messages"]
    assert each[EARLY] > 0 == each[LATE]
    assert parts[LATE] > 0
    seconds = {name: line.iteration_seconds for name, line in found.schedules.items()}
    assert seconds["MG-WFBP"] < seconds["WFBP-A2A"] < seconds["BSP-A2A"]


def test_networks_are_compared_at_equal_servers(found):
    assert {network.ranks for network in found.networks} == {16}


def test_the_figure_has_six_parts_and_says_what_is_only_a_picture(found):
    figure = techniques_overview(found)
    figure.savefig(io.BytesIO(), format="png")
    said = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
    for number in range(1, 7):
        assert f"({number}) " in said
    assert "(4) and (5) schematic" in said
