"""Every figure function: from a small frame to a Figure that says what it shows."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from itertools import product

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import ddlnb
from ddlnb import figures
from ddlnb.clusters.cluster import Cluster, Fit
from ddlnb.clusters.effects import Effects
from ddlnb.errors import InputError
from ddlnb.figures.gantt import pack
from ddlnb.figures.style import OTHER_COLOUR
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Span, Timeline
from ddlnb.survey.claims import Strength
from ddlnb.survey.convergence_rates import consensus_rounds, spectral_gaps
from ddlnb.survey.layers_codesign import CHOICES, gain_table, pair_table, slowdown_table
from ddlnb.survey.layers_overview import layout_traffic
from ddlnb.survey.scale_heterogeneous import by_ratio, ways_of
from ddlnb.survey.scale_strategies import played_layouts, played_schedules, split_table
from ddlnb.survey.sec2_intensity import IntensityRow
from ddlnb.traces.jobs.table import job_of
from ddlnb.traces.jobs.what_if import what_if
from tests.figures import toys
from tests.traces.toy_jobs import ToyJob


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


def forecasts(gpus: tuple[int, ...] = (4, 8, 16)) -> pd.DataFrame:
    lines = []
    for count in gpus:
        for number, name in enumerate(METHODS):
            speedup = count * (0.9 - 0.1 * number)
            rate = {"throughput_samples_per_s": 50 * speedup}
            bounds = {"low": 40 * speedup, "high": 55 * speedup}
            lines.append({"method": name, "gpus": count, "speedup": speedup, **rate, **bounds})
    panel = {"model": "toy", "local_batch": 8, "network": "10GbE"}
    return pd.DataFrame(lines).assign(**panel, source="simulated", machine="twin", std=float("nan"))


def published(gpus: tuple[int, ...] = (4,)) -> pd.DataFrame:
    """Cells of the same panel with one GPU alone, and one cell of another panel."""
    cells = forecasts(gpus).drop(columns=["speedup", "low", "high", "machine"])
    cells = cells.assign(throughput_samples_per_s=cells["throughput_samples_per_s"] * 1.1, std=2.0)
    alone = cells.iloc[:1].assign(method="single", gpus=1, throughput_samples_per_s=50.0)
    elsewhere = cells.iloc[:1].assign(network="100GbE", throughput_samples_per_s=9999.0)
    return pd.concat([alone, cells, elsewhere], ignore_index=True).assign(source="published")


def breakdowns(models: tuple[str, ...] = ("toy",)) -> pd.DataFrame:
    parts = {"computation": 0.2, "contention": -0.01, "latency": 0.3, "bandwidth": 0.01}
    return pd.DataFrame(
        [
            {"model": model, "network": network, "gpus": 8, "method": name, **parts}
            for model in models
            for network in ("10GbE", "100GbIB")
            for name in METHODS
        ]
    ).assign(iteration_seconds=0.5, source="simulated")


def steady(method: str) -> Timeline:
    """Four iterations of 100 ms with a message that reaches into the next one."""
    spans = []
    for i in range(4):
        at = 0.1 * i
        spans += [
            Span(0, "forward", "a", at, at + 0.02, i),
            Span(0, "backward", "a", at + 0.02, at + 0.06, i),
            Span(0, "message", "m", at + 0.05, at + 0.11, i, bytes=1000),
            Span(0, "message", "n", at + 0.05, at + 0.07, i, bytes=2000),
            Span(0, "wait", "all", at + 0.06, at + 0.1, i),
        ]
    return Timeline(method, "simulated", tuple(spans))


def judged(**changes: object) -> pd.DataFrame:
    """Verdicts on three claims: one holds, one fails, one cannot be judged."""
    most, every = Strength.MOST.value, Strength.EVERY.value
    lines = [
        ("A44", True, 9, 10, most, ""),
        ("A46", False, 4, 8, every, ""),
        ("A57", None, 0, 0, "", "the table has no larger batches"),
    ]
    columns = ["claim", "holds", "deciding_support", "deciding_cells", "needed", "reason"]
    frame = pd.DataFrame(lines, columns=columns).astype({"holds": object})
    frame = frame.assign(section="4.2", text="a is faster than b")
    return frame.assign(**changes)


def fitted_cluster(name: str, **fits: Fit) -> Cluster:
    effects = Effects(between_latency=1e-5, between_bandwidth=1e9)
    return Cluster(name, name, 2, 4, effects, fits=fits)


def fitted_clusters() -> list[Cluster]:
    shared = {"between_bandwidth": Fit(5e8, math.inf, "shared")}
    own = {"between_latency": Fit(0.0, 3e-5, "own"), "priority_latency": Fit(0.0, 1e-3, "none")}
    return [fitted_cluster("10GbE", **shared, **own), fitted_cluster("other", **shared)]


def misses() -> pd.DataFrame:
    lines = [
        {"model": model, "network": network, "method": name, "gpus": gpus}
        for model in ("resnet50", "toy")
        for network in ("10GbE", "100GbIB")
        for name in (*METHODS, None)
        for gpus in (4, None)
    ]
    errors = [0.01 * (i % 9 - 4) for i in range(len(lines))]
    frame = pd.DataFrame(lines).assign(relative_error=errors, observed=1.0, source="published")
    return frame.assign(predicted=1 + frame["relative_error"])


def architectures() -> Figure:
    cells = {"architecture": ["PS", "A2A", "PS", "A2A", "PS"], "workers": [2, 2, 4, 4, 4]}
    frame = pd.DataFrame({**cells, "servers": [1, 0, 1, 0, 4]})
    frame["iteration_seconds"] = [0.2, 0.15, 0.4, 0.2, 0.15]
    common = {"network": "10Mb/s 1ms", "machine": "a box", "source": "emulated"}
    return figures.architecture_bottleneck(frame.assign(**common), frame.assign(source="formula"))


def all_reduces(count: int = 2) -> Figure:
    lines = [
        {"algorithm": name, "bytes": size, "seconds": 0.01 + 1e-8 * size + 1e-3 * n}
        for name in ("ring", "tree")
        for size in (1024, 65536)
        for n in range(count)
    ]
    common = {"network": "10Mb/s 1ms", "machine": "a box", "source": "emulated"}
    frame = pd.DataFrame(lines, columns=["algorithm", "bytes", "seconds"]).assign(**common)
    formulas = {"ring": AlphaBeta(0.02, 1e-8), "tree": AlphaBeta(0.01, 3e-8)}
    return figures.all_reduce_times(frame, formulas)


def protocols() -> Figure:
    frame = pd.DataFrame(
        {
            "network": ["TCP, loopback", "TCP, loopback", "TCP, 10Mb/s 1ms", "10GbE, TCP/IP"],
            "bytes": [8, 2**20, 8, 2**20],
            "seconds": [1e-5, 1e-3, 1e-3, 1.02e-3],
            "gigabits_per_second": [0.006, 8.0, 6e-5, 8.2],
            "source": ["measured", "measured", "emulated", "published"],
        }
    )
    return figures.protocol_times(frame)


def both_sources() -> Figure:
    simulated = rows("simulated").assign(low=90.0, high=200.0, machine="twin")
    return figures.simulated_against_measured(simulated, rows().assign(machine="a box"))


def activities() -> pd.DataFrame:
    bars = [
        ("bsp on PS", 0, "compute", 0, 0.0, 1.0),
        ("bsp on PS", 0, "wait", 0, 1.0, 2.0),
        ("bsp on PS", 1, "compute", 0, 0.0, 2.0),
        ("asp on PS", 0, "compute", 0, 0.0, 1.0),
        ("asp on PS", 0, "compute", 1, 1.0, 3.0),
        ("asp on PS", 1, "compute", 0, 0.0, 2.0),
    ]
    columns = ["method", "rank", "kind", "iteration", "start_seconds", "stop_seconds"]
    return pd.DataFrame(bars, columns=columns)


def stale() -> Figure:
    frame = {"method": ["asp", "asp", "r2sp"], "staleness": [1, 3, 3], "pushes": [1, 3, 8]}
    return figures.staleness_histogram(pd.DataFrame(frame))


def large_batches() -> pd.DataFrame:
    frame = {
        "recipe": ["SGD", "SGD", "LARS", "LARS"],
        "batch": [64, 1024] * 2,
        "seeds": 3,
        "test_loss": [0.1, float("inf"), 0.1, 0.2],
        "test_loss_half_width": [0.2, float("nan"), 0.01, 0.05],
        "test_accuracy": [0.97, 0.5, 0.97, 0.94],
        "test_accuracy_half_width": 0.01,
        "source": "measured in lockstep",
    }
    return pd.DataFrame(frame)


def periods() -> pd.DataFrame:
    frame = {
        "bytes_sent": [8e6, 4e6, 2e6],
        "seeds": 1,
        "test_loss": [0.1, 0.11, 0.12],
        "test_loss_half_width": float("nan"),
        "test_accuracy": [0.98, 0.97, 0.97],
        "test_accuracy_half_width": float("nan"),
        "source": "measured in lockstep",
    }
    return pd.DataFrame(frame, index=[1, 2, 4])


def slowed():
    rows = [
        {"method": method, "factor": factor, "throughput": 1 / factor, "sum_of_rates": 0.9}
        for method in ("MG-WFBP", "asp on PS")
        for factor in (1, 2, 4)
    ]
    return pd.DataFrame(rows).assign(model="toy", machine="by hand", workers=4, source="simulated")


def curves() -> pd.DataFrame:
    lines = [
        {"method": method, "step": step, "test_loss": 2.0 / step, "test_accuracy": 1 - 0.5 / step}
        for method in ("bsp on A2A", "bsp + dgc(0.001, 0.9, None, 0, True) on A2A")
        for step in (1, 10, 20)
    ]
    same = {"task": "digits", "workers": 4, "split": "iid", "optimizer": "sgd", "seed": 0}
    frame = pd.DataFrame(lines).assign(**same, learning_rate=0.1, executor="lockstep")
    return frame.assign(bytes_sent=1e6 * frame["step"], bytes_received=1e6, diverged=False)


def servers() -> pd.DataFrame:
    lines = [("none", 0, 100.0), ("extra machines", 1, 40.0), ("extra machines", 4, 101.0)]
    lines += [("workers' nodes", 1, 50.0), ("workers' nodes", 4, 105.0)]
    frame = pd.DataFrame(lines, columns=["place", "servers", "throughput_samples_per_s"])
    return frame.assign(model="toy", network="10GbE", gpus=32)


def best() -> pd.DataFrame:
    lines = [
        {"network": network, "hosts": 8, "bytes": size, "algorithm": name, "seconds": seconds}
        for network in ("star", "torus")
        for size in (1024, 4096)
        for name, seconds in (("ring", 1.0), ("swing", 1.5))
    ]
    frame = pd.DataFrame(lines)
    return frame.assign(best=frame["algorithm"] == "ring")


def cuts() -> pd.DataFrame:
    lines = [
        {"network": "star", "algorithm": name, "slowdown": slowdown}
        for name in ("ring", "swing")
        for slowdown in (1.0, 2.0, math.inf)
    ]
    return pd.DataFrame(lines)


def losses() -> pd.DataFrame:
    names = ["ef-sign", "random-k(0.01, False)"]
    lines = [(name, what, 0.1) for what in ("gradient", "noise") for name in names]
    frame = pd.DataFrame(lines, columns=["compressor", "on", "loss"])
    return frame.assign(bound=0.9, source="measured")


def kept_back() -> pd.DataFrame:
    frame = {"compressor": "powersgd(4, False, True)", "step": [1, 2, 3], "residual": [1, 30, 900]}
    return pd.DataFrame(frame).assign(source="measured")


def waits() -> pd.DataFrame:
    frame = {"straggler": "constant", "bound": [0, 1], "seed": 0, "waiting_seconds": [0.5, 0.2]}
    return pd.DataFrame(frame).assign(source="simulated")


def left_out_runs() -> pd.DataFrame:
    lines = [
        (kind, left_out, model, forecast, rate, rate * share)
        for kind, left_out in (("model", "llama-1B"), ("tp", "tp 8"))
        for model in ("llama-1B", "llama-3B")
        for forecast, share in (("ours", 1.03), ("constant MFU", 1.6))
        for rate in (20.0, 1000.0, 50_000.0)
    ]
    names = ["kind", "left_out", "model", "forecast", "measured", "tokens_per_s_per_gpu"]
    frame = pd.DataFrame(lines, columns=names)
    off = frame["tokens_per_s_per_gpu"] / frame["measured"] - 1
    return frame.assign(median=off)


def split_rates() -> pd.DataFrame:
    rates = [[900.0, 1000.0], [800.0, math.nan]]
    return pd.DataFrame(rates, index=[1, 2], columns=[1, 2])


def layer_rows() -> pd.DataFrame:
    rows = []
    for taken in product((False, True), repeat=len(CHOICES)):
        gains = (1.5, 1.0, 1.1, 1.2)
        seconds = float(1 / np.prod(np.where(taken, gains, 1.0)))
        seconds /= 1.3 if taken[0] and taken[1] else 1
        rows += [
            {"topology": name, **dict(zip(CHOICES, taken, strict=True)), "seconds": seconds}
            for name in ("two-tier(2, 2, 4.0, 2)", "rail-optimised(4, 8, 2)")
        ]
    return pd.DataFrame(rows)


DRAWN: dict[str, Callable[[], Figure]] = {
    "traffic_maps": lambda: figures.traffic_maps(
        layout_traffic(["dp4", "pp4 acc2", "dp2 ep2"]), "formulas"
    ),
    "layer_gains": lambda: figures.layer_gains(gain_table(layer_rows()), "simulated"),
    "layer_pairs": lambda: figures.layer_pairs(pair_table(layer_rows()), "simulated"),
    "phase_slowdowns": lambda: figures.phase_slowdowns(slowdown_table([0.3, 0.6]), "simulated"),
    "layout_forecasts": lambda: figures.layout_forecasts(left_out_runs(), "published"),
    "layout_errors": lambda: figures.layout_errors(
        left_out_runs().drop_duplicates(["left_out", "forecast"]), "published"
    ),
    "layout_map": lambda: figures.layout_map(split_rates(), "a model", "simulated"),
    "throughput_bars": lambda: figures.throughput_bars(pd.concat([rows(), rows("published")])),
    "timelines": lambda: figures.timelines({name: timeline(name) for name in METHODS}),
    "effective_bandwidth": bandwidth,
    "intensity_bars": intensities,
    "forecast_bars": lambda: figures.forecast_bars(forecasts(), published()),
    "forecast_bars alone": lambda: figures.forecast_bars(forecasts()),
    "breakdown_bars": lambda: figures.breakdown_bars(breakdowns(("toy", "small"))),
    "schedules": lambda: figures.schedules(
        {net: {name: steady(name) for name in METHODS} for net in ("10GbE", "100GbIB")}
    ),
    "claim_verdicts": lambda: figures.claim_verdicts(
        {"simulated": judged(), "published": judged(holds=None)}
    ),
    "simulated_against_measured": both_sources,
    "gossip_mixing": lambda: figures.gossip_mixing(
        spectral_gaps([4, 8]),
        consensus_rounds(["d-psgd(ring)", "choco(torus) + top-k(0.1)"], workers=4, rounds=3),
    ),
    "parameter_intervals": lambda: figures.parameter_intervals(fitted_clusters()),
    "residuals": lambda: figures.residuals(misses()),
    "architecture_bottleneck": architectures,
    "all_reduce_times": all_reduces,
    "all_reduce_times without points": lambda: all_reduces(0),
    "protocol_times": protocols,
    "synchronisation_timelines": lambda: figures.synchronisation_timelines(activities()),
    "staleness_histogram": stale,
    "large_batch_quality": lambda: figures.large_batch_quality(large_batches()),
    "loss_against_traffic": lambda: figures.loss_against_traffic(periods()),
    "throughput_with_a_slow_worker": lambda: figures.throughput_with_a_slow_worker(slowed()),
    "waiting_against_bound": lambda: figures.waiting_against_bound(waits()),
    "pipeline_schedules": lambda: figures.pipeline_schedules(
        played_schedules(["pp4 1f1b acc8", "pp2 vpp2 acc4", "pp4 zero-bubble acc8"])
    ),
    "layout_times": lambda: figures.layout_times(
        split_table(played_layouts(["dp8 zero3", "tp8", "pp4 acc8"], nodes=1)), "simulated"
    ),
    "unlike_ways": lambda: figures.unlike_ways(
        ddlnb.unlike("llama3-8b", {"H100": 8, "A100": 8}, samples=64, sequence=2048).rows
    ),
    "unlike_shares": lambda: figures.unlike_shares(
        ways_of({"A100": 2, "V100": 2}, 32), by_ratio([1, 3], 2, 32)
    ),
    "job_stragglers": lambda: figures.job_stragglers(what_if(job_of(ToyJob().rows(), "toy"))),
    "learning_curves": lambda: figures.learning_curves(curves(), log_loss=True),
    "servers_needed": lambda: figures.servers_needed(servers()),
    "best_collectives": lambda: figures.best_collectives(best()),
    "cut_slowdowns": lambda: figures.cut_slowdowns(cuts()),
    "compression_losses": lambda: figures.compression_losses(losses()),
    "feedback_residuals": lambda: figures.feedback_residuals(kept_back()),
    **toys.DRAWN,
}
SOURCES = ("published", "measured", "emulated", "formulas", "simulated", "the clusters' files")


@functools.cache
def drawn(name: str) -> Figure:
    """The figure of that name, which tests only look at."""
    return DRAWN[name]()


def text_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(mpl.text.Text))


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
    for number, (said, box) in enumerate(boxes):
        for other, other_box in boxes[number + 1 :]:
            assert not overlap(box, other_box), f"{said!r} lies on {other!r}"


def out_of_sight(figure: Figure) -> list[mpl.text.Text]:
    """The labels of ticks outside the limits, which are there but not drawn."""
    found = []
    for ax in figure.findobj(mpl.axes.Axes):
        for label in ax.get_xticklabels():
            box = label.get_window_extent()
            if not ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1:
                found.append(label)
        for label in ax.get_yticklabels():
            box = label.get_window_extent()
            if not ax.bbox.y0 - 1 <= (box.y0 + box.y1) / 2 <= ax.bbox.y1 + 1:
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


def test_missing_published_cells_are_said_in_words():
    assert "no published cells of this panel" in text_of(figures.forecast_bars(forecasts()))
    lacking = published((4, 8))
    lacking = lacking[(lacking["method"] != "MG-WFBP") | (lacking["gpus"] != 8)]
    said = text_of(figures.forecast_bars(forecasts(), lacking))
    assert "no published cells with 16 GPUs; none of MG-WFBP with 8" in said


def test_published_bars_without_a_single_gpu_have_no_speed_up():
    cells = published().query("method != 'single'")
    said = [text.get_text() for text in figures.forecast_bars(forecasts(), cells).axes[0].texts]
    assert len(said) == len(METHODS)


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


def test_two_panels_in_one_forecast_figure_are_refused():
    both = pd.concat([forecasts(), forecasts().assign(network="100GbE")])
    with pytest.raises(InputError, match="2 panels; draw one at a time"):
        figures.forecast_bars(both)


def test_a_bar_of_a_breakdown_ends_at_the_iteration_even_with_a_negative_part():
    ax = figures.breakdown_bars(breakdowns()).axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert ends[3::4] == pytest.approx([500.0] * len(METHODS))


def test_a_schedule_shows_two_iterations_and_the_tail_of_an_earlier_message():
    ax = figures.schedules({"10GbE": {"WFBP-A2A": steady("WFBP-A2A")}}).axes[0]
    assert ax.get_xlim() == pytest.approx((0, 200 * 1.01))
    assert "100 ms, waits 40, 2 messages" in ax.get_title(loc="left")
    boxes = [path.get_extents() for c in ax.collections for path in c.get_paths()]
    tails = [box for box in boxes if box.y1 <= 1 and box.x0 == 0]
    assert [box.x1 for box in tails] == pytest.approx([10])


def test_a_schedule_of_too_few_iterations_is_refused():
    with pytest.raises(InputError, match="has 2 iterations"):
        figures.schedules({"10GbE": {"WFBP-A2A": timeline("WFBP-A2A")}})


def test_every_verdict_is_written_beside_its_bar():
    said = text_of(figures.claim_verdicts({"simulated": judged()}))
    assert "holds: 9 of 10" in said
    assert "fails: 4 of 8" in said
    assert "not judged: the table lacks the cells" in said
    assert "1 of 2 judged claims hold" in said
    table = judged()
    table.loc[table["claim"] == "A57", "reason"] = "forecasts do not tell them apart"
    said = text_of(figures.claim_verdicts({"simulated": table}))
    assert "not judged: forecasts do not tell them apart" in said


def test_a_bar_passes_the_line_of_what_is_needed_only_if_its_claim_holds():
    ax = figures.claim_verdicts({"simulated": judged()}).axes[0]
    needed = [line.get_xdata()[0] for line in ax.lines]
    shares = [bar.get_width() for bar in ax.patches]
    assert [share >= line for share, line in zip(shares, needed, strict=True)] == [True, False]


def test_frames_of_different_claims_are_refused():
    with pytest.raises(InputError, match="differ in their claims"):
        figures.claim_verdicts({"simulated": judged(), "published": judged().iloc[:1]})


def test_cells_that_only_one_source_has_are_not_compared():
    simulated = rows("simulated", methods=("BSP-PS", "MG-WFBP")).assign(std=math.nan)
    figure = figures.simulated_against_measured(simulated, rows(methods=("BSP-PS", "WFBP-PS")))
    assert "1 of 1 cells within 15 %, median absolute error 0.0 %" in text_of(figure)
    with pytest.raises(InputError, match="no cell is in both"):
        figures.simulated_against_measured(simulated, rows(methods=("WFBP-PS",)))
    with pytest.raises(InputError, match="measured rows repeat a cell"):
        figures.simulated_against_measured(simulated, pd.concat([rows(), rows()]))


def test_an_effect_that_clusters_share_is_drawn_once():
    figure = figures.parameter_intervals(fitted_clusters())
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["10 us", "8 Gb/s", "0 us (0 us to 1 ms)"]
    assert "several clusters" in text_of(figure)
    with pytest.raises(InputError, match="no fitted effects"):
        figures.parameter_intervals([fitted_cluster("plain")])


def test_residuals_of_several_forecasts_are_refused():
    frame = misses().assign(forecast=["fitted", "trivial"] * (len(misses()) // 2))
    with pytest.raises(InputError, match="draw one at a time"):
        figures.residuals(frame)


def test_what_could_not_be_predicted_is_counted():
    frame = misses()
    frame.loc[0, "relative_error"] = math.nan
    assert f"{len(frame) - 1} observations" in text_of(figures.residuals(frame))
    assert "1 not predicted" in text_of(figures.residuals(frame))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.forecast_bars(forecasts().iloc[:0]),
        lambda: figures.breakdown_bars(breakdowns().iloc[:0]),
        lambda: figures.claim_verdicts({}),
        lambda: figures.residuals(misses().iloc[:0]),
        lambda: figures.schedules({}),
    ],
)
def test_nothing_to_draw_is_an_error_here_too(draw):
    with pytest.raises(InputError, match=r"no rows|no timelines"):
        draw()


def test_the_schematic_says_that_nothing_was_measured():
    assert "nothing measured" in text_of(figures.parallelism_schematic())


def test_a_synchronisation_counts_what_was_done_while_all_had_work():
    said = text_of(figures.synchronisation_timelines(activities()))
    assert "bsp on PS: 2 gradients, waits 25 % of the time" in said
    assert "asp on PS: 2 gradients, waits 0 % of the time" in said
    longer = text_of(figures.synchronisation_timelines(activities(), until_seconds=3.0))
    assert "asp on PS: 3 gradients" in longer


def test_the_mean_staleness_counts_pushes():
    said = text_of(stale())
    assert "asp\nmean 2.5" in said
    assert "r2sp\nmean 3" in said


@pytest.mark.parametrize(
    "draw",
    [figures.synchronisation_timelines, figures.staleness_histogram],
    ids=lambda f: f.__name__,
)
def test_no_activity_and_no_staleness_are_errors(draw):
    with pytest.raises(InputError, match=r"there (is|are) no"):
        draw(pd.DataFrame())
