"""Where lossy methods pay: speed-ups over clusters and sizes, as tables and verdicts.

Iterations and seconds are of one model, digits, behind made-up links: another model compresses by
another factor and needs other iterations. `ddlnb.training.cost.time_to_target` multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.errors import require, require_whole
from ddlnb.figures.learning import ADAPTIVE, FIXED, SOURCE, draw_time, target_label, target_of
from ddlnb.figures.style import (
    DARK,
    OTHER_COLOUR,
    beside,
    doubling_axis,
    facets,
    legend,
    line_look,
    names_down,
    say_source,
    short,
    styled,
)
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.training.cost.time_to_target import (
    NO,
    UNSURE,
    YES as YES,
    iterations_to_target,
    recommendations,
    time_to_target as seconds_to_target,
)
from ddlnb.training.method import training_method
from ddlnb.training.tasks.built_in import DIGITS
from ddlnb.units import bandwidth_from, counted, seconds_from
from ddlnb.workloads.profiling import profile
from ddlnb.workloads.roofline import from_throughput
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload

CLUSTER = ["network", "task", "workers"]
FREE, ON_CPU = "free", "cpu-1thread"  # profiles of what compression takes
LINKS = (("10 Mb/s", "1 ms"), ("1 Gb/s", "50 us"))  # made-up, of the pure case


def iterations_table(curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the iterations to the target by method and number of workers, over the seeds."""
    needed = iterations_to_target(curves, target)
    cells = needed.groupby(["method", "workers"], sort=False)["iterations"]
    return cells.agg(["mean", "min", "max"]).round(1)


def pure_case(
    curves: pd.DataFrame, target: float, work: Workload, compression: str = ON_CPU
) -> pd.DataFrame:
    """Return the time to target of digits, whose ``work`` was measured, behind made-up links."""
    links = [made_up_cluster(*link) for link in LINKS]
    return seconds_to_target(curves, target, work, links, compression)


@tabled("network", "workers", "method", "choice", "said")
def verdict_table(table: pd.DataFrame) -> Rows:
    """Return a row per verdict on a `time_to_target`: network, workers, method, choice, said.

    ``said`` begins with the network and the number of workers.
    """
    networks = table.drop_duplicates("machine").set_index("machine")["network"]
    for one in recommendations(table):
        network = networks[one.machine]
        said = f"{network}, {counted(one.workers, 'worker')}: {one}"
        yield (network, one.workers, one.method, one.choice, said)


def verdict_list(table: pd.DataFrame, workers: int) -> Findings:
    """Return what is said of every lossy method with this number of workers."""
    return findings(*verdict_table(table[table["workers"] == workers])["said"])


def target_findings(tables: Mapping[str, pd.DataFrame], workers: int) -> Findings:
    """Return, for every table and network, which methods gain, which may, and which do not."""
    words = {YES: "a gain", UNSURE: "no clear gain", NO: "no gain"}
    told = []
    for label, table in tables.items():
        verdicts = verdict_table(table[table["workers"] == workers])
        for network, part in verdicts.groupby("network", sort=False):
            methods = (
                part["method"].str.removesuffix(" on A2A").groupby(part["choice"]).agg(", ".join)
            )
            said = [
                f"{word} by {methods[choice]}"
                for choice, word in words.items()
                if choice in methods
            ]
            told.append(f"{label}, {network}: {'; '.join(said)}.")
    return findings(*told)


SHORT = 20.0  # seconds, which are told in minutes beyond
APART = 1.025  # between neighbouring methods, so that their intervals do not hide one another


@styled
def time_to_target(table: pd.DataFrame) -> Figure:
    """Time to the target loss per method and network; the axis says whose iterations they are.

    ``table`` is that of `ddlnb.training.cost.time_to_target.time_to_target`. Whiskers are 95 %
    intervals over seeds; a method that does not reach the target has no bar, and the text on a bar
    is its speed-up over the dense best.
    """
    methods = list(table["method"].unique()) if len(table) else []
    reached = table.loc[table["seconds"] < math.inf, "seconds"]
    unit, word = (60, "minutes") if reached.median() > SHORT else (1, "seconds")
    height = 1.4 + 0.34 * len(methods)
    figure, panels = facets(table, "network", width=(3.2, 2.9), height=height, sharey=True)
    for ax, _, part in panels:
        for number, (method, row) in enumerate(
            part.set_index("method").reindex(methods).iterrows()
        ):
            colour = DARK if row["is_dense"] else _colour(str(method))
            end = draw_time(ax, number, row, colour, unit=unit, never="never")
            if math.isfinite(end):
                beside(ax, end, number, f"{row['speedup']:.2f}x")
        ax.margins(x=0.25)
        ax.set(xlabel=target_label(word, table), xlim=(0, None))
        ax.xaxis.set_major_formatter(ScalarFormatter())
    names_down(panels[0][0], [short(name) for name in methods])
    figure.suptitle(target_of(table), fontsize=10)
    return say_source(figure, SOURCE, _compression_note(table))


