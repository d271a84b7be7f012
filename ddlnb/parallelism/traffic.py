"""Who sends how much to whom in an iteration of a layout: a matrix of bytes for every axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.transfers import Primitive
from ddlnb.parallelism.groups import groups, position
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import ModelShape
from ddlnb.parallelism.precision import Precision
from ddlnb.parallelism.volumes import Exchange, exchanges

Numbers = NDArray[np.float64]

ALGORITHMS: Mapping[str, str] = {
    "all-reduce": "ring",
    "reduce-scatter": "ring",
    "all-gather": "ring",
    "all-to-all": "rotating",
}
"""The algorithm that carries out a primitive, by default."""


def traffic_matrices(
    model: ModelShape,
    layout: Layout,
    precision: str | Precision = "mixed",
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> dict[str, Numbers]:
    """Return the bytes that rank i sends to rank j in one iteration, as ``[i, j]``, by axis.

    The axes are those of `ddlnb.parallelism.groups.GROUPS` that exchange anything. Collectives are
    those of ``algorithms``, by primitive. Rows of the matrices add up to what `exchanges` says that
    a rank sends, with algorithms that send as little as rings. Raises InputError for a layout that
    does not divide the model.

    >>> from ddlnb.parallelism.transformer import llama
    >>> model = llama("small", 4, 512, 8, 8, 1536, 64, 512).shape
    >>> found = traffic_matrices(model, Layout.parse("dp2 tp2"))
    >>> {axis: (matrix > 0).astype(int).tolist()[0] for axis, matrix in found.items()}
    {'tp': [0, 1, 0, 0], 'data': [0, 0, 1, 0]}
    """
    matrices: dict[str, Numbers] = {}
    for stage in range(layout.pp):
        for one in exchanges(model, layout, precision, stage):
            matrix = matrices.setdefault(one.axis, np.zeros((layout.ranks, layout.ranks)))
            _add(matrix, one, layout, stage, algorithms)
    return matrices


def _add(
    matrix: Numbers, one: Exchange, layout: Layout, stage: int, algorithms: Mapping[str, str]
) -> None:
    """Add what the ranks of a stage send to the others of their groups."""
    between = _between(one, layout, stage, algorithms)
    for row in groups(layout, one.axis):
        senders = [rank for rank in row if position(layout, rank)["pp"] == stage]
        for rank in senders:
            matrix[rank, list(row)] += between[row.index(rank)]


def _between(one: Exchange, layout: Layout, stage: int, algorithms: Mapping[str, str]) -> Numbers:
    """Return the bytes from each member of a group to each other one, in an iteration."""
    bytes_sent = np.zeros((one.ranks, one.ranks))
    if one.primitive == "send":
        step = -1 if one.axis == "pp" and one.when == "backward" else 1
        source = np.array([stage]) if one.axis == "pp" else np.arange(one.ranks)
        bytes_sent[source, (source + step) % one.ranks] = one.times * one.bytes
        return bytes_sent
    primitive = cast(Primitive, one.primitive)
    collective = get_collective(algorithms[primitive], one.ranks, primitive=primitive)
    rows = collective.transfers
    np.add.at(bytes_sent, (rows["source"], rows["target"]), rows["stop"] - rows["first"])
    return bytes_sent * (one.times * one.message_bytes / collective.parts)
