"""Which ranks exchange with which: the groups of every axis, and how they lie on nodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddlnb.errors import UnknownName, require_whole
from ddlnb.parallelism.layout import AXES, Layout

GROUPS = (*AXES, "ep", "data", "expert-data", "ends")


def group_size(layout: Layout, axis: str) -> int:
    """Return how many ranks exchange with each other along an axis.

    Beside tp, cp, dp and pp: ``ep`` shares the experts; ``data`` holds the same parameters (dp and
    cp together); ``expert-data`` the same experts; ``ends`` are the first and the last stage, which
    share a tied embedding. Raises UnknownName for another axis.
    """
    sizes: dict[str, int] = {
        **{name: getattr(layout, name) for name in AXES},
        "ep": layout.ep,
        "data": layout.dp * layout.cp,
        "expert-data": layout.dp // layout.ep * layout.cp,
        "ends": min(2, layout.pp),
    }
    if axis not in sizes:
        raise UnknownName("axis", axis, sizes)
    return sizes[axis]


def groups(layout: Layout, axis: str) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of every group along an axis, in order; every rank is in one group.

    But for ``ends``, where only the first and the last stage are.

    >>> groups(Layout(dp=2, tp=2), "tp"), groups(Layout(dp=2, tp=2), "dp")
    (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    """
    return tuple(tuple(map(int, row)) for row in _array(layout, axis))


def ranks_per_node(layout: Layout, axis: str, gpus_per_node: int) -> int:
    """Return the fewest ranks that a group along this axis has on a node where it has any.

    Ranks fill one node after the other. A group that is whole on one node has all of its ranks
    there; one with a single rank on each of its nodes has only links between nodes.
    """
    require_whole(gpus_per_node=gpus_per_node)
    nodes = _array(layout, axis) // gpus_per_node
    if nodes.shape[1] == 1:
        return 1
    nodes = np.sort(nodes, axis=1)
    rows = np.arange(len(nodes))[:, None] * (nodes.max() + 1)
    return int(np.unique(nodes + rows, return_counts=True)[1].min())


def spans_nodes(layout: Layout, axis: str, gpus_per_node: int) -> bool:
    """Return whether any group along this axis has ranks on more than one node.

    >>> layout = Layout(dp=2, tp=8)
    >>> spans_nodes(layout, "tp", 8), spans_nodes(layout, "dp", 8)
    (False, True)
    """
    require_whole(gpus_per_node=gpus_per_node)
    nodes = _array(layout, axis) // gpus_per_node
    return bool((nodes != nodes[:, :1]).any())


def position(layout: Layout, rank: int) -> dict[str, int]:
    """Return where a rank stands on every axis of the order.

    >>> position(Layout(dp=2, tp=2, pp=2), 6)
    {'tp': 0, 'cp': 0, 'dp': 1, 'pp': 1}
    """
    where = {}
    for axis in layout.order:
        rank, where[axis] = divmod(rank, getattr(layout, axis))
    return where


@lru_cache(maxsize=4096)
def _array(layout: Layout, axis: str) -> NDArray[np.int64]:
    """Return one row of ranks per group."""
    size = group_size(layout, axis)
    outer_first = layout.order[::-1]
    shape: list[int] = []
    names: list[str] = []
    for name in outer_first:  # the inner part of dp are the ranks that share the experts
        parts = {"dp": layout.dp // layout.ep, "ep": layout.ep} if name == "dp" else None
        for part, count in (parts or {name: getattr(layout, name)}).items():
            names.append(part)
            shape.append(count)
    ranks = np.arange(layout.ranks).reshape(shape)
    along = {
        "dp": ["dp", "ep"],
        "data": [name for name in names if name in ("dp", "ep", "cp")],
        "expert-data": [name for name in names if name in ("dp", "cp")],
        "ends": ["pp"],
    }.get(axis, [axis])
    others = [index for index, name in enumerate(names) if name not in along]
    inner = [names.index(name) for name in along]
    rows = ranks.transpose(others + inner).reshape(-1, int(np.prod([shape[i] for i in inner])))
    if axis == "ends":
        rows = rows[:, [0, -1]] if size == 2 else rows[:, :1]
    return rows
