"""A batch and layers shared among ranks slowed on purpose, forecast before it is executed.

python -m benchmarks.unlike_ranks --out FOLDER [--kept] [--rounds 3]

Two ranks are 2.5 times as fast as two others, as an A100 is beside a V100 by data sheet in fp16
(312 and 125 TFLOP/s): each computes at once and waits until a GPU of its speed would be done.
Exchanges are measured, ways are forecast, then executed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.command import command
from ddlnb.files import provenance
from ddlnb.launch.rank import RankContext, process_group
from ddlnb.launch.ranks import Ranks
from ddlnb.parallelism.heterogeneous import in_words
from ddlnb.parallelism.partition import (
    cut_layers,
    equal_shares,
    even_partition,
    gradient_weights,
    share_batch,
    slowest_seconds,
    stage_seconds,
)
from ddlnb.parallelism.schedules import play, schedule

SPEEDS = (2.5, 2.5, 1.0, 1.0)
SAMPLES, MICRO_BATCHES = 28, 14
LATE_SECONDS = 2e-3  # less is the timer, and is made up for in the next computation
PROBES = 20
PAUSE_SECONDS = 0.02
FORWARD = 1 / 3  # of the seconds of a sample


@dataclass(frozen=True)
class SlowedModel:
    """Equal layers of some width, in 8 bytes a number, and how long they take on real ranks.

    ``sample_seconds`` are those of one sample, forward and backward, on a rank of speed 1.
    """

    layers: int = 12
    width: int = 32
    sample_seconds: float = 0.1

    def build(self, first: int, stop: int, seed: int) -> nn.Sequential:
        """Return these layers, the same on every rank."""
        layers = []
        for number in range(first, stop):
            torch.manual_seed(seed * self.layers + number)
            layer = nn.Linear(self.width, self.width, dtype=torch.float64)
            layers.append(nn.Sequential(layer, nn.Tanh()))
        return nn.Sequential(*layers)

    def batch(self, samples: int, seed: int) -> Tensor:
        """Return inputs and what they should give."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(2, samples, self.width, generator=generator, dtype=torch.float64)

    def gradients_alone(self, samples: int, seed: int) -> list[Tensor]:
        """Return the gradients of one worker on the joined batch."""
        module, (inputs, targets) = self.build(0, self.layers, seed), self.batch(samples, seed)
        mean_loss(module(inputs), targets).backward()
        return gradients(module)


mean_loss = nn.functional.mse_loss


def gradients(module: nn.Module) -> list[Tensor]:
    """Return the gradient of every parameter, zeros for those without."""
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()]


class Ran(NamedTuple):
    """Seconds of an iteration on a rank, and how far its gradients are from those of one worker."""

    seconds: float
    gradient_error: float

    @classmethod
    def of(cls, seconds: float, found: list[Tensor], wanted: list[Tensor]) -> Ran:
        """Return the largest difference of gradients over the largest gradient."""
        largest = max(float(one.abs().max()) for one in wanted)
        pairs = zip(found, wanted, strict=True)
        return cls(seconds, max(float((a - b).abs().max()) for a, b in pairs) / largest)


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


