"""BytePS as an engine: it answers the pushes and pulls of our plans.

How a plan maps to BytePS:

- A message is one asynchronous ``push_pull`` in place, with a name of its own. All workers
  declare the names in the plan's order, which is what BytePS numbers them by.
- Partition: ``BYTEPS_PARTITION_BYTES`` is the size of the plan's largest message, so BytePS cuts
  nothing that the plan has not cut, up to 1 GiB; larger messages it cuts.
- Credit and priority: ``BYTEPS_SCHEDULING_CREDIT`` is the plan's credit in such partitions, at
  least one, and a message's priority is the plan's with the sign changed, as larger is sooner for
  BytePS. Messages go to BytePS as soon as they are ready; it keeps order and credit. Without a
  credit BytePS takes messages as they come.
- Placement is not the plan's: BytePS chooses a message's server by a hash of its number.
- BytePS does not report when a message has reached its server, only when its sum is back. That
  is when a timeline's spans end.
- There is no bounded staleness, and nothing but push_pull. Its asynchronous mode is for training
  methods: see servers.py.

GPUs need another build of BytePS, which has not been tried: see docs/byteps.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.job import Job
from ddlnb.engines.replica import Replica
from ddlnb.errors import MissingPart
from ddlnb.foreign_engines.byteps import runtime
from ddlnb.foreign_engines.byteps.runtime import Membership
from ddlnb.foreign_engines.catalogue import require_summed
from ddlnb.launch.rank import RankContext
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import PushPull
from ddlnb.units import GIB

KINDS = {  # what BytePS calls the tensors that it sums, and we train with
    torch.float16: "HalfTensor",
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
}
PAGE_BYTES = 4096  # BytePS rounds partitions up to it


class BytePSTransport:
    """Sums tensors by BytePS. ``bytes_sent`` counts payload, without BytePS's headers."""

    def __init__(self, membership: Membership):
        self.bytes_sent = 0.0
        self._membership = membership
        self._messages: list[tuple[str, int]] = []

    def declare(self, name: str, like: torch.Tensor, priority: int = 0) -> int:
        """Return the number of a new message of tensors like this one; larger priorities go first.

        All workers declare the same messages in the same order, and wait for one another: that sets
        up the buffers, which is not part of an iteration.
        """
        self._membership.ops.c_lib.byteps_torch_declare_tensor(name)
        self._messages.append((name, priority))
        number = len(self._messages) - 1
        self._start(number, torch.zeros_like(like), None).wait()
        return number

    def start(
        self,
        message: int,
        request: PushPull,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Push the request's tensor; it holds the sum once the handle's wait returns.

        ``released`` must be None, as BytePS does not report when a message has reached its server.
        """
        assert released is None, "BytePS keeps the credit itself"
        self.bytes_sent += request.tensor.numel() * request.tensor.element_size()
        return self._start(message, request.tensor, answered)

    def _start(self, message: int, tensor: torch.Tensor, answered: Callback) -> Handle:
        name, priority = self._messages[message]
        kind = KINDS[tensor.dtype]
        push_pull = getattr(
            self._membership.ops.c_lib, f"byteps_torch_push_pull_async_torch_{kind}"
        )
        is_average, version = 0, 0
        number = push_pull(tensor, tensor, is_average, name, version, priority)
        return _Sum(self._membership, number, name, tensor, answered)

    def close(self) -> None:
        """Leave BytePS, with all other workers; every request must have been answered."""
        self._membership.leave()


class _Sum:
    """A push and pull in flight."""

    def __init__(
        self,
        membership: Membership,
        number: int,
        name: str,
        tensor: torch.Tensor,
        answered: Callback,
    ):
        self._membership, self._number = membership, number
        self._name, self._tensor = f"message {name!r}", tensor
        self._watcher: threading.Thread | None = None
        if answered is not None:  # only timelines ask: a thread that sleeps until then
            self._watcher = threading.Thread(target=self._watch, args=[answered], daemon=True)
            self._watcher.start()

    def wait(self) -> torch.Tensor:
        self._membership.wait(self._number, self._name)
        if self._watcher is not None:
            self._watcher.join()  # it still asks for the handle
        self._membership.ops.c_lib.byteps_torch_wait_and_clear(self._number)
        return self._tensor

    def _watch(self, answered: Callable[[], None]) -> None:
        self._membership.wait(self._number, self._name)
        answered()


def partition_and_credit(plan: Plan) -> tuple[int, int]:
    """Return a plan's partition in bytes and its credit in partitions, 0 for none."""
    partition = uncut(max(plan.message_bytes))
    if plan.credit_bytes is None:
        return partition, 0
    return partition, max(1, plan.credit_bytes // partition)


def uncut(message_bytes: int) -> int:
    """Return the partition that leaves a message of this size whole: full pages, at most 1 GiB."""
    return -(-min(message_bytes, GIB) // PAGE_BYTES) * PAGE_BYTES


def start(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[Replica, Callable]:
    """Return the trainer of engine ``byteps``, and the loss of a batch that its steps take.

    Raises MissingPart or ModelError for what this BytePS cannot do, before it is initialised.
    """
    assert job.plan is not None
    dtype = _require_possible(job, module)
    partition, credit = partition_and_credit(job.plan)
    membership = Membership(context, store, job.workers, job.plan.servers, partition, credit)
    transport = BytePSTransport(membership)
    # Names are equal on all workers; numbered, because pieces of one gradient may look alike.
    for number, message in enumerate(job.plan.messages):
        like = torch.empty(message.elements, dtype=dtype)
        transport.declare(f"{number} {message}", like, -message.priority)
    plan = replace(job.plan, credit_bytes=None)  # BytePS keeps it
    timeout = context.timeout_seconds
    replica = Replica(module, plan, transport, job.make_optimizer, job.workers, timeout)
    return replica, partial(job.task.loss, module)


def serve(context: RankContext, job: Job, store: Any) -> None:
    """Run one of BytePS's servers until all workers have left."""
    runtime.serve(context, store, job.workers, job.servers)


def _require_possible(job: Job, module: nn.Module) -> torch.dtype:
    """Return the dtype in which the module trains. Raises MissingPart or ModelError."""
    if job.device != "cpu":
        raise MissingPart(
            f"device {job.device!r} needs a BytePS with CUDA and NCCL, and this one is built "
            f"without; use 'cpu', or see docs/byteps.md"
        )
    return require_summed("BytePS", module, KINDS)
