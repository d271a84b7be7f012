"""Relaxed synchronisation: who waits, how stale updates are, and what it costs (3.1.2).

The workers run the loops and the server rules of the methods themselves. A gradient takes the
seconds that the law of a straggler gives; a push with its answer, or a collective, takes a
constant. Source: survey, section 3.1.2 and Fig. 3 (1).

Every worker is simulated: lossless methods event by event, the others by their own loops in the
cluster's time.

Synchronisation: who computes or waits when (Fig. 3, part 1), and how stale gradients are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import Patch

from ddlnb.calibration.statistics import Verdict, mean_interval, paired_comparison
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import require, require_whole
from ddlnb.figures.gantt import KIND_COLOURS, WAIT_HATCH
from ddlnb.figures.learning import BAND
from ddlnb.figures.style import (
    DASHES,
    METHOD_COLOURS,
    OTHER_COLOUR,
    PALETTE,
    abridged_method,
    bars_of,
    beside,
    colour_of,
    doubling_axis,
    facets,
    legend,
    legend_line,
    note,
    over_seeds,
    say_source,
    styled,
)
from ddlnb.plans.methods import SURVEYED
from ddlnb.plans.requests import PushPull
from ddlnb.plans.server_rules import Rule
from ddlnb.results.timeline import Span
from ddlnb.survey.items import (
    Findings,
    Rows,
    findings,
    item_verdict,
    tabled,
    ties,
    with_half_widths,
)
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.survey.sec3_1_1_large_batch import QUALITIES, possible
from ddlnb.training.cost.estimate import compute_seconds, iteration_cost
from ddlnb.training.executors.clock import Clock, Link, Straggler, get_straggler
from ddlnb.training.executors.dry_run import dry_workers
from ddlnb.training.executors.lockstep import COMPUTE, Lockstep, activity_table
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.compare import Comparison, compare, tuned
from ddlnb.training.runs.runner import Runner
from ddlnb.training.runs.summaries import final_losses, pair_of, runs_by, spent
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.units import MB, MS, counted, show_seconds
from ddlnb.workloads.workload import Workload, read_profile

MESSAGE_SECONDS = 0.1  # of a push with its answer


def virtual_clock(
    straggler: str | Straggler, message_seconds: float = MESSAGE_SECONDS, seed: int = 0
) -> Clock:
    """Return a clock on which gradients follow this law and messages take a constant.

    The seed decides what a random law draws. ``message_seconds`` are those of a push and its
    answer together, of one collective, or of each of several messages that a worker sends in turn.
    """
    require(message_seconds >= 0, f"message_seconds {message_seconds!r} must not be negative")
    law = get_straggler(straggler).drawn_from(seed)
    return Clock(law, partial(_message, message_seconds), partial(_link, message_seconds))


def _message(seconds: float, kind: type, bytes_: int, workers: int) -> float:
    return seconds / 2 if kind is PushPull else seconds  # asked once each for push and answer


def _link(seconds: float, sender: int, receiver: int) -> Link:
    return Link(sender, latency=seconds)


@dataclass(frozen=True)
class Timed:
    """What workers without values did: activities, the staleness of pushes, and the ends of steps.

    ``done`` holds (seconds, rank, iterations that the rank has done) in order of time;
    ``staleness`` is empty where no server applies pushes one by one.
    """

    method: str
    workers: int
    steps: int
    activities: tuple[Span, ...]
    staleness: tuple[int, ...]
    done: tuple[tuple[float, int, int], ...]

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds per gradient in which a worker does not compute, with its messages."""
        waits = sum(one.seconds for one in self.activities if one.kind != COMPUTE)
        return waits / (self.workers * self.steps)

    @property
    def lead(self) -> int:
        """Return the most iterations by which the fastest worker was ahead of the slowest."""
        ends = pd.DataFrame(self.done, columns=["seconds", "rank", "done"])
        # All that happens at an instant happens together.
        done = ends.pivot_table("done", "seconds", "rank", aggfunc="max").ffill().fillna(0)
        return int((done.max(axis=1) - done.min(axis=1)).max())


