"""What can be done: every method, other ways to use the same machines, or fewer of them.

Some options compute something else: compression and local steps. How many iterations such a method
needs on your model nobody knows before training. What is known is how many it needed on digits,
against BSP, with rates tuned for each (data/measured/2026-11-29_two-cores_digits_orderings).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ddlnb.advice.question import Question
from ddlnb.calibration.statistics import Interval, ratio_interval
from ddlnb.errors import InputError, require_whole, without
from ddlnb.files import DATA
from ddlnb.plans.methods import BASELINES, Method, ddp_of
from ddlnb.results.schema import read_frame
from ddlnb.search.search import WITHOUT_SERVERS, SearchResult, search_plan
from ddlnb.simulator.draws import draw_clusters
from ddlnb.simulator.forecast import methods_on
from ddlnb.simulator.recommendation import TIE
from ddlnb.simulator.simulate import Cell, steady_seconds
from ddlnb.units import gpus_in_words
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.training.cost.overlapped import IterationCost


LARGER_BATCHES = (2, 4)
FEWER = (2, 4, 8)
MORE_SERVERS = (2, 4)
BUCKETS_MIB = (2, 5, 10, 50, 100, 200)  # that are tried beside DDP's default
ACCUMULATED = (2, 4)
HALF = "fp16"
ROUNDED = "gradients are rounded to 16 bits before they are summed"
BY_HOOK = "16-bit gradients by the hook of "


class Kind(StrEnum):
    """What an option changes."""

    METHOD = "method"
    LAYOUT = "layout"
    PLAN = "searched plan"
    PRECISION = "16-bit gradients"
    BATCH = "larger batch"
    ACCUMULATION = "gradient accumulation"
    COMPRESSION = "compression"
    SYNCHRONISATION = "local steps"
    SERVERS = "more servers"
    FEWER = "fewer machines"


ALONE = "1 GPU alone"
UNCHANGED = ""  # what an option that computes the same says of its effect on learning


@dataclass(frozen=True)
class Option:
    """Something to do that is played as a cell; ``learning`` says what it changes of learning.

    ``held_batch`` is the number of samples that are in a GPU's memory at once.
    """

    name: str
    kind: Kind
    cell: Cell
    held_batch: int
    learning: str = UNCHANGED

    @property
    def server_machines(self) -> int:
        """Machines that parameter servers take beside those of the workers."""
        machines = self.cell.cluster.server_machines(self.cell.method.architecture)
        return self.cell.servers if machines and self.cell.servers is not None else machines

    @property
    def keeps_learning(self) -> bool:
        """Whether iterations stay what they are, so that throughput alone decides."""
        return self.learning == UNCHANGED


def method_options(question: Question) -> list[Option]:
    """Return DistributedDataParallel as it is, and every method that the cluster can run.

    One GPU exchanges nothing, by no method.
    """
    methods = (*BASELINES.values(), *methods_on(question.cluster))
    made = _options(question, "", Kind.METHOD, methods)
    return _alone(made) if question.cluster.workers == 1 else made


def bucket_option(question: Question) -> list[Option]:
    """Return DDP with the size of buckets that is the quickest, none where that gains nothing."""
    methods = [BASELINES["DDP"], *map(ddp_of, BUCKETS_MIB)]
    cells = [Cell(question.workload, question.cluster, one) for one in methods]
    taken, cell = min(
        zip([one.iteration_seconds for one in steady_seconds(cells)], cells, strict=True),
        key=lambda one: one[0],
    )
    gains = taken * (1 + TIE) < steady_seconds(cells[:1])[0].iteration_seconds
    held = question.workload.local_batch
    return [Option(cell.method.name, Kind.METHOD, cell, held)] if gains else []


def searched_option(question: Question, most_plans: int) -> tuple[Option, SearchResult] | None:
    """Return the best of so many plans that a search plays, None where there is none to find.

    It goes without parameter servers, which would be further machines.
    """
    require_whole(0, most_plans=most_plans)
    if question.cluster.workers == 1 or most_plans == 0:
        return None
    found = search_plan(
        question.workload, question.cluster, space=WITHOUT_SERVERS, most_plans=most_plans
    )
    cell = Cell(question.workload, question.cluster, found.method)
    return Option("searched plan", Kind.PLAN, cell, question.workload.local_batch), found


def other_options(question: Question) -> Iterator[list[Option]]:
    """Yield groups of options that differ in the method alone: of each, the fastest counts.

    They take no further machines, unless that is what they are about.
    """
    cluster, workload = question.cluster, question.workload
    if cluster.workers == 1:
        return
    if all(gradient.bytes_per_element == 4 for gradient in workload.gradients):
        name, half, kind = "16-bit gradients", workload.sent_as(HALF), Kind.PRECISION
        yield _by_method(question, name, kind, workload=half, learning=ROUNDED)
        yield _options(question, BY_HOOK, kind, [BASELINES["DDP"]], workload=half, learning=ROUNDED)
    averaged = {
        factor: f"a step averages {factor * workload.local_batch * cluster.workers:,} samples: "
        f"learning rates change, and more epochs may be needed"
        for factor in (*LARGER_BATCHES, *ACCUMULATED)
    }
    for factor in LARGER_BATCHES:
        batch = factor * workload.local_batch
        if question.fits(batch) is not False:
            larger = question.at_batch(batch)
            name = f"batch {batch} per GPU"
            yield _by_method(question, name, Kind.BATCH, workload=larger, learning=averaged[factor])
    for count in ACCUMULATED:
        yield _by_method(
            question,
            f"{count} batches per exchange",
            Kind.ACCUMULATION,
            workload=workload.accumulated(count),
            held_batch=workload.local_batch,
            learning=averaged[count],
        )
    for factor in MORE_SERVERS if cluster.server_machines("PS") else ():
        servers = factor * cluster.default_servers
        served = [one for one in methods_on(cluster) if one.architecture == "PS"]
        yield _options(question, f"{servers} servers, ", Kind.SERVERS, served, servers=servers)
    parts = [cluster.workers // divisor for divisor in FEWER if cluster.workers % divisor == 0]
    least = {one for one in (1, cluster.gpus_per_node) if one < cluster.workers} - {*parts}
    most = _fastest(method_options(question)) if least else math.inf
    for workers in (*parts, *sorted(least, reverse=True)):
        try:
            fewer = cluster.with_workers(workers)
        except InputError:  # none, or a node would be partly used
            continue
        made = _by_method(question, gpus_in_words(workers), Kind.FEWER, cluster=fewer)
        # Nobody would choose a node or a GPU that is slower than all of them.
        if workers in parts or _fastest(made) >= (1 - TIE) * most:
            yield _alone(made) if workers == 1 else made


def _fastest(made: Sequence[Option]) -> float:
    """Return the samples/s of the fastest of these options without further machines."""
    cells = [one.cell for one in made if not one.server_machines] or [one.cell for one in made]
    played = zip(cells, steady_seconds(cells), strict=True)
    return max(cell.samples / seconds.iteration_seconds for cell, seconds in played)


def _alone(made: list[Option]) -> list[Option]:
    """Return one of these options on one GPU, where all methods are the same, without a method."""
    return [replace(made[-1], name=ALONE)]


def _by_method(
    question: Question,
    name: str,
    kind: Kind,
    *,
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    held_batch: int | None = None,
    learning: str = UNCHANGED,
) -> list[Option]:
    """Return an option for every method that takes no further machines; if none does, for all."""
    on = cluster or question.cluster
    made = _options(
        *(question, f"{name}, ", kind, (*BASELINES.values(), *methods_on(on))),
        workload=workload,
        cluster=on,
        held_batch=held_batch,
        learning=learning,
    )
    return [one for one in made if not one.server_machines] or made


def _options(
    question: Question,
    name: str,
    kind: Kind,
    methods: Sequence[Method],
    *,
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    servers: int | None = None,
    held_batch: int | None = None,
    learning: str = UNCHANGED,
) -> list[Option]:
    """Return an option for every method; what is left out is as the question says."""
    used, on = workload or question.workload, cluster or question.cluster
    held = held_batch or used.local_batch
    return [
        Option(f"{name}{one.name}", kind, Cell(used, on, one, servers), held, learning)
        for one in methods
    ]


CURVES = DATA / "measured" / "2026-11-29_two-cores_digits_orderings" / "curves.csv"
TASK = "digits"
TARGET = 0.2  # a test loss that BSP reaches after a fifth of the steps of the curves
LOSSY = (
    "bsp + powersgd(4) + feedback",
    "bsp + top-k(0.01) + feedback",
    "bsp + qsgd(127)",
    "local(4)",
)


@dataclass(frozen=True)
class LossyOption:
    """A lossy method, what one of its iterations costs, and how many it needed on digits.

    ``seconds`` is a 90 % interval of an iteration in so many ``draws``, without ends if in none.
    ``iterations`` is the number over that of BSP, at ``workers`` workers. ``residual`` is how
    many bytes error feedback keeps, of gradients that were not sent.
    """

    name: str
    cost: IterationCost
    seconds: Interval
    draws: int
    iterations: Interval
    workers: int
    compresses: bool
    residual: float


def lossy_options(
    question: Question, methods: Sequence[str] = LOSSY, *, draws: int = 0, seed: int = 0
) -> tuple[list[LossyOption], list[str]]:
    """Return the lossy methods that the workload and the cluster can take, and why not the others.

    Compression takes what the data sheet of the GPU says. A method is left out that needs what is
    not known, such as the shapes of tensors; its reason begins with its name. Intervals are those
    of methods whose messages overlap the backward pass; others are played by their own loop, which
    takes too long to be drawn often.
    """
    try:
        from ddlnb.compression.profile import SHEET
        from ddlnb.training.cost.estimate import iteration_cost
        from ddlnb.training.method import training_method
    except ModuleNotFoundError as error:
        return [], [without(error.name or "torch", what="what sends or waits less")]
    errors = np.random.default_rng([seed, draws]).standard_normal(draws)
    found, left_out = [], []
    for name in methods if question.cluster.workers > 1 else ():
        try:
            cost = iteration_cost(question.workload, question.cluster, name, compression=SHEET)
        except InputError as error:  # unknown shapes, gradients in half precision
            left_out.append(f"{name}, as {error}")
            continue
        method = training_method(name)
        residual = float(method.feedback and question.workload.gradient_bytes)
        batch = question.workload.local_batch
        if question.fits(batch) and not question.fits(batch, residual):
            left_out.append(f"{name}, as a GPU has no room for the residual of its error feedback")
            continue
        drawn = [
            iteration_cost(question.workload, cluster, name, compression=SHEET).iteration_seconds
            * math.exp(question.cluster.error * error)
            for cluster, error in zip(
                draw_clusters(question.cluster, draws, seed) if method.overlaps else (),
                errors,
                strict=False,
            )
        ]
        low, high = np.quantile(drawn, (0.05, 0.95)) if drawn else (math.nan, math.nan)
        ratio, workers = measured_iterations(name, question.cluster.workers)
        seconds = Interval(cost.iteration_seconds, float(low), float(high))
        compresses = method.compressor is not None
        found.append(
            LossyOption(name, cost, seconds, len(drawn), ratio, workers, compresses, residual)
        )
    return found, left_out


def measured_iterations(method: str, workers: int) -> tuple[Interval, int]:
    """Return the iterations of a method over those of BSP on digits, and at how many workers.

    That number of measured workers is the nearest one. The interval is of 95 % over seeds; the
    estimate is infinite where a run never reached the target, and NaN for a method that was not
    measured.
    """
    from ddlnb.training.cost.time_to_target import DENSE
    from ddlnb.training.method import training_method

    needed = _needed()
    measured = sorted(set(needed["workers"]))
    nearest = min(measured, key=lambda count: abs(math.log(count / workers)))
    at = needed[needed["workers"] == nearest]
    brackets = {
        name: rows.sort_values("seed")[["since", "iterations"]].to_numpy()
        for name, rows in at.groupby("method")
    }
    name = str(training_method(method))
    if name not in brackets:
        return Interval(math.nan), nearest
    if not np.isfinite(brackets[name]).all():
        return Interval(math.inf), nearest
    return ratio_interval(brackets[name], brackets[DENSE]), nearest


@cache
def _needed() -> pd.DataFrame:
    from ddlnb.training.cost.time_to_target import iterations_to_target

    return iterations_to_target(read_frame(CURVES), TARGET)
