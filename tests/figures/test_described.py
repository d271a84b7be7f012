"""Captions and alternative texts: what figures say of themselves is what was drawn."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ddlnb import figures
from ddlnb.figures.collectives import _titles
from ddlnb.figures.described import SHOWN_PER_INCH, shows
from ddlnb.figures.marks import seen_in
from ddlnb.figures.style import styled
from tests.figures.test_figures import DRAWN, drawn, rows, text_of


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_a_caption_and_a_text_that_names_its_axes(name):
    figure = drawn(name)
    assert len(figure.caption.split()) >= 8
    assert figure.caption.endswith(".")
    assert len(figure.alternative_text.split()) >= 20
    assert figure.caption in figure.alternative_text
    said = figure.alternative_text.casefold()
    for ax in figure.axes:
        for label in (ax.get_xlabel(), ax.get_ylabel()):
            assert " ".join(label.split()).casefold() in said


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_of_a_figure_is_a_repr(name):
    said = text_of(drawn(name)) + drawn(name).alternative_text
    for mark in (", None", "(None", ", False", ", True", "mathdefault", "nan", "<", "_nolegend_"):
        assert mark not in said.replace("fraction", "")


@pytest.mark.parametrize("name", DRAWN)
def test_logarithmic_axes_have_two_labelled_ticks_at_least(name):
    for ax in drawn(name).axes:
        for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            if axis.get_scale() == "log" and axis.get_ticklabels():
                places = axis.get_ticklocs()
                assert sum(low <= place <= high for place in places) >= 2


def test_a_text_says_what_bars_show_by_the_words_of_axis_and_legend():
    said = figures.throughput_bars(rows(methods=("BSP-PS", "BSP-A2A"))).alternative_text
    assert "Throughput (samples/s) (0 to" in said
    assert "against workers (2)" in said
    assert "BSP-PS 100; 2, BSP-A2A 110" in said


def test_a_text_says_how_lines_run_and_what_is_published():
    @styled
    def falling() -> Figure:
        """One line that falls."""
        figure, ax = mpl.pyplot.subplots()
        ax.plot([1, 2, 4], [9, 4, 1.5], label="ours")
        ax.bar([1], [3], hatch="/", color="black")
        ax.set(xlabel="step", ylabel="loss", xscale="log")
        return figure

    figure = falling()
    assert figure.caption == "One line that falls."
    assert "Lines: ours from 9 to 1.5." in figure.alternative_text
    assert "published 3" in figure.alternative_text
    assert "against step (0.7 to 3, logarithmic)" in figure.alternative_text


def test_a_docstring_without_an_end_is_one_sentence():
    assert shows("Shares of time\n    by network") == "Shares of time by network."
    assert shows(None) == ""


def test_a_notebook_shows_the_picture_and_the_caption_beneath(monkeypatch):
    shown: list[tuple[dict, dict]] = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, raw, metadata: shown.append((data, metadata))
    )
    figure = figures.parallelism_schematic()
    figure._ipython_display_()
    (picture, about), (beneath, _) = shown
    assert picture["image/png"].startswith("iVBOR")
    assert about["image/png"]["alt"] == figure.alternative_text
    assert about["image/png"]["width"] == pytest.approx(SHOWN_PER_INCH * 15, abs=25)
    assert beneath["text/markdown"] == f"*{figure.caption}*"


def test_bars_are_called_what_the_legend_shows():
    figure, ax = mpl.pyplot.subplots()
    bars = ax.bar(["a", "b"], [1.0, 2.0], color="tab:red")
    ax.legend([bars[0]], ["searched plan"])  # its own label is _nolegend_
    assert "a, searched plan 1; b, searched plan 2" in seen_in(ax, figure)
    mpl.pyplot.close(figure)


def test_panels_are_called_by_what_ran_where_and_by_what_tells_them_apart():
    def part(**cells: str) -> pd.DataFrame:
        usual = {"collective": "all_reduce", "gpu": "H100", "network": "NDR", "library": "NCCL 2"}
        return pd.DataFrame([usual | {"source": "a", "block": "mle-1"} | cells])

    alone = [part(), part(collective="all_gather"), part(network="not stated")]
    assert _titles(alone) == [
        "all-reduce, H100\nNDR", "all-gather, H100\nNDR", "all-reduce, H100\nnetwork not stated",
    ]  # fmt: skip
    like = [part(), part(source="b"), part(gpu="A100")]
    assert _titles(like)[:2] == ["all-reduce, H100\nNDR, a", "all-reduce, H100\nNDR, b"]
    same = [part(), part(block="mle-2")]
    assert _titles(same) == ["all-reduce, H100\nNDR, mle-1", "all-reduce, H100\nNDR, mle-2"]
