"""What advice on a large model is asked: a question about layouts, with prices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from ddlnb.advice.prices import Prices
from ddlnb.advice.question import Question, gpu_memory
from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import InputError
from ddlnb.hardware.catalogue import get_interconnect, gpu_in
from ddlnb.hardware.interconnect import Interconnect
from ddlnb.parallelism.forecast.layouts import Ranking, ranked
from ddlnb.parallelism.forecast.question import LayoutQuestion
from ddlnb.parallelism.forecast.shapes import SHAPES
from ddlnb.units import GIB
from ddlnb.workloads.footprint import OPTIMIZER_COPIES, require_optimizer

FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class PricedQuestion(LayoutQuestion):
    """A question about layouts that advice answers: what GPUs cost counts, too.

    ``because`` says why the model has to be split, where that was found out before.
    """

    prices: Prices = field(default_factory=Prices)
    because: str = ""

    @cached_property
    def ranking(self) -> Ranking:
        """Every layout that fits, the fastest first. Raises what `ddlnb.scale` raises."""
        return ranked(self)


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
) -> PricedQuestion:
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
    return PricedQuestion.of(
        model,
        gpu,
        cluster.nodes_in_use,
        gpus_per_node=cluster.workers // cluster.nodes_in_use,
        network=network,
        sequence=sequence,
        global_batch=None if local_batch is None else local_batch * cluster.workers,
        precision=precision or "bf16",
        prices=prices or Prices(),
        because=because,
    )
