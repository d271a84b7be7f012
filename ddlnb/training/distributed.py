"""Workers and a parameter server on real processes and sockets: the loops of lockstep, for real.

Messages do not overlap with the backward pass here: a worker asks for them when its gradient is
there as a whole.
"""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

from ddlnb.engines.network import process_group
from ddlnb.engines.server import serve_workers
from ddlnb.engines.transports import connect_to_servers
from ddlnb.place import Place
from ddlnb.ranks import Ranks
from ddlnb.training.job import Arrival, TrainingJob, TrainingRun, WorkerReport
from ddlnb.training.replaying import Noting
from ddlnb.training.requests import Gradient, StepDone
from ddlnb.training.transport import BlockingTransport


def train_on_ranks(
    ranks: Ranks, job: TrainingJob, timeout_seconds: float | None = None
) -> TrainingRun:
    """The job on so many of these processes as it needs.

    Raises InputError if there are too few, and RankError, naming the rank, if one fails.
    """
    job.worker(0)  # so that a wrong job is refused here, before anything starts
    reports = ranks.run(run_on_rank, job, count=job.ranks, timeout_seconds=timeout_seconds)
    return as_run(reports)


def as_run(reports: list[Any]) -> TrainingRun:
    """What `run_on_rank` returned on all ranks, by rank, as one."""
    workers = tuple(report for report in reports if isinstance(report, WorkerReport))
    arrivals = [report for report in reports if isinstance(report, tuple)]
    return TrainingRun(workers, arrivals[0] if arrivals else ())


def run_on_rank(place: Place, job: TrainingJob) -> WorkerReport | tuple[Arrival, ...] | None:
    """This rank's part: a worker's report, a server's arrivals, None beyond the job's ranks.

    Ranks.run calls it on every rank.
    """
    store = place.store()
    if place.rank >= job.ranks:
        return None
    if place.rank >= job.workers:
        rule = job.rule()
        assert rule is not None, f"{job.method.synchronisation} has no rule for its server"
        noting = Noting(rule)
        serve_workers(place, store, job.workers, noting)
        return tuple(noting.arrivals)
    with process_group(place, store, job.workers):
        return _train(place, job, store)


def _train(place: Place, job: TrainingJob, store: Any) -> WorkerReport:
    worker = job.worker(place.rank)
    servers = connect_to_servers(place, store, job.servers, [0]) if job.servers else None
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
        if isinstance(request, Gradient):
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
    # Not on failure: closing waits for others, and a failed rank is ended with its process.
    transport.close()
    return WorkerReport(
        worker.rank,
        worker.parameters,
        tuple(losses),
        transport.bytes_sent,
        seconds,
        tuple(observed),
    )
