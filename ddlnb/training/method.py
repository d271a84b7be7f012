"""A training method, one choice per aspect, and the job of the workers that train by it.

Choices that do not fit together are refused with the reason. A job is one training run as data:
what travels to the ranks, and what they report. Every executor makes its workers by it, so that
runs differ only in who answers their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddlnb.compression.base import Codec, Compressor, Payloads, Voting
from ddlnb.compression.catalogue import COMPRESSORS, FLAGS, RESERVED, get_compressor
from ddlnb.errors import UnknownName, require, require_known, require_whole
from ddlnb.plans.methods import sentence
from ddlnb.plans.server_rules import BulkSynchronous, Rule
from ddlnb.registry import parsed, parts_of, register
from ddlnb.training.gossip import DCDPSGD, DPSGD, ECDPSGD, Choco
from ddlnb.training.optimizers import Optimizer
from ddlnb.training.server_rules import Decoding, Tallying
from ddlnb.training.synchronisation import (
    AdaptiveLocalSGD,
    AsynchronousParallel,
    BulkSynchronousParallel,
    DynamicStaleSynchronousParallel,
    LocalSGD,
    PostLocalSGD,
    RoundRobinSynchronousParallel,
    StaleSynchronousParallel,
    Synchronisation,
)
from ddlnb.training.worker import Compression, Schedule, Worker
from ddlnb.workloads.task import Batch

SYNCHRONISATIONS: dict[str, type[Synchronisation]] = {
    kind.name: kind
    for kind in (
        BulkSynchronousParallel,
        LocalSGD,
        PostLocalSGD,
        AdaptiveLocalSGD,
        StaleSynchronousParallel,
        DynamicStaleSynchronousParallel,
        AsynchronousParallel,
        RoundRobinSynchronousParallel,
        DPSGD,
        DCDPSGD,
        ECDPSGD,
        Choco,
    )
}


def get_synchronisation(text: str | Synchronisation) -> Synchronisation:
    """Return the synchronisation that a text such as ``"ssp(3)"`` names.

    Raises UnknownName and InputError.

    >>> get_synchronisation("bsp")
    BulkSynchronousParallel()
    """
    if isinstance(text, Synchronisation):
        return text
    return parsed("synchronisation", text, SYNCHRONISATIONS)


def register_synchronisation(kind: type[Synchronisation]) -> None:
    """Add a synchronisation to SYNCHRONISATIONS, so that its name works in method texts.

    ``kind`` is a frozen dataclass that inherits from Synchronisation, with a ``name``, a ``loop``
    and a default for every parameter. ``del SYNCHRONISATIONS[name]`` removes it. Raises InputError,
    with the reason, for a class that cannot be registered.

    >>> import ddlnb
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pairwise(LocalSGD):
    ...     period: int = 2
    ...     name = "pairwise"
    >>> ddlnb.register_synchronisation(Pairwise)
    >>> print(ddlnb.training_method("pairwise + top-k(0.01)"))
    pairwise(2) + top-k(0.01) on A2A
    >>> del SYNCHRONISATIONS["pairwise"]
    """
    reserved = (*FLAGS, *COMPRESSORS)
    register("synchronisation", kind, Synchronisation, SYNCHRONISATIONS, reserved)


SEEDS = 1 << 32  # torch uses 32 bits of a seed
ARCHITECTURES = ("A2A", "PS", "gossip")
RESERVED.append(SYNCHRONISATIONS)


@dataclass(frozen=True)
class TrainingMethod:
    """How workers train together. ``feedback`` and ``whole_model`` belong to the compression.

    Raises InputError, with the reason, for choices that do not fit together.
    """

    synchronisation: Synchronisation
    compressor: Compressor | None = None
    feedback: bool = False
    whole_model: bool = False
    architecture: str = "A2A"

    def __post_init__(self) -> None:
        synchronisation, compressor = self.synchronisation, self.compressor
        require_known("architecture", self.architecture, ARCHITECTURES)
        because = synchronisation.why_not_elsewhere and f": {synchronisation.why_not_elsewhere}"
        require(
            self.architecture in synchronisation.architectures,
            f"{synchronisation} does not run on {self.architecture}{because}; "
            f"choose {' or '.join(synchronisation.architectures)}",
        )
        require(
            compressor is not None or not (self.feedback or self.whole_model),
            "feedback and whole-model say how to compress; name a compression as well",
        )
        if compressor is None:
            return
        if self.whole_model:
            compressor = compressor.for_whole_model()
            object.__setattr__(self, "compressor", compressor)
        require(
            not self.feedback or compressor.feedback != "refused",
            f"{compressor} has no error feedback: {compressor.why_no_feedback}; leave feedback out",
        )
        require(
            not self.feedback or self.architecture != "gossip",
            f"feedback keeps what was not sent of a gradient, and {synchronisation} sends none; "
            f"leave feedback out (choco keeps and sends later what was lost, by itself)",
        )
        votes = self.architecture == "PS" and isinstance(compressor, Voting)
        require(
            not votes or isinstance(synchronisation.rule(1), BulkSynchronous),
            f"a server counts the votes of {compressor} when all workers have voted, and "
            f"{synchronisation} does not wait for all; use it on A2A, or with bsp on PS",
        )
        require(
            self.architecture == "A2A" or votes or isinstance(compressor, Codec),
            f"{compressor} has no message that a server or a neighbour could read: "
            f"{compressor.why_no_payload}; use it on A2A",
        )
        synchronisation.check_compressor(compressor)

    @property
    def overlaps(self) -> bool:
        """Whether its all-to-all averages can travel layer by layer during the backward pass."""
        return self.synchronisation.averages_gradients and self.architecture == "A2A"

    @property
    def pushes_gradients(self) -> bool:
        """Whether servers average every gradient, by the rule of BSP and no other."""
        averages = self.synchronisation.averages_gradients and self.architecture == "PS"
        return averages and type(self.synchronisation.rule(1)) is BulkSynchronous

    @property
    def pushes_layers(self) -> bool:
        """Whether every iteration ends with a push, which can leave layer by layer."""
        return (
            self.architecture == "PS"
            and self.synchronisation.pushes_every_iteration
            and not self.whole_model
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise InputError, with the reason, if the method cannot use this optimizer."""
        self.synchronisation.check_optimizer(optimizer)
        require(
            self.compressor is None or not (self.compressor.own_momentum and optimizer.inertia),
            f"{self.compressor} applies momentum before it compresses, and {optimizer} would apply "
            f"it again; take sgd, or a momentum of 0 in one of the two",
        )

    @property
    def compression(self) -> Compression | None:
        """What the workers need to know of the compression."""
        if self.compressor is None:
            return None
        return Compression(self.compressor, self.feedback, self.whole_model)

    def rule(self, workers: int, pieces: Sequence[tuple[int, int, tuple[int, ...]]]) -> Rule | None:
        """Return a new rule for a parameter server; None without a server.

        It decodes what is pushed, or counts it where workers vote.

        ``pieces`` are those of any `Worker`: the parts that are compressed on their own.
        """
        rule = self.synchronisation.rule(workers) if self.architecture == "PS" else None
        elements = tuple(stop - start for start, stop, _ in pieces)
        if rule is not None and isinstance(self.compressor, Voting):
            return Tallying(rule, workers, Payloads(self.compressor, elements).tally)
        if rule is not None and isinstance(self.compressor, Codec):
            return Decoding(rule, Payloads(self.compressor, elements).decode)
        return rule

    def sentence(
        self, scheduling: str | None = None, protocol: str = "TCP/IP", topology: str | None = None
    ) -> str:
        """Return the survey's one-sentence description; ``scheduling`` is its word for the order.

        By default the topology is a star for servers, the graph of the gossip, otherwise a ring.

        >>> training_method("ssp(3) + top-k(0.01) on PS").sentence()
        'it exploits SSP with top-k compression and no scheduling, running on PS built on TCP/IP and a star'
        """  # noqa: E501
        compression = None
        if self.compressor is not None:
            feedback = ", error feedback" if self.feedback else ""
            compression = f"{self.compressor.name} compression{feedback}"
        graph = self.synchronisation.topology
        return sentence(
            self.synchronisation.name,
            compression,
            scheduling,
            self.architecture,
            protocol,
            topology or (graph and f"a {graph}"),
        )

    def __str__(self) -> str:
        parts = [str(self.synchronisation)]
        if self.compressor is not None:
            parts.append(str(self.compressor))
        parts += [
            flag for flag, on in zip(FLAGS, (self.feedback, self.whole_model), strict=True) if on
        ]
        return " + ".join(parts) + f" on {self.architecture}"


