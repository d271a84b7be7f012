"""The survey's Fig. 2 as data: three levels, six aspects, and what this edition has for each.

Every leaf comes from a registry, so that a new method is in the tree once it is registered. What is
known under one name by several registries, because one runs it and one computes its cost, is one
leaf. Levels are called as in the journal edition of the survey (IEEE Network 35(3), 2021,
abstract); sections are those of arXiv 2005.13247, version 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ddlnb.clusters.all_reduce import ALL_REDUCES
from ddlnb.compression.base import Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.literature import FAMILIES
from ddlnb.compression.seconds import FREE
from ddlnb.engines.transports.algorithms import ALGORITHMS
from ddlnb.engines.transports.connect import TOPOLOGIES
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS
from ddlnb.plans.placement import PLACEMENTS
from ddlnb.studies.sec3_3_1_channels import KINDS
from ddlnb.studies.sec3_3_1_protocols import facts
from ddlnb.studies.table1_attributes.networks import NETWORK_GRAPHS
from ddlnb.training.cost.iteration import compressed_cost
from ddlnb.training.method import ARCHITECTURES, TrainingMethod
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.training.synchronisation.graphs import GRAPHS
from ddlnb.training.synchronisation.local import Local
from ddlnb.training.synchronisation.relaxed import Relaxed
from ddlnb.workloads.workload import Gradient, Layer, Workload

if TYPE_CHECKING:
    import pandas as pd


Registration = tuple[str, str]  # the registry and the name there
LEVELS = ("learning algorithm", "system architecture", "network infrastructure")
SAME = {"mesh": "direct mesh"}  # the name of an all-reduce in a setting, and its own


@dataclass(frozen=True)
class Leaf:
    """Something that can be chosen, and where it is registered."""

    name: str
    registered: tuple[Registration, ...]


@dataclass(frozen=True)
class Branch:
    """Choices of one kind."""

    name: str
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class Aspect:
    """One of the six. ``level`` is its place in LEVELS, from 1."""

    name: str
    level: int
    section: str
    branches: tuple[Branch, ...]

    @property
    def leaves(self) -> list[Leaf]:
        """All choices, branch by branch."""
        return [leaf for branch in self.branches for leaf in branch.leaves]


def registries() -> dict[str, tuple[str, ...]]:
    """The names in every registry that the tree is made of."""
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
        "ALGORITHMS": tuple(ALGORITHMS),
        "TOPOLOGIES": TOPOLOGIES,
        "ALL_REDUCES": tuple(ALL_REDUCES),
        "GRAPHS": tuple(GRAPHS),
        "NETWORK_GRAPHS": tuple(NETWORK_GRAPHS),
    }


def taxonomy() -> tuple[Aspect, ...]:
    """The six aspects in the survey's order, with all that is registered now."""
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
                _branch("of cables", known, "NETWORK_GRAPHS"),
                _branch("of an all-reduce", known, "ALGORITHMS", "TOPOLOGIES", "ALL_REDUCES"),
                _branch("of gossip", known, "GRAPHS"),
            ),
        ),
    )


def taxonomy_table(aspects: Iterable[Aspect]) -> pd.DataFrame:
    """One row per leaf: level, aspect, kind, choice, and the registries that know it."""
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


# Which choices fit together: every combination is tried, and those refused say why. Nothing is
# listed here: the reasons are those that `TrainingMethod` and the simulator give.
ANY = "any"
CHOICES = ("synchronisation", "compression", "feedback", "architecture")


@dataclass(frozen=True)
class Combination:
    """One choice per aspect, by name, the method they make if they do, and why they do not."""

    synchronisation: str
    compression: str
    feedback: str
    architecture: str
    method: TrainingMethod | None
    refusal: str


def combinations() -> list[Combination]:
    """Every registered synchronisation with every compressor, with feedback and without, on every
    architecture; parameters are the defaults.
    """
    compressors: dict[str, Compressor | None] = {"none": None}
    compressors |= {name: kind() for name, kind in COMPRESSORS.items()}
    return [
        _tried(kind(), name, compressor, feedback, architecture)
        for kind, (name, compressor), feedback, architecture in product(
            SYNCHRONISATIONS.values(), compressors.items(), (False, True), ARCHITECTURES
        )
    ]


def _tried(
    synchronisation: Synchronisation,
    compression: str,
    compressor: Compressor | None,
    feedback: bool,
    architecture: str,
) -> Combination:
    method, refusal = None, ""
    try:
        method = TrainingMethod(
            synchronisation, compressor, feedback=feedback, architecture=architecture
        )
    except InputError as error:
        refusal = _without_names(str(error), synchronisation, compressor)
    names = (synchronisation.name, compression, "yes" if feedback else "no", architecture)
    return Combination(*names, method, refusal)


def _without_names(
    message: str, synchronisation: Synchronisation, compressor: Compressor | None
) -> str:
    """The reason with the names of the choices taken out, so that alike reasons are equal."""
    for choice, word in (
        (synchronisation, "this synchronisation"),
        (compressor, "this compressor"),
    ):
        if choice is not None:
            message = re.sub(rf"(?<![\w-]){re.escape(str(choice))}(?![\w(])", word, message)
    return re.sub(r"does not run on \w+", "does not run on this architecture", message)


def refusals(found: list[Combination]) -> pd.DataFrame:
    """One row per reason: the combinations that it is the first one to refuse, and their number.

    A column lists the choices in question, ``any`` where it is all of them.
    """
    import pandas as pd

    every = {name: {getattr(one, name) for one in found} for name in CHOICES}
    by_reason: dict[str, list[Combination]] = {}
    for one in found:
        if one.refusal:
            by_reason.setdefault(one.refusal, []).append(one)
    rows = []
    for reason, refused in by_reason.items():
        row: dict[str, object] = {}
        for name in CHOICES:
            values = list(dict.fromkeys(getattr(one, name) for one in refused))
            row[name] = ANY if set(values) == every[name] else ", ".join(values)
        rows.append({**row, "combinations": len(refused), "why": reason})
    return pd.DataFrame(rows, columns=[*CHOICES, "combinations", "why"])


def scheduling_refusals() -> pd.DataFrame:
    """Which schedule a compressed BSP can follow: one row per lossless method, and why if not.

    The reasons are those of `compressed_cost`, for top-k on a small made-up model.
    """
    import pandas as pd

    workload = _made_up()
    rows = []
    for name, method in METHODS.items():
        reason = ""
        try:
            compressed_cost(workload, "survey-10GbE", "bsp + top-k(0.01)", FREE, name, 4)
        except InputError as error:
            reason = str(error)
        rows.append(
            {
                "messages as": name,
                "scheduling": method.scheduling or "none",
                "with compression": "no" if reason else "yes",
                "why": reason,
            }
        )
    return pd.DataFrame(rows)


def _made_up() -> Workload:
    """Two layers, one of them larger than the parts that any method cuts tensors into."""
    layers = tuple(Layer(name, forward_seconds=1e-3) for name in ("small", "large"))
    sizes = {"small": 1_000, "large": 20_000_000}
    gradients = tuple(Gradient(name, name, size, 4, 1e-3) for name, size in sizes.items())
    return Workload("made up", 1, layers, gradients, "by hand")
