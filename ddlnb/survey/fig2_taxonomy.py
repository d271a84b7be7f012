"""Fig. 2: the taxonomy made of the registries, and which of its choices fit together.

The survey's Fig. 2 as data: three levels, six aspects, and what this edition has for each.

Every leaf comes from a registry, so a new method is in the tree once it is registered. A name that
several registries know, because one runs it and another computes its cost, is one leaf. The names
of the levels are those of the survey's journal edition (IEEE Network 35(3), 2021, abstract);
sections are those of arXiv 2005.13247, version 1.

Which choices fit together, and how the survey would describe a method that is made of them.

Every combination is tried; the reasons of those refused are the ones that `TrainingMethod` and the
simulator give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import pandas as pd

from ddlnb.clusters.all_reduce import ALL_REDUCES
from ddlnb.compression.base import FAMILIES, Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.engines.settings import TOPOLOGIES
from ddlnb.errors import InputError
from ddlnb.networks.collectives.catalogue import algorithms_for
from ddlnb.networks.topologies import TOPOLOGIES as NETWORK_TOPOLOGIES
from ddlnb.plans.bucketing import PLACEMENTS
from ddlnb.plans.methods import METHODS
from ddlnb.survey.findings import Findings, findings
from ddlnb.survey.sec3_3_1_protocols import KINDS, facts
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.method import ARCHITECTURES, SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.graphs import GRAPHS
from ddlnb.training.synchronisation.local import Local
from ddlnb.training.synchronisation.relaxed import Relaxed
from ddlnb.workloads.workload import Gradient, Layer, Workload

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


ANY = "any"
CHOICES = ("synchronisation", "compression", "feedback", "architecture")


@dataclass(frozen=True)
class Combination:
    """One choice per aspect by name, and the method that they make or the reason for none."""

    synchronisation: str
    compression: str
    feedback: str
    architecture: str
    method: TrainingMethod | None
    refusal: str


def combinations() -> list[Combination]:
    """Try every synchronisation with every compressor, with feedback and without, everywhere.

    Everywhere is on every architecture; parameters are the defaults.
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
    """Return the reason without the names of the choices, so that alike reasons are equal."""
    for choice, word in (
        (synchronisation, "this synchronisation"),
        (compressor, "this compressor"),
    ):
        if choice is not None:
            message = re.sub(rf"(?<![\w-]){re.escape(str(choice))}(?![\w(])", word, message)
    return re.sub(r"does not run on \w+", "does not run on this architecture", message)


def refusals(found: list[Combination]) -> pd.DataFrame:
    """Return one row per reason, with the combinations that fail for it first and their number.

    A column lists the choices in question, ``any`` where it is all of them.
    """
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


def combination_findings(found: list[Combination]) -> Findings:
    """Say how many combinations can be run, and which reasons refuse most of the others."""
    table = refusals(found)
    refused = int(table["combinations"].sum())
    by_architecture = table.loc[
        table["why"].str.contains("this architecture"), "combinations"
    ].sum()
    return findings(
        f"{len(found) - refused} of {len(found)} combinations can be run; "
        f"{refused / len(found):.0%} are refused.",
        f"{by_architecture / refused:.0%} of the refusals come from a synchronisation that belongs "
        f"to another architecture: staleness needs a server, gossip needs neighbours.",
    )


def sentences(method: str, scheduling: str | None, protocol: str) -> pd.DataFrame:
    """Return the survey's one-sentence description of this method and of the lossless methods."""
    said = {method: training_method(method).sentence(scheduling, protocol)}
    said |= {name: lossless.sentence(protocol) for name, lossless in METHODS.items()}
    return pd.DataFrame({"method": said.keys(), "in one sentence": said.values()})


def scheduling_refusals() -> pd.DataFrame:
    """Return which schedules a compressed BSP can follow, one row per lossless method.

    The reasons are those of `ddlnb.iteration_cost`, for top-k on a small made-up model.
    """
    workload = _made_up()
    rows = []
    for name, method in METHODS.items():
        reason = ""
        try:
            iteration_cost(workload, "survey-10GbE", "bsp + top-k(0.01)", base=name, workers=4)
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
    """Return two layers, one of them larger than the parts that any method cuts tensors into."""
    layers = tuple(Layer(name, forward_seconds=1e-3) for name in ("small", "large"))
    sizes = {"small": 1_000, "large": 20_000_000}
    gradients = tuple(Gradient(name, name, size, 4, 1e-3) for name, size in sizes.items())
    return Workload("made up", 1, layers, gradients, "by hand")


__all__ = [
    "LEVELS",
    "Aspect",
    "combination_findings",
    "combinations",
    "refusals",
    "scheduling_refusals",
    "sentences",
    "taxonomy",
    "taxonomy_table",
]
