"""The gradients of one worker, in one block of memory laid out in backward order.

A message whose pieces are neighbours in that order is a view of the block and is sent without a
copy; this holds for all seven methods. Any other valid plan is gathered and scattered.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from ddlnb.errors import ModelError
from ddlnb.plans.plan import Message, Plan


class GradientMemory:
    """Flat storage for the gradients of a plan, and the part of it that each message sends."""

    def __init__(self, plan: Plan, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self._offset: dict[str, int] = {}
        total = 0
        for gradient in plan.gradients:
            if gradient.bytes_per_element != dtype.itemsize:
                raise ModelError(
                    f"gradient {gradient.name!r} has {gradient.bytes_per_element} bytes per "
                    f"element in the plan, but the model trains in {dtype}; make the plan from a "
                    f"workload of this model, in one dtype throughout"
                )
            self._offset[gradient.name] = total
            total += gradient.elements
        self._flat = torch.zeros(total, dtype=dtype, device=device)
        self._elements = {gradient.name: gradient.elements for gradient in plan.gradients}
        self._spans = [self._ranges(message) for message in plan.messages]
        self._staging = [
            None if len(spans) == 1 else self._flat.new_empty(sum(b - a for a, b in spans))
            for spans in self._spans
        ]

    def gradient(self, name: str) -> torch.Tensor:
        """Return the flat view of one gradient."""
        offset = self._offset[name]
        return self._flat[offset : offset + self._elements[name]]

    def collect(self, index: int) -> torch.Tensor:
        """Return what message ``index`` sends: a view where possible, else a gathered copy."""
        staging = self._staging[index]
        if staging is None:
            ((start, stop),) = self._spans[index]
            return self._flat[start:stop]
        torch.cat([self._flat[start:stop] for start, stop in self._spans[index]], out=staging)
        return staging

    def store(self, index: int, average: torch.Tensor) -> None:
        """Put the average of message ``index`` where its gradients are."""
        if average.data_ptr() == self._flat[self._spans[index][0][0] :].data_ptr():
            return
        taken = 0
        for start, stop in self._spans[index]:
            self._flat[start:stop].copy_(average[taken : taken + stop - start])
            taken += stop - start

    def _ranges(self, message: Message) -> list[tuple[int, int]]:
        ranges = [
            (self._offset[piece.gradient] + piece.start, self._offset[piece.gradient] + piece.stop)
            for piece in message.pieces
        ]
        joined = [ranges[0]]
        for (_, before), (start, stop) in pairwise(ranges):
            if start == before:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((start, stop))
        return joined