def timed(method: str | TrainingMethod, clock: Clock, workers: int = 4, steps: int = 24) -> Timed:
    """Run the given number of steps of every worker of this method on this clock."""
    method = training_method(method)
    require_whole(workers=workers, steps=steps)
    team = dry_workers(method, [(16,)], workers, "cpu")
    rule: Rule | None = method.rule(workers, team[0].pieces)
    done: list[tuple[float, int, int]] = []
    run = Lockstep(
        team,
        method.synchronisation.loop,
        steps,
        rule=rule,
        clock=clock,
        on_step=lambda rank, count, now: done.append((now, rank, count)),
        recording=True,
    )
    run.run()
    staleness = tuple(getattr(rule, "staleness", ()))
    return Timed(str(method), workers, steps, tuple(run.activities), staleness, tuple(done))


# On these, the server applies pushes one by one.
SERVED = ("ssp(3) on PS", "dssp(1, 8) on PS", "r2sp on PS", "asp on PS")
METHODS = ("bsp on PS", *SERVED, "local(4) on PS")
BOUNDS = (0, 1, 2, 3, 4, 6, 8, 12)
RANDOM = ("log-normal(0.5)", "exponential(0.5)")
SOURCE = "simulated"


def activities(
    methods: Sequence[str] = METHODS,
    straggler: str = "one-slow(2)",
    *,
    workers: int = 4,
    steps: int = 12,
) -> pd.DataFrame:
    """Return the `activity_table` of every method: what each worker did when."""
    clock = virtual_clock(straggler)
    runs = [timed(method, clock, workers, steps) for method in methods]
    require(bool(runs), "methods is empty; give at least one method")
    return pd.concat(
        [activity_table(run.activities, run.method) for run in runs], ignore_index=True
    )


@tabled("straggler", "bound", "seed", "waiting_seconds", "lead", source=SOURCE)
def waits(
    bounds: Sequence[int] = BOUNDS,
    stragglers: Sequence[str] = RANDOM,
    *,
    workers: int = 8,
    steps: int = 40,
    seeds: int = 2,
) -> Rows:
    """Return rows of straggler, bound, seed, waiting_seconds (per gradient) and lead, of SSP.

    The seconds of a gradient depend on seed, rank and step alone, so that bounds are compared on
    the same delays. All workers do the same number of steps; a wait after the last gradient counts.
    """
    require_whole(seeds=seeds)
    require(list(bounds) == sorted(set(bounds)), f"bounds {list(bounds)} must rise")
    for straggler, seed, bound in product(stragglers, range(seeds), bounds):
        run = timed(f"ssp({bound})", virtual_clock(straggler, seed=seed), workers, steps)
        yield (straggler, bound, seed, run.waiting_seconds, run.lead)


@tabled("method", "staleness", "pushes", source=SOURCE)
def staleness(
    methods: Sequence[str] = SERVED,
    straggler: str = "log-normal(0.3)",
    *,
    workers: int = 8,
    steps: int = 100,
) -> Rows:
    """Return rows of method, staleness and pushes: the histogram of staleness by method.

    The staleness of a push is the number of updates by other workers that were applied since its
    worker was last answered. Raises InputError for methods whose server does not apply pushes one
    by one.
    """
    clock = virtual_clock(straggler, 0.0)
    for method in methods:
        run = timed(method, clock, workers, steps)
        require(
            bool(run.staleness),
            f"{run.method} has no staleness: no server applies its pushes one by one; "
            f"choose among {', '.join(SERVED)}",
        )
        counts = sorted(Counter(run.staleness).items())
        yield from ((run.method, value, count) for value, count in counts)


def mean_staleness(table: pd.DataFrame) -> pd.Series:
    """Return the mean over pushes, by method, of what `staleness` returns."""
    pushes = table.loc[table.index.repeat(table["pushes"])]
    return pushes.groupby("method", sort=False)["staleness"].mean()


