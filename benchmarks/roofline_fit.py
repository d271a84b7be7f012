"""Fit what programs reach of data sheets to open measurements, and leave models out to check it.

The observations are the survey's rates of one GPU, iterations that were measured on an H100 and an
H200, rates of one GPU in open tables (and of the fewest where those are at most `FEWEST`), and
single nodes of published runs of large models without tensor or pipeline parallelism. What several
GPUs of one node send is mostly hidden. Parameters are positive; priors and errors are normal in
logarithms. Runs of one source on one GPU count together, for every kind of program, as much as
`WEIGHT` independent ones: they share their software.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from ddlnb.calibration.data_parallel import Run, runs
from ddlnb.calibration.fit import Numbers, Prior, Problem
from ddlnb.calibration.posterior import Posterior, laplace
from ddlnb.files import DATA, PUBLISHED
from ddlnb.hardware.catalogue import get_gpu
from ddlnb.hardware.gpu import Gpu
from ddlnb.simulator.draws import Z90
from ddlnb.survey.testbed import BATCHES, HARDWARE, fig4_workload
from ddlnb.units import US
from ddlnb.workloads.roofline import (
    CONVOLUTIONS,
    EAGER,
    MATRIX_CONVOLUTIONS,
    OTHER,
    OTHER_CONVOLUTIONS,
    SOFTWARE,
    WINOGRAD_PRECISION,
    convolves,
    halves_sums,
    kind_of,
    others_of,
    passes_of,
    written,
)
from ddlnb.workloads.workload import Work, Workload

MEMORY, IMAGES, HOST, WINOGRAD = "memory", "memory of convolutions", "host", "winograd"
GRAPH, FP8, SUMS = "graph", "fp8", "sums"
WRITTEN = [one for one in SOFTWARE if one != EAGER]
MOVED = {
    (convolves, software): f"moved, {written(CONVOLUTIONS if convolves else 'others', software)}"
    for software in WRITTEN
    for convolves in (True, False)
}
ITERATIONS = DATA / "measured" / "2026-11-22_h100"
AGAIN = DATA / "measured" / "2026-11-23_h200"  # the same cells on another GPU
FEWEST = 16  # GPUs of a node, in tables that have no rate of one
LEAST = 0.05  # of a data sheet's FLOP/s: what reaches less is held up by something else
PRECISIONS = ("fp32", "tf32", "bf16")  # of measured iterations; torch.autocast is another program
ERROR = 0.1  # standard deviation of a logarithm that a formula of few numbers leaves
WEIGHT = 3
LONGEST = 16_384  # tokens; attention to longer sequences is another program
# Value and standard deviation of the logarithm, before any observation.
PRIORS = {
    "cores": (0.8, 0.3), MATRIX_CONVOLUTIONS: (0.4, 0.7), MEMORY: (0.75, 0.2), IMAGES: (0.6, 0.5),
    HOST: (15 * US, 0.7),
    WINOGRAD: (2.0, 0.25),  # F(2x2, 3x3) takes 2.25 times fewer products, F(4x4, 3x3) 4 times
    **dict.fromkeys((written(MATRIX_CONVOLUTIONS, one) for one in WRITTEN), (0.45, 0.5)),
    **dict.fromkeys(MOVED.values(), (0.7, 0.4)),
    GRAPH: (10 * US, 0.5),  # a judgement: graphs are handed over without Python
    FP8: (0.7, 0.15),  # a judgement: of twice the FLOP/s, casts and scales leave 1.4
    SUMS: (1.4, 0.4),  # between half the rate, by sheets, and all of it
}  # fmt: skip
SHARED = (
    MEMORY,
    IMAGES,
    HOST,
    WINOGRAD,
    GRAPH,
    FP8,
    SUMS,
    *MOVED.values(),
)  # among all kinds of programs
# Of any generation of GPUs, by the kind that stands for others.
GENERATIONS = {OTHER: (0.7, 0.3), OTHER_CONVOLUTIONS: (0.6, 0.5)}
ALIKE = 0.3  # standard deviation of the logarithm between generations
BOUND = 60 * US  # of the host where the fit begins, so that runs that it holds up say so
VOCABULARIES = {"foundry": 50_368}  # padded, in place of the vocabulary that its table does not say


@dataclass(frozen=True)
class Measured:
    """Seconds of an iteration on one GPU, and the work of every pass through every layer in it."""

    name: str
    model: str
    gpu: Gpu
    precision: str
    work: tuple[Work, ...]
    seconds: float
    source: str
    convolves: bool = False
    software: str = EAGER

    @property
    def kind(self) -> str:
        """What computes its matrix products, or its convolutions."""
        return kind_of(self.gpu, self.precision, self.convolves, self.software)

    @property
    def halves_sums(self) -> bool:
        """Whether the sheet has half the rate for sums in fp32."""
        return halves_sums(self.gpu, self.precision)

    @cached_property
    def total(self) -> Work:
        """The work of all passes together, with the operations that the host hands over."""
        whole = sum(self.work, Work())
        return replace(whole, operations=sum(one.launches for one in self.work))

    @property
    def utilisation(self) -> float:
        """The share of the data sheet's FLOP/s."""
        return self.total.flops / self.gpu.peak(self.precision) / self.seconds


