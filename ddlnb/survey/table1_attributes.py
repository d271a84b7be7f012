"""Table 1 of the survey: its words beside words that are derived from numbers.

Words are compared by rank order: the number behind "low" has to lie below every number behind
"medium" of the same attribute. No threshold is chosen, since one for every word would prove
nothing; `thresholds` says between which numbers one may lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.patches import Patch, Rectangle

from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import QUANTISATION, SPARSIFICATION, Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.sparse import Sparsifier
from ddlnb.errors import InputError, require
from ddlnb.figures.style import legend, note, styled
from ddlnb.files import PUBLISHED
from ddlnb.networks.structure import Structure, check_rings, rings_bound
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import read_cells
from ddlnb.simulator.simulate import plan_on
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.launchers import train_at as train_at
from ddlnb.survey.sec2_message_size import quoted_fits
from ddlnb.survey.sec3_3_1_protocols import facts
from ddlnb.survey.sec3_3_2_topologies import rings_of, topologies_of
from ddlnb.survey.sec4_methods import plans_table
from ddlnb.survey.testbed import BATCHES, CLUSTERS, fig4_workload
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.cost.overlapped import IterationCost
from ddlnb.training.cost.requests import compression_ratio, pieces
from ddlnb.training.executors.clock import Clock, get_straggler
from ddlnb.training.executors.dry_run import dry_run
from ddlnb.training.executors.lockstep import COMPUTE, Lockstep
from ddlnb.training.method import SYNCHRONISATIONS, TrainingJob, TrainingMethod, training_method
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import runs_by, to_target
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.worker import Worker
from ddlnb.workloads.task import Batch
from ddlnb.workloads.workload import Workload

COLUMNS = ("row", "section", "aspect", "attribute", "word", "tag")
AGREES, DISAGREES = "agrees", "disagrees"
ALONE, OPEN, UNKNOWN = "one word only", "cannot be decided here", "cannot be derived here"
LEVELS = ("low", "medium", "high")


@dataclass(frozen=True)
class Scale:
    """The number behind an attribute, and the words for it in ascending order."""

    number: str
    words: tuple[str, ...]

    def in_order(self, one: tuple[str, float], other: tuple[str, float]) -> bool:
        """Return whether the numbers of two cells have the order of their words.

        >>> Scale("bytes", LEVELS).in_order(("low", 0.2), ("high", 0.1))
        False
        """
        (word, number), (other_word, other_number) = one, other
        rank, other_rank = self.words.index(word), self.words.index(other_word)
        return rank == other_rank or (
            number < other_number if rank < other_rank else number > other_number
        )


SCALES: dict[tuple[str, str], Scale] = {
    ("synchronisation", "loss"): Scale(
        "distance of the parameters from those of one worker on the joined batch, "
        "as a share of the way from the start",
        ("lossless", "lossy"),
    ),
    ("synchronisation", "synchronisation frequency"): Scale(
        "waits for others per gradient, as a share of BSP's", LEVELS
    ),
    ("synchronisation", "communication frequency"): Scale("exchanges per gradient", LEVELS),
    ("synchronisation", "traffic"): Scale(
        "bytes that a worker sends in one exchange, over those of the gradient", LEVELS
    ),
    ("synchronisation", "convergence"): Scale(
        "iterations to the target loss, over those of BSP", ("easy", "normal", "hard")
    ),
    ("compression", "traffic"): Scale(
        "bytes that a worker sends per iteration, over those of the dense ring; median over the "
        "compressors",
        LEVELS,
    ),
    ("scheduling", "loss"): Scale(
        "share of the gradient's elements that are not sent exactly once", ("lossless", "lossy")
    ),
    ("scheduling", "efficiency"): Scale(
        "share hidden of the communication of BSP that computation could hide; median over "
        "models, networks and architectures",
        LEVELS,
    ),
    ("architecture", "traffic"): Scale(
        "bytes on the busiest link per direction, over those of the gradient", LEVELS
    ),
    ("architecture", "robustness"): Scale(
        "share of their work that the others do after one worker stops, with the synchronisation "
        "that suffers least",
        LEVELS,
    ),
    ("protocol", "latency"): Scale(
        "latency seconds of a message, over those of the quickest protocol", LEVELS
    ),
    ("topology", "efficiency"): Scale(
        "rings through all servers that share no link in one direction", LEVELS
    ),
    ("topology", "robustness"): Scale(
        "share of random losses of links that leave all servers connected", LEVELS
    ),
}
SCALES["compression", "loss"] = SCALES["synchronisation", "loss"]
SCALES["compression", "convergence"] = SCALES["synchronisation", "convergence"]


class Derived(NamedTuple):
    """A number for one cell, where it comes from, and what else there is to say.

    ``source`` is measured, simulated or computed. A number that is NaN cannot be derived; ``note``
    says why. ``runs`` are the seeds behind a mean over some.
    """

    row: str
    attribute: str
    number: float
    source: str
    note: str = ""
    runs: float = math.inf


def survey_attributes() -> pd.DataFrame:
    """Return the cells of Table 1, with COLUMNS."""
    return pd.DataFrame(read_cells(PUBLISHED / "table1.csv", COLUMNS), columns=list(COLUMNS))


FEWEST_RUNS = 3  # seeds of a measured mean that an order may rest on


def compared(derived: Iterable[Derived]) -> pd.DataFrame:
    """Return the cells of Table 1 that were derived, in its order, with a verdict by rank order.

    A word agrees if its number has the order of words beside all others of its attribute; of a
    wrong pair both disagree, unless one of them is in more of them. Columns: row, attribute, survey
    (its word), verdict, number, source, note. Raises InputError for a cell that the table does not
    have or that is derived twice.
    """
    numbers = pd.DataFrame(derived)
    cells = pd.MultiIndex.from_frame(numbers[["row", "attribute"]])
    require(cells.is_unique, "a cell was derived twice")
    table = survey_attributes().merge(numbers, on=["row", "attribute"])
    require(len(table) == len(cells), f"Table 1 lacks some of the cells {list(cells)}")
    table["verdict"] = UNKNOWN
    for key, part in table.groupby(["aspect", "attribute"]):
        few = part.index[part["number"].notna() & (part["runs"] < FEWEST_RUNS)]
        table.loc[few, "verdict"] = OPEN
        known = part.drop(few).dropna(subset="number")
        table.loc[known.index, "verdict"] = _by_rank(SCALES[key], known)
    table = table.rename(columns={"word": "survey"})
    return table[["row", "attribute", "survey", "verdict", "number", "source", "note"]]


def _by_rank(scale: Scale, cells: pd.DataFrame) -> list[str]:
    """Return the verdicts on the cells of one attribute, all of whose numbers are known."""
    pairs = dict(zip(cells.index, zip(cells["word"], cells["number"], strict=True), strict=True))
    wrong = {
        one: {other for other in pairs if not scale.in_order(pairs[one], pairs[other])}
        for one in pairs
    }
    out: set[object] = set()
    while most := max((len(wrong[one] - out) for one in pairs if one not in out), default=0):
        out |= {one for one in pairs if one not in out and len(wrong[one] - out) == most}
    if cells["word"].nunique() < 2:
        return [ALONE] * len(cells)
    return [DISAGREES if one in out else AGREES for one in pairs]


def thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """Return by attribute and pair of neighbouring words between which numbers a threshold lies.

    Only cells of `compared` that agree count. Columns: above (the largest number of the lower
    word), below (the smallest of the higher one).
    """
    aspects = survey_attributes().set_index(["row", "attribute"])["aspect"]
    agreed = table[table["verdict"] == AGREES].join(aspects, on=["row", "attribute"])
    rows = []
    for (aspect, attribute), part in agreed.groupby(["aspect", "attribute"], sort=False):
        numbers = part.groupby("survey")["number"].agg(["min", "max"])
        words = [word for word in SCALES[aspect, attribute].words if word in numbers.index]
        for lower, higher in pairwise(words):
            between = numbers.loc[lower, "max"], numbers.loc[higher, "min"]
            rows.append((aspect, attribute, f"{lower}, {higher}", *between))
    columns = ["aspect", "attribute", "between", "above", "below"]
    return pd.DataFrame(rows, columns=columns).set_index(columns[:3])


def scales_table() -> pd.DataFrame:
    """Return what every attribute's number is, and its words in ascending order."""
    rows = [(*key, scale.number, ", ".join(scale.words)) for key, scale in sorted(SCALES.items())]
    table = pd.DataFrame(rows, columns=["aspect", "attribute", "number", "words"])
    return table.set_index(["aspect", "attribute"])


