"""What the table says about a timeline whose spans can be read off by eye."""

from __future__ import annotations

import pytest

from ddlnb.results.timeline import Span, Timeline
from ddlnb.studies.fig3_timelines import EARLY, LATE, PLACES, overlap_table, write_traces


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


def test_a_message_after_backward_is_neither_early_nor_late():
    [facts] = overlap_table({"toy": two_iterations(5, 9, ("all",))}).to_dict("records")
    assert (facts[EARLY], facts[LATE]) == (0, 0)
    assert (facts["forward (ms)"], facts["backward (ms)"], facts["wait (ms)"]) == (2000, 3000, 5000)
    assert (facts["messages"], facts["largest (MB)"], facts[PLACES]) == (1, 40, 1)


def test_a_message_inside_backward_is_early():
    facts = overlap_table({"toy": two_iterations(3, 9, ("all",))})
    assert facts.loc["toy", EARLY] == 1


def test_a_message_beyond_the_next_forward_start_is_late():
    facts = overlap_table({"toy": two_iterations(6, 11, ("a", "b"))})
    assert facts.loc["toy", LATE] == 1
    assert facts.loc["toy", PLACES] == 2


def test_one_trace_is_written_per_method(tmp_path):
    timeline = two_iterations(5, 9, ("all",))
    assert write_traces({"BSP-PS": timeline, "mine": timeline}, tmp_path) == [
        "BSP-PS.json",
        "mine.json",
    ]
    assert (tmp_path / "mine.json").read_text().startswith("{")


def test_a_rank_without_spans_is_named():
    with pytest.raises(ValueError, match="rank 7"):
        overlap_table({"toy": two_iterations(5, 9, ("all",))}, rank=7)
