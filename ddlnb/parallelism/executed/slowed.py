"""A small model that computes for real and takes the time of a GPU of given speed.

What one rank does: its share of a batch, or its stage of a pipeline, slowed on purpose.

Forecast beside executed: ways to share a batch and layers on ranks slowed on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlnb.errors import InputError, require, require_positive, require_whole
from ddlnb.launch.rank import RankContext
from ddlnb.parallelism.heterogeneous import in_words
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_cut,
    equal_shares,
    gradient_weights,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks


LATE_SECONDS = 2e-3  # less is the timer, and is made up for in the next computation


@dataclass(frozen=True)
class SlowedModel:
    """Alike layers of some width, in 8 bytes a number, and how long they take on real ranks.

    ``sample_seconds`` are those of one sample, forward and backward, on a rank of speed 1; a rank
    computes at once and waits until a GPU of its speed would be done.
    """

    layers: int = 12
    width: int = 32
    sample_seconds: float = 0.1

    def __post_init__(self) -> None:
        require_whole(layers=self.layers, width=self.width)
        require_positive(sample_seconds=self.sample_seconds)

    def build(self, first: int, stop: int, seed: int) -> nn.Sequential:
        """Return these layers, the same on every rank."""
        require(0 <= first < stop <= self.layers, f"there are no layers {first} to {stop}")
        layers = []
        for number in range(first, stop):
            layer = nn.Linear(self.width, self.width, dtype=torch.float64)
            generator = torch.Generator().manual_seed(seed * self.layers + number)
            with torch.no_grad():
                for one in layer.parameters():
                    one.copy_(torch.randn(one.shape, generator=generator) / self.width**0.5)
            layers.append(nn.Sequential(layer, nn.Tanh()))
        return nn.Sequential(*layers)

    def batch(self, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return inputs and what they should give."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(2, samples, self.width, generator=generator, dtype=torch.float64)
        return drawn[0], drawn[1]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.layers * self.width * (self.width + 1)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss, a mean over samples."""
    return nn.functional.mse_loss(outputs, targets)


def alone(model: SlowedModel, samples: int, seed: int) -> list[Tensor]:
    """Return the gradients of one worker on the joined batch."""
    module = model.build(0, model.layers, seed)
    inputs, targets = model.batch(samples, seed)
    mean_loss(module(inputs), targets).backward()
    return gradients(module)


def gradients(module: nn.Module) -> list[Tensor]:
    """Return the gradient of every parameter, zeros for those without."""
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()]


def largest_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference of gradients over the largest gradient."""
    scale = max(float(one.abs().max()) for one in wanted)
    pairs = zip(found, wanted, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs) / scale


class Clock:
    """Lets what is computed take as long as it should."""

    def __init__(self) -> None:
        self._until = 0.0

    @contextmanager
    def lasting(self, seconds: float) -> Iterator[None]:
        """Let the block take so many seconds; shorter by as little as the last one was late."""
        now = time.perf_counter()
        start = self._until if now - self._until < LATE_SECONDS else now
        yield
        self._until = start + seconds
        if (left := self._until - time.perf_counter()) > 0:
            time.sleep(left)


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


SPEEDS = (2.5, 2.5, 1.0, 1.0)
SAMPLES, MICRO_BATCHES = 28, 14


def unlike_rows(
    ranks: Ranks,
    speeds: Sequence[float] = SPEEDS,
    samples: int = SAMPLES,
    micro_batches: int = MICRO_BATCHES,
    model: SlowedModel | None = None,
    iterations: int = 5,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a row per way: forecast and executed seconds of an iteration, and gradients.

    ``ranks`` are slowed to ``speeds``, the fastest first. Exchanges and messages are measured
    first; from them, the speeds and the shares every way is forecast (``forecast_seconds``), then
    all are executed (``seconds``: the mean iteration of the slowest rank). ``trivial_seconds`` adds
    up the speeds of the ranks that take part. ``gradient_error`` is the largest difference to one
    worker on the joined batch, over its largest gradient. Raises InputError for speeds that are
    not as many as ranks or not in order, and for what does not divide.
    """
    import pandas as pd

    model = model or SlowedModel()
    speeds = tuple(speeds)
    _check(ranks, speeds, samples, micro_batches)
    size = samples // micro_batches
    probes = ranks.run(probe, model.parameters, size * model.width)
    exchange, send = (max(values) for values in zip(*probes, strict=True))

    def batch_way(name: str, shares: tuple[int, ...]) -> dict[str, object]:
        count = len(shares)
        rates = [speed / model.sample_seconds for speed in speeds[:count]]
        forecast = slowest_seconds(shares, rates) + (exchange if count > 1 else 0.0)
        return {"way": name, "shares": shares, "forecast_seconds": forecast}

    def pipeline_way(name: str, cut: tuple[int, ...]) -> dict[str, object]:
        costs = [model.sample_seconds / model.layers * size] * model.layers
        seconds = [
            {"F": one * FORWARD, "B": one * (1 - FORWARD)}
            for one in stage_seconds(costs, speeds, cut)
        ]
        played = play(schedule("1f1b", len(cut), micro_batches), seconds, send)
        return {"way": name, "shares": cut, "forecast_seconds": played.seconds}

    fast = speeds.count(speeds[0])
    rows = [
        batch_way("equal shares", equal_shares(samples, len(speeds))),
        batch_way("shares by speed", share_batch(samples, speeds)),
        batch_way("only the fast kind", equal_shares(samples, fast)),
        pipeline_way("pipeline, equal layers", equal_cut(model.layers, len(speeds))),
        pipeline_way("pipeline by speed", cut_layers([1.0] * model.layers, speeds, micro_batches)),
    ]
    for row in rows:  # all forecasts are made before the first way is executed
        shares = row.pop("shares")
        assert isinstance(shares, tuple)
        rest = (iterations, seed)
        if str(row["way"]).startswith("pipeline"):
            given = (model, shares, speeds, samples, micro_batches, *rest)
            found = ranks.run(stage_of_pipeline, *given, count=len(shares))
        else:
            found = ranks.run(
                share_of_batch, model, shares, speeds, *rest, count=len(shares)
            )  # fmt: skip
        row |= {
            "shares": in_words(shares),
            "trivial_seconds": samples * model.sample_seconds / sum(speeds[: len(shares)]),
            "seconds": max(one.seconds for one in found),
            "gradient_error": max(one.gradient_error for one in found),
        }
    table = pd.DataFrame(rows)
    table["off"] = table["forecast_seconds"] / table["seconds"] - 1
    return table


def _check(ranks: Ranks, speeds: tuple[float, ...], samples: int, micro_batches: int) -> None:
    require(
        len(speeds) == ranks.count,
        f"{len(speeds)} speeds are given for {ranks.count} ranks; give one for each",
    )
    require(
        list(speeds) == sorted(speeds, reverse=True),
        f"speeds {speeds} must begin with the fastest; give {tuple(sorted(speeds, reverse=True))}",
    )
    if samples % micro_batches:
        fitting = [str(n) for n in range(1, samples + 1) if samples % n == 0]
        raise InputError(
            f"{micro_batches} micro batches do not divide {samples} samples; use one of "
            f"{', '.join(fitting)}"
        )
