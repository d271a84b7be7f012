"""Every figure function: from a small frame to a Figure that says what it shows."""

import io
import math
from dataclasses import replace
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import ddlnb
from ddlnb import figures
from ddlnb.errors import InputError
from ddlnb.figures.gantt import pack
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Span
from ddlnb.simulator.simulate import Cell, simulate
from ddlnb.survey.claims import OPEN
from tests.figures.toys import (
    ACTIVITIES,
    BREAKDOWNS,
    DRAWN,
    FITTED,
    JUDGED,
    MISSES,
    both_panels,
    drawn,
    fitted_cluster,
    forecasts,
    published,
    rows,
    steady,
    text_of,
    timeline,
)

SOURCES = ("published", "measured", "emulated", "formulas", "simulated", "the clusters' files")


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_labelled_axes_and_says_its_source(name):
    figure = drawn(name)
    assert isinstance(figure, Figure)
    figure.savefig(io.BytesIO(), format="png")
    assert any(ax.get_xlabel() for ax in figure.axes)
    for ax in figure.axes:
        alike = ax.get_shared_y_axes().get_siblings(ax)
        assert any(other.get_ylabel() or other.get_yticklabels() for other in alike)
    said = text_of(figure)
    assert "source" in said
    assert any(source in said for source in SOURCES)


@pytest.mark.parametrize("name", DRAWN)
def test_drawing_changes_nothing_global(name):
    before, open_before = dict(mpl.rcParams), plt.get_fignums()
    DRAWN[name]()
    assert dict(mpl.rcParams) == before
    assert plt.get_fignums() == open_before


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


def test_the_timeline_starts_at_zero_and_is_in_milliseconds():
    figure = figures.timelines({"WFBP-A2A": timeline("WFBP-A2A")})
    assert figure.axes[-1].get_xlabel() == "time (ms)"
    assert figure.axes[0].get_xlim() == pytest.approx((0, 60 * 1.01))


