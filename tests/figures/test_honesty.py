"""Figures promise nothing that they do not show, and show nothing that cannot be."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddlnb import figures
from ddlnb.figures.style import (
    ALGORITHM_COLOURS,
    GREY,
    METHOD_COLOURS,
    OTHER_COLOUR,
    in_figures,
    text_on,
)
from ddlnb.survey.networks import all_reduce_loads
from tests.figures.toys import (
    CURVES,
    DRAWN,
    LARGE_BATCHES,
    PERIODS,
    drawn,
    forecasts,
    rows,
    text_of,
)

NEUTRAL = (OTHER_COLOUR, GREY, "#000000")  # entries that stand for marks of any colour


def handles_of(figure: Figure) -> list[Any]:
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes)]
    return [handle for legend in legends if legend for handle in legend.legend_handles]


def colour_of_entry(handle: Any) -> str:
    if isinstance(handle, LineCollection):  # of lines with intervals
        return to_hex(handle.get_color()[0])
    return to_hex(handle.get_color() if isinstance(handle, Line2D) else handle.get_facecolor())


def colours_in(figure: Figure) -> set[str]:
    """The colours of all that is drawn in panels."""
    found = set()
    for ax in figure.axes:
        found |= {to_hex(line.get_color()) for line in ax.lines}
        found |= {to_hex(patch.get_facecolor()) for patch in ax.patches}
        for marks in ax.collections:
            for colours in (marks.get_facecolor(), marks.get_edgecolor()):
                found |= {to_hex(colour) for colour in np.atleast_2d(colours) if len(colour)}
        for image in ax.images:
            found |= {to_hex(colour) for colour in image.cmap(np.arange(image.cmap.N))}
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_every_entry_of_a_legend_has_a_mark(name):
    figure = drawn(name)
    there = colours_in(figure)
    lines = [line for ax in figure.axes for line in ax.lines]
    for handle in handles_of(figure):
        is_line, colour = isinstance(handle, Line2D), colour_of_entry(handle)
        if colour in there:
            continue
        assert colour in NEUTRAL or is_line, f"nothing is drawn as {handle.get_label()!r}"
        if is_line:
            assert any(
                line.get_linestyle() == handle.get_linestyle()
                or line.get_marker() == handle.get_marker()
                for line in lines
            ), handle.get_label()
        elif isinstance(handle, Patch) and handle.get_hatch():
            assert any(patch.get_hatch() for ax in figure.axes for patch in ax.patches)


@pytest.mark.parametrize(
    "draw",
    [
        lambda half: figures.large_batch_quality(LARGE_BATCHES.assign(**half)),
        lambda half: figures.loss_against_traffic(PERIODS.assign(seeds=2, **half)),
    ],
)
@pytest.mark.parametrize("half_width", [0.01, 0.7])
def test_no_bar_reaches_what_cannot_be(draw, half_width):
    half = {"test_loss_half_width": half_width, "test_accuracy_half_width": half_width}
    for ax in draw(half).axes:
        most = 100 if "%" in ax.get_ylabel() else math.inf
        bars = [c for c in ax.collections if isinstance(c, LineCollection)]
        assert bars
        for segment in (segment for bar in bars for segment in bar.get_segments()):
            assert (segment[:, 1] >= 0).all()
            assert (segment[:, 1] <= most + 1e-9).all()


def test_accuracy_is_in_per_cent_everywhere():
    losses, accuracies = figures.learning_curves(CURVES, against=["step"]).axes
    assert accuracies.get_ylabel() == "test accuracy (%)"
    assert list(accuracies.lines[0].get_ydata()) == [50, 95, 97.5]
    assert list(losses.lines[0].get_ydata()) == [2, 0.2, 0.1]
    for figure in (figures.large_batch_quality(LARGE_BATCHES), drawn("loss_against_traffic")):
        assert figure.axes[1].get_ylabel() == "test accuracy (%)"


def test_a_deviation_is_promised_only_where_there_is_one():
    one_run = rows().assign(std=math.nan)
    assert "1 std" in text_of(figures.throughput_bars(rows()))
    assert "1 std" not in text_of(figures.throughput_bars(one_run))
    engines = one_run.assign(engine="torch")
    assert "1 std" not in text_of(figures.engine_bars(engines))
    simulated = rows("simulated")
    assert "without intervals" in text_of(figures.simulated_against_measured(simulated, one_run))
    assert "lines: std of the measured" in text_of(
        figures.simulated_against_measured(simulated, rows())
    )


def test_a_speed_up_is_promised_only_where_there_is_one_worker():
    both = figures.throughput_bars(rows(methods=("BSP-PS", "MG-WFBP")))
    assert "speed-up" not in text_of(both)


def test_panels_of_one_model_share_their_axis_and_none_is_empty():
    published = rows("published").query("method == 'single'").assign(network="")
    slow = rows("emulated").assign(throughput_samples_per_s=7.0)
    figure = figures.throughput_bars(pd.concat([published, rows("simulated"), slow]))
    assert len(figure.axes) == 2
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert "published" not in text_of(figure)
    others = pd.concat([rows(), rows().assign(model="other", throughput_samples_per_s=7.0)])
    assert len({ax.get_ylim() for ax in figures.throughput_bars(others).axes}) == 2


def test_a_forecast_without_intervals_has_none_in_its_legend():
    known = {handle.get_label() for handle in handles_of(figures.forecast_bars(forecasts()))}
    unknown = figures.forecast_bars(forecasts().assign(low=math.nan, high=math.nan))
    assert "90 % interval" in known
    assert known - {handle.get_label() for handle in handles_of(unknown)} == {"90 % interval"}


def test_intervals_of_a_simulation_are_in_sight():
    wide = rows("simulated").assign(low=1.0, high=1e4)
    left = figures.simulated_against_measured(wide, rows()).axes[0]
    assert left.get_ylim()[0] < 1
    assert left.get_ylim()[1] > 1e4


def test_an_algorithm_has_one_colour_in_all_figures():
    assert len(set(ALGORITHM_COLOURS.values())) == len(ALGORITHM_COLOURS)
    for name in ("best_collectives", "all_reduce_times"):
        assert ALGORITHM_COLOURS["ring"].casefold() in colours_in(drawn(name))


@pytest.mark.parametrize("colour", [*ALGORITHM_COLOURS.values(), *METHOD_COLOURS.values()])
def test_text_on_a_colour_can_be_read(colour):
    """Twice the contrast of the other choice, or both can be read."""

    def luminance(text: str) -> float:
        parts = [int(to_hex(text)[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    low, high = sorted((luminance(colour), luminance(text_on(colour))))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_numbers_on_axes_are_written_as_they_are_said():
    said = [in_figures(value) for value in (1e-9, 0.001, 0.05, 1.5, 700, 3e5, 2e7, 0)]
    assert said == ["10⁻⁹", "0.001", "0.05", "1.5", "700", "300000", "2·10⁷", "0"]


def test_networks_say_what_their_marks_are():
    loads = all_reduce_loads(["star(4)"], "ring")
    figure = figures.network_loads(loads, "simulated")
    assert [handle.get_label() for handle in handles_of(figure)] == ["host", "switch"]
    assert "source: simulated" in text_of(figure)
    assert "ring on star(4)" in text_of(figure)