def measured() -> list[Measured]:
    """Return all observations."""
    on_others = _iterations("H200", AGAIN, "iterations again")
    return [*_survey(), *_foundry(), *_nanotron(), *_iterations(), *on_others, *_tables()]


def on_one_h100() -> list[Measured]:
    """Return what was there when iterations had been measured on an H100: no model is traced."""
    return [*_survey(), *_foundry(), *_iterations()]


@functools.cache
def _tables() -> list[Measured]:
    """Return the rates of one GPU, or of a node, in tables of data-parallel runs."""
    found = [
        _of_run(run)
        for run in runs()
        if run.gpus == 1 or (run.gpus <= FEWEST and run.source in ("dgx", "mlperf"))
    ]
    return [one for one in found if one.utilisation > LEAST]


def _of_run(run: Run) -> Measured:
    workload, precision = run.micro_batch, run.computed
    passes = passes_of(workload, precision, run.software)
    return Measured(
        f"{run.group}, {run.gpus} GPUs",
        run.model,
        get_gpu(run.gpu),
        precision,
        (sum((one for way in passes for one in way.values()), Work()),),
        run.gpus * run.batch / run.measured,
        run.source,
        convolves(workload),
        run.software,
    )


def _survey() -> list[Measured]:
    rows = pd.read_csv(PUBLISHED / "fig4.csv").query("method == 'single'")
    rates = dict(zip(rows["model"], rows["throughput_samples_per_s"], strict=True))
    return [
        Measured(
            model, model, get_gpu(HARDWARE), "fp32", all_passes(workload, "fp32"),
            workload.local_batch / rates[model], "survey", convolves(workload),
        )
        for model, workload in ((model, fig4_workload(model)) for model in BATCHES)
    ]  # fmt: skip


def _foundry() -> list[Measured]:
    rows = pd.read_csv(PUBLISHED / "foundry_a100_80gb_upto16.csv")
    rows = rows.query("num_gpus == 8 and status == 'ok' and precision == 'amp_bf16'")
    return [
        Measured(
            f"{row.model}, {row.seq_len:.0f} tokens",
            row.model,
            get_gpu("A100-80GB"),
            "bf16",
            decoder(
                row.hidden, row.layers, int(row.seq_len), VOCABULARIES["foundry"],
                row.micro_batch, 4 * row.hidden, recomputed=row.activation_checkpointing == "full",
            ),
            row.micro_batch * row.seq_len / row.tokens_per_s_per_gpu,
            "foundry",
        )
        for row in rows.itertuples()
        if row.seq_len <= LONGEST
    ]  # fmt: skip


def _nanotron() -> list[Measured]:
    rows = pd.read_csv(PUBLISHED / "nanotron_h100_upto64.csv")
    rows = rows.query("num_gpus == 8 and status == 'ok' and pp == 1 and tp == 1")
    return [
        Measured(
            f"{row.model}, micro batch {row.micro_batch}, ZeRO {row.zero_stage}",
            row.model,
            get_gpu("H100"),
            "bf16",
            decoder(
                row.hidden, row.layers, int(row.seq_len), row.vocab, row.micro_batch, row.ffn,
                is_gated=True,
            ),
            row.micro_batch * row.seq_len / row.tokens_per_s_per_gpu,
            "nanotron",
        )
        for row in rows.itertuples()
    ]  # fmt: skip


