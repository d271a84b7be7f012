"""Every figure function: from a small frame to a Figure that says what it shows."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ddlnb import figures
from ddlnb.collectives import AlphaBeta
from ddlnb.errors import InputError
from ddlnb.figure_style import OTHER_COLOUR
from ddlnb.figure_timelines import pack
from ddlnb.methods import METHODS
from ddlnb.model_intensity import IntensityRow
from ddlnb.timeline import Span, Timeline


def rows(source: str = "measured", methods: tuple[str, ...] = ("single", *METHODS)) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": "toy",
            "local_batch": 8,
            "network": "loopback",
            "method": methods,
            "gpus": [1 if name == "single" else 2 for name in methods],
            "throughput_samples_per_s": [100.0 + 10 * i for i in range(len(methods))],
            "std": 5.0,
            "source": source,
        }
    )


def timeline(method: str) -> Timeline:
    spans = [
        Span(0, "forward", "a", 1.000, 1.010, 0),
        Span(0, "backward", "a", 1.010, 1.030, 0),
        Span(0, "message", "m1", 1.012, 1.040, 0, bytes=1000),
        Span(0, "message", "m2", 1.020, 1.035, 0, bytes=1_000_000),
        Span(0, "wait", "all", 1.030, 1.040, 0),
        Span(0, "update", "all", 1.040, 1.042, 0),
        Span(0, "forward", "a", 1.042, 1.052, 1),
        Span(0, "backward", "a", 1.052, 1.060, 1),
    ]
    return Timeline(method, "measured", tuple(spans))


def bandwidth() -> Figure:
    points = pd.DataFrame(
        {
            "network": ["here", "here", "10GbE", "10GbE"],
            "bytes": [1024, 2**20, 16384, 2**20],
            "gigabits_per_second": [0.1, 10, 1.2, 8.2],
            "source": ["measured", "measured", "published", "published"],
        }
    )
    return figures.effective_bandwidth(points, {"here": AlphaBeta(1e-4, 1e-9)})


def intensities() -> Figure:
    return figures.intensity_bars(
        [
            IntensityRow("resnet50", "forward, FMA = 1", 480.0, 470.0, 0.02, "agrees"),
            IntensityRow("bert-base", "forward, FMA = 1", 192.0, 249.0, -0.23, "too low"),
        ]
    )


DRAWN: dict[str, Callable[[], Figure]] = {
    "throughput_bars": lambda: figures.throughput_bars(pd.concat([rows(), rows("published")])),
    "timelines": lambda: figures.timelines({name: timeline(name) for name in METHODS}),
    "effective_bandwidth": bandwidth,
    "intensity_bars": intensities,
}


def text_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_labelled_axes_and_says_its_source(name):
    figure = DRAWN[name]()
    assert isinstance(figure, Figure)
    figure.savefig(io.BytesIO(), format="png")
    assert any(ax.get_xlabel() for ax in figure.axes)
    assert all(ax.get_ylabel() or ax.get_yticklabels() for ax in figure.axes)
    said = text_of(figure)
    assert "source" in said
    assert "published" in said or "measured" in said


@pytest.mark.parametrize("name", DRAWN)
def test_drawing_changes_nothing_global(name):
    before, open_before = dict(mpl.rcParams), plt.get_fignums()
    DRAWN[name]()
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == open_before


def test_the_speed_up_over_one_worker_is_written_on_the_bars():
    assert "1.10" in text_of(figures.throughput_bars(rows()))


@pytest.mark.parametrize(("std", "lines"), [(5.0, len(METHODS)), (float("nan"), 0)])
def test_a_bar_has_a_line_only_if_its_spread_is_known(std, lines):
    figure = figures.throughput_bars(rows().assign(std=std))
    drawn = [bars for bars in figure.axes[0].containers if getattr(bars, "errorbar", None)]
    assert len(drawn) == lines
    assert "1.10" in text_of(figure)


def test_without_a_single_worker_no_speed_up_is_claimed():
    figure = figures.throughput_bars(rows(methods=("BSP-PS", "BSP-A2A")))
    assert not [t for t in figure.axes[0].texts if t.get_text()]


def test_published_bars_are_hatched_and_measured_ones_are_not():
    figure = figures.throughput_bars(pd.concat([rows(), rows("published")]))
    measured, published = figure.axes
    assert all(bar.get_hatch() for bar in published.patches)
    assert not any(bar.get_hatch() for bar in measured.patches)


def test_a_method_has_one_colour_and_no_two_share_one():
    assert len({figures.colour_of(name) for name in METHODS}) == len(METHODS)
    assert figures.colour_of("my own") == OTHER_COLOUR


def test_the_timeline_starts_at_zero_and_is_in_milliseconds():
    figure = figures.timelines({"WFBP-A2A": timeline("WFBP-A2A")})
    assert figure.axes[-1].get_xlabel() == "time (ms)"
    assert figure.axes[0].get_xlim() == pytest.approx((0, 60 * 1.01))


def test_overlapping_messages_never_share_a_row():
    spans = [Span(0, "message", "", start, start + 3.0) for start in (0.0, 1.0, 2.0, 3.0, 4.5)]
    placed = list(zip(pack(spans), spans, strict=True))
    for i, (row, span) in enumerate(placed):
        for other_row, other in placed[i + 1 :]:
            assert row != other_row or span.stop_seconds <= other.start_seconds


@pytest.mark.parametrize("draw", [figures.throughput_bars, figures.effective_bandwidth])
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(InputError, match="no rows"):
        draw(rows().iloc[:0])


def test_the_schematic_says_that_nothing_was_measured():
    assert "nothing measured" in text_of(figures.parallelism_schematic())
