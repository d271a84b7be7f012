"""The figures of lossy methods: what they draw is what their tables hold."""

import math

import pytest

from ddlnb.figures import lossy_traffic, time_to_target
from tests.figures.toys import table

TIMES = table(
    "network method seconds low high speedup is_dense",
    *(
        (network, *row)
        for network in ("10GbE", "100GbE")
        for row in (
            ("bsp on A2A", 60.0, 55.0, 65.0, 1.0, True),
            ("bsp + top-k(0.01) on A2A", 30.0, 25.0, 35.0, 2.0, False),
            ("asp on PS", math.inf, math.nan, math.nan, 0.0, False),
        )
    ),
    **{"model": "resnet50", "workers": 16, "task": "digits", "target": 0.5},
    source="simulated as MG-WFBP; compression measured here",
)


def widths(ax) -> list[float]:
    return [patch.get_width() for patch in ax.patches]


def test_traffic_has_a_line_per_compressor_and_the_dense_ring():
    rows = [(name, n, 1e6 * n) for name in ("none", "top-k(0.01)") for n in (2, 4)]
    traffic = table("compressor workers bytes", *rows, ratio=1.0, model="toy", source="closed form")
    (ax,) = lossy_traffic(traffic).axes
    assert [line.get_label() for line in ax.lines] == ["dense ring", "top-k(0.01)"]
    assert list(ax.lines[1].get_ydata()) == [2.0, 4.0]


def test_times_are_minutes_and_what_never_arrives_has_no_bar():
    figure = time_to_target(TIMES)
    for ax in figure.axes:
        assert widths(ax) == pytest.approx([1.0, 0.5])
        assert "never" in [text.get_text() for text in ax.texts]
        assert "2.00x" in [text.get_text() for text in ax.texts]
    for ax in time_to_target(TIMES.assign(**TIMES[["seconds", "low", "high"]] / 60)).axes:
        assert widths(ax) == pytest.approx([1.0, 0.5])
        assert ax.get_xlabel().startswith("seconds to target")


def test_whiskers_end_where_the_interval_does():
    figure = time_to_target(TIMES.assign(low=TIMES["low"] - 10))
    lines = [ax.collections[0].get_segments() for ax in figure.axes]
    assert {tuple(end[0] for end in one[0]) for one in lines} == {(45 / 60, 65 / 60)}


def test_the_axis_says_whose_iterations_and_whose_seconds_they_are():
    for ax in time_to_target(TIMES).axes:
        said = ax.get_xlabel()
        assert said == "minutes to target: seconds\nof resnet50, iterations of digits"
    alone = time_to_target(TIMES.assign(model="digits")).axes[0]
    assert alone.get_xlabel() == "minutes to target: iterations\nand seconds of digits"
