"""One function per figure: tidy frames or timelines in, a matplotlib Figure out.

Nothing global changes: style and sizes hold while a figure is made. Every method has one colour in
all figures (Okabe and Ito's colour-blind-safe palette), and every figure says where its numbers
come from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from ddlnb.collectives import AlphaBeta
from ddlnb.errors import require
from ddlnb.timeline import Span, Timeline
from ddlnb.units import GIB, KIB, MIB, MS, gigabits_per_second, show_bytes

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.model_intensity import IntensityRow

METHOD_COLOURS = {
    "single": "#999999",
    "DDP": "#3d3d3d",
    "BSP-PS": "#F0E442",
    "BSP-A2A": "#E69F00",
    "WFBP-PS": "#56B4E9",
    "WFBP-A2A": "#0072B2",
    "MG-WFBP": "#009E73",
    "ByteScheduler-PS": "#CC79A7",
    "ByteScheduler-A2A": "#D55E00",
}
OTHER_COLOUR = "#b0a695"  # a method of the reader's own
KIND_COLOURS = {"forward": "#9ad0f0", "backward": "#0072B2", "update": "#009E73", "wait": "#D55E00"}
WAIT_HATCH = "////"
PUBLISHED_HATCH = "///"
MODEL_COLOURS = {"resnet50": "#0072B2", "bert-base": "#E69F00", "bert-large": "#009E73"}
NETWORK_COLOURS = {"10GbE": "#D55E00", "100GbE": "#E69F00", "100GbIB": "#009E73"}
MEASURED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")
MESSAGE_COLOURS = LinearSegmentedColormap.from_list("size", ["#e5d3ef", "#9467a8", "#3b1250"])
BAR_GROUP = 0.86  # of the distance between two groups

P = ParamSpec("P")


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under our style, and leave matplotlib's settings and list of figures as they were."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        ours = {
            **sns.axes_style("whitegrid"),
            **sns.plotting_context("notebook", font_scale=0.8),
            "hatch.linewidth": 0.6,
        }
        with plt.rc_context(ours):
            figure = draw(*args, **kwargs)
        plt.close(figure)  # the caller shows it; an open figure would be shown twice
        return figure

    return styled


def colour_of(method: str) -> str:
    """The colour of this method in every figure."""
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


@_styled
def throughput_bars(rows: pd.DataFrame) -> Figure:
    """Throughput by method and number of workers, the look of the survey's Fig. 4.

    One panel for every model, batch, network and source of the tidy rows. A number on a bar is the
    speed-up over one worker (the row of ``single``), a line on it one standard deviation.
    Published bars are hatched and paler.
    """
    require(not rows.empty, "there are no rows to draw")
    panels = list(rows.groupby(["model", "local_batch", "network", "source"], sort=False))
    widths = [max(2, _groups(panel)) for _, panel in panels]
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(min(16, 1.6 + 3.6 * sum(widths) * 0.8), 4.4),
        width_ratios=widths,
        squeeze=False,
        layout="constrained",
    )
    for ax, ((model, batch, network, source), panel) in zip(axes[0], panels, strict=True):
        _throughput_panel(ax, panel, hatched=source == "published")
        ax.set_title(f"{model}, {batch} per worker, {network}\n({source})")
    axes[0][0].set_ylabel("throughput (samples/s)")
    methods = _in_order(rows["method"].unique())
    handles: list[Any] = [Patch(color=colour_of(name), label=name) for name in methods]
    if "single" in methods:
        handles[methods.index("single")] = _line(colour_of("single"), "one worker", "--")
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    _say_source(figure, rows, "number on a bar: speed-up over one worker; line: 1 std")
    return figure


def _groups(panel: pd.DataFrame) -> int:
    return int(panel.loc[panel["method"] != "single", "gpus"].nunique())


def _throughput_panel(ax: Axes, panel: pd.DataFrame, *, hatched: bool) -> None:
    single = panel.loc[panel["method"] == "single", "throughput_samples_per_s"]
    base = float(single.median()) if len(single) else None
    if base is not None:
        ax.axhline(base, color=colour_of("single"), linestyle="--", linewidth=1.4, zorder=1)
    shared = panel[panel["method"] != "single"]
    methods = _in_order(shared["method"].unique())
    counts = sorted(shared["gpus"].unique())
    width = BAR_GROUP / max(1, len(methods))
    tops = [base or 0.0]
    for _, row in shared.iterrows():
        slot = methods.index(row["method"]) - (len(methods) - 1) / 2
        x, height = counts.index(row["gpus"]) + slot * width, row["throughput_samples_per_s"]
        spread = row["std"] if row["std"] == row["std"] else 0.0
        ax.bar(
            x,
            height,
            width * 0.94,
            color=colour_of(row["method"]),
            alpha=0.55 if hatched else 1.0,
            hatch=PUBLISHED_HATCH if hatched else None,
            edgecolor="white",
            linewidth=0,
            yerr=spread or None,
            error_kw={"elinewidth": 1, "ecolor": "black", "capsize": 2},
            zorder=2,
        )
        tops.append(height + spread)
        if base:
            _on_bar(ax, x, height + spread, f"{height / base:.2f}")
    ax.set_xticks(range(len(counts)), [str(count) for count in counts])
    ax.set_xlabel("workers")
    ax.set_ylim(0, max(tops) * 1.16)
    ax.grid(False, axis="x")


def _on_bar(ax: Axes, x: float, top: float, text: str) -> None:
    ax.annotate(
        text,
        (x, top),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=90,
        fontsize=8,
    )


@_styled
def timelines(timelines_by_method: Mapping[str, Timeline], rank: int = 0) -> Figure:
    """The methods' timelines on one rank, one above the other, as in part 3 of Fig. 3.

    The upper lane of a method is what the worker computes or waits for, the lower one its
    messages, stacked where they overlap, darker the larger they are. Vertical lines are starts of
    forward passes; time starts with the first one. All methods share one axis.
    """
    require(bool(timelines_by_method), "there are no timelines to draw")
    chosen = {name: _from_zero(line.on(rank)) for name, line in timelines_by_method.items()}
    figure, grid = plt.subplots(
        len(chosen),
        1,
        figsize=(11, 0.9 + 1.12 * len(chosen)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    sizes = [s.bytes for line in chosen.values() for s in line.spans if s.kind == "message"]
    shade = _shades(sizes)
    end = max(span.stop_seconds for line in chosen.values() for span in line.spans) / MS
    for ax, (name, line) in zip(grid[:, 0], chosen.items(), strict=True):
        ax.set_xlim(0, end * 1.01)
        _timeline_panel(ax, name, line, shade, end)
    grid[-1, 0].set_xlabel("time (ms)")
    handles: list[Any] = [
        Patch(
            facecolor=colour,
            edgecolor="white",
            hatch=WAIT_HATCH if kind == "wait" else None,
            label=kind,
        )
        for kind, colour in KIND_COLOURS.items()
    ]
    if sizes:
        handles += [
            Patch(color=shade(size), label=f"message, {show_bytes(size)}")
            for size in sorted({min(sizes), max(sizes)})
        ]
    handles.append(_line("black", "forward starts", ":"))
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    sources = ", ".join(sorted({line.source for line in chosen.values()}))
    figure.supxlabel(f"source: {sources}; rank {rank}", fontsize=8, x=0.99, ha="right")
    return figure


def _from_zero(line: Timeline) -> Timeline:
    iterations = [span.iteration for span in line.spans]
    require(bool(iterations), f"the timeline of {line.method!r} has no span on this rank")
    return line.window(min(iterations), max(iterations))


def _shades(sizes: Sequence[int]) -> Callable[[int], Any]:
    """A colour for a message size, on a logarithmic scale between the smallest and the largest."""
    low, high = np.log(max(1, min(sizes, default=1))), np.log(max(2, *sizes, 2))

    def shade(size: int) -> Any:
        if high == low:
            return MESSAGE_COLOURS(0.5)
        return MESSAGE_COLOURS((np.log(max(1, size)) - low) / (high - low))

    return shade


def _timeline_panel(
    ax: Axes, name: str, line: Timeline, shade: Callable[[int], Any], end: float
) -> None:
    for kind, colour in KIND_COLOURS.items():
        spans = [span for span in line.spans if span.kind == kind]
        ax.broken_barh(
            [(span.start_seconds / MS, span.seconds / MS) for span in spans],
            (1.1, 0.9),
            facecolor=colour,
            edgecolor="white" if kind == "wait" else colour,
            linewidth=0 if kind == "wait" else 0.3,
            hatch=WAIT_HATCH if kind == "wait" else None,
        )
    messages = sorted(
        (span for span in line.spans if span.kind == "message"), key=lambda s: s.start_seconds
    )
    row_of = pack(messages)
    rows = max(row_of, default=0) + 1
    for span, row in zip(messages, row_of, strict=True):
        _draw_message(ax, span, 1 - (row + 1) / rows, 1 / rows, shade, end)
    for start in _forward_starts(line):
        ax.axvline(start / MS, color="black", linestyle=":", linewidth=1)
    waits = 1e3 * line.exposed_communication_seconds
    per_iteration = len(messages) / max(1, line.iterations)
    ax.set_title(
        f"{name}: waits {waits:.1f} ms per iteration, {per_iteration:.0f} messages",
        loc="left",
        fontsize=9,
        fontweight="bold",
        pad=3,
    )
    ax.set_yticks([0.5, 1.55], ["network", "compute"])
    ax.set_ylim(-0.06, 2.1)
    ax.grid(False)


def _draw_message(
    ax: Axes, span: Span, bottom: float, height: float, shade: Callable[[int], Any], end: float
) -> None:
    colour = shade(span.bytes)
    ax.broken_barh(
        [(span.start_seconds / MS, span.seconds / MS)],
        (bottom, height * 0.94),
        facecolor=colour,
        edgecolor="white",
        linewidth=0.2,
    )
    text = show_bytes(span.bytes)
    if height > 0.24 and span.seconds / MS > 0.011 * end * len(text):
        dark = sum(to_rgb(colour)) < 1.7
        ax.text(
            (span.start_seconds + span.stop_seconds) / 2 / MS,
            bottom + height * 0.47,
            text,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )


def pack(spans: Sequence[Span]) -> list[int]:
    """A row for every span, in order of their starts, so that spans in one row do not overlap.

    >>> pack([Span(0, "message", "", 0, 3), Span(0, "message", "", 1, 2),
    ...       Span(0, "message", "", 2, 4)])
    [0, 1, 1]
    """
    free: list[float] = []
    rows = []
    for span in spans:
        row = next((r for r, until in enumerate(free) if until <= span.start_seconds), len(free))
        free[row : row + 1] = [span.stop_seconds]
        rows.append(row)
    return rows


def _forward_starts(line: Timeline) -> list[float]:
    """When the forward pass of every iteration starts."""
    starts: dict[int, float] = {}
    for span in line.spans:
        if span.kind == "forward":
            before = starts.get(span.iteration, span.start_seconds)
            starts[span.iteration] = min(before, span.start_seconds)
    return sorted(starts.values())


@_styled
def effective_bandwidth(rows: pd.DataFrame, fits: Mapping[str, AlphaBeta] | None = None) -> Figure:
    """Effective bandwidth against message size, both logarithmic.

    ``rows`` have the columns network, bytes, gigabits_per_second and source. ``fits`` gives a
    network's a + b M, drawn dashed over the range of its points.
    """
    require(not rows.empty, "there are no rows to draw")
    fits = fits or {}
    figure, ax = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
    measured = iter(MEASURED_COLOURS * len(rows))
    for (network, source), points in rows.groupby(["network", "source"], sort=False):
        colour = NETWORK_COLOURS.get(network) or next(measured)
        published = source == "published"
        ax.plot(
            points["bytes"],
            points["gigabits_per_second"],
            marker="D" if published else "o",
            markerfacecolor="white" if published else colour,
            linestyle="none" if network in fits else "-",
            color=colour,
            label=f"{network} ({source})",
        )
        if network in fits:
            low, high = points["bytes"].min(), points["bytes"].max()
            sizes = np.geomspace(low, high, 60)
            rates = [gigabits_per_second(m / fits[network].seconds(m)) for m in sizes]
            ax.plot(sizes, rates, linestyle="--", color=colour, label=f"{network}: {fits[network]}")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [2**k for k in range(8, 30, 2) if rows["bytes"].min() <= 2**k <= rows["bytes"].max()]
    ax.set_xticks(ticks, [_binary(tick) for tick in ticks])
    ax.set_xlabel("message size")
    ax.set_ylabel("effective bandwidth (Gb/s)")
    ax.set_title("Small messages do not fill the link")
    figure.legend(loc="outside right upper", frameon=False)
    _say_source(figure, rows, "dashed: a + M / B")
    return figure


def _binary(count: int) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


@_styled
def intensity_bars(rows: Iterable[IntensityRow]) -> Figure:
    """Model intensity under every counting convention, and as published (dashed, hatched)."""
    listed = list(rows)
    require(bool(listed), "there are no rows to draw")
    conventions = list(dict.fromkeys(row.convention for row in listed))
    models = _ordered([row.model for row in listed], MODEL_COLOURS)
    published = {row.model: row.published for row in listed}
    found = {(row.convention, row.model): row.intensity for row in listed}
    figure, ax = plt.subplots(figsize=(10.5, 4.4), layout="constrained")
    width = BAR_GROUP / len(models)
    for index, model in enumerate(models):
        colour = MODEL_COLOURS.get(model, OTHER_COLOUR)
        offset = (index - (len(models) - 1) / 2) * width
        for group, convention in enumerate([*conventions, None]):
            value = published[model] if convention is None else found.get((convention, model))
            if value is None:
                continue
            quoted = convention is None
            ax.bar(
                group + offset,
                value,
                width * 0.94,
                color=colour,
                alpha=0.55 if quoted else 1.0,
                hatch=PUBLISHED_HATCH if quoted else None,
                edgecolor="white",
                linewidth=0,
            )
            _on_bar(ax, group + offset, value, f"{value:.0f}")
        ax.axhline(published[model], color=colour, linestyle="--", linewidth=1, zorder=1)
    labels = [name.replace(", ", ",\n").replace("+ ", "+\n") for name in conventions]
    labels = [label.replace("own ", "own\n") for label in labels]
    ax.set_xticks(range(len(conventions) + 1), [*labels, "published\n(survey, s. 1-2)"], fontsize=8)
    ax.set_ylabel("model intensity (FLOP per parameter and sample)")
    ax.set_xlabel("how C is counted")
    ax.set_ylim(0, 1.14 * max([*found.values(), *published.values()]))
    ax.set_title("The ordering is robust, the absolute numbers depend on the convention")
    ax.grid(False, axis="x")
    handles = [Patch(color=MODEL_COLOURS.get(m, OTHER_COLOUR), label=m) for m in models]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    figure.supxlabel(
        "source: computed from the layers; hatched and dashed: published",
        fontsize=8,
        x=0.99,
        ha="right",
    )
    return figure


@_styled
def parallelism_schematic(layers: int = 4) -> Figure:
    """Model parallelism beside data parallelism, two workers each, as in Fig. 1."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    first, second = METHOD_COLOURS["WFBP-PS"], METHOD_COLOURS["BSP-A2A"]
    for ax in axes:
        ax.set_xlim(0, 10)
        ax.set_ylim(-0.6, layers + 0.35)
        ax.axis("off")
    half = layers // 2
    left, right = axes
    left.set_title("Model parallelism: layers are split")
    for layer in range(layers):
        worker = 0 if layer < half else 1
        _box(left, 1 + 5 * worker, layer, f"layer {layer + 1}", (first, second)[worker])
    _arrow(left, (4, half - 0.55), (6, half + 0.35), "activations", 0.42)
    _arrow(left, (6, half + 0.05), (4, half - 0.85), "their gradients", -0.75)
    _caption(left, 2.5, "worker 0\nthe whole batch")
    _caption(left, 7.5, "worker 1\nthe whole batch")
    right.set_title("Data parallelism: the batch is split")
    for worker in range(2):
        for layer in range(layers):
            _box(right, 1 + 5 * worker, layer, f"layer {layer + 1}", (first, second)[worker])
        _caption(right, 2.5 + 5 * worker, f"worker {worker}\n{('first', 'second')[worker]} half")
    for layer in range(layers):
        label = "average of\ngradients" if layer == layers - 1 else ""
        _arrow(right, (4, layer + 0.3), (6, layer + 0.3), label, 0.12, both=True)
    figure.supxlabel("schematic, nothing measured", fontsize=8, x=0.99, ha="right")
    return figure


