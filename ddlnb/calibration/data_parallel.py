"""Published data-parallel runs as questions that are asked by hardware name, and their answers.

A row of a table becomes what a user would ask: a GPU, how many, how many a node has, a network, a
model, a batch, a precision. One GPU is forecast from its data sheet; more of them by the rate that
the same table has for one, or, where it has none, by that of its fewest GPUs. Rows whose rate the
input pipeline limits are named by the rules of data/published/README.md, and models that have no
name here are left out (`LEFT_OUT`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.named import cluster_of
from ddlnb.files import PUBLISHED
from ddlnb.hardware.catalogue import get_gpu, gpu_in
from ddlnb.hardware.gpu import Gpu
from ddlnb.plans.methods import get_method
from ddlnb.simulator.forecast import forecast_cells
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.roofline import estimate
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Layer, Work, Workload

ONE, SEVERAL, SHEET = "one GPU", "several", "several, by the sheet"
NAMES = {
    "ResNet-50 v1.5": "resnet50", "BERT-base": "bert-base", "BERT-Large": "bert-large",
    "resnet": "resnet50", "bert": "bert-large",
    **{name: name for name in ("resnet50", "resnet101", "resnet152", "vgg16")},
}  # fmt: skip
LEFT_OUT = {
    "InsightFace": "its classifier is model-parallel",
    "Transformer-XL": "its recurrence over segments has no name here",
    "BART": "its pairs of sequences have no name here",
    "resnext": "its grouped convolutions have no name here",
    "alexnet": "it has no name here",
    "inception": "it has no name here",
}
# Sequences of 512 are packed, and half of their tokens would be padding: M. Krell et al., Efficient
# sequence packing without cross-contamination (arXiv 2107.02027), figure 1.
PACKED = 256
XLA = "XLA"
# Most programs hand gradients over while they are made; XLA when its graph is through, TensorFlow's
# strategies when they apply them, NVIDIA's BERT when it has 250,000,000 numbers: at the end.
METHOD, AT_THE_END = "DDP", "BSP-A2A"
SMALL = 16, 32  # batches that are traced


@dataclass(frozen=True)
class Run:
    """A published run as a question; ``group`` are runs that differ by the number of GPUs alone.

    ``measured`` are the samples/s of all GPUs, ``limited`` says why their input pipeline limits it.
    """

    source: str
    group: str
    model: str
    gpu: str
    gpus: int
    gpus_per_node: int
    network: str
    batch: int
    precision: str
    software: str
    measured: float
    sequence: int | None = None
    accumulate: int = 1
    limited: str = ""
    method: str = METHOD

    @property
    def on(self) -> Cluster:
        """The cluster, by the names of its hardware."""
        per_node = min(self.gpus, self.gpus_per_node)
        nodes = math.ceil(self.gpus / per_node)
        cluster = cluster_of(self.gpu, nodes, per_node, self.network if nodes > 1 else "")
        return cluster.with_workers(self.gpus)

    def cell(self, workload: Workload) -> Cell:
        """Return what is simulated."""
        return Cell(workload, self.on, get_method(self.method))

    @property
    def micro_batch(self) -> Workload:
        """What a GPU computes between two exchanges or less, without seconds."""
        return _traced(self.model, self.batch, self.sequence)

    @property
    def computed(self) -> str:
        """The precision of matrix products."""
        return {"amp/fp16": "fp16"}.get(self.precision, self.precision)

    def workload(self, rate: float | None = None) -> Workload:
        """Return what a GPU computes, by its data sheet or at samples/s that are told."""
        found = estimate(
            self.micro_batch,
            self.gpu,
            self.computed,
            samples_per_second=rate,
            software=self.software,
        )
        return found.accumulated(self.accumulate)


def runs() -> list[Run]:
    """Return all runs whose model has a name here, in the order of the tables."""
    return [run for read in TABLES.values() for run in read()]


def forecasts(asked: list[Run] | None = None, *, draws: int = 40) -> pd.DataFrame:
    """Return a tidy row per run: measured and forecast samples/s, interval, trivial forecast.

    ``kind`` is `ONE`, `SEVERAL` (the rate of one GPU told, or of the fewest) or `SHEET` (nothing
    told). The trivial forecast of several is linear scaling; that from a data sheet is the median
    share of the sheet's FLOP/s that the other sources reach with such a precision.
    """
    asked = runs() if asked is None else asked
    questions: list[tuple[str, Run, Workload, float]] = []
    fewest: dict[str, Run] = {}
    for run in sorted(asked, key=lambda one: one.gpus):
        told = fewest.setdefault(run.group, run)
        if told is run:
            sheet = run.workload()
            questions.append((ONE if run.gpus == 1 else SHEET, run, sheet, math.nan))
        elif told.gpus < run.gpus:
            linear = told.measured / told.gpus
            questions.append((SEVERAL, run, run.workload(_alone(told)), linear * run.gpus))
    rows = forecast_cells([run.cell(workload) for _, run, workload, _ in questions], draws=draws)
    found = pd.DataFrame(
        {
            "source": [run.source for _, run, _, _ in questions],
            "run": [f"{run.group}, {run.gpus} GPUs" for _, run, _, _ in questions],
            "kind": [kind for kind, _, _, _ in questions],
            "gpus": [run.gpus for _, run, _, _ in questions],
            "software": [run.software for _, run, _, _ in questions],
            "precision": [run.precision for _, run, _, _ in questions],
            "limited": [run.limited for _, run, _, _ in questions],
            "measured": [run.measured for _, run, _, _ in questions],
            "forecast": rows["throughput_samples_per_s"],
            "low": rows["low"],
            "high": rows["high"],
            "trivial": [linear for _, _, _, linear in questions],
            "whole": [_at_full_rate(run, workload) for _, run, workload, _ in questions],
        }
    )
    found["trivial"] = found["trivial"].fillna(_constant_share(found))
    return found.drop(columns="whole")


def _alone(told: Run) -> float:
    """Return the samples/s of one GPU that explain those of the fewest GPUs that were measured."""
    rate = told.measured / told.gpus
    if told.gpus == 1:
        return rate
    cells = [told.cell(told.workload(rate))]
    reached = float(forecast_cells(cells, draws=0)["throughput_samples_per_s"].iloc[0])
    return rate * told.measured / reached


def _at_full_rate(run: Run, workload: Workload) -> float:
    """Return the samples/s of all GPUs at the FLOP/s of their data sheet."""
    return run.gpus * get_gpu(run.gpu).peak(run.computed) / (workload.flops / workload.local_batch)


def _constant_share(rows: pd.DataFrame) -> pd.Series:
    """Return samples/s at the median share that rows of other sources reach of full rates."""
    share = rows["measured"] / rows["whole"]
    cores = rows["precision"] == "fp32"
    usual = [
        share[(rows["source"] != row.source) & (cores == (row.precision == "fp32"))].median()
        for row in rows.itertuples()
    ]
    return rows["whole"] * usual


@functools.cache
def _traced(model: str, batch: int, sequence: int | None) -> Workload:
    """Return the traced workload at a batch, along the line through those at two small ones."""
    few, more = (_small(model, size, sequence) for size in SMALL)
    share = (batch - SMALL[0]) / (SMALL[1] - SMALL[0])

    def at(one: Work, other: Work) -> Work:
        return one + (other - one).times(share)

    layers = [
        Layer.of(one.name, at(one.forward, other.forward), at(one.backward, other.backward))
        for one, other in zip(few.layers, more.layers, strict=True)
    ]
    return replace(few, layers=tuple(layers), local_batch=batch)


@functools.cache
def _small(model: str, batch: int, sequence: int | None) -> Workload:
    task = get_task(model)
    return trace(task if sequence is None else task.with_sequence(sequence), batch)


def _read(table: str) -> pd.DataFrame:
    rows = pd.read_csv(PUBLISHED / f"{table}.csv", comment="#")
    return rows[rows["model"].isin(list(NAMES))] if "model" in rows else rows


def _software(framework: str) -> str:
    """Return how a program was written, by its framework's name."""
    if "NVIDIA" in framework:
        return "tuned"
    return "eager" if "PyTorch" in framework else "compiled"


