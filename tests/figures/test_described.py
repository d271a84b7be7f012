"""Captions: what figures say of themselves."""

import matplotlib as mpl
import pandas as pd
import pytest
import seaborn as sns
from matplotlib import rc_params_from_file

from ddlnb import figures
from ddlnb.figures.networks import _titles
from ddlnb.figures.style import SEABORN, SHOWN_PER_INCH, shows
from tests.figures.toys import DRAWN, drawn, text_of


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_a_caption(name):
    caption = drawn(name).caption
    assert len(caption.split()) >= 8
    assert caption.endswith(".")


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_of_a_figure_is_a_repr(name):
    said = text_of(drawn(name)) + drawn(name).caption
    for mark in (", None", "(None", ", False", ", True", "mathdefault", "nan", "<", "_nolegend_"):
        assert mark not in said.replace("fraction", "")


@pytest.mark.parametrize("name", DRAWN)
def test_logarithmic_axes_have_two_labelled_ticks_at_least(name):
    for ax in drawn(name).axes:
        for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            if axis.get_scale() == "log" and axis.get_ticklabels():
                places = axis.get_ticklocs()
                assert sum(low <= place <= high for place in places) >= 2


def test_a_docstring_without_an_end_is_one_sentence():
    assert shows("Shares of time\n    by network") == "Shares of time by network"
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
    assert about["image/png"]["alt"] == figure.caption
    assert about["image/png"]["width"] == pytest.approx(SHOWN_PER_INCH * 15, abs=25)
    assert beneath["text/markdown"] == f"*{figure.caption}*"


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


def test_the_style_is_seaborns_whitegrid():
    """Kept as a file: importing seaborn computes for more than a second in every notebook."""
    theirs = sns.axes_style("whitegrid") | sns.plotting_context("notebook", font_scale=0.8)
    kept = rc_params_from_file(SEABORN, use_default_template=False)
    assert set(kept) == set(theirs) - {"image.cmap"}  # all of ours name their colours
    for key, value in mpl.RcParams({name: theirs[name] for name in kept}).items():
        assert kept[key] == (pytest.approx(value) if isinstance(value, float) else value), key
