"""What is asked about training on a cluster: declared once, for Python and the command line.

It is light: the command line takes its options and their help from here, and loads what answers
only when there is something to answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from ddlnb.questions import (
    NUMBERS,
    WORDS,
    Asked,
    MaybePositive,
    MaybeWhole,
    Natural,
    Whole,
    question,
)

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method
    from ddlnb.workloads.task import Task
    from ddlnb.workloads.workload import Workload

    Model: TypeAlias = str | Task | Workload
    MethodNames: TypeAlias = str | Method | Sequence[str | Method]
    Counts: TypeAlias = int | Sequence[int] | None
    OneCluster: TypeAlias = str | Cluster
else:  # what these are is checked where they are looked up
    Model = MethodNames = Counts = OneCluster = Any

Methods: TypeAlias = Annotated[
    MethodNames, Asked("A method, 'all' (default) or DDP; repeatable.", "--method", WORDS)
]
Gpus: TypeAlias = Annotated[
    Counts, Asked("Workers, such as 8,16. Default: all of the cluster.", kind=NUMBERS)
]
Draws: TypeAlias = Annotated[Natural, Asked("Draws behind the 90 % intervals; 0: none.")]

DRAWS = 200  # behind intervals


@question
class Trained:
    """A model that is trained on a cluster: what questions about throughput have in common."""

    model: Annotated[
        Model,
        Asked(
            "A model of `ddlnb models`, my.py:task, package.module:task, a Hugging Face "
            "config.json or architecture, or a kept profile; in Python a Task or a Workload, too."
        ),
    ]
    cluster: OneCluster
    _: KW_ONLY
    local_batch: Annotated[
        MaybeWhole, Asked("Samples per worker; default: the model's own.", "--batch")
    ] = None
    sequence: Annotated[MaybeWhole, Asked("Tokens of a sample; default: the model's own.")] = None
    throughput: Annotated[
        MaybePositive,
        Asked("Samples per second of one GPU, measured; else a profile or a data sheet."),
    ] = None
    precision: Annotated[str, Asked("fp32, tf32, fp16, bf16, fp8: of seconds by data sheet.")] = ""
    software: Annotated[
        str, Asked("eager (default), compiled or tuned by a vendor: of seconds by data sheet.")
    ] = ""

    @cached_property
    def on(self) -> Cluster:
        """The cluster that is meant."""
        from ddlnb.clusters.file import get_cluster

        return get_cluster(self.cluster)

    @cached_property
    def workload(self) -> Workload:
        """What one worker computes in an iteration, with its seconds."""
        from ddlnb.simulator.profiles import workload_on

        return workload_on(
            self.model,
            self.on,
            self.local_batch,
            sequence=self.sequence,
            throughput=self.throughput,
            precision=self.precision,
            software=self.software,
        )


@question
class Held(Trained):
    """The same, where a GPU must hold what its optimizer keeps."""

    _: KW_ONLY
    optimizer: Annotated[str, Asked("sgd, momentum or adam: what it keeps takes memory.")] = "adam"
    framework: Annotated[
        str, Asked("Of a model that can be split: whose steps are forecast, such as fsdp or nemo.")
    ] = ""


@question
class Sent(Trained):
    """The same, with the way in which its gradients are sent."""

    _: KW_ONLY
    gradients: Annotated[str, Asked("Send gradients as fp16, bf16 or fp32; forecast only.")] = ""
    accumulate: Annotated[Whole, Asked("Exchange once in so many batches; forecast only.")] = 1

    @cached_property
    def workload(self) -> Workload:
        """What one worker computes in an iteration and sends, with its seconds."""
        found = super().workload.accumulated(self.accumulate)
        return found.sent_as(self.gradients) if self.gradients else found


@question
class ForecastQuestion(Sent, Held):
    """What `ddlnb.forecast` is asked."""

    methods: Methods = "all"
    _: KW_ONLY
    gpus: Gpus = None
    servers: Annotated[
        MaybeWhole, Asked("Parameter servers; default: one for every node in use.")
    ] = None
    draws: Draws = DRAWS
    seed: Natural = 0

    def __post_init__(self) -> None:
        if isinstance(self.gpus, Iterator):  # read more than once
            object.__setattr__(self, "gpus", list(self.gpus))