def _iterations(
    gpu: str = "H100", folder: Path = ITERATIONS, source: str = "iterations"
) -> list[Measured]:
    rows = pd.read_csv(folder / "iterations.csv").dropna(subset="seconds")
    rows = rows[rows["precision"].isin(PRECISIONS)]
    rows = rows.merge(pd.read_csv(ITERATIONS / "work.csv"), on=["model", "batch", "precision"])
    return [
        Measured(
            f"{row.model}, batch {row.batch}, {row.precision}",
            row.model,
            get_gpu(gpu),
            row.precision,
            (Work(row.flops, row.matrix_bytes, row.bytes, row.operations, row.winograd_flops),),
            row.seconds,
            source,
            bool(row.convolves),
        )
        for row in rows.itertuples()
    ]


def all_passes(workload: Workload, precision: str) -> tuple[Work, ...]:
    """Return the work of every pass through every layer in an iteration."""
    forward, backward = passes_of(workload, precision)
    return (*forward.values(), *backward.values())


def total_work(workload: Workload, precision: str) -> dict[str, float | bool]:
    """Return the work of an iteration, as a row of what was measured has it."""
    passes = all_passes(workload, precision)
    return {
        "flops": sum(one.flops for one in passes),
        "matrix_bytes": sum(one.matrix_bytes for one in passes),
        "bytes": sum(one.bytes for one in passes),
        "operations": sum(one.launches for one in passes),
        "winograd_flops": sum(one.winograd_flops for one in passes),
        "convolves": convolves(workload),
    }


def decoder(
    hidden: int,
    layers: int,
    sequence: int,
    vocabulary: int,
    batch: int,
    inner: int,
    *,
    is_gated: bool = False,
    recomputed: bool = False,
) -> tuple[Work, ...]:
    """Return the passes of a decoder in half precision, with fused attention and activations.

    A block has its matrix products, the attention, and one pass of what has no FLOPs: two norms
    that read twice and write once, the activation, and two residual additions of three tensors.
    """
    tokens, half = batch * sequence, 2
    shapes = [(hidden, 3 * hidden), (hidden, hidden), (inner, hidden)]
    shapes += [(hidden, inner)] * (2 if is_gated else 1)
    block = [_product(tokens, *shape, half) for shape in shapes]
    attention = 4.0 * tokens * sequence * hidden
    block.append(Work(attention, half * 4.0 * tokens * hidden, 0.0))
    values = 2 * 3 * hidden + (3 if is_gated else 2) * inner + 2 * 3 * hidden
    block.append(Work(0.0, 0.0, float(half * tokens * values)))
    head = [
        _product(tokens, hidden, vocabulary, half),
        Work(0.0, 0.0, 6.0 * tokens * vocabulary),
    ]
    forward = block * layers
    backward = [work.times(2.0) for work in [*forward, *head]]
    return (*forward, *head, *backward, *(forward if recomputed else ()))


def _product(rows: int, inner: int, columns: int, size: int) -> Work:
    moved = size * (rows * inner + rows * columns + inner * columns)
    return Work(2.0 * rows * inner * columns, float(moved), 0.0)


@dataclass(frozen=True)
class Fit:
    """The fitted parameters: those of the data sheet's kinds, and the shared ones."""

    posterior: Posterior

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return self.posterior.prior.names

    def interval(self, name: str) -> tuple[float, float, float]:
        """Return the value of a parameter, and its 90 % interval."""
        at = self.names.index(name)
        reach = Z90 * self.posterior.spread[at]
        value, low, high = np.exp(self.posterior.mode[at] + np.array([0.0, -reach, reach]))
        return float(value), float(low), float(high)

    def seconds(self, one: Measured) -> float:
        """Return the estimated seconds of an observation; any kind of matrix units is its own."""
        return float(_seconds(self.names, np.exp(self.posterior.mode)[None], [one])[0, 0])


