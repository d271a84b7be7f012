"""Our own engine: a `Replica` on torch.distributed's all-reduces or on our parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from ddlnb.engines.job import Job
from ddlnb.engines.replica import Replica
from ddlnb.engines.transports.connect import transport_for
from ddlnb.engines.transports.server import serve_workers
from ddlnb.launch.rank import RankContext
from ddlnb.plans.server_rules import BulkSynchronous


def start(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[Replica, Callable]:
    """Return the trainer of this worker, and the loss of a batch that its steps take."""
    assert job.plan is not None
    transport = transport_for(
        context, store, job.plan, job.topology, job.collective, job.ranks_per_node
    )
    timeout = context.timeout_seconds
    replica = Replica(
        module,
        job.plan,
        transport,
        job.make_optimizer,
        job.workers,
        timeout,
        rank=context.rank,
        seed=job.seed,
    )
    return replica, partial(job.task.loss, module)


def serve(context: RankContext, job: Job, store: Any) -> None:
    """Serve the workers of the job until all have said goodbye."""
    serve_workers(context, store, job.workers, BulkSynchronous(job.workers))
