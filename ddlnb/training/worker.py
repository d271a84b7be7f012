"""One worker: its copy of the model as a flat vector, its data, its optimizer, its memory.

A training loop (`ddlnb.training.synchronisation`) works on it. A loop is a generator, which yields
the start and the end of an iteration besides its communication. Its executor answers these two
requests, and those of `ddlnb.plans.requests`, which are the communication.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce

import torch
from torch import Tensor, nn

from ddlnb.compression.base import (
    Compressor,
    Memory,
    Payloads,
    Round,
    Voting,
    average_with_feedback,
    encode_with_feedback,
)
from ddlnb.errors import InputError, NotFinite, require
from ddlnb.plans.requests import AllReduce, Flow, PushPull
from ddlnb.workloads.task import Batch


@dataclass(frozen=True)
class NextGradient:
    """Ask for the flat gradient of this worker's next batch at its present parameters.

    The next request overwrites the tensor.
    """


@dataclass(frozen=True)
class StepDone:
    """Report that an iteration, the use of one gradient, is over. Executors count and observe."""


MOST_GRADIENTS = 1000  # between two steps: a loop with so many forgot to say that it made one
Piece = tuple[int, int, tuple[int, ...]]  # start, stop, shape
Schedule = Callable[[int], float]  # the learning rate's factor at a step


@dataclass(frozen=True)
class Compression:
    """How gradients are compressed: tensor by tensor, or as one vector with ``whole_model``."""

    compressor: Compressor
    feedback: bool = False
    whole_model: bool = False


@dataclass
class Worker:
    """What a training loop works on.

    ``module`` belongs to this worker alone; its parameters become views of the flat float32 vector
    ``parameters``. ``batch(step)`` draws this worker's batch of a step. Numbers that cannot be
    compressed raise NotFinite; a worker that ``goes_on`` sends zeros instead, so that nobody waits
    for it in vain, and has ``diverged`` from then on.
    """

    rank: int
    workers: int
    module: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    batch: Callable[[int], Batch]
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    compression: Compression | None = None
    schedule: Schedule = lambda step: 1.0
    architecture: str = "A2A"  # "PS" makes averages on a server
    seed: int = 0
    goes_on: bool = False
    diverged: bool = False
    step: int = 0  # gradients taken so far
    last_loss: float = float("nan")
    memories: dict[int, Memory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owned = [p for p in self.module.parameters() if p.requires_grad]
        self.shapes = [tuple(parameter.shape) for parameter in owned]
        sizes = [parameter.numel() for parameter in owned]
        self.parameters = _joined(owned, sizes)
        require(
            self.parameters.dtype == torch.float32
            or (self.compression is None and self.architecture != "gossip"),
            f"parameters are {self.parameters.dtype}, and what is compressed or goes to neighbours "
            f"is torch.float32; train in it, or average without compression",
        )
        self.flat_gradient = self.parameters.new_zeros(sum(sizes))
        self._gradients = self.flat_gradient.split(sizes)
        if self.compression is not None:
            self._compressors = self.compression.compressor.of_pieces(len(self.pieces))
        views = zip(owned, self.parameters.split(sizes), self._gradients, strict=True)
        for parameter, values, gradient in views:
            parameter.data = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
        self.optimizer = self.make_optimizer(owned)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def gradient(self) -> Tensor:
        """Return the flat gradient of the next batch, as executors do for `NextGradient`."""
        self.flat_gradient.zero_()
        loss = self.loss(self.module, self.batch(self.step))
        loss.backward()
        self.last_loss = loss.item()
        self.step += 1
        return self.flat_gradient

    @property
    def learning_rate(self) -> float:
        """The rate of the first group of parameters, at the present step."""
        return self._rates[0] * self.schedule(self.step)

    def apply(self, gradient: Tensor) -> None:
        """Let the optimizer update the parameters with this flat gradient.

        Raises InputError for anything else, which the loop of a synchronisation may come with.
        """
        count = self.flat_gradient.numel()
        require(
            isinstance(gradient, Tensor) and tuple(gradient.shape) == (count,),
            f"a loop applies {getattr(gradient, 'shape', gradient)!r}; give the flat gradient of "
            f"{count:,} elements",
        )
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.schedule(self.step)
        if gradient is not self.flat_gradient:
            self.flat_gradient.copy_(gradient)
        self.optimizer.step()

    def averaged(self, gradient: Tensor) -> Flow:
        """Return the average of the workers' flat tensors, compressed if there is a compression."""
        if self.architecture == "PS":
            total = yield from self.pushed(gradient)
            if self.compression is not None and isinstance(self.compression.compressor, Voting):
                return self.payloads.outcome(total)
            return total / self.workers
        if self.compression is None:
            total = yield from self.summed(gradient)
            return total / self.workers
        averages = []
        for part, round_, memory in self._parts(gradient):
            averages.append((yield from self._average(part, round_, memory)))
        return torch.cat(averages)

    def summed(self, tensor: Tensor) -> Flow:
        """Return the sum of the workers' tensors, never compressed."""
        total = yield PushPull(tensor) if self.architecture == "PS" else AllReduce(tensor)
        return total

    def pushed(self, tensor: Tensor) -> Flow:
        """Return the server's answer to this flat tensor, which is compressed for the push."""
        total = yield PushPull(tensor if self.compression is None else self.encoded(tensor))
        return total

    def encoded(self, tensor: Tensor) -> Tensor:
        """Return the joined payloads of a flat tensor's pieces; compression must be an encoder."""
        assert self.compression is not None
        joint = self.payloads
        parts = []
        for part, round_, memory in self._parts(tensor):
            codec = joint.codecs[round_.piece]
            encode = codec.payload_of
            if self.compression.feedback:  # which needs a codec, and methods refuse it otherwise
                encode = partial(encode_with_feedback, codec)
            try:
                payload = encode(part, round_, memory)
            except NotFinite as error:
                self._go_on(error, memory)
                payload = encode(torch.zeros_like(part), round_, memory)
            parts.append(payload)
        return torch.cat(parts)

    @cached_property
    def payloads(self) -> Payloads:
        """How a flat tensor is compressed to one payload, and read from one."""
        assert self.compression is not None
        elements = tuple(stop - start for start, stop, _ in self.pieces)
        return Payloads(self.compression.compressor, elements)

    @cached_property
    def pieces(self) -> list[Piece]:
        """The parts of the flat vector that are compressed on their own."""
        if self.compression is not None and self.compression.whole_model:
            return [(0, len(self.parameters), (len(self.parameters),))]
        found, start = [], 0
        for shape, part in zip(self.shapes, self._gradients, strict=True):
            found.append((start, start + len(part), shape))
            start += len(part)
        return found

    def _parts(self, tensor: Tensor) -> Iterator[tuple[Tensor, Round, Memory]]:
        for piece, (start, stop, shape) in enumerate(self.pieces):
            round_ = Round(self.rank, self.workers, self.step, piece, self.seed)
            yield tensor[start:stop].view(shape), round_, self.memories.setdefault(piece, {})

    def _average(self, tensor: Tensor, round_: Round, memory: Memory) -> Flow:
        assert self.compression is not None
        compressor = self._compressors[round_.piece]
        average: Callable[..., Flow] = compressor.averaged
        if self.compression.feedback:
            average = partial(average_with_feedback, compressor)
        try:
            averaged = yield from average(tensor, round_, memory)
        except NotFinite as error:  # which compressors raise before their first request
            self._go_on(error, memory)
            averaged = yield from average(torch.zeros_like(tensor), round_, memory)
        return averaged.average.reshape(-1)

    def _go_on(self, error: NotFinite, memory: Memory) -> None:
        """Raise the error, or mark the worker as diverged and set its memory to zeros."""
        if not self.goes_on:
            raise error
        self.diverged = True
        for name, value in memory.items():
            if isinstance(value, Tensor):
                memory[name] = torch.zeros_like(value)