FACTORS = (1, 2, 3, 4, 6, 8)
IN_TURN, TOGETHER = "r2sp on PS", "WFBP-PS"  # servers that serve one by one, and all at once
RELAXED = ("ssp(3) on PS", "asp on PS", IN_TURN, "local(8) on A2A")
STEPS = 96  # gradients of every worker; runs behind a bound end up waiting after a few
ONE_LINE = 0.02  # methods that differ by less at every factor are drawn once


def slowdowns(
    factors: Sequence[float] = FACTORS,
    methods: Sequence[str] = (*SURVEYED, *RELAXED),
    *,
    workload: str | Workload = "resnet50_b64_rtx2080ti",
    cluster: str | Cluster = "survey-100GbE",
    workers: int = 8,
    steps: int = STEPS,
) -> pd.DataFrame:
    """Return rows of method, factor and iteration_seconds.

    Worker 0 computes ``factor`` times as long as the others. An iteration is one gradient of every
    worker, or as many as there are workers. ``computing_seconds`` would be those if nobody waited
    and nothing but computation took time.
    """
    work = read_profile(workload) if isinstance(workload, str) else workload
    here = get_cluster(cluster, workers)
    frame = pd.DataFrame(product(methods, factors), columns=["method", "factor"])
    frame["iteration_seconds"] = [
        iteration_cost(
            work, here.with_heterogeneity({0: factor}), method, steps=steps
        ).iteration_seconds
        for method, factor in product(methods, factors)
    ]
    rates = (workers - 1 + 1 / frame["factor"]) / workers
    frame["computing_seconds"] = compute_seconds(work, here) / rates
    return frame.assign(model=work.model, machine=here.name, workers=workers, source=SOURCE)


def slow_worker_findings(slowed: pd.DataFrame) -> Findings:
    """Say what an iteration takes with the slowest worker and without, in seconds, by method.

    The item is whether serving workers in turn relieves the servers: IN_TURN beside TOGETHER.
    """
    seconds = slowed.pivot(index="method", columns="factor", values="iteration_seconds")
    first, last = min(seconds), max(seconds)
    computing = slowed.set_index("factor")["computing_seconds"]
    lossless = seconds.index.isin(SURVEYED)
    told, items = [], []
    for factor in (first, last):
        among = seconds.loc[lossless, factor]
        others = seconds.loc[~lossless, factor]
        slow = "all equal" if factor == 1 else f"one of which takes {factor:g} times as long"
        told.append(
            f"With {slowed['workers'].iloc[0]} workers, {slow}, the lossless methods take "
            f"{show_seconds(among.min())} ({ties(among, among.min())}) to "
            f"{show_seconds(among.max())} ({ties(among, among.max())}) per iteration; "
            + ", ".join(f"{name} {show_seconds(took)}" for name, took in others.items())
            + f"; computation at the mean rate of all workers, "
            f"{show_seconds(computing[factor].iloc[0])}."
        )
    for name in seconds.index[~lossless]:
        pays = seconds.columns[seconds.loc[name] < seconds[lossless].min()]
        when = f"from {pays[0]:g} times on" if len(pays) else "at none of these factors"
        told.append(f"{name} is quicker than the quickest lossless method {when}.")
    if {IN_TURN, TOGETHER} <= set(seconds.index):
        ratio = seconds.loc[IN_TURN] / seconds.loc[TOGETHER]
        said = f"{IN_TURN} takes {ratio.min():.2f} to {ratio.max():.2f} times as long as {TOGETHER}"
        holds = {True: Verdict.HOLDS, False: Verdict.CONTRADICTED}
        verdict = holds[bool(ratio.max() < 1)] if (ratio < 1).nunique() == 1 else Verdict.UNDECIDED
        items.append(item_verdict("A29", [verdict], "simulated", said))
    return findings(*told, items=items)


TASK = "digits"
PERIODS = (1, 2, 4, 8, 16)


def local_methods(periods: Sequence[int] = PERIODS) -> list[str]:
    """Return the names of local SGD with these periods, on parameter servers as all methods here.

    >>> local_methods([1, 4])
    ['local(1) on PS', 'local(4) on PS']
    """
    return [f"local({period}) on PS" for period in periods]


