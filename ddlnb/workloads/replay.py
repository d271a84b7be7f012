"""Replayed computation: a recorded workload as a task that waits where the model would compute.

Many workers of a large model then fit on few cores, while hooks, messages and updates are real:
the engines and baselines train this task like any other and know nothing of it. Its parameters
have the names and sizes of the recorded model's; every gradient is a constant of the batch.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from ddlnb.errors import require
from ddlnb.workloads.task import Batch, Task
from ddlnb.workloads.workload import Workload, read_profile

LATE_SECONDS = 2e-3  # so late, a layer was held up by a wait; less is the timer, and is made up for


def replayed(workload: str | Workload, *, scale: float = 1.0, of: str | None = None) -> Task:
    """Return the task that replays a workload, or the named profile, with time slowed to ``scale``.

    ``recorded`` of the task is the workload in real seconds; its waits are 1 / scale as long.
    Raises UnknownName for an unknown profile, InputError if nothing in it takes time, or if it is
    not one ``of`` the model that is asked for.

    >>> import ddlnb
    >>> ddlnb.workloads.replayed("small-conv_b64_cpu-1thread", scale=1 / 10)
    Task(name='small-conv', local_batch=64, unit='samples')
    """
    if isinstance(workload, str):
        workload = read_profile(workload)
    require(
        of is None or of == workload.model,
        f"model {of!r}: the profile is one of {workload.model!r}; name that model, or another "
        f"profile",
    )
    require(0 < scale <= 1, f"scale={scale!r} must be above 0 and at most 1, such as 1/100")
    require(
        workload.compute_seconds > 0,
        f"workload {workload.model!r} has no seconds to replay ({workload.source}); profile it",
    )
    return Task(
        name=workload.model,
        build=partial(_Replayed, workload, scale),
        batch=_constant,
        loss=_loss,
        local_batch=workload.local_batch,
        unit="samples",
        about=f"replays {workload!r}, {workload.source}",
        recorded=workload,
    )


def _constant(local_batch: int, seed: int) -> Batch:
    """Return what all gradients of this batch are, from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(1, generator=generator) - 1,)


def _loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = module(batch[0])
    return loss


class _Clock:
    """Waits until the moment at which a computation would be over."""

    def __init__(self) -> None:
        self._until = 0.0

    def compute(self, seconds: float) -> None:
        now = time.perf_counter()
        if now - self._until > LATE_SECONDS:
            self._until = now
        self._until += seconds
        if (left := self._until - time.perf_counter()) > 0:
            time.sleep(left)


class _Layer(nn.Module):
    """A node of the module tree; if it is a layer, its forward pass takes its time."""

    clock: _Clock | None = None
    seconds = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.clock is not None and self.seconds:
            self.clock.compute(self.seconds)
        return inputs


class _Backward(torch.autograd.Function):
    """Passes its input on; the gradient of a parameter takes its time to compute."""

    @staticmethod
    def forward(
        context: Any,
        carried: torch.Tensor,
        parameter: torch.Tensor,
        value: torch.Tensor,
        clock: _Clock,
        seconds: float,
    ) -> torch.Tensor:
        context.parameter, context.value = parameter, value
        context.clock, context.seconds = clock, seconds
        return carried.view_as(carried)

    @staticmethod
    def backward(context: Any, *carried: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parameter, value = context.parameter, context.value
        gradient = torch.full_like(parameter, value.item(), requires_grad=False)
        context.clock.compute(context.seconds)
        return carried[0], gradient, None, None, None


class _Replayed(_Layer):
    """Layers and parameters under their recorded names."""

    def __init__(self, workload: Workload, scale: float):
        super().__init__()
        self._clock = _Clock()
        self._order = []
        for layer in workload.layers:
            node = self._node(layer.name)
            node.clock, node.seconds = self._clock, layer.forward_seconds / scale
            if node is not self:
                self._order.append(layer.name)
        trained = []
        for gradient in workload.gradients:
            owner, _, name = gradient.name.rpartition(".")
            dtype = {8: torch.float64, 4: torch.float32}.get(gradient.bytes_per_element)
            dtype = dtype or torch.float16
            parameter = nn.Parameter(torch.zeros(gradient.elements, dtype=dtype))
            self._node(owner).register_parameter(name, parameter)
            trained.append((gradient.name, gradient.backward_seconds / scale))
        self._trained = trained

    def _node(self, path: str) -> _Layer:
        node: _Layer = self
        for name in filter(None, path.split(".")):
            if name not in node._modules:
                node.add_module(name, _Layer())
            node = node.get_submodule(name)  # type: ignore[assignment]
        return node

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        carried = super().forward(inputs.clone())
        for name in self._order:
            carried = self.get_submodule(name)(carried)
        # Autograd goes back from the end, so the gradient that comes first is put in last.
        for name, seconds in reversed(self._trained):
            parameter = self.get_parameter(name)
            carried = _Backward.apply(carried, parameter, inputs, self._clock, seconds)  # type: ignore[no-untyped-call]
        return carried.sum()
