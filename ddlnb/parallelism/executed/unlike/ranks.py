"""What one rank does: its share of a batch, or its stage of a pipeline, slowed on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlnb.launch.rank import RankContext
from ddlnb.parallelism.executed.unlike.slowed import (
    Clock,
    SlowedModel,
    alone,
    gradients,
    largest_error,
    mean_loss,
)
from ddlnb.parallelism.schedules import schedule
from ddlnb.parallelism.unlike.batch import gradient_weights

PROBES = 20
PAUSE_SECONDS = 0.02
FORWARD = 1 / 3  # of the seconds of a sample


@dataclass(frozen=True)
class Ran:
    """Seconds of an iteration on a rank, and how far its gradients are from those of one worker."""

    seconds: float
    gradient_error: float


def probe(context: RankContext, elements: int, message: int) -> tuple[float, float]:
    """Return the seconds of an all-reduce of so many numbers, and of sending a message of others.

    The means of some. A message is half of one that goes to a neighbour and comes back; each is
    sent after a wait, as in a pipeline, so that waking up is part of it.
    """
    clock = Clock()
    with _group(context):
        whole, part = torch.zeros(elements, dtype=torch.float64), torch.zeros(message).double()

        def there_and_back() -> None:
            for sender in (0, 1):
                if context.rank == sender:
                    with clock.lasting(PAUSE_SECONDS):
                        pass
                    dist.send(part, 1 - sender)
                elif context.rank < 2:
                    dist.recv(part, sender)

        return _mean_seconds(lambda: dist.all_reduce(whole), PROBES), (
            max(0.0, _mean_seconds(there_and_back, PROBES) / 2 - PAUSE_SECONDS)
        )


def share_of_batch(
    context: RankContext,
    model: SlowedModel,
    shares: Sequence[int],
    speeds: Sequence[float],
    iterations: int,
    seed: int,
) -> Ran:
    """Train on this rank's samples; gradients are weighed by samples and added up (BSP)."""
    with _group(context):
        rank, samples = context.rank, sum(shares)
        first = sum(shares[:rank])
        own = slice(first, first + shares[rank])
        inputs, targets = (one[own] for one in model.batch(samples, seed))
        weight = gradient_weights(shares)[rank]
        seconds = shares[rank] * model.sample_seconds / speeds[rank]
        module, clock = model.build(0, model.layers, seed), Clock()

        def iteration() -> None:
            module.zero_grad()
            with clock.lasting(seconds):
                if shares[rank]:
                    mean_loss(module(inputs), targets).backward()
            _add_up(module, weight)

        taken = _mean_seconds(iteration, iterations)
        return Ran(taken, largest_error(gradients(module), alone(model, samples, seed)))


def stage_of_pipeline(
    context: RankContext,
    model: SlowedModel,
    cut: Sequence[int],
    speeds: Sequence[float],
    samples: int,
    micro_batches: int,
    iterations: int,
    seed: int,
) -> Ran:
    """Train this rank's layers on all micro batches, in the order of 1F1B."""
    with _group(context):
        stage = _Stage(context, model, cut, speeds[context.rank], seed)
        inputs, targets = (one.chunk(micro_batches) for one in model.batch(samples, seed))
        order = schedule("1f1b", len(cut), micro_batches)[context.rank]

        def iteration() -> None:
            stage.module.zero_grad()
            for one in order:
                if one.kind == "F":
                    stage.forward(one.micro_batch, inputs[one.micro_batch])
                else:
                    stage.backward(one.micro_batch, targets[one.micro_batch], micro_batches)
            stage.wait_for_messages()

        taken = _mean_seconds(iteration, iterations)
        wanted = alone(model, samples, seed)[2 * stage.first : 2 * stage.stop]
        return Ran(taken, largest_error(gradients(stage.module), wanted))


class _Stage:
    """A stage: its layers, what it keeps for backward passes, and messages under way."""

    def __init__(
        self,
        context: RankContext,
        model: SlowedModel,
        cut: Sequence[int],
        speed: float,
        seed: int,
    ):
        self.rank, self.last = context.rank, len(cut) - 1
        self.first = sum(cut[: self.rank])
        self.stop = self.first + cut[self.rank]
        self.module = model.build(self.first, self.stop, seed)
        self._sample_seconds = model.sample_seconds * cut[self.rank] / model.layers / speed
        self._clock = Clock()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def forward(self, number: int, inputs: Tensor) -> None:
        """Take a micro batch from the stage before, or these inputs, and pass it on."""
        if self.rank:
            inputs = torch.empty_like(inputs)
            dist.recv(inputs, self.rank - 1)
            inputs.requires_grad_()
        with self._clock.lasting(FORWARD * len(inputs) * self._sample_seconds):
            outputs = self.module(inputs)
        self._kept[number] = inputs, outputs
        if self.rank < self.last:
            self._send(outputs.detach(), self.rank + 1)

    def backward(self, number: int, targets: Tensor, micro_batches: int) -> None:
        """Take the gradient from the stage behind, or that of the loss, and pass its own on."""
        inputs, outputs = self._kept.pop(number)
        received = torch.empty_like(outputs)
        if self.rank < self.last:
            dist.recv(received, self.rank + 1)
        with self._clock.lasting((1 - FORWARD) * len(inputs) * self._sample_seconds):
            if self.rank < self.last:
                outputs.backward(received)
            else:
                (mean_loss(outputs, targets) / micro_batches).backward()
        if self.rank:
            assert inputs.grad is not None  # inputs that were received ask for it
            self._send(inputs.grad, self.rank - 1)

    def wait_for_messages(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sent:
            if work is not None:
                work.wait()
        self._sent.clear()

    def _send(self, values: Tensor, to: int) -> None:
        self._sent.append((dist.isend(values, to), values))  # kept until it has left


def _add_up(module: nn.Module, weight: float) -> None:
    parts = gradients(module)
    flat = torch.cat([one.flatten() for one in parts]) * weight
    dist.all_reduce(flat)
    sizes = [one.numel() for one in parts]
    for one, values in zip(module.parameters(), flat.split(sizes), strict=True):
        one.grad = values.view_as(one)


def _mean_seconds(iteration: Callable[[], object], iterations: int) -> float:
    """Return the mean seconds of iterations that follow one more."""
    iteration()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        iteration()
    return (time.perf_counter() - start) / iterations


@contextmanager
def _group(context: RankContext) -> Iterator[None]:
    dist.init_process_group(
        "gloo",
        store=context.store(),
        rank=context.rank,
        world_size=context.count,
        timeout=timedelta(seconds=context.timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
