"""What advice on a large model is asked about: its shape, the machines, the batch, prices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from ddlnb.advice.prices import Prices
from ddlnb.advice.question import Question, gpu_memory
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_gpu, get_interconnect, gpu_in
from ddlnb.hardware.gpu import Gpu
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.parallelism.forecast.layouts import BATCH_TOKENS, Ranking, scale
from ddlnb.parallelism.forecast.parameters import Fitted, kept
from ddlnb.parallelism.forecast.shapes import SHAPES, get_shape
from ddlnb.parallelism.transformer import Transformer
from ddlnb.units import GIB
from ddlnb.workloads.footprint import OPTIMIZER_COPIES, require_optimizer

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class LayoutQuestion:
    """A large model on machines, as `ddlnb.scale` is asked about it, and prices.

    ``network`` None stands for the ports that nodes with such GPUs usually have. ``because`` says
    why the model has to be split, where that was found out before.
    """

    model: Transformer
    gpu: Gpu
    nodes: int
    gpus_per_node: int
    network: Interconnect | None
    sequence: int
    global_batch: int
    framework: str
    precision: str
    schedule: str = "1f1b"
    vpp: int | None = None
    overlap: bool | None = None
    prices: Prices = field(default_factory=Prices)
    fitted: Fitted = field(default_factory=kept)
    because: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence

    @cached_property
    def ranking(self) -> Ranking:
        """Every layout that fits, the fastest first. Raises what `ddlnb.scale` raises."""
        return scale(
            self.model,
            self.gpu,
            self.nodes,
            gpus_per_node=self.gpus_per_node,
            network=self.network,
            sequence=self.sequence,
            global_batch=self.global_batch,
            framework=self.framework,
            precision=self.precision,
            schedule=self.schedule,
            vpp=self.vpp,
            overlap=self.overlap,
            fitted=self.fitted,
        )

    def __str__(self) -> str:
        joined = f", {self.network.name}" if self.network and self.nodes > 1 else ""
        return f"{self.model.name} on {self.gpus:,} x {self.gpu.name}{joined} ({self.framework})"


def layout_question(
    model: str | Transformer,
    gpu: str | Gpu = "H100",
    nodes: int = 8,
    *,
    gpus_per_node: int = 8,
    network: str | Interconnect | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    framework: str = "nanotron",
    precision: str = "bf16",
    schedule: str = "1f1b",
    vpp: int | None = None,
    overlap: bool | None = None,
    prices: Prices | None = None,
    because: str = "",
) -> LayoutQuestion:
    """Return the question; its arguments are those of `ddlnb.scale`, with the same defaults."""
    shape = get_shape(model)
    long = shape.sequence if sequence is None else sequence
    batch = max(BATCH_TOKENS // max(long, 1), 1) if global_batch is None else global_batch
    joined = get_interconnect(network) if network else None
    return LayoutQuestion(
        shape,
        get_gpu(gpu),
        nodes,
        gpus_per_node,
        joined,
        long,
        batch,
        framework,
        precision,
        schedule,
        vpp,
        overlap,
        Prices() if prices is None else prices,
        because=because,
    )


def states_that_do_not_fit(model: object, cluster: Cluster, optimizer: str) -> str:
    """Return why data parallelism alone cannot hold a model, "" where it may.

    Counted are parameters, gradients and what the optimizer keeps, in fp32, of models of a known
    shape on GPUs of known memory: activations come on top. Raises UnknownName for an optimizer
    that is not known.
    """
    require_optimizer(optimizer)
    memory = gpu_memory(cluster.hardware)
    if not isinstance(model, str) or model.casefold() not in SHAPES or math.isnan(memory):
        return ""
    parameters = SHAPES[model.casefold()].shape.parameters
    needed = FLOAT32 * (2 + OPTIMIZER_COPIES[optimizer]) * parameters
    if needed <= memory:
        return ""
    return (
        f"Data parallelism alone cannot hold {model}: parameters, gradients and the states of "
        f"{optimizer} take {needed / GIB:,.0f} GiB of every GPU, which has {memory / GIB:.0f}. "
        f"It has to be split"
    )


def sample_that_does_not_fit(model: object, question: Question) -> str:
    """Return why data parallelism alone cannot hold a model of a known shape, "" where it may.

    Counted is all that training with one sample takes.
    """
    known = isinstance(model, str) and model.casefold() in SHAPES
    if not known or question.fits(1) is not False:
        return ""
    return (
        f"Data parallelism alone cannot hold {model}: one sample takes "
        f"{question.memory_bytes(1) / GIB:,.0f} GiB of every GPU, which has "
        f"{question.gpu_memory / GIB:.0f}. It has to be split"
    )


def split_on(
    model: str,
    cluster: Cluster,
    *,
    local_batch: int | None = None,
    sequence: int | None = None,
    precision: str = "",
    prices: Prices | None = None,
    because: str = "",
) -> LayoutQuestion:
    """Return the question how to split a model over the GPUs in use of a cluster.

    A batch per GPU becomes that of a step, times the GPUs. Raises InputError for a cluster whose
    GPUs are not known.
    """
    gpu = gpu_in(cluster.hardware)
    if gpu is None:
        raise InputError(
            f"the GPUs of {cluster.name}, {cluster.hardware!r}, are not known; name them (--gpu)"
        )
    try:
        network = get_interconnect(cluster.network) if cluster.nodes_in_use > 1 else None
    except InputError:  # a network of that file's own: its measured bandwidth stands for it
        usual = get_interconnect("100GbIB")
        network = Interconnect(
            cluster.network, 1, cluster.effects.between_bandwidth, usual.protocol, cluster.name
        )
    return layout_question(
        model,
        gpu,
        cluster.nodes_in_use,
        gpus_per_node=cluster.workers // cluster.nodes_in_use,
        network=network,
        sequence=sequence,
        global_batch=None if local_batch is None else local_batch * cluster.workers,
        precision=precision or "bf16",
        prices=prices,
        because=because,
    )
