"""Horovod as an engine: it answers the all-reduces of our plans, or trains with its defaults.

How a plan maps on Horovod's own means:

- A message is one ``allreduce_async_`` with a name of its own. The fusion threshold is 0, since
  the plan has decided what travels together; the baseline has Horovod's default of 128 MiB.
- Halves of a split all-reduce are its ``reducescatter_async`` and ``allgather_async``, whose parts
  are ours: those of ``torch.tensor_split``.
- Horovod starts what all workers have requested, in cycles of a millisecond. It has no
  priorities; order is the order in which a plan starts its messages, equal on all workers.
- Credit and timelines need to know when a message has ended. Horovod does not report it, so a
  thread polls, as ByteScheduler did on Horovod.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.job import Job
from ddlnb.engines.replica import Replica
from ddlnb.engines.settings import MakeOptimizer
from ddlnb.engines.torch_engine import ReducingBaseline
from ddlnb.errors import MissingPart
from ddlnb.foreign_engines.catalogue import require_summed
from ddlnb.foreign_engines.horovod.runtime import imported, join, leave
from ddlnb.launch.rank import RankContext
from ddlnb.plans.alpha_beta import ring_bytes_sent
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import AllReduce, GatherParts, ReduceScatter
from ddlnb.units import MIB

DTYPES = (torch.float16, torch.float32, torch.float64)
DEFAULT_FUSION_BYTES = 128 * MIB
PAUSE_SECONDS = 0.0002  # between two looks at a message


class HorovodTransport:
    """Asynchronous all-reduces by Horovod, which must have been initialised.

    ``bytes_sent`` is not counted on the wire but follows from the ring of Horovod's gloo.
    """

    def __init__(self, plan: Plan, workers: int, timeout_seconds: float):
        self.bytes_sent = 0.0
        self._hvd = imported()
        # Equal on all workers; numbered, because pieces of one gradient may look alike.
        self._names = [f"{number} {message}" for number, message in enumerate(plan.messages)]
        self._workers, self._timeout_seconds = workers, timeout_seconds
        self._watched: queue.SimpleQueue[_Summed | None] = queue.SimpleQueue()
        self._watcher: threading.Thread | None = None

    def start(
        self,
        message: int,
        request: AllReduce | ReduceScatter | GatherParts,
        released: Callback = None,
        answered: Callback = None,
    ) -> Handle:
        """Start the all-reduce of the request's tensor, or a half of it, in place.

        It is released when it is answered: all workers start their all-reduces in the same order.
        """
        tensor = request.tensor
        sent = ring_bytes_sent(tensor.nbytes, self._workers)
        name, into = self._names[message], None
        if isinstance(request, AllReduce):
            number = self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum)
        else:
            sent, into = sent / 2, tensor
            own = tensor.tensor_split(self._workers)[self._hvd.rank()]
            if isinstance(request, ReduceScatter):
                into, name = own, f"scatter {name}"
                number = self._hvd.reducescatter_async(tensor, name=name, op=self._hvd.Sum)
            else:
                name = f"gather {name}"
                number = self._hvd.allgather_async(own.clone(), name=name)
        self.bytes_sent += sent
        callbacks = [callback for callback in (answered, released) if callback is not None]
        handle = _Summed(self._hvd, number, name, self._timeout_seconds, tensor, into, callbacks)
        if callbacks:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="horovod", daemon=True)
                self._watcher.start()
            self._watched.put(handle)
        return handle

    def _watch(self) -> None:
        """Note the end of messages, in the order in which they were started."""
        flying: list[_Summed] = []
        while True:
            while not flying or not self._watched.empty():
                started = self._watched.get()
                if started is None:
                    return
                flying.append(started)
            ended = [one for one in flying if one.is_done()]
            flying = [one for one in flying if one not in ended]
            for one in ended:
                one.end()
            if not ended:
                time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """Shut Horovod down; the process can initialise it again."""
        self._watched.put(None)
        leave()


class _Summed:
    """A collective in flight. Horovod's own wait keeps a core busy; this one sleeps.

    With ``callbacks`` the transport's watcher says when it has ended.
    """

    def __init__(
        self,
        hvd: Any,
        number: int,
        name: str,
        timeout_seconds: float,
        tensor: torch.Tensor,
        into: torch.Tensor | None,
        callbacks: list[Callable[[], None]],
    ):
        self._hvd, self._number, self._name = hvd, number, name
        self._tensor, self._into = tensor, into  # what comes is written there, if it is new
        self._timeout_seconds, self._callbacks = timeout_seconds, callbacks
        self._ended = threading.Event()

    def is_done(self) -> bool:
        return self._hvd.poll(self._number)

    def end(self) -> None:
        for callback in self._callbacks:
            callback()
        self._ended.set()

    def wait(self) -> Any:
        deadline = time.monotonic() + self._timeout_seconds
        while not (self._ended.wait(self._timeout_seconds) if self._callbacks else self.is_done()):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"message {self._name!r} was not summed within {self._timeout_seconds} s: "
                    f"another worker has not requested it"
                )
            time.sleep(PAUSE_SECONDS)
        found = self._hvd.synchronize(self._number)
        if self._into is None:
            return found
        self._into.copy_(found)
        return self._tensor


class HorovodBaseline(ReducingBaseline):
    """``hvd.DistributedOptimizer`` with its default settings: fusion, but no plan of ours.

    Parameters are not broadcast, because all workers start from the same seed.
    """

    last_messages = "all gradients"

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, workers: int):
        def wrapped(parameters: Any) -> Any:
            return imported().DistributedOptimizer(
                make_optimizer(parameters), named_parameters=module.named_parameters()
            )

        super().__init__(module, wrapped, workers)

    def _finish(self) -> None:
        self._optimizer.synchronize()  # type: ignore[attr-defined]

    def _update(self) -> None:
        with self._optimizer.skip_synchronize():  # type: ignore[attr-defined]
            super()._update()

    def close(self) -> None:
        """Remove the hooks and shut Horovod down."""
        super().close()
        leave()


def start(
    context: RankContext, job: Job, store: Any, module: nn.Module
) -> tuple[Replica | HorovodBaseline, Callable]:
    """Return the trainer of engine ``horovod``, and the loss of a batch that its steps take.

    Raises MissingPart or ModelError for what this Horovod cannot do, before it is initialised.
    """
    _require_possible(job, module)
    loss = partial(job.task.loss, module)
    if job.plan is None:
        join(context, store, job.workers, DEFAULT_FUSION_BYTES)
        return HorovodBaseline(module, job.make_optimizer, job.workers), loss
    join(context, store, job.workers, 0)
    timeout = context.timeout_seconds
    transport = HorovodTransport(job.plan, job.workers, timeout)
    return Replica(module, job.plan, transport, job.make_optimizer, job.workers, timeout), loss


def _require_possible(job: Job, module: nn.Module) -> None:
    hvd = imported()
    if not hvd.gloo_built():
        raise MissingPart("this Horovod has no gloo; scripts/install_engines.sh builds it with it")
    for what, given, plain in (
        ("device", job.device, "cpu"),
        ("backend", job.backend, "gloo"),
    ):
        if given != plain and not hvd.nccl_built():
            raise MissingPart(
                f"{what} {given!r} needs a Horovod with NCCL, and this one has none; "
                f"use {plain!r}, or build it with HOROVOD_GPU_OPERATIONS=NCCL"
            )
    require_summed("Horovod", module, DTYPES)
