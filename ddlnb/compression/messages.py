"""The compressed messages of one worker: what it asks for, and what it remembers of each tensor."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ddlnb.compression.base import Compressor, Memory, Round, average_with_feedback
from ddlnb.compression.catalogue import JOINED, compression_named, together
from ddlnb.errors import MissingPart, ModelError
from ddlnb.plans.plan import Plan
from ddlnb.plans.requests import Flow

Shapes = Mapping[str, tuple[int, ...]]
A_MATRIX, SOME = (8, 8), 8  # a shape and workers, to ask a compressor what it requests


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
            self._named[text] = compressor.for_pieces(len(shapes)), feedback

    @staticmethod
    def cannot_run(plan: Plan) -> str:
        """Return why our engine cannot run the compressed messages of a plan; "" if it can."""
        if plan.credit_bytes is not None:
            return "compresses messages in the order of the plan, and the plan has a credit besides"
        for text in plan.compressed_by:
            compressor, _ = compression_named(text)
            asked = {request.__name__: request for request, _ in compressor.traffic(A_MATRIX, SOME)}
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
                else compressor.average(tensor, round_, memory)
            )
        averaged = yield from together(flows)
        return torch.cat([one.average.reshape(-1) for one in averaged])
