"""Section 5.2: relaxed synchronisation together with compression, and the gradients behind it.

Bytes are those that pass a worker's link in both directions. A parameter server's answers are
dense, whatever workers push, so that compressing pushes alone saves at most half of the traffic.

Section 5.2 of the survey asks whether gradients under relaxed synchronisation are distributed as
under BSP, for which compressors were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ddlnb.errors import InputError, require, require_whole
from ddlnb.figures.learning import BOTH
from ddlnb.figures.style import (
    PALETTE,
    facets,
    legend,
    legend_line,
    say_source,
    short,
    styled,
)
from ddlnb.plans.requests import Flow
from ddlnb.results.statistics import Verdict, mean_interval
from ddlnb.survey.items import Findings, ItemVerdict, findings, item_verdict
from ddlnb.training.executors.clock import Clock, LogNormal
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import Runs, final_loss, runs_by, spent
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import NextGradient, Worker
from ddlnb.units import MB, counted

COMPRESSIONS = ("", " + top-k(0.01) + feedback", " + ef-sign + feedback")
SYNCHRONISATIONS = ("bsp", "local(4)", "ssp(3)")
DENSE = "bsp on A2A"
STRAGGLERS = Clock(LogNormal(0.5))  # so that SSP has something to relax
BETTER, WORSE, OPEN = "better", "worse", "no clear difference"


def combined_methods(
    synchronisations: Sequence[str] = SYNCHRONISATIONS, compressions: Sequence[str] = COMPRESSIONS
) -> list[str]:
    """Return every synchronisation with every compression.

    >>> combined_methods(["ssp(3)"])[1]
    'ssp(3) + top-k(0.01) + feedback'
    """
    return [one + other for one in synchronisations for other in compressions]


def link_bytes(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the curves with ``link_bytes``: sent and received by a worker on average, as `spent`.

    Raises InputError if there are none.
    """
    require(not curves.empty, "there are no curves")
    return curves.assign(link_bytes=spent(curves, "bytes"))


def at_equal_bytes(curves: pd.DataFrame, dense_iterations: Sequence[int]) -> pd.DataFrame:
    """Return a row per budget and method: the loss when a link has carried that many bytes.

    A budget is what the given number of iterations of dense BSP takes. ``loss`` is the mean over
    seeds of the test loss in the last row within the budget, ``steps`` where that is; ``ended`` if
    the whole run is within it, so that more steps could still lower the loss. ``gap`` is the loss
    minus that of dense BSP, paired by seeds, with its 95 % ``gap_half_width``; ``verdict`` is
    BETTER or WORSE where that interval leaves out 0. Runs that diverged have infinite loss. Raises
    InputError for curves without dense BSP.
    """
    known = link_bytes(curves)
    cells = runs_by(known, "method")
    require(DENSE in set(known["method"]), f"the curves lack {DENSE!r}, which others are beside")
    dense = known[(known["method"] == DENSE) & (known["step"] > 0)]
    per_iteration = float((dense["link_bytes"] / dense["step"]).iloc[0])
    rows = []
    for iterations in dense_iterations:
        budget = iterations * per_iteration
        found = {method: _within(runs, budget) for (method,), runs in cells.items()}
        of_dense = found[DENSE]["loss"].to_numpy()
        for method, losses in found.items():
            loss = mean_interval(losses["loss"].to_numpy())
            rows.append(
                {
                    "dense_iterations": iterations,
                    "bytes": budget,
                    "method": method,
                    "loss": loss.estimate,
                    "half_width": loss.half_width,
                    "steps": float(losses["step"].mean()),
                    "ended": bool(losses["ended"].all()),
                    **_gap(losses["loss"].to_numpy(), of_dense, method == DENSE),
                }
            )
    return pd.DataFrame(rows).assign(source="lockstep, bytes counted")


def _within(runs: Runs, budget: float) -> pd.DataFrame:
    """Return the last row within the budget, by seed."""
    rows = []
    for run in runs.values():
        within = run[run["link_bytes"] <= budget * (1 + 1e-9)]
        last = within.iloc[-1]
        rows.append((last["step"], final_loss(within), last["step"] == run["step"].iloc[-1]))
    return pd.DataFrame(rows, columns=["step", "loss", "ended"])


