"""One model on some workers: profiled once, then run with any method or baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddlnb.engines.catalogue import BASELINES, ENGINES, Engine, get_engine, require_runs
from ddlnb.engines.job import Job, Report, get_optimizer
from ddlnb.engines.probes import profile_rank, time_all_reduce
from ddlnb.engines.replica import MakeOptimizer
from ddlnb.engines.worker import run_job
from ddlnb.errors import DdlnbError, InputError, UnknownName, require, require_whole
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.results.timeline import Timeline
from ddlnb.units import KIB, MIB
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.tasks import Task, get_task
from ddlnb.workloads.workload import Workload

DEVICES = ("cpu", "cuda")
BACKENDS = ("gloo", "nccl")
COST_SIZES = (4 * KIB, 256 * KIB, 4 * MIB)
ALL_REDUCE_SIZES = (4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB)


@dataclass(frozen=True)
class Contender:
    """Something to run: a method on an engine, or a baseline, with its settings in words."""

    name: str
    engine: str
    method: Method | None = None
    settings: str = ""


def contenders(
    methods: str | Method | list[str | Method] = "all",
    *,
    engine: str | Sequence[str] = "torch",
    baselines: bool | Sequence[str] = True,
    partition: str | int | None = None,
    credit: str | int | None = None,
) -> list[Contender]:
    """What to run for these methods ("all", one, or a list): baselines first.

    ``engine`` is one name or several; every method runs on each of them that can, and "all" are
    those that any can. ``baselines`` are those of that name; True are ``single``, ``DDP`` and those
    of the engines. With engines that have no methods, such as "ddp", only baselines run. Raises
    UnknownName for an unknown method or engine, InputError for a method that none can run.
    """
    engines = [get_engine(name) for name in ([engine] if isinstance(engine, str) else engine)]
    require(bool(engines), "engine names none; name at least one")
    able = [one for one in engines if one.exchanges]
    names = _baselines(baselines, engines)
    names += [one.name for one in engines if one.baseline and not able]
    listed = [Contender(str(ENGINES[n].baseline), n) for n in dict.fromkeys(names)]
    asked = [methods] if isinstance(methods, str | Method) else list(methods or ())
    require(bool(asked), f"methods {methods!r} name none; name at least one, or 'all'")
    for name in BASELINES.keys() & {name for name in asked if isinstance(name, str)}:
        raise InputError(
            f"{name!r} is a baseline, not a method; it runs beside the methods "
            f"(baselines=True), or alone with engine={BASELINES[name]!r}"
        )
    if not able:
        return listed
    if "all" in asked:
        asked = [
            method for method in METHODS.values() if not all(one.refuses(method) for one in able)
        ]
    chosen = {method.name: method for method in map(get_method, asked)}  # each once
    for method in chosen.values():
        _require_own_name(method)
        if all(one.refuses(method) for one in able):
            require_runs(able[0].name, method)
        method = method.tuned(partition=partition, credit=credit)
        sizes = {"partition": method.partition_bytes, "credit": method.credit_bytes}
        settings = " ".join(f"{key}={size}B" for key, size in sizes.items() if size)
        listed += [
            Contender(method.name, one.name, method, settings)
            for one in able
            if not one.refuses(method)
        ]
    return listed


def _baselines(asked: bool | Sequence[str], engines: list[Engine]) -> list[str]:
    """The engines of the baselines that are asked for."""
    if isinstance(asked, bool):
        names = ["single", "ddp", *(one.name for one in engines if one.baseline)]
        return names if asked else []
    for name in asked:
        if name not in BASELINES:
            raise UnknownName("baseline", name, BASELINES)
    return [BASELINES[name] for name in asked]


def _require_own_name(method: Method) -> None:
    known = METHODS.get(method.name, method)
    sizes_differ = replace(known, partition_bytes=None, credit_bytes=None) == replace(
        method, partition_bytes=None, credit_bytes=None
    )
    require(
        sizes_differ,
        f"method {method.name!r} differs from the catalogue's of that name in more than "
        f"its sizes; give it a name of its own",
    )


class Bench:
    """Runs contenders on one model with a fixed number of workers and servers.

    ``ranks`` must have at least workers + servers processes; PS methods use the ranks after the
    workers as servers. Layer times and the cost of an all-reduce are measured on first use, on the
    same ranks and under the same load as the runs.
    """

    def __init__(
        self,
        task: str | Task,
        ranks: Ranks,
        *,
        workers: int,
        servers: int = 1,
        local_batch: int | None = None,
        optimizer: str | MakeOptimizer = "sgd",
        device: str = "cpu",
        backend: str = "gloo",
        topology: str = "ring",
        cost: AlphaBeta | None = None,
        timeout_seconds: float = 300.0,
    ):
        self.task = slowed(get_task(task), ranks.site.scale)
        self.ranks, self.workers, self.servers = ranks, workers, servers
        self.local_batch = self.task.local_batch if local_batch is None else local_batch
        require_whole(workers=workers, servers=servers, local_batch=self.local_batch)
        self._make_optimizer = get_optimizer(optimizer)
        self._device, self._backend, self._topology = device, backend, topology
        self._given_cost = cost
        self._timeout_seconds = timeout_seconds

    @cached_property
    def workload(self) -> Workload:
        """Layer times of rank 0, measured while all workers compute; of a replayed task, its own.

        Seconds are real ones, also where the ranks run in a slowed world.
        """
        if self.task.recorded is not None:
            return self.task.recorded
        arguments = (self.task, self.local_batch, 5, self._device)
        return self.ranks.run(
            profile_rank, *arguments, count=self.workers, timeout_seconds=self._timeout_seconds
        )[0]

    @cached_property
    def cost(self) -> AlphaBeta:
        """The fitted time a + b M of one all-reduce among the workers while they compute.

        Where the workers' cores are free, on GPUs and while computation is replayed, it is measured
        while nothing computes. A cost given to the bench is taken instead.
        """
        if self._given_cost is not None:
            return self._given_cost
        is_shared = self._device == "cpu" and self.task.recorded is None
        measured = self.all_reduce_seconds(COST_SIZES, 25, while_computing=is_shared)
        return fit_alpha_beta(*zip(*measured, strict=True))

    def all_reduce_seconds(
        self,
        sizes: tuple[int, ...] = ALL_REDUCE_SIZES,
        repetitions: int = 7,
        *,
        while_computing: bool = False,
    ) -> list[tuple[int, float]]:
        """(bytes, real seconds) of all-reduces among the workers, as the slowest rank saw them."""
        found = self.ranks.run(
            time_all_reduce,
            sizes,
            repetitions,
            self._backend,
            self._device,
            while_computing,
            self._topology,
            count=self.workers,
            timeout_seconds=self._timeout_seconds,
        )
        scale = self.ranks.site.scale
        return [(size, scale * max(rank[i][1] for rank in found)) for i, size in enumerate(sizes)]

    def plan(self, method: str | Method) -> Plan:
        """The plan of a method for this model on these workers."""
        method = get_method(method)
        cost = self.cost if method.needs_cost else None
        return method.plan(self.workload, cost=cost, servers=self.servers)

    def run(
        self, contender: Contender, *, iterations: int, warmup: int = 0, traced: int = 0
    ) -> tuple[Job, list[Report]]:
        """The job and the workers' reports of one run, in real seconds (see `Report.scaled`).

        Raises RankError when a rank fails, and DdlnbError when the workers end with different
        parameters, which no lossless method may.
        """
        job = Job(
            task=self.task,
            engine=contender.engine,
            workers=1 if contender.engine == "single" else self.workers,
            local_batch=self.local_batch,
            iterations=iterations,
            warmup=warmup,
            traced=traced,
            plan=self.plan(contender.method) if contender.method else None,
            make_optimizer=self._make_optimizer,
            device=self._device,
            backend=self._backend,
            topology=self._topology,
        )
        if job.ranks > self.ranks.count:
            raise InputError(
                f"{contender.name} with {job.workers} workers and {job.servers} servers needs "
                f"{job.ranks} ranks, but there are {self.ranks.count}; start Ranks({job.ranks})"
            )
        answers = self.ranks.run(
            run_job, job, count=job.ranks, timeout_seconds=self._timeout_seconds
        )
        reports = [report for report in answers if report is not None]
        if len({report.digest for report in reports}) != 1:
            raise DdlnbError(
                f"{contender.name} is not lossless here: workers ended with different parameters "
                f"{[report.digest for report in reports]}"
            )
        return job, [report.scaled(self.ranks.site.scale) for report in reports]

    def timeline(self, contender: Contender, *, iterations: int = 3, warmup: int = 3) -> Timeline:
        """What every rank did in some iterations of a run."""
        _, reports = self.run(contender, iterations=1, warmup=warmup, traced=iterations)
        spans = tuple(span for report in reports for span in report.spans)
        return Timeline(contender.name, self.ranks.site.source, spans)


def slowed(task: Task, scale: float) -> Task:
    """The task in a world slowed to the scale. Raises InputError if it cannot be slowed."""
    if scale == 1:
        return task
    require(
        task.recorded is not None,
        f"scale={scale} slows computation as well as links, and {task.name!r} really computes; "
        f"replay a profile (ddlnb.replayed, --replay), or take scale=1",
    )
    assert task.recorded is not None
    return replayed(task.recorded, scale=scale)


def ranks_needed(chosen: list[Contender], workers: int, servers: int) -> int:
    """Processes that these contenders need at most."""
    with_servers = any(c.method and c.method.exchange == "push_pull" for c in chosen)
    return workers + (servers if with_servers else 0)
