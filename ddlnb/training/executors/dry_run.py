"""Dry runs: the loop of a training method without values, for its traffic and its time.

Tensors lie on torch's meta device, which keeps sizes and no numbers, so that sixteen workers of
ResNet-50 cost nothing. What is asked for is what the method's own loop asks for, by compressors
that are reduced to the sizes of what they send. Sums and quotients are worked out in Python there,
70 us each, which was most of a dry run; since the shape of such a result is that of an operand, the
operand stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ddlnb.compression.base import (
    Averaged,
    Codec,
    Compressor,
    Memory,
    Round,
    Traffic,
    Voting,
)
from ddlnb.compression.gtop_k import tree
from ddlnb.plans.requests import Flow, Messages
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import COMPUTE, Lockstep
from ddlnb.training.method import TrainingMethod
from ddlnb.training.worker import Worker

ELEMENTWISE = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
) | {"clone", "detach", "true_divide", "rsub"}


class SizeOnly(Tensor):
    """A tensor of floats on the meta device, whose values nobody asks for."""

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Return an operand of the result's size for arithmetic, else what torch does."""
        if func.__name__ in ELEMENTWISE:
            tensors = [one for one in args if isinstance(one, Tensor)]
            first = tensors[0]
            if all(one.shape == first.shape and one.dtype == first.dtype for one in tensors[1:]):
                return first
        return super().__torch_function__(func, types, args, kwargs or {})


def size_only(tensor: Tensor) -> Tensor:
    """Return a float tensor of the meta device with cheap arithmetic."""
    return tensor.as_subclass(SizeOnly)


ROUNDS = "rounds"


@dataclass(frozen=True)
class Sized(Compressor):
    """Makes the requests of compressor ``of``, with payloads of its sizes and no contents.

    What a compressor sends as Messages is taken to go up a binary tree of the workers and back.
    """

    of: Any

    name = "sized"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """Return the tensor itself, after the requests of the compressor."""
        _count_round(memory)
        up, down = tree(round_.rank, round_.workers)
        steps = iter([*up, *down])
        for request, size in self.traffic(tuple(tensor.shape), round_.workers):
            payload = _bytes(size)
            if request is Messages:
                outgoing, incoming = next(steps)
                yield Messages(dict.fromkeys(outgoing, payload), dict.fromkeys(incoming, size))
            else:
                yield request(payload)
        return Averaged(tensor, tensor)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return self.of.declared_traffic(shape, workers)

    def for_pieces(self, pieces: int) -> tuple[Any, ...]:
        return tuple(map(sized, self.of.of_pieces(pieces)))

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        """Return a payload without contents, as what makes payloads does."""
        _count_round(memory)
        return _bytes(self.payload_bytes(tensor.numel()))

    def payload_bytes(self, elements: int) -> int:
        """Return the length of a payload."""
        return self.of.declared_bytes(elements)


class SizedCodec(Sized, Codec):
    """`Sized`, of a codec."""

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return torch.empty(elements, device="meta")


class SizedVoting(Sized, Voting):
    """`Sized`, of what makes votes."""

    def tally(self, payloads: Sequence[Tensor], elements: int, draw: torch.Generator) -> Tensor:
        return _bytes(self.payload_bytes(elements))

    def outcome(self, payload: Tensor, elements: int) -> Tensor:
        return torch.empty(elements, device="meta")


def sized(compressor: Compressor) -> Sized:
    """Return the compressor's sizes without its work."""
    kinds = {Voting: SizedVoting, Codec: SizedCodec}
    return next((made for kind, made in kinds.items() if isinstance(compressor, kind)), Sized)(
        compressor
    )


def rounds(memory: Memory) -> int:
    """Return how often the piece with this memory was compressed."""
    return int(memory.get(ROUNDS, 0))


def _count_round(memory: Memory) -> None:
    memory[ROUNDS] = rounds(memory) + 1


def _bytes(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="meta")