def _gap(losses: np.ndarray, dense: np.ndarray, itself: bool) -> dict[str, object]:
    if itself:
        return {"gap": 0.0, "gap_half_width": 0.0, "verdict": ""}
    if len(losses) != len(dense):
        raise InputError("methods have other seeds than dense BSP; run the same seeds")
    gap = mean_interval(losses - dense)
    diverged = math.isinf(gap.estimate)
    return {
        "gap": gap.estimate,
        "gap_half_width": gap.half_width,
        "verdict": WORSE if diverged else gap.above(0).worded(WORSE, BETTER, OPEN),
    }


def train_combined(*, workers: int, seeds: int, steps: int) -> pd.DataFrame:
    """Train digits with all `combined_methods` while gradients take log-normal times."""
    return compare(
        "digits", combined_methods(), workers=workers, seeds=seeds, steps=steps, clock=STRAGGLERS
    ).curves


def bytes_table(equal: pd.DataFrame) -> pd.DataFrame:
    """Return `at_equal_bytes` to read, by budget and method."""
    table = equal.set_index(["dense_iterations", "method"])
    return pd.DataFrame(
        {
            "test loss": table["loss"].round(3),
            "steps": table["steps"].round(1),
            "ran out of steps": table["ended"].map({True: "yes", False: "no"}),
            "loss over dense BSP": table["gap"].round(3),
            "±": table["gap_half_width"].round(3),
            "verdict": table["verdict"],
        }
    ).rename_axis(["iterations of dense BSP", "method"])


def bytes_findings(equal: pd.DataFrame) -> Findings:
    """Return what every budget buys: who is better than dense BSP, and who ran out of steps."""
    return findings(
        *(_answer(part) for _, part in equal.groupby("dense_iterations", sort=False)),
        items=[_item(part) for _, part in equal.groupby("dense_iterations", sort=False)],
    )


def _item(part: pd.DataFrame) -> ItemVerdict:
    """Judge whether a relaxed method with compression is better than dense BSP at equal bytes."""
    both = part[part["method"].map(_is_relaxed_and_compressed)]
    found = set(both["verdict"])
    verdict = Verdict.UNDECIDED if OPEN in found else Verdict.CONTRADICTED
    if BETTER in found:
        verdict = Verdict.HOLDS
    better = (both["verdict"] == BETTER).sum()
    said = (
        f"{better} of {len(both)} combinations are better than dense BSP with the bytes of "
        f"{both['dense_iterations'].iloc[0]} of its iterations"
    )
    return item_verdict("A61", [verdict], "measured", said)


def _is_relaxed_and_compressed(method: str) -> bool:
    synchronisation, *compression = method.split(" + ")
    return not synchronisation.startswith("bsp") and bool(compression)


def _answer(part: pd.DataFrame) -> str:
    dense, others = part[part["method"] == DENSE].iloc[0], part[part["method"] != DENSE]
    best = others.loc[others["loss"].idxmin()]
    better, ended = (others["verdict"] == BETTER).sum(), others["ended"].sum()
    return (
        f"With the bytes of {dense['dense_iterations']} iterations of dense BSP, which leave it at "
        f"a loss of {dense['loss']:.2f}, {better} of {len(others)} other methods are better. The "
        f"best, {best['method']}, is at {best['loss']:.2f} after {best['steps']:.0f} steps; "
        f"{ended} methods ran out of steps before they had used their bytes."
    )


DECADES, PER_DECADE = 8, 4
BINS = DECADES * PER_DECADE
LARGEST = 2.0  # decades above the root mean square at which histograms end
RAW, SCALED = "raw", "scaled"
See = Callable[[Worker, Tensor], None]


