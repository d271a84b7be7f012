"""Workers without values: they run the loops of the methods for their traffic and time alone.

Their tensors lie on torch's meta device, which keeps sizes and no numbers, so that sixteen workers
of ResNet-50 cost nothing. What a method asks for is what its own definition asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddlnb.compression.base import Averaged, Codec, Compressor, Memory, Round, Traffic
from ddlnb.compression.gtop_k import tree
from ddlnb.compression.payloads import Payloads
from ddlnb.plans.requests import AllGather, AllReduce, Flow, Messages
from ddlnb.plans.server_rules import Decoding, Rule
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.loop import Gradient
from ddlnb.training.method import TrainingMethod
from ddlnb.training.worker import Compression, Worker
from ddlnb.workloads.tasks import Batch

ROUNDS = "rounds"


@dataclass(frozen=True)
class Sized(Compressor):
    """Asks for what a compressor would ask for, with payloads of its sizes and no contents."""

    of: Compressor

    name = "sized"
    feedback = "optional"

    def average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        """The tensor itself, after the requests of the compressor. Messages go along a tree."""
        count_round(memory)
        up, down = tree(round_.rank, round_.workers)
        steps = iter([*up, *down])
        for request, size in self.traffic(tuple(tensor.shape), round_.workers):
            payload = _bytes(size)
            if request is AllReduce:
                yield AllReduce(payload)
            elif request is AllGather:
                yield AllGather(payload)
            else:
                outgoing, incoming = next(steps)
                yield Messages(dict.fromkeys(outgoing, payload), dict.fromkeys(incoming, size))
        return Averaged(tensor, tensor)

    def traffic(self, shape: tuple[int, ...], workers: int) -> list[Traffic]:
        return self.of.traffic(shape, workers)

    def for_pieces(self, pieces: int) -> tuple[Compressor, ...]:
        return tuple(map(sized, self.of.for_pieces(pieces)))


@dataclass(frozen=True)
class SizedCodec(Sized, Codec):
    """`Sized`, of a codec."""

    of: Codec

    def encode(self, tensor: Tensor, round_: Round, memory: Memory) -> Tensor:
        count_round(memory)
        return _bytes(self.payload_bytes(tensor.numel()))

    def decode(self, payload: Tensor, elements: int) -> Tensor:
        return torch.empty(elements, device="meta")

    def payload_bytes(self, elements: int) -> int:
        return self.of.payload_bytes(elements)

    def for_pieces(self, pieces: int) -> tuple[Codec, ...]:
        return tuple(map(SizedCodec, self.of.for_pieces(pieces)))


def count_round(memory: Memory) -> None:
    """Note that a piece was compressed once more."""
    memory[ROUNDS] = memory.get(ROUNDS, 0) + 1


def sized(compressor: Compressor) -> Compressor:
    """The compressor's sizes without its work."""
    return SizedCodec(compressor) if isinstance(compressor, Codec) else Sized(compressor)


class NullWorker(Worker):
    """A worker of a model of these shapes whose gradients and updates cost nothing."""

    def gradient(self) -> Tensor:
        """A flat tensor without values."""
        self.step += 1
        self.last_loss = 1.0
        return self.flat_gradient

    def apply(self, gradient: Tensor) -> None:
        """Nothing."""


@dataclass(frozen=True)
class NullRun:
    """An executor that is done, its workers, and when, in virtual seconds, each did its steps.

    What a run takes is judged until ``end``, when the first worker is done: later, those without
    barriers would be judged by the slowest worker alone.
    """

    lockstep: Lockstep
    workers: Sequence[NullWorker]
    times: Sequence[Sequence[float]]  # by rank
    steps: int
    cycle: int = 1  # of the synchronisation

    @property
    def end(self) -> float:
        """When the first worker is done."""
        return min(times[-1] for times in self.times)

    @property
    def iteration_seconds(self) -> float:
        """Seconds in which the workers together do one step each: one over their mean pace."""
        return len(self.workers) / sum(map(self._pace, self.times))

    def _pace(self, times: Sequence[float]) -> float:
        """Steps per second in whole cycles, without the first one if there are more."""
        done = sum(time <= self.end for time in times) // self.cycle * self.cycle
        if not done:
            return 0.0
        first = self.cycle if done > self.cycle else 0
        return (done - first) / (times[done - 1] - (times[first - 1] if first else 0.0))

    @property
    def compute_seconds(self) -> float:
        """Seconds that a gradient takes in the mean."""
        spans = [
            note.end - note.start
            for note in self.lockstep.notes
            if note.kind == Gradient.__name__ and note.end <= self.end
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
        """The worker whose link carried most, both ways."""
        run = self.lockstep
        both = [sum(ways) for ways in zip(run.bytes_sent, run.bytes_received, strict=True)]
        return both.index(max(both))

    @property
    def rounds(self) -> float:
        """How often a worker compressed each of its pieces, per step."""
        counts = [memory.get(ROUNDS, 0) for memory in self.workers[0].memories.values()]
        return sum(counts) / max(1, len(counts)) / self.steps


def null_workers(
    method: TrainingMethod, shapes: Sequence[tuple[int, ...]], workers: int
) -> list[NullWorker]:
    """So many workers for a method, of a model with tensors of these shapes."""
    compression = None
    if method.compressor is not None:
        compression = Compression(sized(method.compressor), False, method.whole_model)
    return [
        NullWorker(
            rank,
            workers,
            _module(shapes),
            _no_loss,
            _no_batch,
            torch.optim.SGD,
            compression,
            architecture=method.architecture,
        )
        for rank in range(workers)
    ]


def null_run(
    method: TrainingMethod,
    shapes: Sequence[tuple[int, ...]],
    workers: int,
    steps: int,
    clock: Clock | None = None,
    noting: bool = False,
    cycle: int = 1,
) -> NullRun:
    """What came of so many steps of every worker, whole cycles of the synchronisation.

    ``compute_seconds`` needs its notes.
    """
    made = null_workers(method, shapes, workers)
    times: list[list[float]] = [[] for _ in made]

    def on_step(rank: int, done: int, now: float) -> None:
        times[rank].append(now)

    run = Lockstep(
        made,
        method.synchronisation.loop,
        steps,
        rule=_rule(method, made),
        clock=clock,
        on_step=on_step,
        noting=noting,
    )
    with torch.device("meta"):  # also what the loops and rules make themselves
        run.run()
    return NullRun(run, made, times, steps, cycle)


def _rule(method: TrainingMethod, workers: Sequence[NullWorker]) -> Rule | None:
    if method.architecture != "PS":
        return None
    rule = method.synchronisation.rule(len(workers))
    compression = workers[0].compression
    if rule is None or compression is None:
        return rule
    assert isinstance(compression.compressor, Codec), "training methods refuse others on servers"
    elements = tuple(stop - start for start, stop, _ in workers[0].pieces())
    return Decoding(rule, Payloads(compression.compressor, elements).decode)


def _module(shapes: Sequence[tuple[int, ...]]) -> nn.Module:
    module = nn.Module()
    for number, shape in enumerate(shapes):
        module.register_parameter(str(number), nn.Parameter(torch.empty(shape, device="meta")))
    return module


def _bytes(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="meta")


def _no_loss(module: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("a worker without values has no loss")


def _no_batch(step: int) -> Batch:
    raise AssertionError("a worker without values has no data")
