"""The settings of a measurement: every option once, with its meaning, default and validation.

Importing it loads neither torch nor pandas: the command line takes its options from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, SkipValidation

from ddlnb.errors import UnknownName, look_up, require
from ddlnb.hardware.catalogue import interconnects
from ddlnb.launch.options import HERE, LaunchOptions, NetworkChange, network_changes, wired
from ddlnb.questions import (
    WORDS,
    Asked,
    MaybeBytes,
    MaybeWhole,
    Natural,
    Whole,
    one_of,
    question,
)
from ddlnb.registry import supplied

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddlnb.plans.alpha_beta import AlphaBeta
    from ddlnb.plans.transfers import Collective
    from ddlnb.workloads.task import Task

    MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
else:  # what these are is checked where they are used
    AlphaBeta = MakeOptimizer = Any

# What ranks that train import: those of one machine can import it once for all.
TRAINING = ("torch._dynamo",)  # which torch imports with the first optimizer
MEASURING = ("ddlnb.engines.worker", "ddlnb.engines.probes", *TRAINING)


def _optimizer(kind: str, parameters: Iterable[nn.Parameter], **options: Any) -> Any:
    import torch

    return getattr(torch.optim, kind)(parameters, **options)


# By name, each with the settings that it has throughout this edition.
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": partial(_optimizer, "SGD", lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adam": partial(_optimizer, "Adam", lr=1e-3),
    "adamw": partial(_optimizer, "AdamW", lr=1e-3),
}


def get_optimizer(name: str | MakeOptimizer) -> MakeOptimizer:
    """Return the optimizer factory of that name, or the factory itself. Raises UnknownName."""
    return name if callable(name) else look_up("optimizer", name, OPTIMIZERS)


def optimizer_name(optimizer: str | MakeOptimizer) -> str:
    """Return what tables call an optimizer: its name, and the keywords of a partial.

    >>> from functools import partial
    >>> optimizer_name(partial(sorted, reverse=True))
    'sorted(reverse=True)'
    """
    if isinstance(optimizer, str):
        return optimizer
    inner = getattr(optimizer, "func", optimizer)
    keywords = getattr(optimizer, "keywords", {})
    shown = ", ".join(f"{key}={value!r}" for key, value in keywords.items())
    return getattr(inner, "__name__", type(optimizer).__name__) + (f"({shown})" * bool(shown))


LEAST_WINDOW = 10  # iterations; in fewer, one that takes long by accident hides a drift
TOPOLOGIES = ("ring", "mesh")  # of all-reduces: the backend's own, and ours of two hops


def _known_optimizer(name: str | MakeOptimizer) -> str | MakeOptimizer:
    get_optimizer(name)
    return name


@question
class MeasurementSettings:
    """How methods are measured: on which workers, for how long, and with what.

    ``changed`` returns the same settings with other values, those of its ``site`` (launcher, hosts,
    network, scale) by name as well. Seconds are real ones; sizes are bytes, or texts with a unit.
    ``cost`` is the time of an all-reduce by which methods plan, by default as measured. Raises
    InputError or UnknownName for a value that makes no sense.

    >>> import ddlnb
    >>> settings = ddlnb.engines.MeasurementSettings(workers=4, partition="256KB")
    >>> settings.changed(launcher="mpi").site.launcher
    'mpi'
    >>> settings.iterations, settings.repetitions
    (20, 3)
    """

    _: KW_ONLY
    workers: Annotated[Whole, Asked("Worker processes.")] = 2
    servers: Annotated[
        MaybeWhole, Asked("Parameter servers of the PS methods; default: one per host.")
    ] = None
    engine: Annotated[
        SkipValidation[str | Sequence[str]],
        Asked("An engine of `ddlnb methods`; repeatable. Default: torch, our own.", kind=WORDS),
    ] = "torch"
    baselines: Annotated[
        SkipValidation[bool | Sequence[str]],
        Asked("Also run one worker alone, and DistributedDataParallel."),
    ] = True
    local_batch: Annotated[
        MaybeWhole, Asked("Samples per worker; default: the model's own.", "--batch")
    ] = None
    iterations: Annotated[Whole, Asked("Timed iterations of a run.")] = 20
    warmup: Annotated[Natural, Asked("Iterations before the clock starts.")] = 5
    repetitions: Annotated[Whole, Asked("Runs of every method, alternating.", "--repeat")] = 3
    optimizer: Annotated[
        SkipValidation[str | MakeOptimizer],
        AfterValidator(_known_optimizer),
        Asked("sgd, adam or adamw."),
    ] = "sgd"
    partition: Annotated[
        MaybeBytes, Asked("Largest message of methods that partition, such as 256KB.")
    ] = None
    credit: Annotated[
        MaybeBytes, Asked("Bytes in flight of methods with a credit, such as 1MB.")
    ] = None
    cost: AlphaBeta | None = None
    device: Annotated[str, one_of("cpu", "cuda"), Asked("cpu or cuda.")] = "cpu"
    backend: Annotated[str, one_of("gloo", "nccl"), Asked("gloo on CPUs, nccl on GPUs.")] = "gloo"
    topology: Annotated[
        str,
        one_of(*TOPOLOGIES),
        Asked(
            "Of our own engine's all-reduces: ring (the backend's), or mesh (two hops, for links "
            "with long delays)."
        ),
    ] = TOPOLOGIES[0]
    collective: Annotated[
        str | None,
        Asked(
            "Of our own engine's all-reduces: how messages travel, such as halving-doubling or "
            "'torus(2, 4)'. Default: torch's own."
        ),
    ] = None
    replan: Annotated[
        MaybeWhole,
        Asked(
            "Timed iterations (10 or more) between looks at whether the network drifted from what "
            "method searched planned for; it then plans anew. Default: never."
        ),
    ] = None
    becomes: Annotated[
        SkipValidation[str | NetworkChange | Sequence[str | NetworkChange]],
        Asked(
            "With launcher emulated: what the network becomes while a run is on it, and before "
            "which iteration, counted from 0 with the warm-up: '100Mb/s 50us from 30'; repeatable. "
            "No cable may become faster than it began.",
            kind=WORDS,
        ),
    ] = ()
    timeout_seconds: Annotated[float, Asked("Seconds that one run may take.", "--timeout")] = 300.0
    start_timeout_seconds: Annotated[
        float,
        Asked("Seconds that processes may take to start, such as in a queue.", "--start-timeout"),
    ] = 120.0
    site: SkipValidation[LaunchOptions] = HERE

    def __post_init__(self) -> None:
        if self.site.is_emulated:
            object.__setattr__(self, "site", wired(self.site))
        _ = self.changes  # refuses what cannot be
        require(
            self.site.launcher != "local" or str(self.site.network) not in interconnects(),
            f"network {self.site.network!r} joins machines, and launcher 'local' starts all ranks "
            f"on this one; leave network out, emulate it (launcher 'emulated'), or start ranks on "
            f"several machines (launcher 'ssh', 'mpi' or 'slurm')",
        )
        require(
            (self.device, self.backend) != ("cpu", "nccl"),
            "backend 'nccl' exchanges gradients of GPUs; use it with device='cuda'",
        )
        require(
            self.topology == TOPOLOGIES[0] or self.device == "cpu",
            f"topology {self.topology!r} runs on CPUs; leave it out with device {self.device!r}, "
            f"where NCCL chooses",
        )
        if (made := self.listed) is not None:
            require(
                made.servers == 0,
                f"collective {self.collective!r} needs {made.servers} ranks more as servers; "
                f"take a method of the PS architecture, or servers beside the workers",
            )
            require(
                self.device == "cpu",
                f"collective {self.collective!r} runs on CPUs; leave it out with device "
                f"{self.device!r}, where NCCL chooses",
            )
            require(
                self.topology == TOPOLOGIES[0],
                f"topology {self.topology!r} and collective {self.collective!r} both say how "
                f"all-reduces travel; leave one of them out",
            )
        window = self.replan or LEAST_WINDOW
        require(
            window >= LEAST_WINDOW,
            f"replan={window} iterations do not tell drift from noise; take {LEAST_WINDOW} or more",
        )
        require(
            self.replan is None or self.iterations > 2 * window,
            f"replan={window} compares iterations with the first {window}, and iterations="
            f"{self.iterations} leave none for a new plan; time more than {2 * window} iterations, "
            f"or leave replan out",
        )

    @property
    def listed(self) -> Collective | None:
        """The transfers of the collective that all-reduces are to be, None for torch's own."""
        if self.collective is None:
            return None
        per_node = self.site.ranks_per_node
        made: Collective = supplied("collective")(self.collective, self.workers, per_node=per_node)
        return made

    @property
    def changes(self) -> tuple[NetworkChange, ...]:
        """What the emulated network becomes during a run, in the order of iterations."""
        last = self.warmup + self.iterations
        return network_changes(self.becomes, self.site, self.workers, last)

    def changed(self, **options: Any) -> MeasurementSettings:
        """Return these settings with some options changed; those of the site by name as well.

        Raises UnknownName for an option that there is not.

        >>> MeasurementSettings().changed(workers=4, launcher="mpi").site.launcher
        'mpi'
        """
        own, of_site = ([one.name for one in fields(kind)] for kind in (type(self), LaunchOptions))
        for name in options:
            if name not in (*own, *of_site):
                raise UnknownName("option", name, [*own, *of_site])
        site = options.pop("site", self.site)
        at_site = {name: options.pop(name) for name in of_site if name in options}
        return replace(self, site=replace(site, **at_site), **options)

    def at(self, site: LaunchOptions) -> MeasurementSettings:
        """Return these settings at the site of ranks that are up; a network named here stays."""
        return replace(self, site=replace(site, network=self.site.network or site.network))

    @property
    def server_count(self) -> int:
        """The number of parameter servers: as asked, or one per host."""
        return max(1, len(self.site.hosts)) if self.servers is None else self.servers

    def batch_of(self, task: Task) -> int:
        """Return the samples per worker. Raises InputError if the task replays another batch."""
        local_batch = task.local_batch if self.local_batch is None else self.local_batch
        require(
            task.recorded is None or local_batch == task.local_batch,
            f"local_batch={local_batch}: {task.name!r} replays a batch of {task.local_batch}",
        )
        return local_batch