def gradient_sizes(
    task: str | LearningTask,
    methods: Sequence[str | TrainingMethod],
    *,
    workers: int = 8,
    steps: int = 100,
    last: int = 20,
    seeds: int = 3,
    clock: Clock | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Return rows of method, seed, measure, bin (log10, the middle) and share of the entries.

    The gradients are those that workers compute in their ``last`` steps, before they are used.
    Measure "raw" is log10 |entry|, "scaled" the same in units of the root mean square of its
    gradient, so that only the shape counts. Entries below the least bin, zeros too, count in it,
    larger ones than the largest in that one. ``settings`` are those of `train`. Raises InputError.
    """
    require_whole(steps=steps, last=last, seeds=seeds)
    require(last <= steps, f"last {last} steps must be at most all {steps}")
    parts = [
        _histograms(training_method(method), seed, task, workers, steps, last, clock, settings)
        for method in methods
        for seed in range(seeds)
    ]
    require(bool(parts), "there are no methods to run")
    return pd.concat(parts, ignore_index=True).assign(source="lockstep")


def watched(loop: Callable[[Worker], Flow], see: See, worker: Worker) -> Flow:
    """Run the loop of a worker, calling ``see(worker, gradient)`` with every gradient it gets."""
    flow, answer = loop(worker), None
    while True:
        request = flow.send(answer)
        answer = yield request
        if isinstance(request, NextGradient):
            see(worker, answer)


class _Counts:
    def __init__(self, after: int):
        self.after = after
        self.raw, self.scaled = torch.zeros(BINS), torch.zeros(BINS)

    def __call__(self, worker: Worker, gradient: Tensor) -> None:
        if worker.step <= self.after:
            return
        scale = float(gradient.square().mean().sqrt())
        require(scale > 0, "a gradient is zero throughout, so that its entries have no sizes")
        self.raw += _counted(gradient)
        self.scaled += _counted(gradient / scale)


def _counted(values: Tensor) -> Tensor:
    least = LARGEST - DECADES
    sizes = values.abs().clamp(10**least, 10**LARGEST).log10()
    return torch.histc(sizes, BINS, least, LARGEST)


def _histograms(
    method: TrainingMethod,
    seed: int,
    task: str | LearningTask,
    workers: int,
    steps: int,
    last: int,
    clock: Clock | None,
    settings: dict[str, Any],
) -> pd.DataFrame:
    job = training_settings(task, method, workers=workers, steps=steps, seed=seed, **settings).job()
    team = [job.worker(rank) for rank in range(workers)]
    counts = _Counts(steps - last)
    loop = partial(watched, method.synchronisation.loop, counts)
    Lockstep(team, loop, steps, rule=job.rule(), clock=clock).run()
    middles = LARGEST - DECADES + (np.arange(BINS) + 0.5) / PER_DECADE
    return pd.concat(
        pd.DataFrame(
            {
                "method": str(method),
                "seed": seed,
                "measure": measure,
                "bin": middles,
                "share": (counted / counted.sum()).numpy(),
            }
        )
        for measure, counted in ((RAW, counts.raw), (SCALED, counts.scaled))
    )


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the common area of two histograms of shares: 1 if equal, 0 if nothing is shared.

    >>> overlap(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5]))
    0.5
    """
    return float(np.minimum(one, other).sum())


def similarity(sizes: pd.DataFrame, base: str = "bsp") -> pd.DataFrame:
    """Return a row per measure and method: how much of its histogram is common with the base's.

    ``overlap`` is the mean over all pairs of runs of different seeds, ``base_overlap`` that of the
    base with itself, and ``base_least`` its least. ``alike`` if the mean overlap is no less than
    that least one: the method then differs from the base no more than two runs of the base do.
    Raises InputError for fewer than two seeds, and if the base is missing.
    """
    name = str(training_method(base))
    rows = []
    for measure, part in sizes.groupby("measure", sort=False):
        shares = {
            str(method): {
                seed: run.sort_values("bin")["share"].to_numpy()
                for seed, run in runs.groupby("seed")
            }
            for method, runs in part.groupby("method", sort=False)
        }
        if name not in shares or len(shares[name]) < 2:
            raise InputError(f"histograms hold fewer than two runs of {name!r}; add seeds")
        own = _overlaps(shares[name], shares[name])
        for method, runs in shares.items():
            common = own if method == name else _overlaps(runs, shares[name])
            rows.append(
                {
                    "measure": measure,
                    "method": method,
                    "overlap": float(np.mean(common)),
                    "least": float(np.min(common)),
                    "base_overlap": float(np.mean(own)),
                    "base_least": float(np.min(own)),
                    "alike": bool(np.mean(common) >= np.min(own)),
                }
            )
    return pd.DataFrame(rows)


def _overlaps(some: dict[int, np.ndarray], others: dict[int, np.ndarray]) -> list[float]:
    return [
        overlap(some[one], others[other])
        for one, other in product(some, others)
        if one != other  # of one seed they would share batches and the first model
    ]


def train_watched(*, workers: int, seeds: int, steps: int) -> pd.DataFrame:
    """Train digits with every synchronisation, dense, and return the sizes of its gradients."""
    return gradient_sizes(
        "digits", SYNCHRONISATIONS, workers=workers, steps=steps, seeds=seeds, clock=STRAGGLERS
    )


def similarity_table(alike: pd.DataFrame) -> pd.DataFrame:
    """Return `similarity` to read, by measure and method."""
    table = alike.set_index(["measure", "method"])
    return pd.DataFrame(
        {
            "in common with BSP": table["overlap"].round(3),
            "two runs of BSP": table["base_overlap"].round(3),
            "least of two runs of BSP": table["base_least"].round(3),
            "alike": table["alike"].map({True: "yes", False: "no"}),
        }
    )


def similarity_findings(alike: pd.DataFrame) -> Findings:
    """Return which gradients are distributed as those of BSP, by the rule of `similarity`."""
    names = {RAW: "size", SCALED: "shape"}
    others = alike[alike["overlap"] != alike["base_overlap"]]
    return findings(
        *(
            f"By {names[row['measure']]}, gradients of {row['method']} are "
            f"{'alike' if row['alike'] else 'unlike'} those of BSP: {row['overlap']:.1%} in "
            f"common, where two runs of BSP have {row['base_overlap']:.1%}, "
            f"{row['base_least']:.1%} at least."
            for row in others.to_dict("records")
        )
    )


@styled
def loss_by_bytes(curves: pd.DataFrame) -> Figure:
    """Test loss against the bytes of a worker's link, both ways: a panel per synchronisation.

    ``curves`` have the column of `link_bytes`. Lines are means over seeds at equal steps.
    """
    compressions = list(curves["compression"].unique()) if len(curves) else []
    figure, panels = facets(curves, "synchronisation", width=(1.2, 3.7), height=3.9, **BOTH)
    for ax, _, part in panels:
        sent = part[part["link_bytes"] > 0]
        for compression, rows in sent.groupby("compression", sort=False):
            means = rows.groupby("step")[["link_bytes", "test_loss"]].mean()
            ax.plot(
                means["link_bytes"] / MB,
                means["test_loss"],
                color=PALETTE[compressions.index(compression) % len(PALETTE)],
                label="dense" if compression == "none" else f"{short(compression)} + feedback",
            )
        ax.set(xlabel="MB through a worker's link", xscale="log")
    panels[0][0].set_ylabel("test loss")
    legend(figure, where="upper center", columns=len(compressions))
    say_source(
        figure, "lockstep, bytes counted", f"mean of {counted(curves['seed'].nunique(), 'seed')}"
    )
    return figure


@styled
def gradient_histograms(sizes: pd.DataFrame) -> Figure:
    """Shares of gradient entries by their size: a line per run, a panel per measure of size.

    ``sizes`` are from `gradient_sizes`.
    """
    figure, panels = facets(sizes, "measure", width=(1, 5), height=3.6)
    methods = list(sizes["method"].unique())
    colours = {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(methods)}
    for ax, measure, part in panels:
        for (method, _), run in part.groupby(["method", "seed"], sort=False):
            colour = colours[method]
            ax.step(run["bin"], 100 * run["share"], where="mid", color=colour, lw=1, alpha=0.8)
        unit = "|entry| / root mean square" if measure == SCALED else "|entry|"
        ax.set(title="", xlabel=f"log$_{{10}}$ {unit}")
    panels[0][0].set_ylabel("entries (%)")
    handles = [
        legend_line(colour, short(name).partition(" on ")[0], "-")
        for name, colour in colours.items()
    ]
    legend(figure, handles, "upper center", columns=4)
    say_source(figure, sizes, "a line per seed; the first bin holds all that is smaller")
    return figure
