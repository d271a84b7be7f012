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

    @property
    def by_axis(self) -> dict[str, int]:
        """Elements by the axis of the ranks that hold them alike."""
        return {"data": self.dense, "expert-data": self.experts}


def elements_on_rank(weight: Weight, layout: Layout) -> int:
    """Return the elements of a tensor on one rank, rounded up where ranks have different many."""
    ways = {
        "tensor": min(layout.tp, weight.pieces or layout.tp),
        "expert": layout.ep * layout.tp,
        "none": 1,
    }[weight.split]
    return -(-weight.elements // ways)


def shares_by_layer(stage: PipelineStage, layout: Layout) -> list[tuple[Share, int]]:
    """Return what one rank holds of each layer of a stage, and how many layers are alike.

    A tied tensor is held once by a stage that has both of its layers, with the first of them.
    """
    shares = []
    has_tied = False
    for layer, count in stage.layers:
        held = {"tensor": 0, "expert": 0, "none": 0}
        tied = 0
        for weight in layer.weights:
            elements = elements_on_rank(weight, layout)
            if weight.tied and has_tied:
                continue
            if weight.tied:
                tied, has_tied = elements, True
            held[weight.split] += elements
        dense = held["tensor"] + held["none"]
        shares.append((Share(dense, held["expert"], held["none"], tied), count))
    return shares


def share_of(stage: PipelineStage, layout: Layout) -> Share:
    """Return the elements of parameters that one rank of this stage holds."""
    shares = shares_by_layer(stage, layout)
    return Share(
        sum(share.dense * count for share, count in shares),
        sum(share.experts * count for share, count in shares),
        sum(share.repeated * count for share, count in shares),
        sum(share.tied * count for share, count in shares),
    )


def sharded(elements: int, ways: int) -> int:
    """Return the elements of the largest of equal shards.

    >>> sharded(10, 4)
    3
    """
    return -(-elements // ways)
