"""Timelines: what is exposed, and the trace that other tools open."""

import json

import pytest

from ddlnb.errors import InputError
from ddlnb.figures import timelines
from ddlnb.results.timeline import Span, Timeline
from ddlnb.simulator.simulate import simulate

SPANS = (
    Span(0, "forward", "a", 10.0, 11.0),
    Span(0, "backward", "a", 11.0, 13.0),
    Span(0, "message", "a", 12.0, 15.0, bytes=8),
    Span(0, "wait", "a", 13.0, 15.0),
    Span(0, "update", "a", 15.0, 15.5),
    Span(1, "wait", "a", 13.0, 14.0),
)
LINE = Timeline("WFBP-A2A", "measured", SPANS)


def test_exposed_communication_is_the_waiting_of_an_average_worker():
    assert LINE.exposed_communication_seconds == 1.5
    assert LINE.on(0).exposed_communication_seconds == 2.0


@pytest.mark.parametrize("method", ["DDP", "WFBP-PS", "ByteScheduler-PS", "DeAR"])
def test_the_waiting_of_an_iteration_does_not_depend_on_how_many_are_shown(method):
    """The first forward pass waits for nothing, where it waits for its own layers."""
    few, many = (simulate("resnet50", "survey-10GbE", method, iterations=count) for count in (2, 7))
    waited = pytest.approx(many.exposed_communication_seconds, abs=1e-9)
    assert few.exposed_communication_seconds == waited
    assert many.exposed_communication_seconds > 0
    assert Timeline("messages", "measured", SPANS[2:3]).exposed_communication_seconds == 0


def test_a_window_starts_at_zero():
    assert min(span.start_seconds for span in LINE.window(0, 0).spans) == 0.0
    with pytest.raises(InputError, match="no spans"):
        LINE.window(5, 6)


def test_the_frame_has_a_row_for_every_span():
    frame = LINE.to_frame()
    assert len(frame) == len(SPANS)
    assert set(frame["lane"]) == {"compute", "network"}
    assert set(frame["source"]) == {"measured"}


def test_the_chrome_trace_is_json_in_microseconds(tmp_path):
    path = LINE.write_chrome_trace(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 5
    assert slices[0]["dur"] == 1e6
    assert {event["ph"] for event in events} == {"M", "X", "b", "e"}


@pytest.mark.parametrize(("kind", "stop"), [("sleep", 1.0), ("wait", -1.0)])
def test_a_span_that_cannot_be_is_refused(kind, stop):
    with pytest.raises(InputError, match="span"):
        Span(0, kind, "a", 0.0, stop)


def test_a_timeline_is_shown_in_a_line():
    said = "Timeline('WFBP-A2A', measured, 6 spans of 2 ranks in 1 iteration of 15.5 s)"
    assert str(LINE) == said
    assert timelines([LINE]).axes[0].get_title(loc="left").startswith("WFBP-A2A: ")
