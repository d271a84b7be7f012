"""Table 1 of the survey: its words beside words that are derived from numbers.

Every word of ours follows from one number by the scale of its attribute. The survey gives no
scales: these are ours, printed beside the verdicts, and another one may give another word.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ddlnb.clusters.file import get_cluster
from ddlnb.compression.base import QUANTISATION, SPARSIFICATION, Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.sparse import Sparsifier
from ddlnb.errors import InputError, ResultsError, UnknownName, require
from ddlnb.figures.style import legend, note, styled
from ddlnb.files import PUBLISHED
from ddlnb.networks.structure import (
    Ring,
    Structure,
    bcube_rings,
    check_rings,
    fat_tree_ring,
    rings_bound,
    torus_rings,
)
from ddlnb.networks.topologies import BCube, FatTree, Topology, Torus
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.schema import read_cells
from ddlnb.simulator.simulate import plan_on
from ddlnb.survey.items import Findings, findings
from ddlnb.survey.sec2_message_size import quoted_fits
from ddlnb.survey.sec3_3_1_protocols import facts
from ddlnb.survey.sec4_methods import plans_table
from ddlnb.survey.testbed import BATCHES, CLUSTERS, fig4_workload
from ddlnb.training.cost.estimate import iteration_cost
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
SOURCES = ("measured", "simulated", "computed")
AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "cannot be derived here"
LEVELS = ("low", "medium", "high")


@dataclass(frozen=True)
class Scale:
    """Words for ranges of a number, ascending; a range begins at its bound.

    >>> Scale("bytes", LEVELS, (0.1, 0.75)).word(0.1)
    'medium'
    """

    number: str  # what it is
    words: tuple[str, ...]
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        require(len(self.words) == len(self.bounds) + 1, "a scale needs one bound between words")
        require(sorted(self.bounds) == list(self.bounds), f"bounds {self.bounds} must ascend")

    def word(self, value: float) -> str:
        """Return the word for a number. Raises InputError for NaN."""
        require(not math.isnan(value), f"{self.number} is no number")
        return self.words[bisect_right(self.bounds, value)]

    def __str__(self) -> str:
        first = f"{self.words[0]} below {self.bounds[0]:g}"
        pairs = zip(self.words[1:], self.bounds, strict=True)
        return ", ".join([first, *(f"{word} from {bound:g}" for word, bound in pairs)])


SCALES: dict[tuple[str, str], Scale] = {
    ("synchronisation", "loss"): Scale(
        "distance of the parameters from those of one worker on the joined batch, "
        "as a share of the way from the start",
        ("lossless", "lossy"),
        (1e-4,),
    ),
    ("synchronisation", "synchronisation frequency"): Scale(
        "waits for others per gradient, as a share of BSP's", LEVELS, (0.01, 0.9)
    ),
    ("synchronisation", "communication frequency"): Scale(
        "exchanges per gradient", LEVELS, (0.25, 0.75)
    ),
    ("synchronisation", "traffic"): Scale(
        "bytes that a worker sends in one exchange, over those of the gradient",
        LEVELS,
        (0.1, 0.75),
    ),
    ("synchronisation", "convergence"): Scale(
        "iterations to the target loss, over those of BSP", ("easy", "normal", "hard"), (1.1, 2.0)
    ),
    ("compression", "traffic"): Scale(
        "bytes that a worker sends per iteration, over those of the dense ring; median over the "
        "compressors",
        LEVELS,
        (0.1, 0.75),
    ),
    ("scheduling", "loss"): Scale(
        "share of the gradient's elements that are not sent exactly once",
        ("lossless", "lossy"),
        (1e-12,),
    ),
    ("scheduling", "efficiency"): Scale(
        "share hidden of the communication of BSP that computation could hide; median over "
        "models, networks and architectures",
        LEVELS,
        (1 / 3, 2 / 3),
    ),
    ("architecture", "traffic"): Scale(
        "bytes on the busiest link per direction, over those of the gradient", LEVELS, (1.0, 2.01)
    ),
    ("architecture", "robustness"): Scale(
        "share of their work that the others do after one worker stops, with the synchronisation "
        "that suffers least",
        LEVELS,
        (0.5, 0.9),
    ),
    ("protocol", "latency"): Scale(
        "latency seconds of a message, over those of the quickest protocol", LEVELS, (1.5, 3.0)
    ),
    ("topology", "efficiency"): Scale(
        "rings through all servers that share no link in one direction", LEVELS, (2, 3)
    ),
    ("topology", "robustness"): Scale(
        "share of random losses of links that leave all servers connected", LEVELS, (0.6, 0.9)
    ),
}
SCALES["compression", "loss"] = SCALES["synchronisation", "loss"]
SCALES["compression", "convergence"] = SCALES["synchronisation", "convergence"]


@dataclass(frozen=True)
class Derived:
    """A number for one cell, where it comes from, and what else there is to say.

    ``source`` is one of SOURCES. A number that is NaN cannot be derived; ``note`` says why.
    """

    row: str
    attribute: str
    number: float
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise UnknownName("source", self.source, SOURCES)
        require(
            not math.isnan(self.number) or bool(self.note),
            f"{self.row}, {self.attribute}: say why there is no number",
        )


def survey_attributes(path: Path = PUBLISHED / "table1.csv") -> pd.DataFrame:
    """Return the cells of Table 1, with COLUMNS. Raises ResultsError for a damaged file."""
    found = read_cells(path, COLUMNS)
    for number, row in enumerate(found, start=2):
        key = row["aspect"], row["attribute"]
        if key not in SCALES or row["word"] not in SCALES[key].words:
            raise ResultsError(f"{path.name} line {number}: no scale has the word {row['word']!r}")
    return pd.DataFrame(found, columns=list(COLUMNS))


def compared(derived: Sequence[Derived]) -> pd.DataFrame:
    """Return the cells of Table 1 that were derived, in its order, with both words and a verdict.

    Columns: row, attribute, survey (its word), here (ours), verdict, number, source, note. Raises
    InputError for a cell that the table does not have or that is derived twice.
    """
    survey = survey_attributes()
    by_cell = {(one.row, one.attribute): one for one in derived}
    require(len(by_cell) == len(derived), "a cell was derived twice")
    cells = set(zip(survey["row"], survey["attribute"], strict=True))
    extra = sorted(set(by_cell) - cells)
    require(not extra, f"Table 1 has no cells {extra}")
    rows = []
    for cell in survey.itertuples():
        one = by_cell.get((cell.row, cell.attribute))
        if one is None:
            continue
        scale = SCALES[cell.aspect, cell.attribute]
        word = "-" if math.isnan(one.number) else scale.word(one.number)
        agrees = AGREES if word == cell.word else DISAGREES
        rows.append(
            {
                "row": cell.row,
                "attribute": cell.attribute,
                "survey": cell.word,
                "here": word,
                "verdict": UNKNOWN if word == "-" else agrees,
                "number": one.number,
                "source": one.source,
                "note": one.note,
            }
        )
    return pd.DataFrame(rows)


def scales_table() -> pd.DataFrame:
    """Return what every attribute's number is, and which words stand for which numbers."""
    rows = [(*key, scale.number, str(scale)) for key, scale in SCALES.items()]
    table = pd.DataFrame(rows, columns=["aspect", "attribute", "number", "words"])
    return table.sort_values(["aspect", "attribute"]).set_index(["aspect", "attribute"])


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many cells of every attribute agree, disagree, or cannot be derived."""
    counts = pd.crosstab(table["attribute"], table["verdict"])
    every = [AGREES, DISAGREES, UNKNOWN]
    return counts.reindex(index=list(dict.fromkeys(table["attribute"])), columns=every).fillna(0)


def words_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return `compared` to read, by row and attribute."""
    shown = table.assign(number=table["number"].map("{:.3g}".format))
    return shown.set_index(["row", "attribute"])