def fit_roofline(observations: Sequence[Measured]) -> Fit:
    """Return the fit to observations. Generations of GPUs share a prior of their mean.

    What no observation tells of stays at its prior: kinds that were left out.
    """
    always = {*PRIORS, *GENERATIONS} - {*SHARED}
    kinds = sorted({one.kind for one in observations} | always)
    names = (*kinds, *SHARED)
    known = np.array([PRIORS.get(name) or GENERATIONS[others_of(name)] for name in names])
    alike = [
        (i, names.index(others_of(name)), ALIKE)
        for i, name in enumerate(names)
        if name not in (*PRIORS, *GENERATIONS)
    ]
    groups = [(one.gpu.name, one.source, one.kind) for one in observations]

    def predict(values: Numbers, about: Numbers | None) -> Numbers:
        return _seconds(names, values, observations)

    problem = Problem(
        predict,
        np.array([one.seconds for one in observations]),
        ERROR / np.array([min(1.0, np.sqrt(WEIGHT / groups.count(name))) for name in groups]),
        Prior(names, np.log(known[:, 0]), known[:, 1], alike=tuple(alike)),
    )
    start = problem.prior.mean.copy()
    start[names.index(HOST)] = np.log(BOUND)
    return Fit(laplace(problem, problem.minimise(start).x))


def _seconds(names: Sequence[str], values: Numbers, runs: Sequence[Measured]) -> Numbers:
    """Return estimated seconds, a row for every row of values, a column for every run.

    They are those of totals: of measured work nothing else is kept. `estimate` lets the host hold
    up every pass, which takes a little longer where host and GPU need about the same.
    """
    known = np.column_stack([values, np.ones(len(values))])
    at = {name: position for position, name in enumerate(names)} | {"": -1}

    def of(name: Callable[[Measured], str]) -> Numbers:
        return known[:, [at[name(one)] for one in runs]]

    def each(number: Callable[[Measured], float]) -> Numbers:
        return np.array([number(one) for one in runs])

    fewer = of(lambda one: WINOGRAD if one.precision == WINOGRAD_PRECISION else "")
    flops = each(lambda one: one.total.flops)
    flops = flops - each(lambda one: one.total.winograd_flops) * (1 - 1 / fewer)
    reached = of(lambda one: one.kind if one.kind in at else others_of(one.kind))
    reached = reached * of(lambda one: FP8 if one.precision == FP8 else "")
    reached = reached * of(lambda one: SUMS if one.convolves and one.halves_sums else "")
    computing = flops / (each(lambda one: one.gpu.peak(one.precision)) * reached)
    moved = of(lambda one: MOVED.get((one.convolves, one.software), ""))
    moved = each(lambda one: one.total.matrix_bytes) + moved * each(lambda one: one.total.bytes)
    bandwidth = each(lambda one: one.gpu.memory_bandwidth)
    moving = moved / (bandwidth * of(lambda one: IMAGES if one.convolves else MEMORY))
    host = of(lambda one: HOST if one.software == EAGER else GRAPH)
    found: Numbers = np.maximum(computing + moving, each(lambda one: one.total.operations) * host)
    return found


def leave_out(observations: Sequence[Measured]) -> list[dict[str, object]]:
    """Return every observation, estimated without those of its model, its GPU's, or its table's.

    Beside it stands the trivial forecast: the median utilisation of the runs that are left, of the
    same GPU if there are any.
    """
    rows: list[dict[str, object]] = []
    for what in ("model", "gpu", "source"):
        keys = [
            one.source if what == "source" else (one.gpu.name, one.model if what == "model" else "")
            for one in observations
        ]
        for key in dict.fromkeys(keys):
            known = [one for one, its in zip(observations, keys, strict=True) if its != key]
            fit = fit_roofline(known)
            rows += [
                {
                    "left_out": what, "gpu": one.gpu.name, "precision": one.precision,
                    "kind": one.kind, "software": one.software, "convolves": one.convolves,
                    "run": one.name, "source": one.source,
                    "measured_seconds": one.seconds, "estimated_seconds": fit.seconds(one),
                    "constant_utilisation_seconds": _constant(one, known),
                }
                for one, its in zip(observations, keys, strict=True) if its == key
            ]  # fmt: skip
    return rows


def _constant(one: Measured, known: Sequence[Measured]) -> float:
    """Return the seconds at the median utilisation of the known runs."""
    same = [other.utilisation for other in known if other.gpu == one.gpu]
    usual = np.median(same or [other.utilisation for other in known])
    return float(one.utilisation * one.seconds / usual)
