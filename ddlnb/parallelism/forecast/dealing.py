"""Which pipeline stage holds how many layers: dealt evenly, or by what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9


@dataclass(frozen=True)
class Dealt:
    """Arrays (cases, stages): layers, heads (0 or 1) and embeddings; 0 where there is no stage."""

    layers: NDArray[np.float64]
    heads: NDArray[np.float64]
    embeddings: NDArray[np.float64]
    parameters: NDArray[np.float64]


def dealt(
    layers: NDArray[np.float64],
    pp: NDArray[np.float64],
    layer_parameters: NDArray[np.float64],
    held_parameters: NDArray[np.float64],
    head_parameters: NDArray[np.float64],
    tied: NDArray[np.float64],
    by_cost: NDArray[np.bool_],
) -> Dealt:
    """Deal the layers of many cases. A tied embedding is a tensor of its own on another stage.

    ``layer_parameters`` are those that a token meets, ``held_parameters`` those that ranks hold.
    """
    head_share = np.round(head_parameters / layer_parameters, 6)
    keys = np.stack([layers, pp, head_share, by_cost], axis=1)
    kinds, which = np.unique(keys, axis=0, return_inverse=True)
    held, heads = np.zeros((2, len(kinds), int(pp.max())))
    for row, (count, stages, head, costs) in enumerate(kinds):
        deal = deal_by_cost if costs else deal_evenly
        held[row, : int(stages)], heads[row, : int(stages)] = deal(
            int(count), int(stages), float(head)
        )
    held, heads = held[which.ravel()], heads[which.ravel()]
    embeddings = np.zeros_like(held)
    embeddings[:, 0] = 1 - tied * (pp == 1)
    parameters = held * held_parameters[:, None] + (heads + embeddings) * head_parameters[:, None]
    return Dealt(held, heads, embeddings, parameters)


@lru_cache(maxsize=4096)
def deal_by_cost(layers: int, pp: int, head: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return layers and heads of every stage as nanotron deals them.

    The head counts as ``head`` layers. A stage takes blocks until the cost of all so far reaches
    its share of the whole; the block that reaches it is still its own (nanotron, ``build_model``).

    >>> deal_by_cost(16, 4, 4.0)
    ((5, 5, 5, 1), (0, 0, 0, 1))
    """
    whole, so_far, stage = layers + head, 0.0, 0
    held, heads = [0] * pp, [0] * pp
    for block in range(layers + 1):
        is_head = block == layers
        (heads if is_head else held)[stage] += 1
        so_far += head if is_head else 1
        if so_far >= whole * (stage + 1) / pp * (1 - ROUNDING):
            stage = min(stage + 1, pp - 1)
    return tuple(held), tuple(heads)


@lru_cache(maxsize=4096)
def deal_evenly(layers: int, pp: int, head: float = 0.0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return layers and heads of every stage, one layer more on middle stages where any are left.

    >>> deal_evenly(30, 4)
    ((7, 8, 8, 7), (0, 0, 0, 1))
    """
    each, left = divmod(layers, pp)
    held = [each] * pp
    for extra in range(left):
        held[-2 - extra if pp > 1 else 0] += 1
    return tuple(held), (*[0] * (pp - 1), 1)
