"""Table 1, level 1: numbers for synchronisation and compression, from small runs in lockstep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from ddlnb.calibration.testbed import fig4_workload
from ddlnb.compression.base import Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.literature import QUANTISATION, SPARSIFICATION
from ddlnb.compression.sparsifier import Sparsifier
from ddlnb.errors import require
from ddlnb.studies.table1_attributes.attributes import Derived
from ddlnb.training.cost.tensors import pieces
from ddlnb.training.cost.traffic import compression_ratio
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.executors.stragglers import get_straggler
from ddlnb.training.job import TrainingJob
from ddlnb.training.method import training_method
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.compare import compare
from ddlnb.training.runs.summaries import to_target
from ddlnb.training.settings import training_settings
from ddlnb.training.tasks.catalogue import get_learning_task
from ddlnb.training.worker import Worker
from ddlnb.workloads.tasks import Batch
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

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
    gradients = sum(one.computes for one in run.activities)
    asked = [one for one in run.activities if not one.computes]
    waits = sum(one.end > one.start for one in asked)
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
    import pandas as pd

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
