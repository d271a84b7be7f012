"""What the table says about a timeline whose spans can be read off by eye.

The overview of Fig. 3: every example shows what its aspect is about.
"""

import io

import matplotlib as mpl
import numpy as np
import pytest

from ddlnb.figures import techniques_overview
from ddlnb.results.timeline import Span, Timeline
from ddlnb.survey.fig3_timelines import (
    COMPRESSORS,
    EARLY,
    LATE,
    PLACES,
    SCHEDULES,
    SYNCHRONISATIONS,
    overlap,
    overlap_table,
    overview,
    write_traces,
)


def two_iterations(message_start: float, message_stop: float, waits: tuple[str, ...]) -> Timeline:
    """Each lasts 10 s: forward 2, backward 3, and what is left waits; one message per iteration."""
    spans = []
    for iteration, zero in enumerate((0.0, 10.0)):
        spans += [
            Span(0, "forward", "a", zero, zero + 2, iteration),
            Span(0, "backward", "a", zero + 2, zero + 5, iteration),
            Span(
                0, "message", "m", zero + message_start, zero + message_stop, iteration, 40_000_000
            ),
        ]
        spans += [Span(0, "wait", name, zero + 5, zero + 10, iteration) for name in waits]
    return Timeline("toy", "measured", tuple(spans))


@pytest.mark.parametrize(
    ("message", "waits", "early", "late"),
    [
        ((5, 9), ("all",), 0, 0),
        ((3, 9), ("all",), 1, 0),
        ((6, 11), ("a", "b"), 0, 1),  # beyond the start of the next forward pass
    ],
)
def test_messages_are_early_and_late_by_the_passes(message, waits, early, late):
    [facts] = overlap_table({"toy": two_iterations(*message, waits)}).to_dict("records")
    assert (facts[EARLY], facts[LATE], facts[PLACES]) == (early, late, len(waits))
    assert (facts["forward (ms)"], facts["backward (ms)"]) == (2000, 3000)
    assert (facts["messages"], facts["largest (MB)"]) == (1, 40)


def test_one_trace_is_written_per_method(tmp_path):
    timeline = two_iterations(5, 9, ("all",))
    names = write_traces({"BSP-PS": timeline, "mine": timeline}, tmp_path)
    assert names == ["BSP-PS.json", "mine.json"]
    assert (tmp_path / "mine.json").read_text().startswith("{")


def test_every_example_shows_what_its_aspect_is_about_in_a_figure_of_six_parts():
    found = overview()
    activity = found.activity
    assert len(activity["method"].unique()) == len(SYNCHRONISATIONS)
    seconds = activity.assign(seconds=activity["stop_seconds"] - activity["start_seconds"])
    waits = seconds[seconds["kind"] == "wait"].groupby("method")["seconds"].sum()
    assert waits["asp on PS"] < waits["ssp(1) on PS"] < waits["bsp on PS"]

    signs, levels, largest = (found.compressed[name] for name in COMPRESSORS)
    gradient = found.compressed["gradient"]
    assert len(np.unique(gradient)) == len(gradient)
    assert len(np.unique(signs)) == 2
    assert len(np.unique(levels)) <= 2 * 3 + 1
    kept = largest != 0
    assert kept.sum() == len(gradient) / 4
    assert np.abs(gradient[kept]).min() >= np.abs(gradient[~kept]).max()
    assert largest[kept] == pytest.approx(gradient[kept])

    facts = {name: overlap(found.schedules[name], 1) for name in SCHEDULES}
    none, each, merged, parts = facts.values()
    assert (none["messages"], none[EARLY], none[LATE]) == (1, 0, 0)
    assert each["messages"] == 5
    assert 1 < merged["messages"] < each["messages"] < parts["messages"]
    assert each[EARLY] > 0 == each[LATE]
    assert parts[LATE] > 0
    takes = {name: line.iteration_seconds for name, line in found.schedules.items()}
    assert takes["MG-WFBP"] < takes["WFBP-A2A"] < takes["BSP-A2A"]

    figure = techniques_overview(found)
    figure.savefig(io.BytesIO(), format="png")
    said = " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))
    assert all(f"({number}) " in said for number in range(1, 7))
    assert "(4) and (5) schematic" in said
    assert {network.ranks for network in found.networks} == {16}