class DryWorker(Worker):
    """A worker whose gradients and updates have a size and cost nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parameters.is_meta and self.compression is None:  # else it is slices, not sums
            self.parameters = size_only(self.parameters)
            self.flat_gradient = size_only(self.flat_gradient)

    def gradient(self) -> Tensor:
        """Return a flat tensor without values."""
        self.step += 1
        self.last_loss = 1.0
        return self.flat_gradient

    def apply(self, gradient: Tensor) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class DryRun:
    """An executor that is done, its workers, and when each did its steps, in virtual seconds.

    The run is judged until ``end``, when the first worker is done: later, methods without barriers
    would be judged by the slowest worker alone.
    """

    lockstep: Lockstep
    workers: Sequence[DryWorker]
    times: Sequence[Sequence[float]]  # by rank
    steps: int
    cycle: int = 1  # of the synchronisation

    @property
    def end(self) -> float:
        """When the first worker is done."""
        return min(times[-1] for times in self.times)

    @property
    def iteration_seconds(self) -> float:
        """Seconds in which the workers together do one step each, by their mean rate."""
        return len(self.workers) / sum(map(self._rate, self.times))

    def _rate(self, times: Sequence[float]) -> float:
        """Steps per second in whole cycles, without the first one if there are more."""
        done = sum(time <= self.end for time in times) // self.cycle * self.cycle
        if not done:
            return 0.0
        first = self.cycle if done > self.cycle else 0
        return (done - first) / (times[done - 1] - (times[first - 1] if first else 0.0))

    @property
    def compute_seconds(self) -> float:
        """Seconds that a gradient takes on average. Needs a run that was recorded."""
        spans = [
            one.seconds
            for one in self.lockstep.activities
            if one.kind == COMPUTE and one.stop_seconds <= self.end
        ]
        return sum(spans) / len(spans)

    @property
    def bytes_sent(self) -> float:
        """Bytes that the busiest worker sent per step."""
        return self.lockstep.bytes_sent[self._busiest] / self.steps

    @property
    def bytes_received(self) -> float:
        """Bytes that the busiest worker received per step."""
        return self.lockstep.bytes_received[self._busiest] / self.steps

    @property
    def _busiest(self) -> int:
        """The worker whose link carried most, both ways together."""
        run = self.lockstep
        both = [sum(ways) for ways in zip(run.bytes_sent, run.bytes_received, strict=True)]
        return both.index(max(both))

    @property
    def rounds(self) -> float:
        """How often a worker compressed each of its pieces, per step."""
        counts = list(map(rounds, self.workers[0].memories.values()))
        return sum(counts) / max(1, len(counts)) / self.steps


def _no_optimizer(parameters: Iterable[nn.Parameter]) -> SimpleNamespace:
    """Stands for an optimizer, which torch takes a second to load: nothing is updated."""
    return SimpleNamespace(param_groups=[{"lr": 1e-3}])


def dry_workers(
    method: TrainingMethod,
    shapes: Sequence[tuple[int, ...]],
    workers: int,
    device: str = "meta",
) -> list[DryWorker]:
    """Return the workers of a method, with a model of tensors of these shapes, all zeros.

    An operation takes torch ten times longer on the meta device than on few numbers.
    """
    return [
        DryWorker(
            rank,
            workers,
            _module(shapes, device),
            None,  # type: ignore[arg-type]  # without values there is neither loss nor data
            None,  # type: ignore[arg-type]
            _no_optimizer,  # type: ignore[arg-type]
            _sized(method).compression,
            architecture=method.architecture,
        )
        for rank in range(workers)
    ]


def dry_run(
    method: TrainingMethod,
    shapes: Sequence[tuple[int, ...]],
    workers: int,
    steps: int,
    clock: Clock | None = None,
    recording: bool = False,
    cycle: int = 1,
) -> DryRun:
    """Run ``steps`` steps of every worker, which should be whole cycles of the synchronisation."""
    made = dry_workers(method, shapes, workers)
    times: list[list[float]] = [[] for _ in made]

    def on_step(rank: int, done: int, now: float) -> None:
        times[rank].append(now)

    run = Lockstep(
        made,
        method.synchronisation.loop,
        steps,
        rule=_sized(method).rule(workers, made[0].pieces),
        clock=clock,
        on_step=on_step,
        recording=recording,
    )
    with torch.device("meta"):  # also what the loops and rules make themselves
        run.run()
    return DryRun(run, made, times, steps, cycle)


def _sized(method: TrainingMethod) -> TrainingMethod:
    if method.compressor is None:
        return method
    return replace(method, compressor=sized(method.compressor), feedback=False)


def _module(shapes: Sequence[tuple[int, ...]], device: str) -> nn.Module:
    module = nn.Module()
    for number, shape in enumerate(shapes):
        module.register_parameter(str(number), nn.Parameter(torch.zeros(shape, device=device)))
    return module