def _dlperf() -> Iterator[Run]:
    """Yield the runs of DLPerf; between nodes TensorFlow's strategies have TCP, others InfiniBand.

    Nothing says so but their seconds: what more nodes cost is the same at every batch and in both
    precisions, three times what InfiniBand takes for gradients in fp32, and what TCP takes.
    """
    for row in _read("dlperf_v100").itertuples():
        bert = row.model == "BERT-base"
        strategy = bert and row.framework.startswith("TensorFlow")
        at_the_end = strategy or (bert and row.framework == "NVIDIADeepLearningExamples/PyTorch")
        precision = str(row.precision)
        limited = not bert and precision == "amp/fp16" and row.num_gpus >= 16
        setting = " ".join(re.findall(r"clip|static|worker=\d+|DALI|with amp|dynamic", row.table))
        name = (row.framework, row.model, precision, f"batch {row.micro_batch:.0f}", row.notes)
        yield Run(
            "dlperf", f"{', '.join(name)} {setting}", NAMES[row.model], "V100-SXM2-16GB",
            int(row.num_gpus), int(row.gpus_per_node), "100GbE" if strategy else "100GbIB",
            int(row.micro_batch), precision, _software(row.framework), row.samples_per_s,
            128 if bert else None,
            limited="mixed precision on 16 and more" if limited else "",
            method=AT_THE_END if at_the_end else _method(row.notes),
        )  # fmt: skip