def word_findings(table: pd.DataFrame) -> Findings:
    """Return how many words agree, and which do not."""
    counts = table["verdict"].value_counts()
    against = table[table["verdict"] == DISAGREES]
    named = "; ".join(
        f"{one.row}, {one.attribute} ({one.survey}; {one.number:.3g})"
        for one in against.itertuples()
    )
    return findings(
        f"{counts.get(AGREES, 0)} of {len(table)} words agree by rank order, {len(against)} "
        f"disagree; {counts.get(OPEN, 0)} rest on too few runs, {counts.get(ALONE, 0)} are the "
        f"only word of their attribute, and {counts.get(UNKNOWN, 0)} cannot be derived here.",
        f"They disagree on: {named}." if named else "",
    )


SYNCHRONISATION = {
    "BSP": "bsp on PS",
    "SSP": "ssp(3) on PS",
    "ASP": "asp on PS",
    "local SGD": "local(8) on PS",
}  # all on servers, so that they differ in nothing else
DENSITY = 0.001  # the survey's, of top-k (item A25)
SMALL_DENSITY = 0.01  # for digits, of whose 9,930 parameters DENSITY would leave ten
TASK = "digits"
RATES = (1 / 3, 1.0, 3.0)  # of the task's learning rate
STRAGGLER = "log-normal(0.3)"


