"""What advice is asked about: a model on machines, their prices, and what is known of both.

It is light until it looks something up: the command line takes its options from here.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated

from ddlnb.errors import InputError, ModelError, require
from ddlnb.questions import (
    NUMBERS,
    Asked,
    MaybeNatural,
    MaybePositive,
    MaybeWhole,
    Natural,
    question,
)
from ddlnb.simulator.questions import DRAWS, Counts, Draws, Held, Methods, Sent

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.workloads.memory import Footprint
    from ddlnb.workloads.workload import Workload

GOOD = 0.8  # of linear scaling
SEARCHED_PLANS = 250  # in two seconds or so: an answer comes within ten
HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True)
class Prices:
    """Prices per hour of one GPU and of one machine that runs a parameter server.

    Any currency does; NaN stands for a price that nobody gave. Raises InputError for a price below
    zero and for one that is no number.

    >>> Prices(gpu_hour=2.25).per_million_samples(gpus=8, server_machines=0, samples_per_s=4000.0)
    1.25
    """

    gpu_hour: float = math.nan
    server_hour: float = math.nan

    def __post_init__(self) -> None:
        for name, of in (("gpu_hour", "a GPU"), ("server_hour", "a server")):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or value < 0 or math.isinf(value):
                raise InputError(
                    f"the price of {of} per hour, {value!r}, must be a number from 0, in any "
                    f"currency ({name})"
                )

    @property
    def are_given(self) -> bool:
        """Whether there is a price of a GPU, without which nothing has a cost."""
        return not math.isnan(self.gpu_hour)

    @property
    def has_servers(self) -> bool:
        """Whether there is a price of a machine that runs a parameter server."""
        return not math.isnan(self.server_hour)

    def per_hour(self, gpus: int, server_machines: int) -> float:
        """Return what these machines cost by the hour; NaN where a price of them is missing."""
        servers = server_machines * self.server_hour if server_machines else 0.0
        return gpus * self.gpu_hour + servers

    def per_million_samples(self, gpus: int, server_machines: int, samples_per_s: float) -> float:
        """Return what a million samples cost at this throughput; NaN where a price is missing."""
        return self.per_hour(gpus, server_machines) / HOUR / samples_per_s * MILLION


@question
class AdviceQuestion(Held):
    """What `ddlnb.advise` is asked."""

    _: KW_ONLY
    gpus: Annotated[MaybeWhole, Asked("Workers; default: all of the cluster.")] = None
    prices: Prices | None = None
    measured: Annotated[
        MaybePositive, Asked("Samples/s that you measured on all GPUs: says what is wrong.")
    ] = None
    measured_method: Annotated[
        str | None, Asked("The method that --measured was measured with.", "--method")
    ] = None
    most_plans: Annotated[
        MaybeNatural,
        Asked(
            f"Plans that the search for the best schedule plays, by default {SEARCHED_PLANS}; "
            f"0: no search.",
            "--plans",
        ),
    ] = None
    draws: Annotated[
        Natural,
        Asked(
            "Draws behind the 90 % intervals of what may be the best, of the rest a fifth; 0: none."
        ),
    ] = DRAWS
    seed: Natural = 0


@question
class ScalingQuestion(Held):
    """What `ddlnb.scaling` is asked."""

    methods: Methods = "all"
    _: KW_ONLY
    gpus: Annotated[
        Counts, Asked("Sizes, such as 8,16,32. Default: 1, 2, 4, ... and all.", kind=NUMBERS)
    ] = None
    share: Annotated[float, Asked("Of linear scaling: what is good enough.")] = GOOD
    draws: Draws = DRAWS
    seed: Natural = 0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"share {self.share!r} must be above 0 and at most 1")


@dataclass(frozen=True)
class Question:
    """A workload, the cluster with the workers in use, prices, and memory where it is known.

    ``footprint`` is what training takes of a GPU's memory, None where nobody knows, for the reason
    ``why_no_footprint``, and ``gpu_memory`` what the GPU has, in bytes, NaN where nobody knows.
    ``asked`` is what the workload is of.
    """

    workload: Workload
    cluster: Cluster
    prices: Prices = field(default_factory=Prices)
    footprint: Footprint | None = None
    gpu_memory: float = math.nan
    why_no_footprint: str = "its model is not at hand"
    asked: Held | None = None

    @property
    def held_batch(self) -> int:
        """Samples whose activations a GPU holds at a time."""
        batches = 1 if self.asked is None else batches_per_exchange(self.asked)
        return self.workload.local_batch // batches

    def at_batch(self, local_batch: int) -> Workload:
        """Return the workload at another batch, with seconds that grow as the data sheet's do.

        Those of a workload without a model, or on hardware without a data sheet, grow with the
        samples.
        """
        from ddlnb.hardware.catalogue import gpu_in
        from ddlnb.simulator.profiles import grown
        from ddlnb.workloads.roofline import EAGER

        asked, now = self.asked, self.held_batch
        if asked is None or not isinstance(asked.model, str) or not gpu_in(self.cluster.hardware):
            return self.workload.at_batch(local_batch)
        by_sheet = replace(asked, throughput=None, software=asked.software or EAGER)
        there, here = (
            replace(by_sheet, local_batch=batch).workload for batch in (now, local_batch)
        )
        return grown(self.workload, there, here)

    def memory_bytes(self, local_batch: int, more: float = 0.0) -> float:
        """Return the bytes that training at this batch takes of one GPU, NaN if unknown.

        ``more`` is what a method keeps beyond what every method does.
        """
        return math.nan if self.footprint is None else self.footprint.bytes_at(local_batch) + more

    def fits(self, local_batch: int, more: float = 0.0) -> bool | None:
        """Return whether training at this batch fits into a GPU's memory, None if unknown."""
        needed = self.memory_bytes(local_batch, more)
        if math.isnan(needed) or math.isnan(self.gpu_memory):
            return None
        return needed <= self.gpu_memory


