"""Workers and a parameter server in real processes, over sockets: the same loops as in lockstep.

Messages do not overlap with the backward pass here, since a worker sends when its gradient is
complete.
"""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

from ddlnb.engines.process_group import process_group
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.training.executors.servers import get_servers, require_trains
from ddlnb.training.executors.transport import BlockingTransport
from ddlnb.training.job import Arrival, TrainingJob, TrainingRun, WorkerReport
from ddlnb.training.loop import NextGradient, StepDone


def train_on_ranks(
    ranks: Ranks,
    job: TrainingJob,
    timeout_seconds: float | None = None,
    executor: str = "distributed",
) -> TrainingRun:
    """Run the job on as many of these ranks as it needs, with the executor's parameter servers.

    Raises UnknownName, InputError if there are too few or the servers cannot run the method,
    MissingPart, and RankError, naming the rank, if one fails.
    """
    # A wrong job is refused here, before anything starts.
    require_trains(executor, job.method)
    job.worker(0)
    reports = ranks.run(
        run_on_rank, job, executor, count=job.ranks, timeout_seconds=timeout_seconds
    )
    return as_run(reports)


def as_run(reports: list[Any]) -> TrainingRun:
    """Join what `run_on_rank` returned on all ranks, in rank order."""
    workers = tuple(report for report in reports if isinstance(report, WorkerReport))
    arrivals = [report for report in reports if isinstance(report, tuple)]
    return TrainingRun(workers, arrivals[0] if arrivals else ())


def run_on_rank(
    context: RankContext, job: TrainingJob, executor: str = "distributed"
) -> WorkerReport | tuple[Arrival, ...] | None:
    """Run this rank's part: return a worker's report, a server's arrivals, None for a spare rank.

    Ranks.run calls it on every rank.
    """
    store = context.store()
    if context.rank >= job.ranks:
        return None
    if context.rank >= job.workers:
        return get_servers(executor).serve(context, store, job)
    with process_group(context, store, job.workers):
        return _train(context, job, store, executor)


def _train(context: RankContext, job: TrainingJob, store: Any, executor: str) -> WorkerReport:
    worker = job.worker(context.rank)
    servers = None
    if job.servers:
        servers = get_servers(executor).connect(context, store, job, worker)
    transport = BlockingTransport(servers)
    flow = job.method.synchronisation.loop(worker)
    losses: list[float] = []
    observed: list[Any] = []
    answer: Any = None
    dist.barrier()
    start = time.perf_counter()
    while len(losses) < job.steps:
        request = flow.send(answer)
        answer = None
        if isinstance(request, NextGradient):
            if (delay := job.delay(worker.rank, worker.step)) > 0:
                time.sleep(delay)
            answer = worker.gradient()
        elif isinstance(request, StepDone):
            losses.append(worker.last_loss)
            if job.observe is not None:
                seconds = time.perf_counter() - start
                observed.append(job.observe(worker, len(losses), seconds))
        else:
            answer = transport.answer(request)
    seconds = time.perf_counter() - start
    flow.close()
    # Not after a failure: closing waits for others, and a failed rank ends with its process.
    transport.close()
    return WorkerReport(
        worker.rank,
        worker.parameters,
        tuple(losses),
        transport.bytes_sent,
        transport.bytes_received,
        seconds,
        tuple(observed),
    )
