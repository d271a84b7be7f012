"""The compressed messages of one worker: what it asks for, and what it remembers of each tensor.

Averages of several tensors stand side by side: requests that are alike travel as one. So a message
of many tensors costs the latency of one, and every tensor gets the bits that it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ddlnb.compression.base import Compressor, Memory, Round, average_with_feedback
from ddlnb.compression.catalogue import get_compressor
from ddlnb.errors import MissingPart, ModelError, UnknownName, require
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import AllGather, AllReduce, Flow, Gathered
from ddlnb.registry import parts_of

Shapes = Mapping[str, tuple[int, ...]]
A_MATRIX, SOME = (8, 8), 8  # a shape and workers, to ask a compressor what it requests
FEEDBACK = "feedback"
JOINED = (AllReduce, AllGather)  # what several tensors can ask for together


class MessageCompressing:
    """Averages the compressed messages of a plan on one worker.

    ``shapes`` are those of the parameters, in the model's order. Random numbers are those that
    `ddlnb.training` draws for the same seed: ``step`` counts iterations from 1. Raises ModelError
    for parameters other than float32, MissingPart on GPUs.
    """

    def __init__(
        self,
        plan: Plan,
        shapes: Shapes,
        rank: int,
        workers: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ):
        if dtype != torch.float32:
            raise ModelError(
                f"compressors take float32, and the model trains in {dtype}; convert it, or send "
                f"gradients as they are"
            )
        if device != "cpu":
            raise MissingPart(
                "compressed messages are sent on CPUs only; take device 'cpu', or a plan that "
                "compresses nothing"
            )
        self.plan, self.step = plan, 0
        self._shapes, self._rank, self._workers, self._seed = shapes, rank, workers, seed
        self._piece = {name: number for number, name in enumerate(shapes)}
        self._memory: dict[str, Memory] = {name: {} for name in shapes}
        self._named: dict[str, tuple[tuple[Compressor, ...], bool]] = {}
        for text in plan.compressed_by:
            compressor, feedback = compression_named(text)
            self._named[text] = compressor.of_pieces(len(shapes)), feedback

    @staticmethod
    def cannot_run(plan: Plan) -> str:
        """Return why our engine cannot run the compressed messages of a plan; "" if it can."""
        if plan.credit_bytes is not None:
            return "compresses messages in the order of the plan, and the plan has a credit besides"
        for text in plan.compressed_by:
            compressor, _ = compression_named(text)
            asked = {
                request.__name__: request
                for request, _ in compressor.declared_traffic(A_MATRIX, SOME)
            }
            for name, request in asked.items():
                if request not in JOINED:
                    return (
                        f"answers requests of all workers, and {text} asks for {name} between some"
                    )
        return ""

    def __contains__(self, message: int) -> bool:
        return bool(self.plan.compressions[message])

    def average(self, message: int, gradients: torch.Tensor) -> Flow:
        """Yield the requests of a message and return the average; its gradients come unscaled."""
        names = [piece.gradient for piece in self.plan.messages[message].pieces]
        compressors, feedback = self._named[self.plan.compressions[message]]
        sizes = [piece.elements for piece in self.plan.messages[message].pieces]
        flows = []
        for name, values in zip(names, gradients.split(sizes), strict=True):
            piece = self._piece[name]
            round_ = Round(self._rank, self._workers, self.step, piece, self._seed)
            tensor, memory = values.view(self._shapes[name]), self._memory[name]
            compressor = compressors[piece]
            flows.append(
                average_with_feedback(compressor, tensor, round_, memory)
                if feedback
                else compressor.averaged(tensor, round_, memory)
            )
        averaged = yield from together(flows)
        return torch.cat([one.average.reshape(-1) for one in averaged])


def compression_named(text: str) -> tuple[Compressor, bool]:
    """Return the compressor that a plan names, and whether it has error feedback.

    Raises UnknownName and InputError.

    >>> compression_named("top-k(0.01) + feedback")
    (TopK(density=0.01), True)
    """
    name, *flags = parts_of(text, "+")
    for flag in flags:
        if flag != FEEDBACK:
            raise UnknownName("flag of a compression", flag, [FEEDBACK])
    compressor = get_compressor(name)
    require(compressor is not None, f"compression {text!r} compresses nothing")
    assert compressor is not None
    return compressor, bool(flags)


def together(flows: Sequence[Flow]) -> Flow:
    """Yield the requests of flows joined by kind and type of number; return all results.

    A flow asks for `AllReduce` or `AllGather`, one after the other.
    """
    results: list[Any] = [None] * len(flows)
    answers: list[Any] = [None] * len(flows)
    open_ = list(range(len(flows)))
    while open_:
        asked: dict[tuple[str, torch.dtype], list[tuple[int, Any]]] = {}
        for number in list(open_):
            try:
                request = flows[number].send(answers[number])
            except StopIteration as finished:
                results[number] = finished.value
                open_.remove(number)
                continue
            kind = type(request).__name__, _tensor(request).dtype
            asked.setdefault(kind, []).append((number, request))
        for kind in sorted(asked, key=str):
            numbers, requests = zip(*asked[kind], strict=True)
            answer = yield from _joined(requests)
            for number, own in zip(numbers, answer, strict=True):
                answers[number] = own
    return results


def _tensor(request: Any) -> Tensor:
    tensor: Tensor = request.payload if isinstance(request, AllGather) else request.tensor
    return tensor


def _joined(requests: Sequence[Any]) -> Flow:
    """Yield one request for several of a kind, and return their answers."""
    tensors = [_tensor(request) for request in requests]
    sizes = [tensor.numel() for tensor in tensors]
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors])

    def part(one: Tensor) -> list[Tensor]:
        # Copies: numbers in a payload are aligned as if it had come alone.
        return [p.clone() for p in one.split(sizes)]

    if isinstance(requests[0], AllGather):
        gathered = yield AllGather(whole)
        return [Gathered(one) for one in zip(*map(part, gathered), strict=True)]
    total = yield AllReduce(whole)
    return [own.view_as(t) for own, t in zip(part(total), tensors, strict=True)]