def word_findings(table: pd.DataFrame) -> Findings:
    """Return how many words agree, and which do not."""
    counts = table["verdict"].value_counts()
    against = table[table["verdict"] == DISAGREES]
    named = "; ".join(
        f"{one.row}, {one.attribute} ({one.survey} in the survey, {one.here} here)"
        for one in against.itertuples()
    )
    return findings(
        f"{counts.get(AGREES, 0)} of {len(table)} words agree, {len(against)} disagree, and "
        f"{counts.get(UNKNOWN, 0)} cannot be derived here.",
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


@dataclass(frozen=True)
class Behaviour:
    """What a worker does per gradient, on average: waits for others, exchanges, bytes sent."""

    waits: float
    exchanges: float
    bytes: float
    model_bytes: int


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
    gradients = sum(one.kind == COMPUTE for one in run.activities)
    asked = [one for one in run.activities if one.kind != COMPUTE]
    waits = sum(one.seconds > 0 for one in asked)
    model = 4 * len(team[0].parameters)
    sent = sum(run.bytes_sent)
    return Behaviour(waits / gradients, len(asked) / gradients, sent / gradients, model)


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
    needed = pd.DataFrame(
        [
            (method, rate, to_target(run, target))
            for (method, rate), runs in runs_by(curves, "method", "learning_rate").items()
            for run in runs.values()
        ],
        columns=["method", "rate", "iterations"],
    )
    rows = []
    for row, some in methods.items():
        for method in some:
            tried = needed[needed["method"] == str(training_method(method))]
            means = tried.groupby("rate")["iterations"].mean()
            best = float(means.idxmin())
            runs = tried.loc[tried["rate"] == best, "iterations"]
            reached = int((runs < math.inf).sum())
            rows.append((row, method, best, float(means.min()), reached, len(runs)))
    columns = ["row", "method", "rate", "iterations", "reached", "runs"]
    return pd.DataFrame(rows, columns=columns)


def synchronisation_numbers(
    needed: pd.DataFrame, *, workers: int = 8, steps: int = 64
) -> list[Derived]:
    """Derive the cells of the four synchronisations; ``needed`` is that of `iterations_needed`."""
    found = []
    did = {
        row: behaviour(method, workers=workers, steps=steps)
        for row, method in SYNCHRONISATION.items()
    }
    bsp = did["BSP"]
    for row, one in did.items():
        distance = distance_from_one_worker(SYNCHRONISATION[row], workers=workers)
        per_exchange = one.bytes / one.exchanges / one.model_bytes
        per_gradient = one.bytes / one.model_bytes
        same = math.isclose(per_exchange, per_gradient)
        note = "" if same else f"{per_gradient:.3g} per iteration, as exchanges are rarer"
        found += [
            Derived(row, "loss", distance, "measured", f"{workers} workers, digits"),
            Derived(
                row,
                "synchronisation frequency",
                one.waits / bsp.waits,
                "simulated",
                f"{SYNCHRONISATION[row]}, stragglers {STRAGGLER}",
            ),
            Derived(row, "communication frequency", one.exchanges, "measured", "counted"),
            Derived(row, "traffic", per_exchange, "measured", note),
            _convergence(row, needed),
        ]
    return found


def compression_numbers(
    needed: pd.DataFrame, workload: Workload, *, gpus: int = 32, workers: int = 8
) -> list[Derived]:
    """Derive the cells of the two kinds of compression from all their registered compressors.

    Traffic is that of the ``workload`` on that many ``gpus``; the rest is that of digits.
    """
    found = []
    shapes = pieces(workload, whole_model=False)
    sparse = compressions(DENSITY)
    for row, methods in compressions().items():
        shares, distances = {}, {}
        for method, travelling in zip(methods, sparse[row], strict=True):
            name = _compressor(method).name
            shares[name] = 1 / compression_ratio(_compressor(travelling), shapes, gpus)
            distances[name] = distance_from_one_worker(method, workers=workers)
        each = ", ".join(f"{name} {share:.3g}" for name, share in shares.items())
        found += [
            Derived(
                row,
                "loss",
                min(distances.values()),
                "measured",
                f"the nearest is {min(distances, key=distances.__getitem__)}",
            ),
            Derived(
                row,
                "traffic",
                median(shares.values()),
                "computed",
                f"{workload.model}, {gpus} GPUs, density {DENSITY}: {each}",
            ),
            _convergence(row, needed),
        ]
    return found


def training_numbers(needed: pd.DataFrame, workers: int) -> list[Derived]:
    """Derive the cells of synchronisation, and of compression at the traffic of ResNet-50."""
    resnet = fig4_workload("resnet50")
    return [
        *synchronisation_numbers(needed, workers=workers),
        *compression_numbers(needed, resnet, workers=workers),
    ]


def _convergence(row: str, needed: pd.DataFrame) -> Derived:
    """Derive the median over the row's methods, relative to BSP; a missed target is infinite."""
    mine = needed[needed["row"] == row]
    require(not mine.empty, f"no iterations were measured for {row}")
    [bsp] = needed.loc[needed["row"] == "BSP", "iterations"]
    require(math.isfinite(bsp), "BSP does not reach the target; take a higher loss or more steps")
    ratios = mine.set_index("method")["iterations"] / bsp
    note = f"BSP needs {bsp:.3g}"
    if len(ratios) > 1:
        each = ((_compressor(str(name)).name, ratio) for name, ratio in ratios.items())
        note = ", ".join(f"{name} {ratio:.2f}" for name, ratio in each)
    return Derived(row, "convergence", float(ratios.median()), "measured", note)


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


def _joined(job: TrainingJob) -> list:
    """Return the batches of one worker: those of all workers, one after the other."""
    batches = job.batches()

    def joined(step: int) -> Batch:
        parts = zip(*(batch(step) for batch in batches), strict=True)
        return tuple(torch.cat(part) for part in parts)

    return [joined]


SCHEDULES = {
    "pipelining (WFBP)": ("WFBP-PS", "WFBP-A2A"),
    "tensor fusion (MG-WFBP)": ("MG-WFBP",),
    "tensor partition (ByteScheduler)": ("ByteScheduler-PS", "ByteScheduler-A2A"),
}
ARCHITECTURES = {"PS": "PS", "all-to-all": "A2A"}
NETWORKS = ("fat-tree", "BCube", "torus")
FOR_EVER = 1e9  # seconds of a gradient of the worker that has stopped
STEPS = 200  # more than any registered synchronisation does without an exchange


def hidden_shares(models: Sequence[str] = tuple(BATCHES), gpus: int = 32) -> pd.DataFrame:
    """Return what every schedule hides, simulated: a row per model, network and method.

    ``hidden`` is the time saved over BSP on the same architecture, as a share of what computation
    could hide at best: the shorter one of BSP's computation and communication. Below zero where
    the schedule costs more than it hides. Columns: row, model, network, method, hidden.
    """
    rows = []
    for model in models:
        workload = fig4_workload(model)
        for network, name in CLUSTERS.items():
            cluster = get_cluster(name, gpus)
            costs = {method: iteration_cost(workload, cluster, method) for method in SURVEYED}
            for row, methods in SCHEDULES.items():
                for method in methods:
                    plain = costs[f"BSP-{SURVEYED[method].architecture}"]
                    best = min(plain.compute_seconds, plain.waiting_seconds)
                    saved = plain.iteration_seconds - costs[method].iteration_seconds
                    rows.append((row, model, network, method, saved / best))
    return pd.DataFrame(rows, columns=["row", "model", "network", "method", "hidden"])


def scheduling_numbers(hidden: pd.DataFrame, gpus: int = 32) -> list[Derived]:
    """Derive the cells of the three schedules; ``hidden`` comes from `hidden_shares`."""
    found = []
    workload = fig4_workload(str(hidden["model"].iloc[0]))
    cluster = get_cluster(next(iter(CLUSTERS.values())), gpus)
    for row, methods in SCHEDULES.items():
        plans = {name: plan_on(cluster, workload, name) for name in methods}
        sent = plans_table(plans)
        wrong = (sent["least_times_sent"] != 1) | (sent["most_times_sent"] != 1)
        mine = hidden.loc[hidden["row"] == row, "hidden"]
        note = f"from {mine.min():.2f} to {mine.max():.2f} over {len(mine)} cells, {gpus} GPUs"
        found += [
            Derived(row, "loss", float(wrong.mean()), "computed", f"plans of {workload.model}"),
            Derived(row, "efficiency", float(mine.median()), "simulated", note),
        ]
    return found


def architecture_numbers(workers: int = 32) -> list[Derived]:
    """Derive the cells of parameter servers and all-to-all."""
    byte = AlphaBeta(0.0, 1.0)
    server = push_pull(byte, workers, 1).seconds_per_byte
    many = push_pull(byte, workers, workers).seconds_per_byte
    ring = ring_all_reduce(byte, workers).seconds_per_byte
    found = [
        Derived(
            "PS",
            "traffic",
            server,
            "computed",
            f"{workers} workers, one server; {many:g} with as many servers as workers",
        ),
        Derived("all-to-all", "traffic", ring, "computed", f"a ring of {workers} workers"),
    ]
    for row, architecture in ARCHITECTURES.items():
        shares = work_without_one(architecture)
        best = max(shares, key=shares.__getitem__)
        said = f"{best}; bsp {shares['bsp']:.2g}"
        if architecture == "PS":
            said += "; a server that stops, stops all"
        found.append(Derived(row, "robustness", shares[best], "simulated", said))
    return found


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


def protocol_numbers() -> list[Derived]:
    """Derive the cells of the three protocols from the survey's own messages (A14 and A15)."""
    latencies = quoted_fits()["latency_us"]
    least = latencies.min()
    said = facts()
    found = []
    for row in dict.fromkeys(one["protocol"] for one in said if one["property"] == "latency"):
        networks = [
            one["value"] for one in said if one["protocol"] == row and one["property"] == "network"
        ]
        if not networks:
            note = "the survey quotes no message of it, and there is no such card here"
            found.append(Derived(row, "latency", math.nan, "computed", note))
            continue
        each = ", ".join(f"{name} {latencies[name]:.3g} us" for name in networks)
        number = min(latencies[name] for name in networks) / least
        note = f"fits of quoted messages: {each}"
        found.append(Derived(row, "latency", float(number), "computed", note))
    return found


def network_of(name: str, hosts: int) -> Topology:
    """Return the network of Table 1 with this many hosts: BCube of two levels, a square torus.

    Raises InputError for a size that it does not have.
    """
    side, ports = math.isqrt(hosts), round((4 * hosts) ** (1 / 3))
    made: Topology = {
        "fat-tree": lambda: FatTree(ports),
        "BCube": lambda: BCube(side, 2),
        "torus": lambda: Torus(side, side),
    }[name]()
    require(made.hosts == hosts, f"no {name} has {hosts} hosts; 16 and 1024 fit all networks")
    return made


def network_rings(name: str, hosts: int) -> list[Ring]:
    """Build and check the rings that fit a network at once; no more than these are possible."""
    topology = network_of(name, hosts)
    made = topology.network(1.0)
    if isinstance(topology, FatTree):
        rings = fat_tree_ring(topology.ports)
    elif isinstance(topology, BCube):
        rings = bcube_rings(topology.ports)
    else:
        rings = torus_rings(math.isqrt(hosts))
    check_rings(made, rings)
    if len(rings) != rings_bound(made):
        raise AssertionError(f"{made!r} could carry more rings")
    return rings


def network_table(servers: int = 16, failures: int = 2, draws: int = 2000) -> pd.DataFrame:
    """Return the networks of Table 1 at this size: what they cost, and what they give.

    rings: through all servers, at once (see `network_rings`). rings_per_link: of a server's links.
    survival: the share of random losses of ``failures`` links that leave all servers connected.
    cutting: link failures that it takes to cut a server off. halves: links between halves.
    """
    rows = {}
    for name in NETWORKS:
        network = network_of(name, servers).network(1.0)
        made = Structure(network)
        rings = len(network_rings(name, servers))
        rows[name] = {
            "servers": network.ranks,
            "switches": network.switches,
            "links": network.cables,
            "links_per_server": made.degree(0),
            "diameter": made.diameter,
            "mean_hops": made.mean_hops,
            "halves": made.bisection,
            "rings": rings,
            "rings_per_link": rings / made.degree(0),
            "cutting": made.weakest_host,
            "survival": made.survival(failures, draws),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def topology_numbers(table: pd.DataFrame, failures: int = 2) -> list[Derived]:
    """Derive the cells of the three topologies from `network_table` with the same ``failures``."""
    found = []
    for name, row in table.iterrows():
        found += [
            Derived(
                str(name),
                "efficiency",
                float(row["rings"]),
                "computed",
                f"{row['rings_per_link']:g} per link of a server; mean path {row['mean_hops']:.2f} "
                f"links, {row['halves']:g} links between halves",
            ),
            Derived(
                str(name),
                "robustness",
                float(row["survival"]),
                "simulated",
                f"{failures} of {row['links']:g} links lost; {row['cutting']:g} cut a server off",
            ),
        ]
    return found


def median_hidden(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return medians of `hidden_shares` over the models: a row per method, a column per network."""
    table = hidden.pivot_table("hidden", "method", "network", aggfunc=median, sort=False)
    return table[list(dict.fromkeys(hidden["network"]))].round(2)


def network_costs(networks: pd.DataFrame) -> pd.DataFrame:
    """Return `network_table` to read."""
    names = {
        "links_per_server": "links per server",
        "mean_hops": "mean path (links)",
        "halves": "links between halves",
        "rings_per_link": "rings per link of a server",
        "cutting": "failures to cut a server off",
        "survival": "survival (%)",
    }
    shown = networks.assign(survival=(100 * networks["survival"]).round(1))
    return shown.round({"mean_hops": 2}).rename(columns=names)


def system_numbers(hidden: pd.DataFrame, networks: pd.DataFrame, failures: int) -> list[Derived]:
    """Derive the cells of scheduling, architecture, protocol and topology."""
    return [
        *scheduling_numbers(hidden),
        *architecture_numbers(),
        *protocol_numbers(),
        *topology_numbers(networks, failures),
    ]


COLOURS = {AGREES: "#cde8dd", DISAGREES: "#f7d3bd", UNKNOWN: "#e2e2e2"}
CELL = (1.75, 0.44)  # inches


@styled
def attribute_cells(table: pd.DataFrame) -> Figure:
    """Every cell of Table 1: above the survey's word, below that of this edition and its number.

    ``table`` is from `ddlnb.survey.table1_attributes.compared`.
    """
    rows = list(table["row"].unique())
    columns = list(table["attribute"].unique())
    width, height = CELL
    size = (2.6 + width * len(columns), 1.6 + height * len(rows))
    figure, ax = plt.subplots(figsize=size)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    for _, cell in table.iterrows():
        _draw(ax, columns.index(cell["attribute"]), rows.index(cell["row"]), cell)
    ax.set_xticks([i + 0.5 for i in range(len(columns))], [c.replace(" ", "\n") for c in columns])
    ax.set_yticks([i + 0.5 for i in range(len(rows))], rows)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    counts = table["verdict"].value_counts()
    handles = [
        Patch(color=colour, label=f"{verdict}: {counts.get(verdict, 0)}")
        for verdict, colour in COLOURS.items()
    ]
    legend(figure, handles, "lower left", columns=len(COLOURS))
    sources = ", ".join(sorted(set(table["source"])))
    note(figure, f"first line: the survey's word (Table 1); second: ours, by a number: {sources}")
    return figure


def _draw(ax: Axes, x: int, y: int, cell: pd.Series) -> None:
    colour, number = COLOURS[cell["verdict"]], float(cell["number"])
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
    ours = "no number" if math.isnan(number) else f"{cell['here']} ({_short(number)})"
    ax.text(x + 0.5, y + 0.28, cell["survey"], ha="center", va="center", fontsize=9)
    ax.text(x + 0.5, y + 0.7, ours, ha="center", va="center", fontsize=9, weight="bold")


def _short(number: float) -> str:
    return "never" if math.isinf(number) else f"{number:.2g}"