class Behaviour(NamedTuple):
    """What a worker does per gradient, on average: waits for others, exchanges, gradients sent."""

    waits: float
    exchanges: float
    sent: float


def compressions(density: float = SMALL_DENSITY) -> dict[str, list[str]]:
    """Return the methods behind the two rows of compression: all registered compressors of each.

    Those that need error feedback have it (`Compressor.feedback`); sparsifiers keep ``density``.
    """
    found: dict[str, list[str]] = {QUANTISATION: [], SPARSIFICATION: []}
    for kind in COMPRESSORS.values():
        compressor = kind()
        if (row := compressor.family) in found:
            if isinstance(compressor, Sparsifier):
                compressor = compressor.keeping(density)
            feedback = " + feedback" if compressor.feedback == "needed" else ""
            found[row].append(f"bsp + {compressor}{feedback} on A2A")
    return found


def behaviour(method: str, *, workers: int = 8, steps: int = 64) -> Behaviour:
    """Return what a method does on digits if gradients take STRAGGLER's seconds, messages none.

    An exchange that takes time then waits for others. ``steps`` should be a multiple of the
    local steps.
    """
    clock = Clock(compute=get_straggler(STRAGGLER))
    team, run = _run(training_settings(TASK, method, workers=workers, steps=steps).job(), clock)
    asked = [one for one in run.activities if one.kind != COMPUTE]
    gradients = len(run.activities) - len(asked)
    waits = sum(one.seconds > 0 for one in asked)
    gradient_bytes = gradients * 4 * len(team[0].parameters)
    return Behaviour(
        waits / gradients, len(asked) / gradients, sum(run.bytes_sent) / gradient_bytes
    )