def _dgx() -> Iterator[Run]:
    for row in _read("dgx_bert_multinode").itertuples():
        precision, sequence = str(row.precision), int(row.seq_len)
        yield Run(
            "dgx", f"{row.framework}, {row.model}, {precision}, {sequence} tokens",
            NAMES[row.model], "A100-80GB", int(row.num_gpus), 8, "8x200GbIB",
            int(row.micro_batch), precision, "tuned", row.samples_per_s, sequence,
            int(row.grad_accum),
        )  # fmt: skip


def _mlperf() -> Iterator[Run]:
    for row in _read("mlperf_resnet_bert").dropna(subset="throughput").itertuples():
        gpu = gpu_in(str(row.accelerator))
        if gpu is None:
            continue
        count, per_node = int(row.accelerators), int(row.accelerators_per_node)
        bert, grad_accum = row.benchmark == "bert", int(row.grad_accum)
        yield Run(
            "mlperf", f"{row.source[-4:]}, {row.submitter}, {row.system}, {row.benchmark}",
            NAMES[row.benchmark], gpu.name, count, per_node, _network(str(row.host_networking)),
            int(row.global_batch_size / count / grad_accum), _half(gpu, bert=bert), "tuned",
            row.throughput, PACKED if bert else None, grad_accum,
        )  # fmt: skip


def _half(gpu: Gpu, *, bert: bool) -> str:
    """Return how vendors train: BERT in fp8 where a GPU has it."""
    return "fp8" if bert and "fp8" in gpu.flops else "amp/fp16"


def _network(words: str) -> str:
    """Return the network that computation uses, in words that are read; "" for the usual one.

    >>> _network("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s")
    '8x400GbIB'
    """
    compute = words.partition("Compute:")[2] or words
    found = re.search(
        r"(\d+) ?x [^,;:+]*?(IB|InfiniBand|NDR|HDR|EDR)[^,;:+]*?(\d+)\s*Gb ?/ ?s", compute, re.I
    )
    return f"{found[1]}x{found[3]}GbIB" if found else ""


def _lambda() -> Iterator[Run]:
    rows = _read("lambda_single_node_tf")
    for row in rows.itertuples():
        gpu = gpu_in(row.machine.replace("_", " "))
        assert gpu is not None, row.machine
        fast = row.precision == "fp32" and "tf32" in gpu.flops and "TF" not in row.machine
        precision = {"fp16": "amp/fp16"}.get(row.precision, "tf32" if fast else "fp32")
        count = re.search(r"(\d+)x", row.machine)
        machine = row.machine.replace(f"{count[1]}x", "") if count else row.machine
        yield Run(
            "lambda", f"{machine}, {row.model}, {row.precision}, batch {row.batch_per_gpu}",
            NAMES[row.model], gpu.name, int(row.gpus), 8, "", int(row.batch_per_gpu), precision,
            "compiled", row.images_per_sec,
            limited=_limit(row, precision), method=_method(row.machine),
        )  # fmt: skip


def _limit(row: Any, precision: str) -> str:
    """Return what else than GPUs and links limits a row of Lambda's, by the README's rules."""
    if precision != "amp/fp16" or row.gpus == 1:
        return ""
    if row.gpus == 8 and "GeForce" in row.machine:
        return "eight consumer cards in fp16"
    normalises = row.model.startswith("resnet")
    return "" if XLA in row.machine or not normalises else "fp16 without XLA"


def _method(words: str) -> str:
    return AT_THE_END if XLA in words else METHOD


def _ddp() -> Iterator[Run]:
    for row in _read("pytorch_ddp_benchmark_readme").query("ddp == 'yes'").itertuples():
        yield Run(
            "pytorch ddp", f"{row.model}, {row.percentile}, buckets {row.bucket_cap_mb}",
            NAMES[row.model], "V100", int(row.gpus), 8, "4x100GbIB", int(row.batch_per_gpu),
            "fp32", "eager", row.gpus * row.examples_per_sec_per_gpu,
        )  # fmt: skip


TABLES: dict[str, Callable[[], Iterator[Run]]] = {
    "dlperf": _dlperf, "dgx": _dgx, "mlperf": _mlperf, "lambda": _lambda, "pytorch ddp": _ddp,
}  # fmt: skip