def converging(
    methods: Sequence[str] | None = None, *, straggler: str = "log-normal(0.5)", **options: Any
) -> Comparison:
    """Run `ddlnb.compare` on these methods and digits, by plain SGD on a clock with stragglers.

    By default the methods are METHODS and local SGD with PERIODS; ``options`` are those of
    `compare`. All workers take the same number of steps, so stragglers should be as fast as others
    on average: behind one that is always slow, methods without barriers would end with its steps
    alone.
    """
    chosen = methods or [*dict.fromkeys([*METHODS, *local_methods()])]
    return compare(TASK, chosen, clock=virtual_clock(straggler), **options)


def at_equal(curves: pd.DataFrame, cost: str = "step") -> pd.DataFrame:
    """Return the row of every method and seed at the same cost for all.

    That cost, as `spent` counts it, is the least that any run has in its last row; the last row
    of every run within it counts. Raises UnknownName, and InputError for curves without that cost.
    """
    cells = runs_by(curves.assign(_spent=spent(curves, cost)), "method")
    runs = [run for cell in sorted(cells) for run in cells[cell].values()]
    require(
        all(bool(run["_spent"].notna().any()) for run in runs),
        f"not every curve has {cost}; train on a clock",
    )
    least = min(run["_spent"].max() for run in runs)
    rows = pd.concat([run[run["_spent"] <= least].tail(1) for run in runs], ignore_index=True)
    return rows.drop(columns="_spent")