def question_about(asked: Held, cluster: Cluster, prices: Prices | None = None) -> Question:
    """Return the question about what is trained on a cluster, with what is known of its memory.

    A model is traced for its memory; of a workload without a model none is known. What the GPU has
    is looked up by the cluster's hardware. Raises UnknownName for an optimizer that is not known.
    """
    known = Question(
        asked.workload,
        cluster,
        Prices() if prices is None else prices,
        gpu_memory=gpu_memory(cluster.hardware),
        asked=asked,
    )
    try:
        return replace(known, footprint=_footprint(asked))
    except ModelError as error:
        return replace(known, why_no_footprint=str(error))


def batches_per_exchange(asked: Held) -> int:
    """Return how many batches there are between two exchanges."""
    return asked.accumulate if isinstance(asked, Sent) else 1


def _footprint(asked: Held) -> Footprint | None:
    """Return the footprint of a model that is at hand, None for a workload whose model is not."""
    from ddlnb.workloads.memory import footprint, kept_model
    from ddlnb.workloads.workload import Workload

    if (
        isinstance(asked.model, str)
        and asked.sequence is None
        and (kept := kept_model(asked.model))
    ):
        return kept.footprint(asked.optimizer, asked.precision)
    from ddlnb.workloads.models import TASKS
    from ddlnb.workloads.resolve import resolve

    found = resolve(asked.model, sequence=asked.sequence)
    if isinstance(found, Workload):
        if found.model not in TASKS:
            return None
        found = TASKS[found.model]
    return footprint(found, asked.optimizer, asked.precision)


def gpu_memory(hardware: str) -> float:
    """Return the memory of a GPU of the catalogue, in bytes, NaN for other hardware."""
    from ddlnb.hardware.catalogue import gpu_in

    gpu = gpu_in(hardware)
    return math.nan if gpu is None else float(gpu.memory)