def probe(context: RankContext, elements: int, message: int) -> tuple[float, float]:
    """Return the seconds of an all-reduce of so many numbers, and of sending a message of others.

    The means of some. A message is half of one that goes to a neighbour and comes back; each is
    sent after a wait, as in a pipeline, so that waking up is part of it.
    """
    clock = Clock()
    with process_group(context, context.store(), context.count):
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
    with process_group(context, context.store(), context.count):
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
            parts = gradients(module)
            flat = torch.cat([one.flatten() for one in parts]) * weight
            dist.all_reduce(flat)
            added = flat.split([one.numel() for one in parts])
            for one, values in zip(module.parameters(), added, strict=True):
                one.grad = values.view_as(one)

        taken = _mean_seconds(iteration, iterations)
        return Ran.of(taken, gradients(module), model.gradients_alone(samples, seed))


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
    with process_group(context, context.store(), context.count):
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
        wanted = model.gradients_alone(samples, seed)[2 * stage.first : 2 * stage.stop]
        return Ran.of(taken, gradients(stage.module), wanted)


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
        self.first, self.stop = sum(cut[: self.rank]), sum(cut[: self.rank + 1])
        self.module = model.build(self.first, self.stop, seed)
        self._sample_seconds = model.sample_seconds * cut[self.rank] / model.layers / speed
        self._clock = Clock()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._sent: list[tuple[dist.Work, Tensor]] = []  # kept until it has left

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
            self._send(inputs.grad, self.rank - 1)

    def wait_for_messages(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _send(self, values: Tensor, to: int) -> None:
        self._sent.append((dist.isend(values, to), values))


def _mean_seconds(iteration: Callable[[], object], iterations: int) -> float:
    """Return the mean seconds of iterations that follow one more."""
    iteration()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        iteration()
    return (time.perf_counter() - start) / iterations


def way_rows(
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
    worker on the joined batch, over its largest gradient.
    """
    model, speeds, size = model or SlowedModel(), tuple(speeds), samples // micro_batches
    elements = model.layers * model.width * (model.width + 1)
    probes = ranks.run(probe, elements, size * model.width)
    exchange, send = (max(values) for values in zip(*probes, strict=True))

    def of_batch(shares: tuple[int, ...]) -> float:
        rates = [speed / model.sample_seconds for speed in speeds[: len(shares)]]
        return slowest_seconds(shares, rates) + (exchange if len(shares) > 1 else 0.0)

    def of_pipeline(cut: tuple[int, ...]) -> float:
        costs = [model.sample_seconds / model.layers * size] * model.layers
        seconds = [
            {"F": one * FORWARD, "B": one * (1 - FORWARD)}
            for one in stage_seconds(costs, speeds, cut)
        ]
        return play(schedule("1f1b", len(cut), micro_batches), seconds, send).seconds

    fast, count = speeds.count(speeds[0]), len(speeds)
    by_speed = cut_layers([1.0] * model.layers, speeds, micro_batches)
    ways: dict[str, tuple[int, ...]] = {
        "equal shares": equal_shares(samples, count),
        "shares by speed": share_batch(samples, speeds),
        "only the fast kind": equal_shares(samples, fast),
        "pipeline, equal layers": even_partition(model.layers, count),
        "pipeline by speed": by_speed,
    }
    of_way = {way: of_pipeline if way.startswith("pipeline") else of_batch for way in ways}
    forecast = {way: of_way[way](shares) for way, shares in ways.items()}
    rows = []
    for way, shares in ways.items():  # all forecasts are made before the first way is executed
        pipelined = of_way[way] is of_pipeline
        run = stage_of_pipeline if pipelined else share_of_batch
        given = (model, shares, speeds, *((samples, micro_batches) if pipelined else ()))
        found = ranks.run(run, *given, iterations, seed, count=len(shares))
        seconds = max(one.seconds for one in found)
        rows.append(
            {
                "way": way,
                "forecast_seconds": forecast[way],
                "shares": in_words(shares),
                "trivial_seconds": samples * model.sample_seconds / sum(speeds[: len(shares)]),
                "seconds": seconds,
                "gradient_error": max(one.gradient_error for one in found),
                "off": forecast[way] / seconds - 1,
            }
        )
    return pd.DataFrame(rows)


def measured(rounds: int) -> pd.DataFrame:
    """Return the rows of so many rounds on the same ranks."""
    with Ranks(len(SPEEDS)) as ranks:
        tables = [way_rows(ranks).assign(round=number, **provenance()) for number in range(rounds)]
    return pd.concat(tables, ignore_index=True)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return medians by way, in the order of the rows."""
    columns = ["trivial_seconds", "forecast_seconds", "seconds", "off", "gradient_error"]
    return rows.groupby(["way", "shares"], sort=False)[columns].median().reset_index()


def sentence(rows: pd.DataFrame) -> str:
    """Return how far off forecasts are, beside the trivial one."""
    off, trivial = (
        (rows[of] / rows["seconds"] - 1).abs() for of in ("forecast_seconds", "trivial_seconds")
    )
    return (
        f"{len(rows)} runs: forecasts are off by {off.median():.1%} in the median, {off.max():.1%} "
        f"at most; adding up speeds by {trivial.median():.1%}, {trivial.max():.1%}."
    )


def main(*, out: Path, kept: bool = False, rounds: int = 3) -> None:
    """Measure into a folder, or print what is --kept there."""
    file = out / "unlike_ranks.csv"
    if not kept:
        out.mkdir(parents=True, exist_ok=True)
        measured(rounds).to_csv(file, index=False)
    rows = pd.read_csv(file)
    print(summary(rows).round({"off": 3}).to_string(index=False))
    print(sentence(rows))


if __name__ == "__main__":
    command(main)