def training_method(text: str | TrainingMethod) -> TrainingMethod:
    """Return the method that a text names; the architecture may be left out.

    The text is a synchronisation, then a compressor, "feedback" and "whole-model" if wanted, joined
    by "+", and "on A2A", "on PS" or "on gossip". Raises UnknownName for a name in it that is none,
    InputError for choices that do not fit together.

    >>> import ddlnb
    >>> print(ddlnb.training_method("bsp + top-k(0.01) + feedback"))
    bsp + top-k(0.01) + feedback on A2A
    """
    if isinstance(text, TrainingMethod):
        return text
    if not isinstance(text, str):
        raise UnknownName("training method", text, SYNCHRONISATIONS)
    choices, _, architecture = text.partition(" on ")
    first, *rest = parts_of(choices, "+")
    require(
        first.partition("(")[0].casefold() not in COMPRESSORS,
        f"training method {text!r} begins with a compression; say first how workers "
        f"synchronise: bsp + {text}",
    )
    synchronisation = get_synchronisation(first)
    flags = [part.casefold() for part in rest if part.casefold() in FLAGS]
    named = [part for part in rest if part.casefold() not in FLAGS]
    require(len(set(flags)) == len(flags), f"training method {text!r} repeats one of {flags}")
    for part in named[1:]:
        if part.partition("(")[0].casefold() not in COMPRESSORS:
            raise UnknownName("choice", part, (*FLAGS, *COMPRESSORS))
    require(len(named) <= 1, f"training method {text!r} names more than one compression: {named}")
    return TrainingMethod(
        synchronisation,
        get_compressor(named[0]) if named else None,
        feedback="feedback" in flags,
        whole_model="whole-model" in flags,
        architecture=architecture.strip() or synchronisation.architectures[0],
    )