def test_overlapping_messages_never_share_a_row():
    spans = [Span(0, "message", "", start, start + 3.0) for start in (0.0, 1.0, 2.0, 3.0, 4.5)]
    for (row, span), (other_row, other) in combinations(zip(pack(spans), spans, strict=True), 2):
        assert row != other_row or span.stop_seconds <= other.start_seconds


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_lies_on_another(name):
    figure = drawn(name)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # which places everything
    renderer, hidden = canvas.get_renderer(), out_of_sight(figure)
    shown = [
        text
        for text in figure.findobj(mpl.text.Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
        # The box around slanted text says nothing about the text.
        if text.get_rotation() % 90 == 0
    ]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    for (said, box), (other, other_box) in combinations(boxes, 2):
        assert not overlap(box, other_box), f"{said!r} lies on {other!r}"


def out_of_sight(figure: Figure) -> list[mpl.text.Text]:
    """The labels of ticks outside the limits, which are there but not drawn."""
    found = []
    for ax in figure.findobj(mpl.axes.Axes):
        for side, labels in (("x", ax.get_xticklabels()), ("y", ax.get_yticklabels())):
            low, high = (getattr(ax.bbox, f"{side}{end}") for end in (0, 1))
            for label in labels:
                box = label.get_window_extent()
                middle = (getattr(box, f"{side}0") + getattr(box, f"{side}1")) / 2
                if not low - 1 <= middle <= high + 1:
                    found.append(label)
    return found


def overlap(left: mpl.transforms.Bbox, right: mpl.transforms.Bbox) -> bool:
    """By more than a pixel in both directions."""
    wide = min(left.x1, right.x1) - max(left.x0, right.x0)
    high = min(left.y1, right.y1) - max(left.y0, right.y0)
    return wide > 1 and high > 1


def test_published_bars_stand_hatched_beside_the_forecast_ones():
    figure = figures.forecast_bars(forecasts(), published((4, 8)))
    four, eight, sixteen = figure.axes[:3]
    count = len(METHODS)
    for part, bars in ((four, 2 * count), (eight, 2 * count), (sixteen, count)):
        assert len(part.patches) == bars
        assert sum(bool(bar.get_hatch()) for bar in part.patches) == bars - count
    said = text_of(figure)
    assert "no published cells with 16 GPUs" in said
    assert "3.60" in said  # the forecast speed-up of the first method with 4 GPUs, over one
    assert "3.96" in said  # the published one
    assert four.get_ylim()[1] < 9999


def test_published_bars_without_a_single_gpu_have_no_speed_up():
    cells = published().query("method != 'single'")
    said = [text.get_text() for text in figures.forecast_bars(forecasts(), cells).axes[0].texts]
    assert len(said) == len(METHODS)


def test_suspicious_published_cells_have_a_question_mark():
    cells = published()
    doubtful = cells.assign(suspicious=cells["method"] == "BSP-PS")
    figure = figures.forecast_bars(forecasts(), doubtful)
    said = [text.get_text() for text in figure.axes[0].texts]
    assert sum(one.endswith(" ?") for one in said) == 1
    assert "?: suspicious" in text_of(figure)
    assert "?" not in text_of(figures.forecast_bars(forecasts(), cells))


def test_small_panels_have_lines_of_forecasts_and_dots_of_their_published_cells():
    cells = published((4, 8)).query("throughput_samples_per_s < 9999")
    doubtful = cells.assign(suspicious=(cells["method"] == "BSP-PS") & (cells["gpus"] == 4))
    of_published, other = figures.forecast_panels(both_panels(), doubtful).axes

    def points(ax, linestyle: str, is_white: bool) -> list[int]:
        lines = [one for one in ax.lines if one.get_linestyle() == linestyle]
        drawn = [one for one in lines if (one.get_color() == "white") == is_white]
        return [count for one in drawn if (count := len(one.get_xdata()))]

    for ax in (of_published, other):
        assert points(ax, "-", False) == [3] * len(METHODS)
    assert points(of_published, "None", False) == [2] * len(METHODS)
    assert points(of_published, "None", True) == [1]
    assert not points(other, "None", False)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_forecast_bar_has_a_line_only_if_its_interval_is_known(bounded):
    frame = forecasts((4,)) if bounded else forecasts((4,)).assign(low=math.nan, high=math.nan)
    figure = figures.forecast_bars(frame)
    drawn = [c for c in figure.axes[0].containers if isinstance(c, mpl.container.ErrorbarContainer)]
    assert len(drawn) == (len(METHODS) if bounded else 0)


def test_equal_heights_scale_equally_in_all_parts():
    figure = figures.forecast_bars(forecasts())
    tops = [ax.get_ylim()[1] / gpus for ax, gpus in zip(figure.axes, (4, 8, 16), strict=False)]
    assert tops == pytest.approx([tops[0]] * 3)


def test_a_bar_of_a_breakdown_ends_at_the_iteration_even_with_a_negative_part():
    ax = figures.breakdown_bars(BREAKDOWNS).axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert ends[3::4] == pytest.approx([500.0] * len(METHODS))


def test_a_schedule_shows_two_iterations_and_the_tail_of_an_earlier_message():
    ax = figures.schedules({"10GbE": {"WFBP-A2A": steady("WFBP-A2A")}}).axes[0]
    assert ax.get_xlim() == pytest.approx((0, 200 * 1.01))
    assert "100 ms, waits 40, 2 messages" in ax.get_title(loc="left")
    boxes = [path.get_extents() for c in ax.collections for path in c.get_paths()]
    tails = [box for box in boxes if box.y1 <= 1 and box.x0 == 0]
    assert [box.x1 for box in tails] == pytest.approx([10])


def test_a_timeline_of_messages_alone_says_nothing_of_waits():
    spans = tuple(span for span in steady("WFBP-A2A").spans if span.kind == "message")
    line = replace(steady("WFBP-A2A"), spans=spans)
    title = figures.timelines({"Horovod": line}, rank=0).axes[0].get_title(loc="left")
    assert title == "Horovod: 2 messages"


@pytest.mark.parametrize("iterations", [2, 3])
@pytest.mark.parametrize("name", ["DeAR", "WFBP-PS", "MG-WFBP"])
def test_a_picture_counts_the_messages_of_the_plan(name, iterations):
    cell = Cell(
        ddlnb.read_profile("resnet50_b64_rtx2080ti"),
        ddlnb.get_cluster("survey-10GbE", workers=8),
        ddlnb.get_method(name),
    )
    line = simulate(cell.workload, cell.cluster, cell.method, iterations=iterations)
    ax = figures.timelines({name: line}, rank=0).axes[0]
    count = len(cell.plan.messages)
    assert ax.get_title(loc="left").endswith(f", {count} message{'s' * (count != 1)}")


def test_every_verdict_is_written_beside_its_bar():
    said = text_of(figures.claim_verdicts({"simulated": JUDGED}))
    assert "holds: 9 of 10" in said
    assert "fails: 4 of 8" in said
    assert "not judged: the table lacks the cells" in said
    assert "simulated cells: 1 holds, 1 fails" in said
    unknown = JUDGED.replace(
        {"reason": {"the table has no larger batches": "forecasts do not tell them apart"}}
    )
    said = text_of(figures.claim_verdicts({"simulated": unknown}))
    assert "not judged: forecasts do not tell them apart" in said


def test_bars_beside_published_cells_say_whether_the_simulator_agrees():
    judged = JUDGED.iloc[:2]
    found = {"published": judged, "simulated": judged.assign(holds=True)}
    said = text_of(figures.claim_verdicts(found))
    assert "fails: 4 of 8" in said
    assert "simulator agrees: 9 of 10" in said
    assert "simulator disagrees: 4 of 8" in said
    undecided = judged.assign(holds=None, reason=OPEN)
    said = text_of(figures.claim_verdicts({"published": undecided, "simulated": judged}))
    assert "undecided: 9 of 10" in said
    assert "simulator alone: 4 of 8" in said


def test_a_bar_passes_the_line_of_what_is_needed_only_if_its_claim_holds():
    ax = figures.claim_verdicts({"simulated": JUDGED}).axes[0]
    needed = [line.get_xdata()[0] for line in ax.lines]
    shares = [bar.get_width() for bar in ax.patches]
    assert [share >= line for share, line in zip(shares, needed, strict=True)] == [True, False]


def test_cells_that_only_one_source_has_are_not_compared():
    simulated = rows("simulated", methods=("BSP-PS", "MG-WFBP")).assign(std=math.nan)
    figure = figures.simulated_against_measured(simulated, rows(methods=("BSP-PS", "WFBP-PS")))
    assert "1 of 1 cells within 15 %, median error of throughput 0.0 %" in text_of(figure)


def test_an_effect_that_clusters_share_is_drawn_once():
    figure = figures.parameter_intervals(FITTED)
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["10 us", "8 Gb/s", "0 us (0 us to 1 ms)"]
    assert "several clusters" in text_of(figure)


def test_what_could_not_be_predicted_is_counted():
    frame = MISSES.assign(relative_error=MISSES["relative_error"].where(MISSES.index > 0))
    said = text_of(figures.residuals(frame))
    assert f"{len(frame) - 1} observations" in said
    assert "1 not predicted" in said


def test_the_schematic_says_that_nothing_was_measured():
    assert "nothing measured" in text_of(figures.parallelism_schematic())


def test_a_synchronisation_counts_what_was_done_while_all_had_work():
    said = text_of(figures.synchronisation_timelines(ACTIVITIES))
    assert "bsp on PS: 2 gradients, waits 25 % of the time" in said
    assert "asp on PS: 2 gradients, waits 0 % of the time" in said
    longer = text_of(figures.synchronisation_timelines(ACTIVITIES, until_seconds=3.0))
    assert "asp on PS: 3 gradients" in longer


TWO_FORECASTS = MISSES.assign(forecast=["fitted", "trivial"] * (len(MISSES) // 2))
SIMULATED = rows("simulated", methods=("BSP-PS", "MG-WFBP"))
NEITHER = "there (is|are) no"


@pytest.mark.parametrize(
    ("draw", "given", "problem"),
    [
        ("throughput_bars", (rows().iloc[:0],), "no rows"),
        ("throughput_bars", (rows("published", ("single",)),), "one worker alone"),
        ("effective_bandwidth", (rows().iloc[:0],), "no rows"),
        ("forecast_bars", (forecasts().iloc[:0],), "no rows"),
        ("forecast_bars", (both_panels(),), "2 panels; draw one at a time"),
        ("breakdown_bars", (BREAKDOWNS.iloc[:0],), "no rows"),
        ("claim_verdicts", ({},), "no rows"),
        ("claim_verdicts", ({"a": JUDGED, "b": JUDGED.iloc[:1]},), "differ in their claims"),
        ("residuals", (MISSES.iloc[:0],), "no rows"),
        ("residuals", (TWO_FORECASTS,), "draw one at a time"),
        ("schedules", ({},), "no rows"),
        ("schedules", ({"10GbE": {"a": timeline("WFBP-A2A")}},), "has 2 iterations"),
        ("simulated_against_measured", (SIMULATED, rows(methods=("WFBP-PS",))), "no cell is in"),
        ("simulated_against_measured", (SIMULATED, pd.concat([rows()] * 2)), "repeat a cell"),
        ("parameter_intervals", ([fitted_cluster("plain")],), "no fitted effects"),
        ("synchronisation_timelines", (pd.DataFrame(),), NEITHER),
        ("staleness_histogram", (pd.DataFrame(),), NEITHER),
        ("lossy_traffic", (pd.DataFrame(),), NEITHER),
        ("time_to_target", (pd.DataFrame(),), NEITHER),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, given, problem):
    with pytest.raises(InputError, match=problem):
        getattr(figures, draw)(*given)
