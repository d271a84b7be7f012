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

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlnb.engines.base import Callback, Handle
from ddlnb.engines.horovod.runtime import imported, join, leave
from ddlnb.engines.job import Job
from ddlnb.engines.replica import Replica
from ddlnb.engines.settings import MakeOptimizer
from ddlnb.engines.torch_engine import SingleWorker
from ddlnb.errors import MissingPart, ModelError
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
        self._poller: _Poller | None = None

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
        sent = ring_bytes_sent(tensor.numel() * tensor.element_size(), self._workers)
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
        handle = _Summed(self._hvd, number, name, self._timeout_seconds, tensor, into)
        callbacks = [callback for callback in (answered, released) if callback is not None]
        if not callbacks:
            return handle
        if self._poller is None:
            self._poller = _Poller()
        return self._poller.watch(handle, callbacks)

    def close(self) -> None:
        """Shut Horovod down; the process can initialise it again."""
        if self._poller is not None:
            self._poller.close()
        leave()


class _Summed:
    """A collective in flight. Horovod's own wait keeps a core busy; this one sleeps."""

    def __init__(
        self,
        hvd: Any,
        number: int,
        name: str,
        timeout_seconds: float,
        tensor: torch.Tensor,
        into: torch.Tensor | None,
    ):
        self._hvd, self._number, self._name = hvd, number, name
        self._tensor, self._into = tensor, into  # what comes is written there, if it is new
        self.timeout_seconds = timeout_seconds

    def is_done(self) -> bool:
        return self._hvd.poll(self._number)

    def wait(self) -> Any:
        deadline = time.monotonic() + self.timeout_seconds
        while not self.is_done():
            if time.monotonic() > deadline:
                raise self.overdue()
            time.sleep(PAUSE_SECONDS)
        return self.result()

    def result(self) -> Any:
        found = self._hvd.synchronize(self._number)
        if self._into is None:
            return found
        self._into.copy_(found)
        return self._tensor

    def overdue(self) -> TimeoutError:
        return TimeoutError(
            f"message {self._name!r} was not summed within {self.timeout_seconds} s: "
            f"another worker has not requested it"
        )


class _Watched:
    """An all-reduce whose end a poller reports."""

    def __init__(self, summed: _Summed, callbacks: list[Callable[[], None]]):
        self.summed, self._callbacks = summed, callbacks
        self._ended = threading.Event()

    def end(self) -> None:
        for callback in self._callbacks:
            callback()
        self._ended.set()

    def wait(self) -> Any:
        if not self._ended.wait(self.summed.timeout_seconds):
            raise self.summed.overdue()
        return self.summed.result()


class _Poller:
    """A thread that notes the end of messages, in the order in which they were started."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="horovod poller", daemon=True).start()

    def watch(self, summed: _Summed, callbacks: list[Callable[[], None]]) -> _Watched:
        watched = _Watched(summed, callbacks)
        with self._changed:
            self._watched.append(watched)
            self._changed.notify()
        return watched

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                ended = [watched for watched in self._watched if watched.summed.is_done()]
                self._watched = [watched for watched in self._watched if watched not in ended]
            for watched in ended:  # without the lock: a callback may start the next message
                watched.end()
            if not ended:
                time.sleep(PAUSE_SECONDS)


class HorovodBaseline(SingleWorker):
    """``hvd.DistributedOptimizer`` with its default settings: fusion, but no plan of ours.

    ``waited_seconds`` is the time from the last gradient to the end of ``synchronize``. Parameters
    are not broadcast, because all workers start from the same seed.
    """

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, workers: int):
        super().__init__(module, make_optimizer)
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._optimizer: Any = imported().DistributedOptimizer(
            self._optimizer, named_parameters=module.named_parameters()
        )
        size = sum(p.numel() * p.element_size() for _, p in named)
        self._bytes_per_step = ring_bytes_sent(size, workers)
        self._last_gradient = 0.0
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for _, p in named]

    def _on_gradient(self, _: nn.Parameter) -> None:
        self._last_gradient = time.perf_counter()

    def _backward(self, value: torch.Tensor) -> None:
        super()._backward(value)
        self._optimizer.synchronize()
        end = time.perf_counter()
        self.waited_seconds += end - self._last_gradient
        self.bytes_sent += self._bytes_per_step
        if self._tracer is not None:
            self._tracer.record("wait", "all gradients", self._last_gradient, end)

    def _update(self) -> None:
        with self._optimizer.skip_synchronize():
            super()._update()

    def close(self) -> None:
        """Remove the hooks and shut Horovod down."""
        for hook in self._hooks:
            hook.remove()
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
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in DTYPES:
            raise ModelError(
                f"parameter {name!r} has dtype {parameter.dtype}, which Horovod does not sum "
                f"here; convert the model to one of {', '.join(map(str, DTYPES))}"
            )