# Jobs.


def constant(step: int) -> float:
    """Return 1: a schedule that keeps the learning rate."""
    return 1.0


def no_delay(rank: int, step: int) -> float:
    """Return no seconds: there are no stragglers but those of the machine."""
    return 0.0


@dataclass(frozen=True)
class TrainingJob:
    """``steps`` steps of ``workers`` workers, and one more rank for a parameter server on "PS".

    ``build()`` makes the model, the same on every worker. ``batches()`` makes every worker's
    ``batch(step)``, by rank; it is called on the ranks, so that data need not travel.
    ``delay(rank, step)`` is how many seconds a worker sleeps before a gradient, as a straggler.
    ``observe(worker, iterations, seconds)`` is called after every iteration, within the time that
    is measured; the report keeps what it returns. Functions must be picklable. With ``goes_on``
    workers do not fail when their numbers cannot be compressed (see `Worker`).

    Raises InputError.
    """

    method: TrainingMethod
    build: Callable[[], nn.Module] = field(repr=False)
    loss: Callable[[nn.Module, Batch], Tensor] = field(repr=False)
    batches: Callable[[], Sequence[Callable[[int], Batch]]] = field(repr=False)
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = field(repr=False)
    workers: int
    steps: int
    seed: int = 0
    schedule: Schedule = field(default=constant, repr=False)
    delay: Callable[[int, int], float] = field(default=no_delay, repr=False)
    observe: Callable[[Worker, int, float], Any] | None = field(default=None, repr=False)
    goes_on: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        require(
            isinstance(self.method, TrainingMethod),
            f"method {self.method!r} is not a TrainingMethod; make one with "
            f"training_method('bsp + top-k(0.01)')",
        )
        require_whole(workers=self.workers, steps=self.steps)
        require_whole(0, seed=self.seed)
        require(self.seed < SEEDS, f"seed {self.seed} must be below {SEEDS}: torch knows 32 bits")
        for name in ("build", "loss", "batches", "make_optimizer", "schedule", "delay"):
            value = getattr(self, name)
            require(callable(value), f"{name} {value!r} must be a function")

    @property
    def servers(self) -> int:
        """Parameter servers, one or none; they are the ranks from ``workers`` on.

        A single server sees all pushes in one order, which a replay can repeat.
        """
        return 1 if self.method.architecture == "PS" else 0

    @property
    def ranks(self) -> int:
        """The number of processes that take part."""
        return self.workers + self.servers

    def model(self) -> nn.Module:
        """Return a new model, the same for every worker."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build()

    def worker(self, rank: int) -> Worker:
        """Return a new worker of this rank. Raises InputError if it has no batches."""
        batches = self.batches()
        require(
            len(batches) == self.workers,
            f"batches() makes batches of {len(batches)} workers, and there are {self.workers}; "
            f"let it return one function of the step per worker",
        )
        return Worker(
            rank,
            self.workers,
            self.model(),
            self.loss,
            batches[rank],
            self.make_optimizer,
            self.method.compression,
            self.schedule,
            architecture=self.method.architecture,
            seed=self.seed,
            goes_on=self.goes_on,
        )

    def rule(self) -> Rule | None:
        """Return a new rule for the parameter server; None if there is no server."""
        if not self.servers:
            return None
        return self.method.rule(self.workers, self.worker(0).pieces)


@dataclass(frozen=True)
class WorkerReport:
    """What one worker reports: a loss per iteration, and the seconds of all iterations.

    ``averaging_seconds`` are those of one average of the workers' models after the last of them.
    """

    rank: int
    parameters: Tensor = field(repr=False)  # flat
    losses: tuple[float, ...]
    bytes_sent: float
    bytes_received: float
    seconds: float
    observed: tuple[Any, ...] = field(default=(), repr=False)
    averaging_seconds: float = 0.0


@dataclass(frozen=True)
class Arrival:
    """A push that a parameter server applied, at ``seconds`` of its own clock."""

    worker: int
    seconds: float


@dataclass(frozen=True)
class TrainingRun:
    """What all workers report, by rank, and the order in which a server applied their pushes."""

    workers: tuple[WorkerReport, ...]
    arrivals: tuple[Arrival, ...] = field(default=(), repr=False)
