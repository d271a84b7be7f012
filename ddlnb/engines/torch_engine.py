"""The engines on PyTorch alone: one worker, DistributedDataParallel, and ours.

Ours is a `Replica` on torch.distributed's all-reduces, on collectives of our own, or on our
parameter servers. The baselines train in the same harness as our methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddlnb.engines.base import Transport
from ddlnb.engines.job import Job, Tracer, recorded
from ddlnb.engines.replica import Replica
from ddlnb.engines.settings import MakeOptimizer
from ddlnb.engines.transports.all_reduce import AllReduceTransport, ChoosingTransport
from ddlnb.engines.transports.push_pull import connect_to_servers, serve_workers
from ddlnb.errors import require
from ddlnb.launch.rank import RankContext
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import AllGather
from ddlnb.plans.server_rules import BulkSynchronous
from ddlnb.plans.transfers import Collective
from ddlnb.registry import supplied


def start(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[Replica, Callable]:
    """Return the trainer of our engine on this worker, and the loss of a batch that it takes."""
    assert job.plan is not None
    transport = transport_for(
        context, store, job.plan, job.topology, job.collective, job.ranks_per_node
    )
    trained = job.make_optimizer, job.workers, context.timeout_seconds, context.rank, job.seed
    return Replica(module, job.plan, transport, *trained), partial(job.task.loss, module)


def serve(context: RankContext, job: Job, store: Any) -> None:
    """Serve the workers of the job until all have said goodbye."""
    serve_workers(context, store, job.workers, BulkSynchronous(job.workers))


def transport_for(
    context: RankContext,
    store: Any,
    plan: Plan,
    topology: str = "ring",
    collective: Collective | None = None,
    per_node: int = 1,
    group: dist.ProcessGroup | None = None,
) -> Transport:
    """Return what answers a plan's requests on this worker: collectives, or parameter servers.

    All-reduces and all-gathers of the backend go over ``group``, or over the default group.
    """
    if plan.compressed_by:
        require(
            topology == "ring" and collective is None,
            f"plan {plan.method!r} compresses messages, whose payloads the backend gathers; leave "
            f"topology and collective out",
        )
        whole = replace(plan, compressions=())
        dense = transport_for(context, store, whole, per_node=per_node, group=group)
        plain = AllReduceTransport(group)
        return ChoosingTransport(
            lambda _, request: plain if isinstance(request, AllGather) else dense, plain, dense
        )
    if plan.servers:
        return connect_to_servers(context, store, plan.servers, plan.placement)
    reached = context.host, context.timeout_seconds
    if plan.is_split:
        return supplied("transport in halves")(*reached)
    if plan.collectives:
        named = supplied("transport per message")(plan.collectives, per_node, *reached)
        plain = AllReduceTransport(group)
        return ChoosingTransport(
            lambda message, _: named if plan.collectives[message] else plain, named, plain
        )
    return reducing(context, topology, collective, group)


def reducing(
    context: RankContext,
    topology: str,
    collective: Collective | None,
    group: dist.ProcessGroup | None = None,
) -> Transport:
    """Return what sums tensors over all ranks, whatever plan they are of."""
    reached = context.host, context.timeout_seconds
    if collective is not None:
        return supplied("transport along a collective")(collective, context.rank, *reached)
    if topology == "mesh":
        return supplied("transport over a mesh")(*reached)
    return AllReduceTransport(group)


class SingleWorker:
    """A plain training loop without communication: the denominator of every speed-up."""

    waited_seconds = bytes_sent = 0.0

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer):
        self._optimizer = make_optimizer(module.parameters())
        self._tracer: Tracer | None = None

    def step(self, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run forward, backward and update, and return the loss of the batch."""
        with recorded(self._tracer, "forward", "all layers"):
            value = loss()
        with recorded(self._tracer, "backward", "all layers"):
            self._backward(value)
        with recorded(self._tracer, "update", "all layers"):
            self._update()
        return value.detach()

    def _backward(self, value: torch.Tensor) -> None:
        value.backward()

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def synchronize(self) -> None:
        """Do nothing: no message is ever in flight."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def trace(self, tracer: Tracer | None) -> None:
        """Record spans from the next step on, or stop recording."""
        self._tracer = tracer


class ReducingBaseline(SingleWorker):
    """A training loop whose gradients another library averages, with its default settings.

    ``waited_seconds`` is the time from the last gradient to the end of backward, in which it waits
    for its last messages.
    """

    last_messages = ""  # what spans call them

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, workers: int):
        super().__init__(module, make_optimizer)
        trained = [p for p in module.parameters() if p.requires_grad]
        size = sum(p.numel() * p.element_size() for p in trained)
        self._bytes_per_step = ring_bytes_sent(size, workers)
        self._last_gradient = 0.0
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in trained]

    def _on_gradient(self, _: nn.Parameter) -> None:
        self._last_gradient = time.perf_counter()

    def _backward(self, value: torch.Tensor) -> None:
        super()._backward(value)
        self._finish()
        end = time.perf_counter()
        self.waited_seconds += end - self._last_gradient
        self.bytes_sent += self._bytes_per_step
        if self._tracer is not None:
            self._tracer.record("wait", self.last_messages, self._last_gradient, end)

    def _finish(self) -> None:
        """Wait for the last messages, where the backward pass has not."""

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


class _WithLoss(nn.Module):
    def __init__(self, module: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]):
        super().__init__()
        self.module, self._loss = module, loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self._loss(self.module, batch)


class DistributedDataParallelBaseline(ReducingBaseline):
    """torch.nn.parallel.DistributedDataParallel with its default settings.

    The defaults include sending rank 0's buffers (those of batch normalisation) to all before every
    forward pass. ``step`` must get a closure over ``loss``.
    """

    last_messages = "last buckets"

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[nn.Module, Any], torch.Tensor],
        make_optimizer: MakeOptimizer,
        workers: int,
    ):
        # Around the loss, because a loss may call parts of the module, which DDP hides.
        self.loss = DistributedDataParallel(_WithLoss(module, loss))
        super().__init__(module, make_optimizer, workers)


def single(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[SingleWorker, Callable]:
    """Return the trainer of engine ``single``, and the loss of a batch that its steps take."""
    return SingleWorker(module, job.make_optimizer), partial(job.task.loss, module)


def ddp(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[DistributedDataParallelBaseline, Callable]:
    """Return the trainer of engine ``ddp``, and the loss of a batch that its steps take."""
    trainer = DistributedDataParallelBaseline(
        module, job.task.loss, job.make_optimizer, job.workers
    )
    return trainer, trainer.loss