def _colour(method: str) -> str:
    lossy = training_method(method)
    if lossy.compressor is not None:
        return ADAPTIVE
    return FIXED if lossy.synchronisation.name != "bsp" else OTHER_COLOUR


@styled
def target_speedups(table: pd.DataFrame) -> Figure:
    """Speed-ups to the target loss against the workers: a panel per network, a line per method.

    ``table`` is that of `ddlnb.training.cost.time_to_target.time_to_target`, for several numbers of
    workers. Speed-ups are over the quickest lossless method, which is quicker below the dashed
    line. Bars are 95 % intervals over seeds; where a run never reaches the target there is no
    point, and a method without any says "never".
    """
    lossy = table[~table["is_dense"].astype(bool)]
    require(not lossy.empty, "there are no lossy methods to draw")
    methods = list(lossy["method"].unique())
    height = 3.6 + 0.2 * len(methods)
    figure, panels = facets(lossy, "network", width=(1.0, 3.2), height=height, sharey=True)
    for ax, _, part in panels:
        for number, method in enumerate(methods, start=1):
            rows = part[part["method"] == method].sort_values("workers")
            speedups = rows["speedup"].where(rows["speedup"] > 0, math.nan)
            x = rows["workers"] * APART ** (number - (1 + len(methods)) / 2)
            low, high = rows["speedup_low"].astype(float), rows["speedup_high"].astype(float)
            reach = [(speedups - low).clip(lower=0), (high - speedups).clip(lower=0)]
            look: dict[str, Any] = {"marker": "o", "markersize": 4, "elinewidth": 0.9, "capsize": 2}
            ever = bool((lossy.loc[lossy["method"] == method, "speedup"] > 0).any())
            look |= {"label": short(method) + " (never)" * (not ever), **line_look(number)}
            ax.errorbar(x, speedups, yerr=reach, **look)
        ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        doubling_axis(ax, sorted(lossy["workers"].unique()))
        ax.set_xlabel("workers")
    panels[0][0].set(ylabel="speed-up to the target over the dense best", ylim=(0, None))
    legend(figure, where="upper center", columns=3)
    return say_source(figure, SOURCE, f"{target_of(table)}\n{_compression_note(lossy)}")


def _compression_note(table: pd.DataFrame) -> str:
    said = {source.partition("compression ")[2] for source in table["source"]} - {""}
    whole = [text if text.startswith("compression") else f"compression {text}" for text in said]
    return " and ".join(sorted(whole)) or "no compression"


def digits_workload(iterations: int = 30) -> Workload:
    """Return the model of the digits task with seconds measured here, on one thread."""
    return profile(_digits_task(), iterations=iterations, threads=1)


def made_up_digits(samples_per_second: float) -> Workload:
    """Return the model of the digits task on a device of this throughput, shared out by FLOPs."""
    traced = trace(_digits_task(), DIGITS.local_batch)
    return from_throughput(traced, samples_per_second, "made up")


@cache
def digits_behind_links() -> tuple[Workload, list[Cluster]]:
    """Return digits on a made-up device of 10,000 samples a second, and such devices on links.

    What trains and what takes the seconds are one model: a larger one would need other iterations.
    """
    links = (("1 Gb/s", "5 us"), ("100 Mb/s", "5 us"))
    return made_up_digits(10_000), [made_up_cluster(*link) for link in links]


def require_one_model(curves: pd.DataFrame, workload: Workload) -> None:
    """Raise InputError where the iterations are of another model than the seconds."""
    tasks = ", ".join(sorted(set(curves["task"])))
    require(
        tasks == workload.model,
        f"iterations of {tasks} times seconds of {workload.model} are the time of no model; "
        f"take both of one",
    )


def _digits_task() -> Task:
    return Task(
        DIGITS.name,
        partial(DIGITS.build, 0),
        _batch,
        DIGITS.loss,
        DIGITS.local_batch,
        "images",
        about=DIGITS.about,
    )


def made_up_cluster(bandwidth: str, latency: str, workers: int = 32) -> Cluster:
    """Return nodes of one worker each behind such links; nothing else takes time or is measured.

    >>> made_up_cluster("10 Mb/s", "1 ms").network
    '10 Mb/s, 1 ms'
    """
    require_whole(workers=workers)
    effects = Effects(
        between_latency=seconds_from(latency), between_bandwidth=bandwidth_from(bandwidth)
    )
    name = f"{bandwidth}, {latency}"
    return Cluster(f"made up: {name}", name, workers, 1, effects)


def _batch(local_batch: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    samples = DIGITS.samples()
    chosen = torch.randint(len(samples.labels), (local_batch,), generator=generator)
    return tuple(tensor[chosen] for tensor in samples.tensors)