def _box(ax: Axes, x: float, layer: int, text: str, colour: str) -> None:
    style = "round,pad=0.02,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x, layer), 3, 0.62, boxstyle=style, facecolor=colour, alpha=0.75))
    ax.text(x + 1.5, layer + 0.31, text, ha="center", va="center", fontsize=10)


def _arrow(
    ax: Axes,
    tail: tuple[float, float],
    head: tuple[float, float],
    text: str,
    lift: float,
    *,
    both: bool = False,
) -> None:
    style = "<|-|>" if both else "-|>"
    ax.add_patch(FancyArrowPatch(tail, head, arrowstyle=style, mutation_scale=14, color="#333333"))
    middle = ((tail[0] + head[0]) / 2, (tail[1] + head[1]) / 2 + lift)
    ax.text(*middle, text, ha="center", va="bottom", fontsize=8)


def _caption(ax: Axes, x: float, text: str) -> None:
    ax.text(x, -0.12, text, ha="center", va="top", fontsize=9)


def _in_order(methods: Iterable[str]) -> list[str]:
    return _ordered(methods, METHOD_COLOURS)


def _ordered(names: Iterable[str], known: Mapping[str, Any]) -> list[str]:
    """The names without repetition: the known ones first, in the order in which they are known."""
    present = list(dict.fromkeys(names))
    return [name for name in known if name in present] + [n for n in present if n not in known]


def _line(colour: str, label: str, style: Literal["--", ":"]) -> Line2D:
    return Line2D([], [], color=colour, linestyle=style, label=label)


def _say_source(figure: Figure, rows: pd.DataFrame, note: str) -> None:
    """Write the sources of the rows, and the machine of the measured ones, under the figure."""
    said = []
    for source, part in rows.groupby("source", sort=False):
        machines = part["machine"].dropna().unique() if "machine" in part else []
        said.append(f"{source} on {' and '.join(machines)}" if len(machines) else str(source))
    figure.supxlabel(f"source: {'; '.join(said)} | {note}", fontsize=8, x=0.99, ha="right")
