"""The figures of lossy methods: what they draw is what their tables hold."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.figures import lossy_traffic, time_to_target

METHODS = ["bsp on A2A", "bsp + top-k(0.01) on A2A", "asp on PS"]


def parts() -> pd.DataFrame:
    rows = [
        {
            "network": network,
            "method": method,
            "compute_seconds": 0.2,
            "compression_seconds": 0.1 * number,
            "waiting_seconds": 0.05,
            "source": "simulated as MG-WFBP; compression measured here",
        }
        for network in ("10GbE", "100GbE")
        for number, method in enumerate(METHODS)
    ]
    return pd.DataFrame(rows)


def times() -> pd.DataFrame:
    seconds = [60.0, 30.0, math.inf]
    return parts().assign(
        seconds=seconds * 2,
        low=[55.0, 25.0, math.nan] * 2,
        high=[65.0, 35.0, math.nan] * 2,
        speedup=[1.0, 2.0, 0.0] * 2,
        is_dense=[True, False, False] * 2,
        model="resnet50",
        workers=16,
        task="digits",
        target=0.5,
    )


def widths(ax) -> list[float]:
    return [patch.get_width() for patch in ax.patches]


def test_traffic_has_a_line_per_compressor_and_the_dense_ring():
    table = pd.DataFrame(
        [(name, n, 1e6 * n, 1.0) for name in ("none", "top-k(0.01)") for n in (2, 4)],
        columns=["compressor", "workers", "bytes", "ratio"],
    ).assign(model="toy", source="closed form")
    (ax,) = lossy_traffic(table).axes
    assert [line.get_label() for line in ax.lines] == ["dense ring", "top-k(0.01)"]
    assert list(ax.lines[1].get_ydata()) == [2.0, 4.0]


def test_times_are_minutes_and_what_never_arrives_has_no_bar():
    figure = time_to_target(times())
    for ax in figure.axes:
        assert widths(ax) == pytest.approx([1.0, 0.5])
        assert "never" in [text.get_text() for text in ax.texts]
        assert "2.00x" in [text.get_text() for text in ax.texts]


def test_the_axis_says_whose_iterations_and_whose_seconds_they_are():
    for ax in time_to_target(times()).axes:
        said = ax.get_xlabel()
        assert said == "minutes to target: seconds\nof resnet50, iterations of digits"
    alone = time_to_target(times().assign(model="digits")).axes[0]
    assert alone.get_xlabel() == "minutes to target: iterations\nand seconds of digits"


@pytest.mark.parametrize("draw", [lossy_traffic, time_to_target])
def test_nothing_to_draw_is_said(draw):
    with pytest.raises(InputError, match=r"there (is|are) no"):
        draw(pd.DataFrame())
