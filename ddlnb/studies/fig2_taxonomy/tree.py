"""The survey's Fig. 2 as data: three levels, six aspects, and what this edition has for each.

Every leaf comes from a registry, so a new method is in the tree once it is registered. A name that
several registries know, because one runs it and another computes its cost, is one leaf. The names
of the levels are those of the survey's journal edition (IEEE Network 35(3), 2021, abstract);
sections are those of arXiv 2005.13247, version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlnb.clusters.all_reduce import ALL_REDUCES
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.literature import FAMILIES
from ddlnb.engines.settings import TOPOLOGIES
from ddlnb.networks.collectives.catalogue import algorithms_for
from ddlnb.networks.topologies import TOPOLOGIES as NETWORK_TOPOLOGIES
from ddlnb.plans.methods import METHODS
from ddlnb.plans.placement import PLACEMENTS
from ddlnb.studies.sec3_3_1_protocols.channels import KINDS
from ddlnb.studies.sec3_3_1_protocols.published import facts
from ddlnb.training.method import ARCHITECTURES
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.training.synchronisation.graphs import GRAPHS
from ddlnb.training.synchronisation.local import Local
from ddlnb.training.synchronisation.relaxed import Relaxed

if TYPE_CHECKING:
    import pandas as pd


Registration = tuple[str, str]  # the registry and the name there
LEVELS = ("learning algorithm", "system architecture", "network infrastructure")
# Two registries have these all-reduces under different names.
SAME = {"mesh": "direct", "double tree": "double-tree"}


@dataclass(frozen=True)
class Leaf:
    """A choice, and where it is registered."""

    name: str
    registered: tuple[Registration, ...]


@dataclass(frozen=True)
class Branch:
    """Choices of one kind."""

    name: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class Aspect:
    """One of the six aspects; ``level`` counts LEVELS from 1."""

    name: str
    level: int
    section: str
    branches: tuple[Branch, ...]

    @property
    def leaves(self) -> list[Leaf]:
        """Return all choices, branch by branch."""
        return [leaf for branch in self.branches for leaf in branch.leaves]


def registries() -> dict[str, tuple[str, ...]]:
    """Return the names in every registry that the tree is made of."""
    return {
        "SYNCHRONISATIONS": tuple(SYNCHRONISATIONS),
        "COMPRESSORS": tuple(COMPRESSORS),
        "METHODS": tuple(METHODS),
        "ARCHITECTURES": ARCHITECTURES,
        "PLACEMENTS": tuple(PLACEMENTS),
        "KINDS": KINDS,
        "protocols.csv": tuple(
            fact["protocol"] for fact in facts() if fact["property"] == "latency"
        ),
        "COLLECTIVES": tuple(algorithms_for("all-reduce")),
        "TOPOLOGIES": TOPOLOGIES,
        "ALL_REDUCES": tuple(ALL_REDUCES),
        "GRAPHS": tuple(GRAPHS),
        "NETWORK_TOPOLOGIES": tuple(NETWORK_TOPOLOGIES),
    }


def taxonomy() -> tuple[Aspect, ...]:
    """Return the six aspects in the survey's order, with all that is registered now."""
    known = registries()
    synchronisations = _grouped(
        "SYNCHRONISATIONS", SYNCHRONISATIONS, lambda name: _kind(SYNCHRONISATIONS[name])
    )
    compressions = _grouped(
        "COMPRESSORS", COMPRESSORS, lambda name: COMPRESSORS[name].family, FAMILIES
    )
    schedules = _grouped(
        "METHODS", METHODS, lambda name: METHODS[name].scheduling or "no scheduling"
    )
    return (
        Aspect("synchronisation", 1, "3.1.2", synchronisations),
        Aspect("compression", 1, "3.1.3", compressions),
        Aspect("scheduling", 1, "3.1.4", schedules),
        Aspect(
            "architecture",
            2,
            "3.2",
            (
                _branch("architectures", known, "ARCHITECTURES"),
                _branch("keys of parameter servers", known, "PLACEMENTS"),
            ),
        ),
        Aspect(
            "protocol",
            3,
            "3.3.1",
            (
                _branch("machines, as published", known, "protocols.csv"),
                _branch("processes, measured", known, "KINDS"),
            ),
        ),
        Aspect(
            "topology",
            3,
            "3.3.2",
            (
                _branch("of cables", known, "NETWORK_TOPOLOGIES"),
                _branch("of an all-reduce", known, "COLLECTIVES", "TOPOLOGIES", "ALL_REDUCES"),
                _branch("of gossip", known, "GRAPHS"),
            ),
        ),
    )


def taxonomy_table(aspects: Iterable[Aspect]) -> pd.DataFrame:
    """Return one row per leaf: level, aspect, kind, choice, and the registries that know it."""
    import pandas as pd

    rows = [
        {
            "level": LEVELS[aspect.level - 1],
            "aspect": aspect.name,
            "section": aspect.section,
            "kind": branch.name,
            "choice": leaf.name,
            "registered in": ", ".join(registry for registry, _ in leaf.registered),
        }
        for aspect in aspects
        for branch in aspect.branches
        for leaf in branch.leaves
    ]
    return pd.DataFrame(rows)


def _kind(synchronisation: type[Synchronisation]) -> str:
    if issubclass(synchronisation, Local):
        return "local steps"
    if issubclass(synchronisation, Relaxed):
        return "stale"
    return "gossip" if synchronisation.architectures == ("gossip",) else "synchronous"


def _grouped(
    registry: str,
    names: Iterable[str],
    kind_of: Callable[[str], str],
    order: Iterable[str] = (),
) -> tuple[Branch, ...]:
    kinds: dict[str, list[Leaf]] = {kind: [] for kind in order}
    for name in names:
        kinds.setdefault(kind_of(name), []).append(Leaf(name, ((registry, name),)))
    return tuple(Branch(kind, tuple(leaves)) for kind, leaves in kinds.items() if leaves)


def _branch(name: str, known: dict[str, tuple[str, ...]], *from_: str) -> Branch:
    found: dict[str, list[Registration]] = {}
    for registry in from_:
        for entry in known[registry]:
            found.setdefault(SAME.get(entry, entry), []).append((registry, entry))
    return Branch(name, tuple(Leaf(leaf, tuple(where)) for leaf, where in found.items()))
