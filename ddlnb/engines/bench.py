"""One model on some workers: profiled once, then run with any method or baseline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from ddlnb.engines.job import Job, Replans, Report
from ddlnb.engines.probes import (
    COST_PROBES,
    Probe,
    cost_of,
    profile_rank,
    shares_cores,
    time_all_reduces,
)
from ddlnb.engines.settings import DEFAULTS, MeasurementSettings, get_optimizer, optimizer_name
from ddlnb.engines.targets import Target, is_searched
from ddlnb.engines.worker import run_job
from ddlnb.errors import DdlnbError, require
from ddlnb.launch.options import LaunchOptions
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method, get_method
from ddlnb.plans.plan import Plan
from ddlnb.registry import supplied
from ddlnb.results.timeline import Timeline
from ddlnb.units import KIB, MIB
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task, require_finite
from ddlnb.workloads.workload import Workload

ALL_REDUCE_SIZES = (4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB)


class Bench:
    """Runs targets on one model with a fixed number of workers and servers.

    ``ranks`` must have at least workers + servers processes; PS methods use the ranks after the
    workers as servers. Layer times and the cost of an all-reduce are measured on first use, on the
    same ranks and under the same load as the runs.
    """

    def __init__(self, task: str | Task, ranks: Ranks, settings: MeasurementSettings = DEFAULTS):
        self.task = slowed(get_task(task), ranks.site.scale)
        self.ranks, self.settings = ranks, settings
        self.local_batch = settings.batch_of(self.task)
        self._searched: dict[Any, Plan] = {}

    @cached_property
    def workload(self) -> Workload:
        """Layer times of rank 0, measured while all workers compute; of a replayed task, its own.

        Seconds are real ones, also where the network is slowed.
        """
        if self.task.recorded is not None:
            return self.task.recorded
        arguments = (self.task, self.local_batch, 5, self.settings.device)
        return self.ranks.run(
            profile_rank,
            *arguments,
            count=self.settings.workers,
            timeout_seconds=self.settings.timeout_seconds,
        )[0]

    @cached_property
    def cost(self) -> AlphaBeta:
        """The fitted time a + b M of one all-reduce among the workers while they compute.

        Where the workers' cores are free, on GPUs and while computation is replayed, it is measured
        while nothing computes. A cost given to the bench is taken instead.
        """
        if self.settings.cost is not None:
            return self.settings.cost
        shared = shares_cores(self.task, self.settings.device)
        return self.measured_cost(25, while_computing=shared)

    def measured_cost(self, repetitions: int, *, while_computing: bool = False) -> AlphaBeta:
        """Return the cost of an all-reduce among the workers, measured now, in real seconds."""
        return cost_of(self._timed(COST_PROBES, repetitions, while_computing))

    def all_reduce_seconds(
        self,
        sizes: tuple[int, ...] = ALL_REDUCE_SIZES,
        repetitions: int = 7,
        *,
        while_computing: bool = False,
    ) -> list[tuple[int, float]]:
        """Return (bytes, real seconds) of all-reduces of the workers, as seen by the slowest."""
        found = self._timed([Probe(size) for size in sizes], repetitions, while_computing)
        return list(zip(sizes, found, strict=True))

    def _timed(
        self, probes: Sequence[Probe], repetitions: int, while_computing: bool
    ) -> list[float]:
        """Return the real seconds of every probe, as seen by the slowest worker."""
        found = self.ranks.run(
            time_all_reduces,
            probes,
            repetitions,
            self.settings.backend,
            self.settings.device,
            while_computing,
            self.settings.topology,
            self.settings.listed,
            count=self.settings.workers,
            timeout_seconds=self.settings.timeout_seconds,
        )
        return [self.ranks.site.scale * max(seconds) for seconds in zip(*found, strict=True)]

    def plan(self, method: str | Method) -> Plan:
        """Return the plan of a method for this model on these workers."""
        method = get_method(method)
        if is_searched(method):
            if method.planner not in self._searched:
                search = supplied("searched plan")
                plan = search(method.planner, self.workload, self.cost, self.settings)
                self._searched[method.planner] = plan
            return self._searched[method.planner]
        cost = self.cost if method.needs_cost else None
        return method.plan(self.workload, cost=cost, servers=self.settings.server_count)

    def run(
        self, target: Target, *, iterations: int, warmup: int = 0, traced: int = 0
    ) -> tuple[Job, list[Report]]:
        """Run once; return the job and the workers' reports, in real seconds (see `Report.scaled`).

        Raises RankError when a rank fails, DdlnbError when the workers end with different
        parameters, which no lossless method may, and ModelError when a loss is not finite.
        """
        job = Job(
            task=self.task,
            engine=target.engine,
            workers=1 if target.engine == "single" else self.settings.workers,
            local_batch=self.local_batch,
            iterations=iterations,
            warmup=warmup,
            traced=traced,
            plan=self.plan(target.method) if target.method else None,
            make_optimizer=get_optimizer(self.settings.optimizer),
            device=self.settings.device,
            backend=self.settings.backend,
            topology=self.settings.topology,
            collective=self.settings.listed if target.reduces_itself else None,
            ranks_per_node=self.settings.site.ranks_per_node,
            replanning=self._replanning(target),
            changes=tuple(change.iteration for change in self.settings.changes),
        )
        require(
            job.ranks <= self.ranks.count,
            f"{target.name} with {job.workers} workers and {job.servers} servers needs "
            f"{job.ranks} ranks, but there are {self.ranks.count}; start Ranks({job.ranks})",
        )
        answers = self._answers(job)
        reports = [report for report in answers if report is not None]
        if len({report.digest for report in reports}) != 1:
            raise DdlnbError(
                f"{target.name} is not lossless here: workers ended with different parameters "
                f"{[report.digest for report in reports]}"
            )
        for report in reports:
            optimizer = optimizer_name(self.settings.optimizer)
            require_finite(report.losses, self.task.name, optimizer)
        return job, [report.scaled(self.ranks.site.scale) for report in reports]

    def _answers(self, job: Job) -> list[Report | None]:
        """Return what the ranks answer; an emulated network that became another one is as it was.

        If ranks fail, the network ends with them.
        """
        site, up = self.settings.site, self.ranks

        def become(at: LaunchOptions) -> None:
            assert up.network is not None
            up.network.become(at.topology(up.count).slowed(site.scale))

        changes = self.settings.changes
        answers = up.run(
            run_job,
            job,
            count=job.ranks,
            timeout_seconds=self.settings.timeout_seconds,
            callbacks={change.barrier: partial(become, change.site(site)) for change in changes},
        )
        if changes:
            become(site)
        return answers

    def _replanning(self, target: Target) -> Replans | None:
        """Return how this target plans anew, None where it keeps to its plan."""
        if self.settings.replan is None or not target.plans_anew:
            return None
        assert target.method is not None
        rules: Replans = supplied("re-planning")(
            target.method.planner, self.workload, self.settings, self.ranks.site.scale
        )
        return rules

    def timeline(self, target: Target, *, iterations: int = 3, warmup: int = 3) -> Timeline:
        """Return what every rank did in some iterations of a run."""
        _, reports = self.run(target, iterations=1, warmup=warmup, traced=iterations)
        spans = tuple(span for report in reports for span in report.spans)
        return Timeline(target.name, self.ranks.site.source, spans)


def slowed(task: Task, scale: float) -> Task:
    """Return the task slowed to the scale. Raises InputError if it really computes."""
    if scale == 1:
        return task
    require(
        task.recorded is not None,
        f"scale={scale} slows computation as well as links, and {task.name!r} really computes; "
        f"replay a profile (ddlnb.workloads.replayed, --replay), or take scale=1",
    )
    assert task.recorded is not None
    return replayed(task.recorded, scale=scale)
