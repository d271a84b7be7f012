"""What one rank of a stage has of its layers: the elements of every parameter tensor."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Weight
from ddlnb.parallelism.stages import PipelineStage


@dataclass(frozen=True)
class Share:
    """Elements of parameters on one rank, before ZeRO shards them.

    ``dense`` are held alike by all ranks of ``data``, ``experts`` by those of ``expert-data``.
    ``repeated`` is the part of dense that all ranks of tp hold alike; ``tied`` the part that the
    first and the last stage hold alike.
    """

    dense: int
    experts: int
    repeated: int
    tied: int

    @property
    def elements(self) -> int:
        """All elements on this rank."""
        return self.dense + self.experts


def elements_on_rank(weight: Weight, layout: Layout) -> int:
    """Return the elements of a tensor on one rank, rounded up where ranks have different many."""
    ways = {
        "tensor": min(layout.tp, weight.pieces or layout.tp),
        "expert": layout.ep * layout.tp,
        "none": 1,
    }[weight.split]
    return -(-weight.elements // ways)


def share_of(stage: PipelineStage, layout: Layout) -> Share:
    """Return the elements of parameters that one rank of this stage holds."""
    held = {"tensor": 0, "expert": 0, "none": 0}
    tied = 0
    for layer, count in stage.layers:
        for weight in layer.weights:
            elements = count * elements_on_rank(weight, layout)
            if weight.tied:
                if tied:
                    continue  # the only stage has both layers, and the tensor once
                tied = elements
            held[weight.split] += elements
    return Share(held["tensor"] + held["none"], held["expert"], held["none"], tied)


def sharded(elements: int, ways: int) -> int:
    """Return the elements of the largest of equal shards.

    >>> sharded(10, 4)
    3
    """
    return -(-elements // ways)