def begun(loop: Callable[[Worker], Flow], worker: Worker) -> Flow:
    """Return the loop of a worker, which trains for ever.

    Raises InputError for what is no generator, when it comes to an end, and for steps that use no
    gradient or `MOST_GRADIENTS`.
    """
    flow, name = loop(worker), getattr(loop, "__qualname__", repr(loop))
    require(
        isinstance(flow, Generator),
        f"the loop {name} returned {flow!r:.60}; it has to yield its requests, NextGradient first",
    )

    def endless() -> Flow:
        answer, gradients = None, 0  # since the last step
        with closing(flow):
            while True:
                try:
                    request = flow.send(answer)
                except StopIteration:
                    break
                gradients += isinstance(request, NextGradient)
                require(
                    gradients < MOST_GRADIENTS,
                    f"the loop {name} took {gradients:,} gradients and no step; yield StepDone "
                    f"once for each",
                )
                if isinstance(request, StepDone):
                    used, gradients = gradients, 0
                    require(
                        used > 0,
                        f"the loop {name} yields StepDone without a gradient; an iteration is the "
                        f"use of one",
                    )
                answer = yield request
        raise InputError(
            f"the loop {name} ended; it has to train for ever, with `while True` round what it "
            f"yields"
        )

    return endless()


def _joined(owned: Sequence[nn.Parameter], sizes: Sequence[int]) -> Tensor:
    """Return the parameters in one flat tensor, as torch.cat would.

    On the meta device that would load torch's compiler, which takes a second.
    """
    dtype = reduce(torch.promote_types, [parameter.dtype for parameter in owned])
    flat = owned[0].detach().new_empty(sum(sizes), dtype=dtype)
    for parameter, part in zip(owned, flat.split(sizes), strict=True):
        part.copy_(parameter.detach().flatten())
    return flat