DEFAULTS = MeasurementSettings()


@dataclass(frozen=True)
class MeasurementProfile:
    """The numbers of workers to measure, as far as there are that many, and the settings of each.

    ``options`` are fields of `MeasurementSettings`, which checks them.
    """

    workers: tuple[int, ...]
    options: dict[str, Any]

    @property
    def settings(self) -> MeasurementSettings:
        """The settings, with as many workers as the profile goes up to."""
        return DEFAULTS.changed(workers=max(self.workers), **self.options)


# Section 4.1: 10 iterations to warm up, 100 that are timed, 5 runs; on up to 32 GPUs. A run of
# BERT-Large on the slowest of the survey's networks takes minutes, and a queue takes its time.
PAPER = MeasurementProfile(
    workers=(1, 2, 4, 8, 16, 32),
    options={
        "warmup": 10,
        "iterations": 100,
        "repetitions": 5,
        "timeout_seconds": 3600.0,
        "start_timeout_seconds": 86400.0,
    },
)
MEASUREMENT_PROFILES = {"paper": PAPER}


def get_measurement_profile(name: str) -> MeasurementProfile:
    """Return the measurement profile of that name. Raises UnknownName.

    >>> get_measurement_profile("paper").settings.iterations
    100
    """
    return look_up("measurement profile", name, MEASUREMENT_PROFILES)
