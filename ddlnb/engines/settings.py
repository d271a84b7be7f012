"""The settings of a measurement: every option once, with its meaning, default and validation.

Importing it loads neither torch nor pandas: the command line takes its help and defaults from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.launch.options import HERE, LaunchOptions, NetworkChange, network_changes, wired
from ddlnb.registry import supplied
from ddlnb.units import bytes_from

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddlnb.plans.alpha_beta import AlphaBeta
    from ddlnb.plans.transfers import Collective
    from ddlnb.workloads.task import Task

# What ranks that train import: those of one machine can import it once for all.
TRAINING = ("torch._dynamo",)  # which torch imports with the first optimizer
MEASURING = ("ddlnb.engines.worker", "ddlnb.engines.probes", *TRAINING)


MakeOptimizer = Callable[[Iterable["nn.Parameter"]], "torch.optim.Optimizer"]


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
    if callable(name):
        return name
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


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


DEVICES = ("cpu", "cuda")
BACKENDS = ("gloo", "nccl")
LEAST_WINDOW = 10  # iterations; in fewer, one that takes long by accident hides a drift
TOPOLOGIES = ("ring", "mesh")  # of all-reduces: the backend's own, and ours of two hops


@dataclass(frozen=True, kw_only=True)
class MeasurementSettings:
    """How methods are measured: on which workers, for how long, and with what.

    ``changed`` returns the same settings with other values, those of its ``site`` (launcher, hosts,
    network, scale) by name as well. Seconds are real ones; sizes are bytes, or texts with a unit.
    Raises InputError or UnknownName for a value that makes no sense.

    >>> import ddlnb
    >>> settings = ddlnb.MeasurementSettings(workers=4, partition="256KB")
    >>> settings.changed(launcher="mpi").site.launcher
    'mpi'
    >>> settings.iterations, settings.repetitions
    (20, 3)
    """

    workers: int = field(default=2, metadata={"meaning": "Worker processes."})
    servers: int | None = field(
        default=None,
        metadata={"meaning": "Parameter servers of the PS methods; default: one per host."},
    )
    engine: str | Sequence[str] = field(
        default="torch",
        metadata={"meaning": "An engine of `ddlnb methods`; repeatable. Default: torch, our own."},
    )
    baselines: bool | Sequence[str] = field(
        default=True,
        metadata={"meaning": "Also run one worker alone, and DistributedDataParallel."},
    )
    local_batch: int | None = field(
        default=None, metadata={"meaning": "Samples per worker; default: the model's own."}
    )
    iterations: int = field(default=20, metadata={"meaning": "Timed iterations of a run."})
    warmup: int = field(default=5, metadata={"meaning": "Iterations before the clock starts."})
    repetitions: int = field(default=3, metadata={"meaning": "Runs of every method, alternating."})
    optimizer: str | MakeOptimizer = field(
        default="sgd", metadata={"meaning": "sgd, adam or adamw."}
    )
    partition: str | int | None = field(
        default=None,
        metadata={"meaning": "Largest message of methods that partition, such as 256KB."},
    )
    credit: str | int | None = field(
        default=None,
        metadata={"meaning": "Bytes in flight of methods with a credit, such as 1MB."},
    )
    cost: AlphaBeta | None = field(
        default=None,
        metadata={"meaning": "Time of an all-reduce by which methods plan; default: as measured."},
    )
    device: str = field(default="cpu", metadata={"meaning": "cpu or cuda."})
    backend: str = field(default="gloo", metadata={"meaning": "gloo on CPUs, nccl on GPUs."})
    topology: str = field(
        default="ring",
        metadata={
            "meaning": "Of our own engine's all-reduces: ring (the backend's), or mesh (two hops, "
            "for links with long delays)."
        },
    )
    collective: str | None = field(
        default=None,
        metadata={
            "meaning": "Of our own engine's all-reduces: how messages travel, such as "
            "halving-doubling or 'torus(2, 4)'. Default: torch's own."
        },
    )
    replan: int | None = field(
        default=None,
        metadata={
            "meaning": "Timed iterations (10 or more) between looks at whether the network drifted "
            "from what method searched planned for; it then plans anew. Default: never."
        },
    )
    becomes: str | NetworkChange | Sequence[str | NetworkChange] = field(
        default=(),
        metadata={
            "meaning": "With launcher emulated: what the network becomes while a run is on it, and "
            "before which iteration, counted from 0 with the warm-up: '100Mb/s 50us from 30'; "
            "repeatable. No cable may become faster than it began."
        },
    )
    timeout_seconds: float = field(
        default=300.0, metadata={"meaning": "Seconds that one run may take."}
    )
    start_timeout_seconds: float = field(
        default=120.0,
        metadata={"meaning": "Seconds that processes may take to start, such as in a queue."},
    )
    site: LaunchOptions = HERE

    def __post_init__(self) -> None:
        require_whole(
            workers=self.workers, iterations=self.iterations, repetitions=self.repetitions
        )
        require_whole(0, warmup=self.warmup)
        if self.site.is_emulated:
            object.__setattr__(self, "site", wired(self.site))
        _ = self.changes  # refuses what cannot be
        optional = {"servers": self.servers, "local_batch": self.local_batch, "replan": self.replan}
        require_whole(**{name: value for name, value in optional.items() if value is not None})
        get_optimizer(self.optimizer)
        for size in (self.partition, self.credit):
            if size is not None:
                bytes_from(size)
        for what, name, known in (
            ("device", self.device, DEVICES),
            ("backend", self.backend, BACKENDS),
            ("topology", self.topology, TOPOLOGIES),
        ):
            if name not in known:
                raise UnknownName(what, name, known)
        if (self.device, self.backend) == ("cpu", "nccl"):
            raise InputError(
                "backend 'nccl' exchanges gradients of GPUs; use it with device='cuda'"
            )
        require(
            self.topology == TOPOLOGIES[0] or self.device == "cpu",
            f"topology {self.topology!r} runs on CPUs; leave it out with device {self.device!r}, "
            f"where NCCL chooses",
        )
        if self.collective is not None:
            self._check_collective()
        if self.replan is not None:
            self._check_replanning(self.replan)

    def _check_replanning(self, window: int) -> None:
        require(
            window >= LEAST_WINDOW,
            f"replan={window} iterations do not tell drift from noise; take {LEAST_WINDOW} or more",
        )
        require(
            self.iterations > 2 * window,
            f"replan={window} compares iterations with the first {window}, and iterations="
            f"{self.iterations} leave none for a new plan; time more than {2 * window} iterations, "
            f"or leave replan out",
        )

    def _check_collective(self) -> None:
        made = self.listed
        assert made is not None
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
    if name not in MEASUREMENT_PROFILES:
        raise UnknownName("measurement profile", name, MEASUREMENT_PROFILES)
    return MEASUREMENT_PROFILES[name]