def distance_from_one_worker(method: str, *, workers: int = 8, steps: int = 16) -> float:
    """Return how far a method ends from one worker on the joined batch, over the distance covered.

    The largest of the workers' distances; plain SGD, the same batches.
    """
    job = training_settings(TASK, method, workers=workers, steps=steps).job()
    start, end = _one_worker(workers, steps)
    team, _ = _run(job, Clock(compute=get_straggler(STRAGGLER)))
    apart = max(float((worker.parameters - end).norm()) for worker in team)
    return apart / float((end - start).norm())


@cache
def _one_worker(workers: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parameters of one worker on the joined batch, before and after its steps."""
    job = training_settings(TASK, "bsp", workers=workers, steps=steps).job()
    [one], _ = _run(replace(job, workers=1, batches=partial(_joined, job)), Clock())
    return job.worker(0).parameters, one.parameters


def iterations_needed(
    target: float,
    methods: Mapping[str, Sequence[str]] | None = None,
    *,
    workers: int = 8,
    steps: int = 60,
    seeds: int = 3,
    rates: Sequence[float] = RATES,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return the iterations to the target loss on digits by row of Table 1 and method.

    ``methods`` are by default those of all rows of synchronisation and compression. Each stands
    at the learning rate at which it needs fewest, of ``rates`` times the task's own.
    ``iterations`` is the mean over the seeds, infinite if one run is not there after ``steps``.
    Columns: row, method, rate, iterations, reached, runs.
    """
    if methods is None:
        methods = {row: [method] for row, method in SYNCHRONISATION.items()} | compressions()
    own = get_learning_task(TASK).learning_rate
    every = [str(training_method(method)) for some in methods.values() for method in some]
    curves = compare(
        TASK,
        every,
        seeds=seeds,
        workers=workers,
        steps=steps,
        lr=[rate * own for rate in rates],
        clock=Clock(compute=get_straggler(STRAGGLER)),
        evaluate_every=1,
        jobs=jobs,
    ).curves
    runs = pd.DataFrame(
        [
            (method, rate, to_target(run, target))
            for (method, rate), runs in runs_by(curves, "method", "learning_rate").items()
            for run in runs.values()
        ],
        columns=["method", "rate", "iterations"],
    )
    tried = runs.groupby(["method", "rate"])["iterations"]
    means = tried.agg(iterations="mean", reached=lambda one: (one < math.inf).sum(), runs="size")
    quickest = means.reset_index("rate").sort_values(["iterations", "rate"])
    best = quickest.groupby("method").first()
    rows = [(row, method) for row, some in methods.items() for method in some]
    shown = best.loc[every].reset_index(drop=True)
    return pd.DataFrame(rows, columns=["row", "method"]).join(
        shown[["rate", "iterations", "reached", "runs"]]
    )


def synchronisation_numbers(
    needed: pd.DataFrame, *, workers: int = 8, steps: int = 64
) -> Iterator[Derived]:
    """Derive the cells of the four synchronisations; ``needed`` is that of `iterations_needed`."""
    did = {
        row: behaviour(method, workers=workers, steps=steps)
        for row, method in SYNCHRONISATION.items()
    }
    for row, one in did.items():
        method = SYNCHRONISATION[row]
        distance = distance_from_one_worker(method, workers=workers)
        waits, per_exchange = one.waits / did["BSP"].waits, one.sent / one.exchanges
        rarer = f"{one.sent:.3g} per iteration, as exchanges are rarer"
        note = "" if math.isclose(one.exchanges, 1) else rarer
        law = f"{method}, stragglers {STRAGGLER}"
        yield from (
            Derived(row, "loss", distance, "measured", f"{workers} workers, digits"),
            Derived(row, "synchronisation frequency", waits, "simulated", law),
            Derived(row, "communication frequency", one.exchanges, "measured", "counted"),
            Derived(row, "traffic", per_exchange, "measured", note),
            _convergence(row, needed),
        )


def compression_numbers(
    needed: pd.DataFrame, workload: Workload, *, gpus: int = 32, workers: int = 8
) -> Iterator[Derived]:
    """Derive the cells of the two kinds of compression from all their registered compressors.

    Traffic is that of the ``workload`` on that many ``gpus``; the rest is that of digits.
    """
    shapes, sparse = pieces(workload, whole_model=False), compressions(DENSITY)
    for row, methods in compressions().items():
        shares = {
            _compressor(method).name: 1 / compression_ratio(_compressor(method), shapes, gpus)
            for method in sparse[row]
        }
        apart, nearest = min(
            (distance_from_one_worker(method, workers=workers), _compressor(method).name)
            for method in methods
        )
        each = ", ".join(f"{name} {share:.3g}" for name, share in shares.items())
        where = f"{workload.model}, {gpus} GPUs, density {DENSITY}: {each}"
        yield from (
            Derived(row, "loss", apart, "measured", f"the nearest is {nearest}"),
            Derived(row, "traffic", median(shares.values()), "computed", where),
            _convergence(row, needed),
        )


def _convergence(row: str, needed: pd.DataFrame) -> Derived:
    """Derive the median over the row's methods, relative to BSP; a missed target is infinite."""
    mine = needed[needed["row"] == row]
    require(not mine.empty, f"no iterations were measured for {row}")
    [bsp] = needed.loc[needed["row"] == "BSP", "iterations"]
    require(math.isfinite(bsp), "BSP does not reach the target; take a higher loss or more steps")
    ratios = mine.set_index("method")["iterations"] / bsp
    each = (f"{_compressor(one).name} {ratio:.2f}" for one, ratio in ratios.items())
    note = ", ".join(each) if len(ratios) > 1 else f"BSP needs {bsp:.3g}"
    runs = float(needed["runs"].min())
    return Derived(row, "convergence", float(ratios.median()), "measured", note, runs)


def _compressor(method: str) -> Compressor:
    compressor = training_method(method).compressor
    assert compressor is not None
    return compressor


def _run(job: TrainingJob, clock: Clock) -> tuple[list[Worker], Lockstep]:
    batches = job.batches()
    fixed = replace(job, batches=lambda: batches)
    workers = [fixed.worker(rank) for rank in range(job.workers)]
    loop = job.method.synchronisation.loop
    run = Lockstep(workers, loop, job.steps, rule=fixed.rule(), clock=clock, recording=True)
    run.run()
    return workers, run


def _joined(job: TrainingJob) -> list[Callable[[int], Batch]]:
    """Return the batches of one worker: those of all workers, one after the other."""
    batches = job.batches()
    return [lambda step: tuple(map(torch.cat, zip(*(one(step) for one in batches), strict=True)))]


SCHEDULES = {
    "pipelining (WFBP)": ("WFBP-PS", "WFBP-A2A"),
    "tensor fusion (MG-WFBP)": ("MG-WFBP",),
    "tensor partition (ByteScheduler)": ("ByteScheduler-PS", "ByteScheduler-A2A"),
}
ARCHITECTURES = {"PS": "PS", "all-to-all": "A2A"}
FOR_EVER = 1e9  # seconds of a gradient of the worker that has stopped
STEPS = 200  # more than any registered synchronisation does without an exchange


@tabled("row", "model", "network", "method", "hidden")
def hidden_shares(models: Sequence[str] = tuple(BATCHES), gpus: int = 32) -> Rows:
    """Return what every schedule hides, simulated: a row per model, network and method.

    ``hidden`` is the time saved over BSP on the same architecture, as a share of what computation
    could hide at best: the shorter one of BSP's computation and communication. Below zero where
    the schedule costs more than it hides, above one where its messages also take less time than
    those of BSP. Columns: row, model, network, method, hidden.
    """
    for model, (network, name) in product(models, CLUSTERS.items()):
        workload, cluster = fig4_workload(model), get_cluster(name, gpus)
        costs = {method: iteration_cost(workload, cluster, method) for method in SURVEYED}
        yield from (
            (row, model, network, method, _hidden(costs, method))
            for row, methods in SCHEDULES.items()
            for method in methods
        )


def _hidden(costs: Mapping[str, IterationCost], method: str) -> float:
    plain = costs[f"BSP-{SURVEYED[method].architecture}"]
    saved = plain.iteration_seconds - costs[method].iteration_seconds
    return saved / min(plain.compute_seconds, plain.waiting_seconds)


def scheduling_numbers(hidden: pd.DataFrame, gpus: int = 32) -> Iterator[Derived]:
    """Derive the cells of the three schedules; ``hidden`` comes from `hidden_shares`."""
    workload = fig4_workload(str(hidden["model"].iloc[0]))
    cluster = get_cluster(next(iter(CLUSTERS.values())), gpus)
    for row, methods in SCHEDULES.items():
        sent = plans_table({name: plan_on(cluster, workload, name) for name in methods})
        wrong = (sent["least_times_sent"] != 1) | (sent["most_times_sent"] != 1)
        mine = hidden.loc[hidden["row"] == row, "hidden"]
        note = f"from {mine.min():.2f} to {mine.max():.2f} over {len(mine)} cells, {gpus} GPUs"
        yield from (
            Derived(row, "loss", float(wrong.mean()), "computed", f"plans of {workload.model}"),
            Derived(row, "efficiency", float(mine.median()), "simulated", note),
        )


def architecture_numbers(workers: int = 32) -> Iterator[Derived]:
    """Derive the cells of parameter servers and all-to-all."""
    byte = AlphaBeta(0.0, 1.0)
    server, many = (push_pull(byte, workers, k).seconds_per_byte for k in (1, workers))
    ring = ring_all_reduce(byte, workers).seconds_per_byte
    shared = f"{workers} workers, one server; {many:g} with as many servers as workers"
    yield from (
        Derived("PS", "traffic", server, "computed", shared),
        Derived("all-to-all", "traffic", ring, "computed", f"a ring of {workers} workers"),
    )
    alone = {"PS": "; a server that stops, stops all", "A2A": ""}
    for row, architecture in ARCHITECTURES.items():
        shares = work_without_one(architecture)
        best = max(shares, key=shares.__getitem__)
        said = f"{best}; bsp {shares['bsp']:.2g}{alone[architecture]}"
        yield Derived(row, "robustness", shares[best], "simulated", said)


@cache
def work_without_one(architecture: str, workers: int = 4) -> dict[str, float]:
    """Return what the others still do when worker 0 stops at once, as a share of all their work.

    By the name of every synchronisation that runs on this architecture; its own loop runs.
    """

    def seconds(rank: int, step: int, workers: int) -> float:
        return 1.0 if rank else FOR_EVER

    found = {}
    for name, kind in SYNCHRONISATIONS.items():
        try:
            method = TrainingMethod(kind(), architecture=architecture)
        except InputError:
            continue  # it runs elsewhere
        run = dry_run(method, [(8,)], workers, STEPS, Clock(compute=seconds), recording=True)
        done = sum(
            one.kind == COMPUTE and one.rank > 0 and one.stop_seconds < FOR_EVER
            for one in run.lockstep.activities
        )
        found[name] = done / (STEPS * (workers - 1))
    return found


def protocol_numbers() -> Iterator[Derived]:
    """Derive the cells of the three protocols from the survey's own messages (A14 and A15)."""
    latencies = quoted_fits()["latency_us"]
    said = facts().groupby(["property", "protocol"], sort=False)["value"].agg(list)
    for row in said["latency"].index:
        fits = latencies[said["network"].get(row, [])]
        each = ", ".join(f"{name} {microseconds:.3g} us" for name, microseconds in fits.items())
        note = (
            f"fits of quoted messages: {each}"
            if each
            else "the survey quotes no message of it, and there is no such card here"
        )
        number = float(fits.min() / latencies.min())
        yield Derived(str(row), "latency", number, "computed", note)


@tabled(index=["network"])
def network_table(servers: int = 16, failures: int = 2, draws: int = 2000) -> Rows:
    """Return the networks of Table 1 at this size: what they cost, and what they give.

    rings: through all servers, at once; they are checked, and no more are possible.
    rings_per_link: of a server's links. survival: the share of random losses of ``failures`` links
    that leave all servers connected. cutting: link failures that it takes to cut a server off.
    halves: links between halves.
    """
    for name, topology in topologies_of(servers).items():
        network, rings = topology.network(1.0), rings_of(topology)
        check_rings(network, rings)
        assert len(rings) == rings_bound(network), f"{network!r} could carry more rings"
        made = Structure(network)
        yield {
            "network": name,
            "servers": network.ranks,
            "switches": network.switches,
            "links": network.cables,
            "links_per_server": made.degree(0),
            "diameter": made.diameter,
            "mean_hops": made.mean_hops,
            "halves": made.bisection,
            "rings": len(rings),
            "rings_per_link": len(rings) / made.degree(0),
            "cutting": made.weakest_host,
            "survival": made.survival(failures, draws),
        }


def topology_numbers(table: pd.DataFrame, failures: int = 2) -> Iterator[Derived]:
    """Derive the cells of the three topologies from `network_table` with the same ``failures``."""
    for name, row in table.iterrows():
        gives = (
            f"{row['rings_per_link']:g} per link of a server; mean path {row['mean_hops']:.2f} "
            f"links, {row['halves']:g} links between halves"
        )
        lost = f"{failures} of {row['links']:g} links lost; {row['cutting']:g} cut a server off"
        yield from (
            Derived(str(name), "efficiency", float(row["rings"]), "computed", gives),
            Derived(str(name), "robustness", float(row["survival"]), "simulated", lost),
        )


def all_numbers(
    needed: pd.DataFrame, workers: int, hidden: pd.DataFrame, networks: pd.DataFrame, failures: int
) -> list[Derived]:
    """Derive the cells of all aspects from the tables of a notebook; compression on ResNet-50."""
    return [
        *synchronisation_numbers(needed, workers=workers),
        *compression_numbers(needed, fig4_workload("resnet50"), workers=workers),
        *scheduling_numbers(hidden),
        *architecture_numbers(),
        *protocol_numbers(),
        *topology_numbers(networks, failures),
    ]


COLOURS = {AGREES: "#cde8dd", DISAGREES: "#f7d3bd", OPEN: "#f4ecc2", ALONE: "#dbe4f0"}
COLOURS |= {UNKNOWN: "#e2e2e2"}


@styled
def attribute_cells(table: pd.DataFrame) -> plt.Figure:
    """Every cell of Table 1: above the survey's word, below the number of this edition.

    ``table`` is from `ddlnb.survey.table1_attributes.compared`.
    """
    rows = list(table["row"].unique())
    columns = list(table["attribute"].unique())
    figure, ax = plt.subplots(figsize=(2.6 + 1.75 * len(columns), 1.6 + 0.44 * len(rows)))
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    for _, cell in table.iterrows():
        _draw(ax, columns.index(cell["attribute"]), rows.index(cell["row"]), cell)
    ax.set_xticks([i + 0.5 for i in range(len(columns))], [c.replace(" ", "\n") for c in columns])
    ax.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    counts = table["verdict"].value_counts()
    handles = [
        Patch(color=colour, label=f"{verdict}: {counts.get(verdict, 0)}")
        for verdict, colour in COLOURS.items()
    ]
    legend(figure, handles, "lower left", columns=3)
    sources = ", ".join(sorted(set(table["source"])))
    return note(figure, f"first line: the survey's word (Table 1); second: a number, {sources}")


def _draw(ax: plt.Axes, x: int, y: int, cell: pd.Series) -> None:
    colour, number = COLOURS[cell["verdict"]], float(cell["number"])
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
    short = "never" if math.isinf(number) else f"{number:.2g}"
    ours = "no number" if math.isnan(number) else short
    ax.text(x + 0.5, y + 0.28, cell["survey"], ha="center", va="center", fontsize=9)
    ax.text(x + 0.5, y + 0.7, ours, ha="center", va="center", fontsize=9, weight="bold")
