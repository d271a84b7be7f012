"""The collectives by name: those of the package, and those that a user registers."""

from __future__ import annotations

from typing import Any

from ddlnb.clusters.fabric import AUTO, NCCL, NCCL_TREE
from ddlnb.errors import require, require_whole
from ddlnb.networks.collectives.all_to_all import Bruck, Pairwise, Rotating
from ddlnb.networks.collectives.base import ALL_REDUCE, Algorithm
from ddlnb.networks.collectives.blueconnect import BlueConnect
from ddlnb.networks.collectives.direct import Direct, Exchange
from ddlnb.networks.collectives.double_tree import DoubleTree
from ddlnb.networks.collectives.halving_doubling import (
    HalvingDoubling,
    RecursiveDoubling,
    RecursiveHalving,
)
from ddlnb.networks.collectives.hierarchical import Hierarchical
from ddlnb.networks.collectives.proof import prove
from ddlnb.networks.collectives.ring import Ring
from ddlnb.networks.collectives.scatter_gather import ScatterGather
from ddlnb.networks.collectives.servers import BytePS, ParameterServers
from ddlnb.networks.collectives.swing import Swing
from ddlnb.networks.collectives.torus import Torus
from ddlnb.networks.collectives.tree import Tree
from ddlnb.plans.transfers import Collective, Primitive
from ddlnb.registry import called, parsed, register

COLLECTIVES: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
        *(Ring, Tree, RecursiveDoubling, HalvingDoubling, DoubleTree),
        *(Hierarchical, BlueConnect, Torus, Swing, Direct, Exchange),
        *(RecursiveHalving, ScatterGather),
        *(Rotating, Pairwise, Bruck, ParameterServers, BytePS),
    )
}

MOST_PROVEN = 1 << 22  # parts of all ranks together: a ring of 2,048 takes two seconds and 0.9 GB
_right: set[int] = set()  # what was proven, so that it is done once
OURS = frozenset(COLLECTIVES.values())  # whose transfers the tests prove


def get_algorithm(text: str | Algorithm) -> Algorithm:
    """Return the algorithm that a text such as ``"torus(4, 8)"`` names.

    Raises UnknownName, and InputError for parameters that it does not have.

    >>> get_algorithm("torus(4, 8)")
    Torus(rows=4, columns=8)
    """
    return text if isinstance(text, Algorithm) else parsed("collective", text, COLLECTIVES)


def algorithms_for(primitive: Primitive) -> list[str]:
    """Return the names of those that carry out a primitive.

    >>> algorithms_for("reduce-scatter")
    ['ring', 'direct', 'recursive-halving']
    """
    return [name for name, kind in COLLECTIVES.items() if primitive in kind.primitives]


def get_collective(
    name: str | Algorithm,
    workers: int,
    *,
    per_node: int = 1,
    primitive: Primitive = ALL_REDUCE,
) -> Collective:
    """Return the transfers of a collective among workers, of which ``per_node`` share a node.

    Neighbouring ranks share a node; only some collectives care. Raises UnknownName for the name,
    InputError for parameters that it does not have, for a primitive that it does not carry out,
    for workers among whom it does not run, and for a registered one that does not do what the
    primitive says (which is looked at up to some 2,000 workers).

    >>> ring = get_collective("ring", 4)
    >>> ring.steps, ring.bytes_sent(1000).tolist()
    (6, [1500.0, 1500.0, 1500.0, 1500.0])
    >>> get_collective("torus(4, 8)", 32).steps, get_collective("ring", 32).steps
    (20, 62)
    """
    algorithm = get_algorithm(name)
    require_whole(workers=workers, per_node=per_node)
    reason = why_not(algorithm, workers, per_node, primitive)
    require(not reason, reason)
    if type(algorithm) in OURS:
        return algorithm.collective(workers, per_node, primitive)
    what = f"collective {algorithm.name!r} among {workers} workers"
    made = called(what, algorithm.collective, workers, per_node, primitive)
    _require_right(made, algorithm, workers, primitive)
    return made


def why_not(
    algorithm: Algorithm, workers: int, per_node: int = 1, primitive: Primitive = ALL_REDUCE
) -> str:
    """Return why a collective does not run among workers, of which so many share a node, or "".

    >>> why_not(get_algorithm("halving-doubling"), 8)
    ''
    """
    if workers % per_node and algorithm.knows_nodes:
        return (
            f"{algorithm.name} needs full nodes, and {workers} workers do not fill nodes of "
            f"{per_node}; take a multiple of {per_node} workers"
        )
    if primitive not in algorithm.primitives:
        able = algorithms_for(primitive) or algorithm.primitives[:1]
        return f"{algorithm.name} does not carry out {primitive!r}; take {' or '.join(able)}"
    if type(algorithm) in OURS:
        return algorithm.refuses(workers, per_node)
    what = f"collective {algorithm.name!r}, asked whether it runs,"
    return called(what, algorithm.refuses, workers, per_node)


def _require_right(made: Any, algorithm: Algorithm, workers: int, primitive: Primitive) -> None:
    """Raise InputError unless somebody's own collective does what the primitive says."""
    name = algorithm.name
    require(
        isinstance(made, Collective),
        f"collective {name!r} makes a {type(made).__name__} in place of a Collective; return one, "
        f"such as self.made(primitive, workers, parts, rows)",
    )
    require(
        (made.workers, made.primitive) == (workers, primitive),
        f"collective {name!r} is asked for {primitive} among {workers} workers, and makes "
        f"{made.primitive} among {made.workers}; take primitive and workers as they are given",
    )
    key = hash((primitive, workers, made.parts, made.servers, made.transfers.tobytes()))
    if made.ranks * made.parts <= MOST_PROVEN and key not in _right:
        prove(made)
        _right.add(key)


def register_collective(kind: type[Algorithm]) -> None:
    """Add a collective to COLLECTIVES, so that its name works wherever a collective is named.

    ``kind`` is a frozen dataclass that inherits from Algorithm, with a ``name``, and a default for
    every parameter. ``del COLLECTIVES[name]`` removes it. Raises InputError, with the reason, for a
    class that cannot be registered.

    >>> import ddlnb
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Blocks(DoubleTree):
    ...     blocks: int = 64
    ...     name = "many-blocks"
    >>> ddlnb.register_collective(Blocks)
    >>> get_collective("many-blocks", 8).steps
    69
    >>> del COLLECTIVES["many-blocks"]
    """
    register("collective", kind, Algorithm, COLLECTIVES, (AUTO, NCCL, NCCL_TREE))
