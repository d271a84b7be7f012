"""Rates of convergence, mixing and divergence of local SGD, compression and gossip.

The tasks, with their samples and constants, are those of `ddlnb.training.tasks.built_in`. A point
is a row of a tensor, so that one pass of a training method carries many runs.

What it says of methods without barriers is from Lian et al. 2015 (arXiv 1506.08272): updates of
bounded age cost terms that fall faster than the leading one.

With a step size of c sqrt(n / T) theory says that the mean of |gradient|^2 over the iterations
falls as 1/sqrt(n T) where noise dominates: as long as others average, compress or gossip, at the
cost of terms that fall faster. Every training method runs by its own definition, in lockstep; a
worker carries many independent runs, one per parameter tensor, which compressors take one by one.
On servers gradients take times drawn from a log-normal law, so that workers without barriers see
updates of varying age; runs draw samples independently, and share the order of the pushes.

A rate O(1/sqrt(nT)) is a line of slope -1/2 against log T and against log n. The rule: a slope
agrees with theory where its whole 95 % interval lies within TOLERANCE of -1/2, and disagrees where
all of it lies outside; where the interval crosses that border, these runs cannot decide. Terms that
theory adds to the leading one bend the line at any finite T, and the rule makes no allowance for
them.

DCD- and ECD-PSGD lose what the compression loses, CHOCO sends it later. Published are test
accuracies of ResNet-20 on CIFAR-10, a ring of 8 workers, 300 epochs, from Table 1 of the CHOCO
paper for deep learning (arXiv 1907.09356 [k], the submission copy read [P]). Here a small task is
trained briefly, so that only the pattern can be compared: what works and what fails. By the
same rule for both, a run fails when it diverges or when its accuracy is below FAILED of that of
the same training without compression. Random coordinates are multiplied by D/k here: the theory
of DCD and ECD asks for an unbiased compression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ddlnb.calibration.statistics import Interval, mean_interval
from ddlnb.errors import look_up, require, require_known, require_whole
from ddlnb.figures.style import (
    GREY,
    beside,
    doubling_axis,
    legend,
    legend_line,
    line_look,
    say_source,
    short,
    styled,
)
from ddlnb.seeding import generator
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.training.executors.clock import Clock, LogNormal
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.gossip import (
    GRAPHS,
    consensus_distance,
    make_graph,
    spectral_gap,
)
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.runner import in_parallel
from ddlnb.training.synchronisation import LocalSGD
from ddlnb.training.tasks.built_in import SPECTRUM, logistic, quadratic
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.worker import Worker
from ddlnb.units import counted
from ddlnb.workloads.task import Batch

LEADING = -0.5  # the slope of 1/sqrt(nT) against log T and against log n


# The rate of a method, and how we know: [k] was not re-read, [P] is a primary paper.
RATES = {
    "bsp": ("O(1/sqrt(nT))", "[k]"),
    "local(4)": ("O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    "local(16)": ("O(1/sqrt(nT)) while H <= T^(1/4)/n^(3/4)", "[k]"),
    "ssp(3)": ("O(1/sqrt(nT)) while staleness is O(sqrt(nT))", "[k]"),
    "asp": ("O(1/sqrt(nT)) while staleness is O(sqrt(nT))", "[k]"),
    "bsp + qsgd(1)": ("O(sqrt(1+w)/sqrt(nT))", "[k]"),
    "bsp + top-k(0.1) + feedback": ("O(1/sqrt(nT)) + O(1/(delta^2 T))", "[k]"),
    "d-psgd(ring)": ("O(1/sqrt(nT) + n/(rho^2 T))", "[P CHOCO s.2]"),
    "choco(ring, 0.3) + top-k(0.2)": ("O(1/sqrt(nT) + n/(rho^4 delta^2 T))", "[P CHOCO Thm 4.1]"),
}


def local_steps_allowed(steps: int, workers: int) -> float:
    """Return the most local steps H for which theory promises the rate: T^(1/4)/n^(3/4) [k].

    >>> round(local_steps_allowed(4096, 4), 2)
    2.83
    """
    return steps**0.25 / workers**0.75


NOISE = 10.0  # of the quadratic: the first gradient is 1.9 long, a sample's own pull 3.2
SAMPLES = 2048  # of the logistic regression, whose mean gradient is over all of them
PENALTY = 0.01


@dataclass(frozen=True)
class Problem:
    """``sampled(points, chosen)`` are the gradients of one sample each, (runs, d) from (runs, d)
    and (runs,); ``mean(points)`` those of the objective.
    """

    task: LearningTask
    sampled: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    mean: Callable[[Tensor], Tensor] = field(repr=False)

    @property
    def dimensions(self) -> int:
        """How long a point is."""
        return len(self.task.constants().optimum)

    @property
    def gap(self) -> float:
        """How far the objective at zero, where runs start, is above its minimum."""
        return self.task.evaluate(self.task.build(0)).loss - self.task.constants().best_loss

    def rate(self, workers: int, steps: int) -> float:
        """The step size that makes the bound of BSP least: sqrt(2 gap n / (L sigma^2 T)).

        L and sigma^2 are the task's smoothness and noise. Raises InputError where it is above 1/L,
        for which the bound does not hold.
        """
        require_whole(workers=workers, steps=steps)
        known = self.task.constants()
        rate = math.sqrt(2 * self.gap * workers / (known.smoothness * known.noise * steps))
        require(
            rate <= 1 / known.smoothness,
            f"{steps} steps of {workers} workers ask for a step size of {rate:.3g} on "
            f"{self.task.name!r}, above 1/L = {1 / known.smoothness:.3g}; take more steps",
        )
        return rate

    def bound(self, workers: int, steps: int) -> float:
        """The most that the mean of |gradient|^2 over BSP's iterations can be expected to be.

        2 gap / (rate T) + rate L sigma^2 / n = sqrt(8 gap L sigma^2 / (n T)), for noise of sigma^2
        at most (Ghadimi and Lan 2013, for smooth objectives, convex or not).
        """
        known = self.task.constants()
        return math.sqrt(8 * self.gap * known.smoothness * known.noise / (workers * steps))


def _quadratic() -> Problem:
    task = quadratic(SPECTRUM, NOISE)
    (pulls,), _ = task.samples()
    curvature = torch.tensor(SPECTRUM)

    def mean(points: Tensor) -> Tensor:
        return curvature * (points - 1)

    return Problem(task, lambda points, chosen: mean(points) - pulls[chosen], mean)


def _logistic() -> Problem:
    task = logistic(samples=SAMPLES, penalty=PENALTY)
    (data, labels), _ = task.samples()

    def sampled(points: Tensor, chosen: Tensor) -> Tensor:
        rows = data[chosen]
        wrong = torch.sigmoid((rows * points).sum(1)) - labels[chosen]
        return wrong[:, None] * rows + PENALTY * points

    def mean(points: Tensor) -> Tensor:
        wrong = torch.sigmoid(points @ data.T) - labels
        return wrong @ data / len(data) + PENALTY * points

    return Problem(task, sampled, mean)


PROBLEMS: dict[str, Callable[[], Problem]] = {"quadratic": _quadratic, "logistic": _logistic}


def get_problem(name: str) -> Problem:
    """The problem of that name. Raises UnknownName."""
    return look_up("convex problem", name, PROBLEMS)()


LOOKS = 250  # at the gradient in a run, at least, or at every step of a shorter one
SPREAD = 0.3  # of the logarithm of a gradient's seconds, for workers without barriers
AT_MEAN, AT_WORKERS = "at_mean", "at_workers"


class Norms(NamedTuple):
    """Means of |gradient of the objective|^2 over the iterations, one number per run.

    ``at_mean`` at the mean of the workers' models, of which theorems speak; ``at_workers`` at
    their own models, averaged over the workers.
    """

    at_mean: Tensor
    at_workers: Tensor


def gradient_norms(
    problem: Problem,
    method: str | TrainingMethod,
    *,
    workers: int,
    steps: int,
    runs: int = 8,
    seed: int = 0,
) -> Norms:
    """Return the means of the given number of runs, with the problem's step size.

    Workers draw one sample per step, each of its own; runs draw independently, too. Without
    barriers a step is as many gradients as there are workers. Raises InputError for too few steps.
    """
    require_whole(workers=workers, steps=steps, runs=runs)
    require_whole(0, seed=seed)
    method = training_method(method)
    samples = len(problem.task.samples().labels)

    def drawn(rank: int, step: int) -> Batch:
        return (torch.randint(samples, (runs,), generator=generator(seed * 100_003 + rank, step)),)

    points = [torch.zeros(problem.dimensions) for _ in range(runs)]
    team = [
        _Runs(
            rank,
            workers,
            nn.ParameterList(points),
            _no_loss,
            partial(drawn, rank),
            partial(torch.optim.SGD, lr=problem.rate(workers, steps)),
            method.compression,
            architecture=method.architecture,
            seed=seed,
            sampled=problem.sampled,
        )
        for rank in range(workers)
    ]
    stride = max(1, steps // LOOKS)
    squares: list[tuple[Tensor, Tensor]] = []

    def look(step: int) -> None:
        # In the middle of every stride, or the steep beginning would count too much.
        if step < steps and step % stride == stride // 2:
            models = torch.stack([worker.parameters.view(runs, -1) for worker in team])
            at_mean = problem.mean(models.double().mean(0).float())
            at_workers = problem.mean(models.flatten(0, 1)).view(models.shape)
            squares.append((_squared(at_mean), _squared(at_workers).mean(0)))

    calls = count(1)

    def on_step(rank: int, done: int, seconds: float) -> None:
        step, others = divmod(next(calls), workers)
        if not others:
            look(step)

    look(0)
    Lockstep(
        team,
        method.synchronisation.loop,
        steps,
        rule=method.rule(workers, team[0].pieces),
        clock=Clock(LogNormal(SPREAD, seed)) if method.architecture == "PS" else None,
        on_step=on_step,
    ).run()
    return Norms(*(torch.stack(taken).mean(0) for taken in zip(*squares, strict=True)))


def _squared(gradients: Tensor) -> Tensor:
    return gradients.double().square().sum(-1)


def rate_study(
    methods: Sequence[str | TrainingMethod] = tuple(RATES),
    *,
    problems: Sequence[str] = tuple(PROBLEMS),
    steps: Sequence[int] = (500, 1000, 2000, 4000),
    workers: Sequence[int] = (2, 4, 8),
    runs: int = 8,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return a row per problem, method, number of workers or steps, and run.

    ``steps`` vary at the middle number of workers, and ``workers`` at the largest number of steps.
    Columns: problem, method, workers, steps, run, learning_rate, bound (BSP's), at_mean,
    at_workers. ``jobs`` as for `ddlnb.compare`. Raises UnknownName and InputError.
    """
    for what, values in {"steps": steps, "workers": workers}.items():
        distinct = sorted(set(values))
        require(len(distinct) > 1, f"{what} {list(values)} make no slope; give two numbers or more")
    middle, most = sorted(set(workers))[len(set(workers)) // 2], max(steps)
    grid = {(middle, some) for some in steps} | {(some, most) for some in workers}
    cells = [
        (name, str(training_method(method)), *sizes, runs, seed)
        for name in problems
        for method in methods
        for sizes in sorted(grid)
    ]
    longest_first = sorted(cells, key=lambda cell: -cell[2] * cell[3])
    rows = in_parallel(_cell, longest_first, jobs, progress, "cells")
    found = dict(zip(longest_first, rows, strict=True))
    return pd.concat([found[cell] for cell in cells], ignore_index=True).assign(source="simulated")


def _cell(name: str, method: str, workers: int, steps: int, runs: int, seed: int) -> pd.DataFrame:
    problem = get_problem(name)
    norms = gradient_norms(problem, method, workers=workers, steps=steps, runs=runs, seed=seed)
    return pd.DataFrame(
        {
            "problem": name,
            "method": method,
            "workers": workers,
            "steps": steps,
            "learning_rate": problem.rate(workers, steps),
            "bound": problem.bound(workers, steps),
            "run": range(runs),
            **norms._asdict(),
        }
    )


@dataclass
class _Runs(Worker):
    """A worker with a model per run, and gradients in closed form; it needs no losses."""

    sampled: Callable[[Tensor, Tensor], Tensor] = lambda points, chosen: points

    def gradient(self) -> Tensor:
        (chosen,) = self.batch(self.step)
        points = self.parameters.view(len(self.shapes), -1)
        self.flat_gradient.copy_(self.sampled(points, chosen).view(-1))
        self.step += 1
        return self.flat_gradient

    def apply(self, gradient: Tensor) -> None:
        """Step by plain SGD, in all runs at once: torch's optimizer takes the models one by one."""
        self.parameters.add_(gradient, alpha=-self.learning_rate)


def _no_loss(module: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("these workers have gradients and no loss")


TOLERANCE = 0.1  # around LEADING, within which a slope agrees with theory
AGREES, DISAGREES, OPEN = "agrees", "disagrees", "undecided"
HELD = {"steps": "workers", "workers": "steps"}  # what stays the same while the other one varies


def slope_interval(x: Sequence[float], runs: np.ndarray) -> Interval:
    """Return the mean over the runs, (runs, len(x)), of their slopes, with its 95 % t-interval.

    A slope is that of the least-squares line of log y against log x. Raises InputError.

    >>> round(slope_interval([1, 4, 16], np.array([[8.0, 4.0, 2.0]])).estimate, 6)
    -0.5
    """
    require(len(set(x)) > 1, f"{list(x)} make no slope; give two numbers or more")
    positive = np.isfinite(runs).all() and (runs > 0).all() and min(x) > 0
    require(bool(positive), f"logarithms need finite numbers above 0, and there are {runs}")
    return mean_interval(np.polyfit(np.log(x), np.log(runs).T, 1)[0])


def verdict(slope: Interval) -> str:
    """Judge a slope by the rule above.

    >>> verdict(Interval(-0.52, -0.55, -0.49)), verdict(Interval(-0.8, -0.85, -0.75))
    ('agrees', 'disagrees')
    """
    found = slope.within(LEADING - TOLERANCE, LEADING + TOLERANCE)
    return found.worded(AGREES, DISAGREES, OPEN)


@tabled()
def rate_slopes(table: pd.DataFrame) -> Rows:
    """Return a row per problem, method, what it is against (T or n) and where gradients are taken.

    ``table`` is that of `rate_study`. Columns: problem, method, against, gradient, slope,
    half_width, low, high, theory, verdict, promised, rate, tag. ``promised`` is false where a
    period of local SGD is longer than `local_steps_allowed` in some cell, so that theory is silent.
    Raises InputError for a table that varies nothing.
    """
    known = {str(training_method(method)): stated for method, stated in RATES.items()}
    for (problem, method), part in table.groupby(["problem", "method"], sort=False):
        rate, tag = known.get(str(method), ("", ""))
        for against, measure in product(HELD, (AT_MEAN, AT_WORKERS)):
            swept = sweep(part, against)
            wide = swept.pivot(index="run", columns=against, values=measure)
            slope = slope_interval(wide.columns.tolist(), wide.to_numpy())
            yield {
                "problem": problem,
                "method": method,
                "against": against,
                "gradient": measure,
                "slope": slope.estimate,
                "half_width": slope.half_width,
                "low": slope.low,
                "high": slope.high,
                "theory": LEADING,
                "verdict": verdict(slope),
                "promised": _promised(str(method), swept),
                "rate": rate,
                "tag": tag,
            }


def _promised(method: str, swept: pd.DataFrame) -> bool:
    synchronisation = training_method(method).synchronisation
    if not isinstance(synchronisation, LocalSGD):
        return True
    cells = zip(swept["steps"], swept["workers"], strict=True)
    return all(synchronisation.period <= local_steps_allowed(*cell) for cell in cells)


def sweep(part: pd.DataFrame, against: str) -> pd.DataFrame:
    """Return the rows in which ``against``, steps or workers, varies and the other does not."""
    counts = part.groupby(HELD[against])[against].nunique()
    require(bool(counts.max() > 1), f"{against} do not vary in this table; make it by rate_study")
    return part[part[HELD[against]] == counts.idxmax()]


def slope_findings(slopes: pd.DataFrame) -> Findings:
    """Return how often theory is agreed with, and where it is not."""
    names = {AT_MEAN: "At the mean model", AT_WORKERS: "At the workers' models"}
    return findings(*(_counted(names[at], slopes[slopes["gradient"] == at]) for at in names))


def _counted(where: str, part: pd.DataFrame) -> str:
    agrees, undecided = ((part["verdict"] == word).sum() for word in (AGREES, OPEN))
    against = part[part["verdict"] == DISAGREES]
    named = ", ".join(f"{row.method} against {row.against}" for row in against.itertuples())
    return (
        f"{where}, {agrees} of {len(part)} slopes agree with theory and {undecided} are undecided; "
        f"{len(against)} disagree{f': {named}' if named else ''}."
    )


COUNTS = (4, 8, 16, 32, 64)
MIXED = ("d-psgd(ring)", "d-psgd(torus)", "choco(ring, 0.3) + top-k(0.1)")
# Spectral gaps of the mixing weights 1/(degree+1) as they were written down: as text, for the
# digits to which they are given.
STATED = {
    "ring": {4: "0.67", 8: "0.195", 16: "0.051", 32: "0.0128", 36: "0.010", 64: "0.0032"},
    "torus": {4: "0.67", 16: "0.40", 36: "0.20", 64: "0.117"},
    "complete": {4: "1", 16: "1", 36: "1", 64: "1"},
}
IN_PAPER = (4, 16, 36)  # the workers whose rings and tori CHOCO lists


def spectral_gaps(workers: Sequence[int] = COUNTS, graphs: Sequence[str] = ()) -> pd.DataFrame:
    """Return a row for every graph (by default all) and number of workers: the computed gap.

    >>> spectral_gaps([8, 16], ["ring"])["gap"].round(3).tolist()
    [0.195, 0.051]
    """
    rows = [
        {"graph": name, "workers": count, "gap": spectral_gap(make_graph(name, count))}
        for name in graphs or GRAPHS
        for count in workers
    ]
    return pd.DataFrame(rows).assign(source="computed")


def consensus_rounds(
    methods: Sequence[str | TrainingMethod] = MIXED,
    *,
    workers: int = 16,
    rounds: int = 60,
    elements: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return rows of method, round, distance, bytes_sent: gossip, with gradients at the start only.

    Every worker takes one step to normal random numbers of its own, and then mixes. ``distance`` is
    the mean squared distance from the mean in units of what it was before any mixing, in round 0;
    ``bytes_sent`` what a worker has sent by then on average. Raises InputError for methods that
    are not on gossip.
    """
    require_whole(workers=workers, rounds=rounds, elements=elements)
    require(bool(methods), "there are no methods to run")
    parts = [_mixed(training_method(method), workers, rounds, elements, seed) for method in methods]
    return pd.concat(parts, ignore_index=True).assign(workers=workers, source="simulated")


def _mixed(
    method: TrainingMethod, workers: int, rounds: int, elements: int, seed: int
) -> pd.DataFrame:
    require(method.architecture == "gossip", f"{method} does not gossip; choose d-psgd or choco")
    starts = [torch.randn(elements, generator=generator(seed, rank)) for rank in range(workers)]

    def pull(rank: int, step: int) -> Batch:
        return (starts[rank] * (step == 0),)

    team = [
        Worker(
            rank,
            workers,
            nn.ParameterList([torch.zeros(elements)]),
            _along,
            partial(pull, rank),
            partial(torch.optim.SGD, lr=1.0),
            method.compression,
            seed=seed,
        )
        for rank in range(workers)
    ]
    seen: list[list[Tensor]] = [starts, *([] for _ in range(rounds))]

    def look(rank: int, done: int, seconds: float) -> None:
        seen[done].append(team[rank].parameters.clone())

    run = Lockstep(team, method.synchronisation.loop, rounds, on_step=look)
    run.run()
    distances = np.array([consensus_distance(vectors) for vectors in seen])
    return pd.DataFrame(
        {
            "method": str(method).removesuffix(" on gossip"),
            "graph": method.synchronisation.topology,
            "round": range(rounds + 1),
            "distance": distances / distances[0],
            "bytes_sent": np.arange(rounds + 1) * (sum(run.bytes_sent) / workers / rounds),
        }
    )


def _along(module: nn.Module, batch: Batch) -> Tensor:
    """A loss whose gradient is the batch, wherever the model is."""
    (model,), (gradient,) = module.parameters(), batch
    return model @ gradient


@tabled()
def gap_check() -> Rows:
    """Return a row per graph and number of workers: the gap computed, the one stated, if the same.

    ``same`` when the computed gap, rounded to the digits that were given, is the one stated.

    >>> bool(gap_check()["same"].all())
    True
    """
    for graph, stated in STATED.items():
        for workers, text in stated.items():
            computed = spectral_gap(make_graph(graph, workers))
            is_listed = workers in IN_PAPER and graph != "complete"
            yield {
                "graph": graph,
                "workers": workers,
                "computed": round(computed, 4),
                "stated": float(text),
                "same": round(computed, len(text.partition(".")[2])) == float(text),
                "tag": "[d], equals [P] CHOCO Table 2" if is_listed else "[d]",
            }


FAILED = 0.9
PUBLISHED_EXACT = 92.64  # per cent, the all-reduce baseline [P]
DIVERGED = math.nan
ALGORITHMS = ("dcd", "ecd", "choco")
EXACT = "d-psgd(ring, before)"
WORKS, FAILS = "works", "fails"
BUCKET = 128  # entries that share a norm: our choice


class Column(NamedTuple):
    """One compression of the published table: what it is here, and per cent by ALGORITHMS [P].

    ``gamma`` and ``scale`` are CHOCO's here: the more is lost, the smaller. A scale is 1 / (1 + u)
    with u = min(D/s^2, sqrt(D)/s) for QSGD with s levels and buckets of D, and D/k - 1 for random
    coordinates, which CHOCO then takes as they are.
    """

    compressor: str
    gamma: float
    scale: float
    published: tuple[float, float, float]

    @property
    def methods(self) -> dict[str, str]:
        """The training method of each of ALGORITHMS with this compression."""
        return {
            "dcd": f"dcd-psgd(ring) + {self.compressor}",
            "ecd": f"ecd-psgd(ring) + {self.compressor}",
            "choco": f"choco(ring, {self.gamma}, {self.scale}) + {self.compressor}",
        }


def _qsgd(bits: int, gamma: float, published: tuple[float, float, float]) -> Column:
    levels = 2 ** (bits - 1) - 1
    error = min(BUCKET / levels**2, math.sqrt(BUCKET) / levels)
    return Column(f"qsgd({levels}, {BUCKET})", gamma, round(1 / (1 + error), 3), published)


COLUMNS = {
    "QSGD 16 bit": _qsgd(16, 0.9, (92.51, 92.02, 92.34)),
    "QSGD 8 bit": _qsgd(8, 0.9, (92.36, 59.11, 92.30)),
    "QSGD 4 bit": _qsgd(4, 0.5, (23.56, DIVERGED, 91.92)),
    "QSGD 2 bit": _qsgd(2, 0.1, (DIVERGED, DIVERGED, 91.41)),
    "rand 50 %": Column("random-k(0.5, True)", 0.5, 0.5, (92.05, DIVERGED, 92.54)),
    "rand 10 %": Column("random-k(0.1, True)", 0.1, 0.1, (DIVERGED, DIVERGED, 91.87)),
    "rand 1 %": Column("random-k(0.01, True)", 0.02, 0.01, (DIVERGED, DIVERGED, 91.32)),
    "top 50 %": Column("top-k(0.5)", 0.5, 1.0, (92.40, 17.03, 92.54)),
    "top 10 %": Column("top-k(0.1)", 0.3, 1.0, (91.97, 16.78, 92.29)),
    "top 1 %": Column("top-k(0.01)", 0.1, 1.0, (89.79, 18.03, 91.73)),
    "sign": Column("ef-sign", 0.3, 1.0, (92.40, DIVERGED, 92.46)),
}


def divergence_pattern(
    names: Sequence[str] = (),
    *,
    task: str = "digits",
    workers: int = 8,
    steps: int = 150,
    seeds: int = 1,
    lr: float | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return a row per compression and algorithm: the outcome here, and the published one.

    Columns: compression, algorithm, method, accuracy (here, per cent, the worst seed; NaN if it
    diverged), here and there (WORKS or FAILS), published (per cent; NaN: diverged), same. The
    first row is the exact algorithm, which decides what failing means. ``options`` are those of
    `ddlnb.compare`. Raises UnknownName.
    """
    names = list(names) or list(COLUMNS)
    for name in names:
        require_known("compression of the published table", name, COLUMNS)
    rows = [("none", "d-psgd", EXACT, PUBLISHED_EXACT)] + [
        (name, algorithm, method, published)
        for name in names
        for (algorithm, method), published in zip(
            COLUMNS[name].methods.items(), COLUMNS[name].published, strict=True
        )
    ]
    cells = pd.DataFrame(rows, columns=["compression", "algorithm", "method", "published"])
    curves = compare(
        task, cells["method"].tolist(), seeds=seeds, workers=workers, steps=steps, lr=lr, **options
    ).curves
    ends = curves.groupby(["method", "seed"]).tail(1)
    accuracy = (100 * ends["test_accuracy"]).mask(ends["diverged"].astype(bool), -math.inf)
    worst = accuracy.groupby(ends["method"]).min()
    reached = cells["method"].map(lambda method: worst[str(training_method(method))])
    require(reached[0] > 0, f"{EXACT} itself diverged; take a smaller learning rate than {lr}")
    here = reached.map(lambda accuracy: outcome(accuracy, reached[0]))
    there = cells["published"].map(lambda accuracy: outcome(accuracy, PUBLISHED_EXACT))
    return cells[["compression", "algorithm", "method"]].assign(
        accuracy=reached.replace(-math.inf, DIVERGED),
        here=here,
        published=cells["published"],
        there=there,
        same=here == there,
        task=task,
        workers=workers,
        steps=steps,
        tag="[P]",
    )


def outcome(accuracy: float, exact: float) -> str:
    """Return WORKS or FAILS; NaN and infinity stand for a run that diverged.

    >>> outcome(89.79, 92.64), outcome(23.56, 92.64), outcome(float("nan"), 92.64)
    ('works', 'fails', 'fails')
    """
    return WORKS if math.isfinite(accuracy) and accuracy >= FAILED * exact else FAILS


def pattern_verdicts(pattern: pd.DataFrame) -> pd.DataFrame:
    """Return by algorithm how many compressions it stood here and there; ``same`` ones agree."""
    lossy = pattern[pattern["compression"] != "none"]
    counted = lossy.assign(
        compressions=1,
        works_here=lossy["here"] == WORKS,
        works_published=lossy["there"] == WORKS,
    )
    shown = ["compressions", "works_here", "works_published", "same"]
    return counted.groupby("algorithm", sort=False)[shown].sum()


GRAPH_COLOURS = {"ring": "#D55E00", "torus": "#0072B2", "complete": "#009E73"}
STYLES = ("-", (0, (5, 2)), (0, (1, 1)), "-.")
FLOOR = 1e-9  # what is left below is rounding
BOUND_COLOUR = "#bbbbbb"
PANELS = (  # against what, where the gradient is taken, and their names
    ("steps", AT_MEAN, "iterations T", "at the mean model"),
    ("workers", AT_MEAN, "workers n", "at the mean model"),
    ("workers", AT_WORKERS, "workers n", "at the workers' models"),
)


@styled
def gossip_mixing(gaps: pd.DataFrame, rounds: pd.DataFrame) -> plt.Figure:
    """Spectral gaps against the workers, and the consensus distance that is left by round.

    They are from `spectral_gaps` and `consensus_rounds`. Grey is the bound (1 - gap)^2 per round of
    every graph, for gossip without compression.
    """
    require(not gaps.empty and not rounds.empty, "there are no gaps or no rounds to draw")
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 4.6))
    looks = [
        (method, STYLES[number % len(STYLES)], GRAPH_COLOURS[str(graph)])
        for graph, part in rounds.groupby("graph", sort=False)
        for number, method in enumerate(part["method"].unique())
    ]
    _draw_gaps(left, gaps)
    _draw_rounds(right, rounds, looks)
    lines = [legend_line(colour, short(method), style) for method, style, colour in looks]
    bound = legend_line(BOUND_COLOUR, "bound by the gap, without compression", "-")
    legend(figure, [*lines, bound])
    both = rounds[["source"]].merge(gaps[["source"]], how="outer")
    return say_source(figure, both, "gossip alone, without gradients")


def _draw_gaps(ax: plt.Axes, gaps: pd.DataFrame) -> None:
    for graph, part in gaps.groupby("graph", sort=False):
        colour = GRAPH_COLOURS[str(graph)]
        ax.plot(part["workers"], part["gap"], marker="o", color=colour, label=graph)
        last = part.iloc[-1]
        at = last["workers"], last["gap"]
        beside(ax, *at, str(graph), xytext=(6, 0), fontsize=None, color=colour)
    counts = sorted(gaps["workers"].unique())
    doubling_axis(ax, counts)
    ax.set_yscale("log")
    ax.set_xlim(right=2.2 * counts[-1])  # room for the names
    ax.set(xlabel="workers", ylabel="spectral gap", title="Rings mix ever more slowly")


def _draw_rounds(ax: plt.Axes, rounds: pd.DataFrame, looks: Sequence[tuple[str, Any, str]]) -> None:
    count = int(rounds["workers"].iloc[0])
    last = int(rounds["round"].max())
    for graph in rounds["graph"].unique():
        factor = (1 - spectral_gap(make_graph(graph, count))) ** 2
        bound = factor ** np.arange(last + 1.0)
        ax.plot(np.arange(last + 1)[bound > FLOOR], bound[bound > FLOOR], color=BOUND_COLOUR, lw=3)
    for method, style, colour in looks:
        part = rounds[rounds["method"] == method]
        shown = part[part["distance"].shift(fill_value=1.0) > FLOOR]  # to the floor, not along it
        ax.plot(shown["round"], shown["distance"].clip(FLOOR**3), color=colour, linestyle=style)
    ax.set(
        yscale="log",
        ylim=(FLOOR, 3),
        xlabel="round",
        ylabel="consensus distance, of the first",
        title=f"{counted(count, 'worker')}: what is left to agree on",
    )


@styled
def convergence_rates(table: pd.DataFrame) -> plt.Figure:
    """Squared gradients, averaged over iterations, against steps and against workers.

    ``table`` is from `rate_study`; a row of panels per problem. Lines are means over runs, bars
    their standard errors; grey lines have the slope of theory.
    """
    problems = list(table.groupby("problem", sort=False))
    methods = list(table["method"].unique())
    figure, grid = plt.subplots(
        len(problems),
        len(PANELS),
        figsize=(12.5, 1.2 + 3.0 * len(problems)),
        sharey="row",
        squeeze=False,
    )
    for (problem, part), axes in zip(problems, grid, strict=True):
        for (against, measure, _, where), ax in zip(PANELS, axes, strict=True):
            _draw_sweep(ax, sweep(part, against), methods, against, measure)
            ax.set_title(f"{problem}, {where}", fontsize=9)
        axes[0].set_ylabel("mean of |gradient|$^2$")
    for (_, _, label, _), ax in zip(PANELS, grid[-1], strict=True):
        ax.set_xlabel(label)
    handles, _ = grid[0][0].get_legend_handles_labels()
    handles.append(legend_line(GREY, f"slope {LEADING:g}", "--"))
    legend(figure, handles, "upper center", columns=4)
    return say_source(
        figure, table, f"mean and standard error of {counted(table['run'].nunique(), 'run')}"
    )


def _draw_sweep(
    ax: plt.Axes, swept: pd.DataFrame, methods: Sequence[str], against: str, measure: str
) -> None:
    for number, method in enumerate(methods):
        runs = swept[swept["method"] == method].groupby(against)[measure]
        mean, error = runs.mean(), runs.sem()
        # Apart by a hair, because lines may lie on one another.
        x = mean.index.to_numpy(dtype=float) * 1.012 ** (number - len(methods) / 2)
        ax.errorbar(
            x,
            mean,
            yerr=error,
            **line_look(number),
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=short(method),
        )
    guide = swept[swept["method"] == methods[0]].groupby(against)[measure].mean()
    ends = np.array([guide.index.min(), guide.index.max()], dtype=float)
    theory = 0.8 * guide.iloc[0] * (ends / ends[0]) ** LEADING
    ax.plot(ends, theory, color=GREY, linestyle="--", linewidth=1)
    doubling_axis(ax, sorted(swept[against].unique()))
    ax.set_yscale("log")