def period_table(curves: pd.DataFrame, periods: Sequence[int] = PERIODS) -> pd.DataFrame:
    """Return the traffic of local SGD and how good its model is in the end, one row per period.

    ``bytes_sent`` is counted, per worker on average; ``traffic`` is in units of the first period's.
    """
    cells, rows = runs_by(curves, "method"), {}
    for period, method in zip(periods, local_methods(periods), strict=True):
        require((method,) in cells, f"the curves have no {method}")
        ends = pd.concat([run.tail(1) for run in cells[method,].values()])
        loss = mean_interval(final_losses(cells[method,]))
        accuracy = mean_interval(ends["test_accuracy"].to_numpy(dtype=float))
        rows[period] = {
            "bytes_sent": float(ends["bytes_sent"].mean()),
            "seeds": len(ends),
            "test_loss": loss.estimate,
            "test_loss_half_width": loss.half_width,
            "test_accuracy": accuracy.estimate,
            "test_accuracy_half_width": accuracy.half_width,
            "consensus_distance": float(ends["consensus_distance"].mean()),
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("period")
    traffic = frame["bytes_sent"] / frame["bytes_sent"].iloc[0]
    return frame.assign(traffic=traffic, source="measured in lockstep")


def period_summary(periods: pd.DataFrame) -> pd.DataFrame:
    """Return a `period_table` with units in its headers, each measure with its interval."""
    texts = with_half_widths(periods, "test_loss", "test_accuracy")
    texts.insert(0, "sent per worker (MB)", (periods["bytes_sent"] / MB).round(3))
    texts.insert(1, "traffic, in units of H = 1", periods["traffic"].round(4))
    return texts.rename_axis("period H")


def same_traffic(
    period: int = 8,
    *,
    workers: int = 8,
    steps: int = 160,
    seeds: int = 5,
    split: str = "iid",
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return curves of local SGD and of BSP with a batch larger by the period.

    Both see the same samples and send the same bytes, by plain SGD, each at a rate of its own that
    is tuned as by `ddlnb.compare`. ``steps`` are those of local SGD. Raises InputError unless they
    are a multiple of the period.
    """
    task = get_learning_task(TASK)
    require_whole(period=period, workers=workers, steps=steps, seeds=seeds)
    require(steps % period == 0, f"steps {steps} must be a multiple of the period {period}")
    cells = [
        training_settings(
            task,
            method,
            workers=workers,
            steps=count,
            local_batch=steps // count * task.local_batch,
            split=split,
            evaluate_every=count,
        )
        for method, count in ((f"local({period}) on PS", steps), ("bsp on PS", steps // period))
    ]
    runner = Runner(jobs=jobs)
    runs = [
        replace(search.cell, lr=search.best, seed=seed)
        for search in tuned(cells, runner)
        for seed in range(seeds)
    ]
    return pd.concat(runner.curves(runs, "runs"), ignore_index=True)


NEAR = 0.05  # Relative distance at which a mean staleness still agrees with its law.
SLOWER = 4.0  # How many times slower the straggler is, ahead of which others can get.
TABLE = "Table 1"  # The source of an expectation that is no item of the text.
JUDGED = ["found", "verdict", "source"]
HOW = {"law": "simulated", "learning": "measured"}  # at equal seconds those are virtual
ROUNDING = 1e-9  # Seconds, or shares, that are taken for zero.


def law_verdicts(
    waits: pd.DataFrame, staleness: pd.DataFrame, periods: pd.DataFrame, workers: int
) -> pd.DataFrame:
    """Judge the laws of waiting, staleness and traffic, one row per law.

    The frames are those of `waits`, `staleness` and `period_table`; ``workers`` are those of the
    staleness. The lead is looked for with a worker SLOWER times slower.
    """
    bounds = sorted(set(waits["bound"]))
    clock = virtual_clock(f"one-slow({SLOWER})")
    leads = [timed(f"ssp({bound})", clock, 4, 8 * bound + 8).lead for bound in bounds]
    rises = waits.sort_values("bound").groupby(["straggler", "seed"])["waiting_seconds"].diff()
    mean = float(mean_staleness(staleness)["asp on PS"])
    traffic = float((periods["traffic"] * periods.index / periods.index[0] - 1).abs().max())
    laws = [
        (
            "SSP: the fastest worker gets s iterations ahead, and not more",
            leads == bounds and (waits["lead"] <= waits["bound"]).all(),
            f"leads {leads} with bounds {bounds}",
            "A21",
        ),
        (
            "SSP: waiting falls, or stays, as s grows",
            not (rises > ROUNDING).any(),
            f"{(rises < -ROUNDING).sum()} falls, {(rises > ROUNDING).sum()} rises",
            "A21",
        ),
        (
            "ASP: the mean staleness is about n - 1",
            abs(mean - (workers - 1)) <= NEAR * (workers - 1),
            f"{mean:.2f} with {workers} workers",
            "A23",
        ),
        (
            "local SGD: traffic falls as 1/H",
            traffic < ROUNDING,
            f"farthest from it by a share of {traffic:.1g}",
            "A22",
        ),
    ]
    table = pd.DataFrame(laws, columns=["expected", "verdict", "found", "source"])
    table["verdict"] = table["verdict"].map({True: Verdict.HOLDS, False: Verdict.CONTRADICTED})
    return table.set_index("expected")[JUDGED]


def learning_verdicts(curves: pd.DataFrame, rivals: pd.DataFrame) -> pd.DataFrame:
    """Judge each expectation about learning on pairs of runs with equal seeds.

    ``curves`` are those of `converging`, with BSP, ASP and local SGD; ``rivals`` those of
    `same_traffic`. What is found is how much lower the test loss of the better side is.
    """
    steps, seconds = at_equal(curves, "step"), at_equal(curves, "seconds")
    names = list(dict.fromkeys(curves["method"]))
    ssp = [name for name in names if name.startswith("ssp")]
    local = [name for name in names if name.startswith("local")]
    require(bool(ssp) and bool(local), f"no ssp or no local SGD among {names}")
    rarest, bsp, asp = local[-1], "bsp on PS", "asp on PS"
    rival = next(name for name in dict.fromkeys(rivals["method"]) if name.startswith("local"))
    pairs = [
        ("stale updates cost: BSP ahead of ASP at equal steps", steps, bsp, asp, TABLE),
        ("no waiting pays: ASP ahead of BSP at equal seconds", seconds, asp, bsp, "A23"),
        (f"{ssp[0]} ahead of BSP at equal seconds", seconds, ssp[0], bsp, "A21"),
        (f"rare averages cost: BSP ahead of {rarest} at equal steps", steps, bsp, rarest, "A22"),
        (f"rare averages pay: {rarest} ahead of BSP at equal seconds", seconds, rarest, bsp, "A22"),
        (f"{rival} ahead of BSP with as large a batch, equal traffic", rivals, rival, bsp, "A22"),
    ]
    rows = {expected: (*_judged(*pair), source) for expected, *pair, source in pairs}
    return pd.DataFrame.from_dict(rows, orient="index", columns=JUDGED).rename_axis("expected")


def _judged(ends: pd.DataFrame, better: str, worse: str) -> tuple[str, Verdict]:
    """Return by how much the better method ended lower, in words, and whether that is clear."""
    cells = runs_by(ends, "method")
    judged = paired_comparison(*pair_of(*(cells.get((name,), {}) for name in (better, worse))))
    found = f"{judged.difference.estimate:+.3f} ± {judged.difference.half_width:.3f} of test loss"
    if judged.better_diverged or judged.worse_diverged:
        diverged = f"{judged.better_diverged} and {judged.worse_diverged} of {judged.seeds}"
        found += f", {diverged} runs diverged"
    return found, judged.verdict


def judge(
    waits: pd.DataFrame,
    staleness: pd.DataFrame,
    periods: pd.DataFrame,
    curves: pd.DataFrame,
    rivals: pd.DataFrame,
    workers: int,
) -> pd.DataFrame:
    """Return the verdicts on all laws and on all expectations about learning."""
    about = {
        "law": law_verdicts(waits, staleness, periods, workers),
        "learning": learning_verdicts(curves, rivals),
    }
    return pd.concat(about, names=["about"])


def synchronisation_findings(judged: pd.DataFrame) -> Findings:
    """Say how many laws of `judge` hold, and which expectations about learning."""
    laws, learning = judged.loc["law"], judged.loc["learning"]
    by_verdict = learning.groupby("verdict", sort=False)
    return findings(
        f"{(laws['verdict'] == Verdict.HOLDS).sum()} of {len(laws)} laws hold: the mean staleness "
        f"of ASP within {NEAR:.0%}, the others exactly.",
        *(
            f"{str(verdict).capitalize()}, about learning: {'; '.join(rows.index)}."
            for verdict, rows in by_verdict
        ),
        items=[
            item_verdict(
                row["source"],
                [row["verdict"]],
                HOW[about] + ", simulated" * expected.endswith("seconds"),
                f"{expected}: {row['found']}",
            )
            for (about, expected), row in judged[judged["source"] != TABLE].iterrows()
        ],
    )


COLOURS = {"compute": KIND_COLOURS["backward"], "wait": KIND_COLOURS["wait"]}


@styled
def synchronisation_timelines(
    activity: pd.DataFrame, until_seconds: float | None = None, source: str = "simulated"
) -> plt.Figure:
    """What every worker of every method does when: compute a gradient, or wait.

    Shown is the time until ``until_seconds``, by default while all have work.

    ``activity`` is an `activity_table` (`ddlnb.training.executors.lockstep`) of one method or
    several. A row is a worker, a bar a gradient; hatched bars are waits for others and for
    messages. A title says how many gradients all workers finished, and the share of their time in
    which they waited.
    """
    last = activity.groupby(["method", "rank"])["stop_seconds"].max()
    until = float(last.min()) if until_seconds is None else until_seconds
    require(until > 0, f"until_seconds {until!r} must be above 0")
    methods = list(activity["method"].unique())
    ranks = sorted(activity["rank"].unique())
    size = (9.5, 0.9 + len(methods) * (0.42 + 0.2 * len(ranks)))
    figure, grid = plt.subplots(len(methods), 1, figsize=size, sharex=True, squeeze=False)
    for ax, method in zip(grid[:, 0], methods, strict=True):
        draw_workers(ax, method, activity[activity["method"] == method], ranks, until)
    grid[-1, 0].set(xlabel="time (s)", xlim=(0, until))
    legend(figure, legend_activity(), "upper right", columns=2)
    return note(figure, f"source: {source}")


@styled
def staleness_histogram(staleness: pd.DataFrame, source: str = "simulated") -> plt.Figure:
    """The share of pushes with each staleness, a panel per method; dotted lines are means.

    ``staleness`` has the columns method, staleness (updates of other workers that were applied
    since the pushing worker was last answered) and pushes (how many had it).
    """
    shared = {"sharex": True, "sharey": True}
    figure, panels = facets(staleness, "method", width=(1.5, 2.3), height=2.9, **shared)
    for ax, method, part in panels:
        share = part["pushes"] / part["pushes"].sum()
        mean = float((part["staleness"] * share).sum())
        ax.bar(part["staleness"], 100 * share, width=0.9, color=COLOURS["compute"], linewidth=0)
        ax.axvline(mean, color="black", linestyle=":", linewidth=1.2)
        ax.set_title(f"{abridged_method(method)}\nmean {mean:.2g}", fontsize=9)
        ax.grid(visible=False, axis="x")
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("staleness (updates)")
    panels[0][0].set_ylabel("pushes (%)")
    remark = "staleness: updates of other workers since the pushing one was last answered"
    say_source(figure, source, remark)
    legend(figure, [legend_line("black", "mean", ":")], "upper right")
    return figure


@styled
def waiting_against_bound(waits: pd.DataFrame) -> plt.Figure:
    """Seconds that a worker waits per gradient against the bound s, a line per straggler's law.

    ``waits`` is that of `ddlnb.survey.sec3_1_2_synchronisation`; bands reach from the least to the
    most of its seeds. Bound 0 is a barrier after every iteration.
    """
    figure, ax = plt.subplots(figsize=(6.5, 3.8))
    for number, (law, part) in enumerate(waits.groupby("straggler", sort=False)):
        by_bound = part.groupby("bound")["waiting_seconds"]
        colour = PALETTE[1 + number % (len(PALETTE) - 1)]
        middle = by_bound.mean()
        ax.plot(middle.index, middle, marker="o", markersize=4, color=colour, label=law)
        ax.fill_between(middle.index, by_bound.min(), by_bound.max(), color=colour, alpha=BAND)
    ax.set(ylim=(0, None), xlabel="bound s of SSP", ylabel="waiting per gradient (s)")
    ax.legend(title="seconds of a gradient")
    seeds = waits["seed"].nunique()
    return say_source(
        figure, waits, f"mean and range over {seeds} seeds" if seeds > 1 else "one seed"
    )


@styled
def iteration_with_a_slow_worker(slowed: pd.DataFrame) -> plt.Figure:
    """Milliseconds of an iteration against how many times slower one worker is, by method.

    ``slowed`` are the rows of `slowdowns` of ``ddlnb.survey.sec3_1_2_synchronisation``. The
    broad line is what a gradient takes if nobody waits, a mean over the workers. Methods within
    ONE_LINE of each other are one line.
    """
    figure, ax = plt.subplots(figsize=(7.5, 4.2))
    others = [name for name in dict.fromkeys(slowed["method"]) if name not in METHOD_COLOURS]
    looks: dict[Any, dict[str, Any]] = {
        name: {"color": "black", "linestyle": DASHES[1 + number % 3], "marker": "sv^D"[number % 4]}
        for number, name in enumerate(others)
    }
    handles = []
    drawn: dict[str, pd.DataFrame] = {}
    like: dict[str, list[str]] = {}
    for method, rows in slowed.groupby("method", sort=False):
        took = rows.set_index("factor")["iteration_seconds"]
        same = (name for name, one in drawn.items() if (took / one - 1).abs().max() < ONE_LINE)
        first = next(same, str(method))
        drawn.setdefault(first, took)
        like.setdefault(first, []).append(abridged_method(str(method)))
    for method, took in drawn.items():
        look = looks.get(method) or {"color": colour_of(method), "linestyle": "-", "marker": "o"}
        label = ",\n".join(like[method])
        handles += ax.plot(took.index, took / MS, label=label, markersize=3.5, **look)
    bound = slowed.drop_duplicates("factor")
    alone: dict[str, Any] = {"color": OTHER_COLOUR, "linewidth": 3, "zorder": 1}
    computing = bound["computing_seconds"] / MS
    handles += ax.plot(bound["factor"], computing, label="computation, mean rate", **alone)
    doubling_axis(ax, bound["factor"], lambda factor: f"{factor:g}")
    ax.set(
        ylim=(0, None), xlabel="times that one worker is slower (doubling)", ylabel="iteration (ms)"
    )
    legend(figure, handles)
    return say_source(
        figure, slowed, f"{slowed['model'].iloc[0]}, {counted(slowed['workers'].iloc[0], 'worker')}"
    )


@styled
def loss_against_traffic(periods: pd.DataFrame) -> plt.Figure:
    """Final test loss and accuracy of local SGD against what a worker sent, a point per period.

    ``periods`` is a `period_table` of its study; bars are its intervals, cut where no accuracy can
    be.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True)
    megabytes, seeds = periods["bytes_sent"] / MB, int(periods["seeds"].min())
    for ax, (measure, (label, factor)) in zip(panels, QUALITIES.items(), strict=True):
        half = factor * bars_of(periods[f"{measure}_half_width"], seeds).fillna(0.0)
        y = factor * periods[measure]
        reach = possible(y.to_numpy(float), half.to_numpy(float), measure)
        ax.errorbar(megabytes, y, yerr=reach, marker="o", color=COLOURS["compute"], capsize=2)
        for period, x, height in zip(periods.index, megabytes, y, strict=True):
            beside(ax, x, height, f"H = {period}", xytext=(4, 5), va="baseline")
        doubling_axis(ax, megabytes, lambda x: f"{x:.2g}")
        ax.margins(x=0.12)
        ax.set(xlabel="MB sent by a worker", ylabel=label)
    return say_source(figure, periods, over_seeds(seeds))


def legend_activity() -> list[Patch]:
    """Return the entries of what workers do in a legend."""
    waits: dict[str, Any] = {"facecolor": COLOURS["wait"], "hatch": WAIT_HATCH}
    return [
        Patch(facecolor=COLOURS["compute"], edgecolor="white", label="one gradient"),
        Patch(edgecolor="white", label="waits for others or messages", **waits),
    ]


def draw_workers(
    ax: plt.Axes, method: str, rows: pd.DataFrame, ranks: list[int], until: float
) -> None:
    """Draw what the workers of one method do until then, a lane for each."""
    rows = rows[rows["start_seconds"] < until]
    seconds = rows["stop_seconds"].clip(upper=until) - rows["start_seconds"]
    for (rank, kind), spans in rows.assign(seconds=seconds).groupby(["rank", "kind"]):
        waiting = kind == "wait"
        ax.broken_barh(
            list(zip(spans["start_seconds"], spans["seconds"], strict=True)),
            (rank - 0.42, 0.84),
            facecolor=COLOURS[kind],
            edgecolor="white",
            linewidth=0.0 if waiting else 0.8,
            hatch=WAIT_HATCH if waiting else None,
        )
    done = int(((rows["kind"] == "compute") & (rows["stop_seconds"] <= until)).sum())
    waits = seconds[rows["kind"] == "wait"].sum() / (until * len(ranks))
    ax.set_title(
        f"{abridged_method(method)}: {counted(done, 'gradient')}, waits {100 * waits:.0f} % of the "
        f"time",
        loc="left",
        fontsize=9,
        fontweight="bold",
        pad=3,
    )
    ax.set_yticks(ranks, [f"worker {rank}" for rank in ranks], fontsize=8)
    ax.set_ylim(max(ranks) + 0.6, min(ranks) - 0.6)
    ax.grid(visible=False)
