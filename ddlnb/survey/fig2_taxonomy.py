"""Fig. 2: the taxonomy made of the registries, and which of its choices fit together.

The survey's Fig. 2 as data: three levels, six aspects, and what this edition has for each.

Every leaf comes from a registry, so a new method is in the tree once it is registered. A name that
several registries know, because one runs it and another computes its cost, is one leaf. The names
of the levels are those of the survey's journal edition (IEEE Network 35(3), 2021, abstract);
sections are those of arXiv 2005.13247, version 1.

Every combination is tried; the reasons of those refused are the ones that `TrainingMethod` and the
simulator give.

The taxonomy (survey, Fig. 2): levels above their aspects, aspects above all registered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import FancyBboxPatch

from ddlnb.clusters.fabric import ALL_REDUCES
from ddlnb.compression.base import FAMILIES, Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.engines.settings import TOPOLOGIES
from ddlnb.errors import InputError
from ddlnb.figures.style import DARK, note, styled
from ddlnb.networks.collectives.catalogue import algorithms_for
from ddlnb.networks.topologies import TOPOLOGIES as NETWORK_TOPOLOGIES
from ddlnb.plans.bucketing import PLACEMENTS
from ddlnb.plans.methods import METHODS, spoken
from ddlnb.survey.items import Findings, Rows, findings, tabled
from ddlnb.survey.sec3_3_1_protocols import KINDS, facts
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.gossip import GRAPHS
from ddlnb.training.method import ARCHITECTURES, SYNCHRONISATIONS, TrainingMethod, training_method
from ddlnb.training.synchronisation import Local, Relaxed, Synchronisation
from ddlnb.workloads.workload import Gradient, Layer, Workload

Registration = tuple[str, str]  # the registry and the name there
LEVELS = ("learning algorithm", "system architecture", "network infrastructure")
# Two registries have these all-reduces under different names.
SAME = {"mesh": "direct", "double tree": "double-tree"}


class Leaf(NamedTuple):
    """A choice, and where it is registered."""

    name: str
    registered: tuple[Registration, ...]


class Branch(NamedTuple):
    """Choices of one kind."""

    name: str
    leaves: tuple[Leaf, ...]


class Aspect(NamedTuple):
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
        "protocols.csv": tuple(facts().query("property == 'latency'")["protocol"]),
        "COLLECTIVES": tuple(algorithms_for("all-reduce")),
        "TOPOLOGIES": TOPOLOGIES,
        "ALL_REDUCES": tuple(ALL_REDUCES),
        "GRAPHS": tuple(GRAPHS),
        "NETWORK_TOPOLOGIES": tuple(NETWORK_TOPOLOGIES),
    }


def taxonomy() -> tuple[Aspect, ...]:
    """Return the six aspects in the survey's order, with all that is registered now."""
    known = registries()
    synchronisations = {name: _kind(one) for name, one in SYNCHRONISATIONS.items()}
    compressions = {name: one.family for name, one in COMPRESSORS.items()}
    schedules = {name: one.scheduling or "no scheduling" for name, one in METHODS.items()}
    return (
        Aspect("synchronisation", 1, "3.1.2", _grouped("SYNCHRONISATIONS", synchronisations)),
        Aspect("compression", 1, "3.1.3", _grouped("COMPRESSORS", compressions, FAMILIES)),
        Aspect("scheduling", 1, "3.1.4", _grouped("METHODS", schedules)),
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
    registry: str, kinds: Mapping[str, str], order: Iterable[str] = ()
) -> tuple[Branch, ...]:
    """Return the names of a registry by their kinds, those of ``order`` first."""
    leaves = {
        kind: tuple(Leaf(name, ((registry, name),)) for name, own in kinds.items() if own == kind)
        for kind in dict.fromkeys([*order, *kinds.values()])
    }
    return tuple(Branch(kind, found) for kind, found in leaves.items() if found)


def _branch(name: str, known: dict[str, tuple[str, ...]], *from_: str) -> Branch:
    found: dict[str, list[Registration]] = {}
    for registry in from_:
        for entry in known[registry]:
            found.setdefault(SAME.get(entry, entry), []).append((registry, entry))
    return Branch(name, tuple(Leaf(leaf, tuple(where)) for leaf, where in found.items()))


ANY = "any"
CHOICES = ("synchronisation", "compression", "feedback", "architecture")


class Combination(NamedTuple):
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
    found = []
    compressors: dict[str, Compressor | None] = {"none": None}
    compressors |= {name: kind() for name, kind in COMPRESSORS.items()}
    for kind, (name, compressor), feedback, architecture in product(
        SYNCHRONISATIONS.values(), compressors.items(), (False, True), ARCHITECTURES
    ):
        synchronisation = kind()
        method, refusal = None, ""
        try:
            method = TrainingMethod(
                synchronisation, compressor, feedback=feedback, architecture=architecture
            )
        except InputError as error:
            refusal = _without_names(str(error), synchronisation, compressor)
        choices = (synchronisation.name, name, "yes" if feedback else "no", architecture)
        found.append(Combination(*choices, method, refusal))
    return found


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
    tried = pd.DataFrame(found, columns=Combination._fields)
    every = tried[[*CHOICES]].nunique()

    def listed(choices: pd.Series) -> str:
        names = choices.unique()
        return ANY if len(names) == every[choices.name] else ", ".join(names)

    by_reason = tried[tried["refusal"] != ""].groupby("refusal", sort=False)
    table = by_reason[[*CHOICES]].agg(listed).assign(combinations=by_reason.size())
    return table.rename_axis("why").reset_index()[[*CHOICES, "combinations", "why"]]


def combination_findings(found: list[Combination]) -> Findings:
    """Say how many combinations can be run, and which reasons refuse most of the others."""
    table = refusals(found).set_index("why")["combinations"]
    refused = table.sum()
    by_architecture = table[table.index.str.contains("this architecture")].sum()
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


@tabled("messages as", "scheduling", "with compression", "why")
def scheduling_refusals() -> Rows:
    """Return which schedules a compressed BSP can follow, one row per lossless method.

    The reasons are those of `ddlnb.iteration_cost`, for top-k on a small made-up model. Those that
    tune their sizes have the ones of their row: tuned, a partition may hold every tensor.
    """
    for name, method in METHODS.items():
        base, reason = replace(method, tunes=False), ""
        try:
            iteration_cost(_made_up(), "survey-10GbE", "bsp + top-k(0.01)", base=base, workers=4)
        except InputError as error:
            reason = str(error)
        applies = "no" if reason else "yes"
        yield (name, method.scheduling or "none", applies, reason)


def _made_up() -> Workload:
    """Return two layers, one of them larger than the parts that any method cuts tensors into."""
    layers = tuple(Layer(name, forward_seconds=1e-3) for name in ("small", "large"))
    sizes = {"small": 1_000, "large": 20_000_000}
    gradients = tuple(Gradient(name, name, size, 4, 1e-3) for name, size in sizes.items())
    return Workload("made up", 1, layers, gradients, "by hand")


LEVEL_COLOURS = ("#0072B2", "#009E73", "#D55E00")  # of levels 1 to 3
COLUMN, GAP = 1.0, 0.08  # widths
ROW = 0.30  # heights from here on
BOX = 0.62
ROOT = "communication in data-parallel training"


@styled
def taxonomy_tree(aspects: Sequence[Aspect]) -> plt.Figure:
    """The survey's taxonomy, Fig. 2, made of what this edition has registered.

    ``aspects`` are those of `ddlnb.survey.fig2_taxonomy.taxonomy`.
    """
    rows = max(sum(1.6 + len(branch.leaves) for branch in aspect.branches) for aspect in aspects)
    width, height = len(aspects) * COLUMN, 3.8 * BOX + ROW * rows
    figure, ax = plt.subplots(figsize=(2.35 * len(aspects), height))
    ax.set(xlim=(0, width), ylim=(-height, 0))
    ax.axis("off")
    top = BOX / 2
    _box(ax, width / 2, -top, width / 2, ROOT, DARK)
    for number, level in enumerate(LEVELS, start=1):
        columns = [i for i, aspect in enumerate(aspects) if aspect.level == number]
        if columns:
            colour = LEVEL_COLOURS[number - 1]
            middle = (columns[0] + columns[-1] + 1) / 2 * COLUMN
            _line(ax, width / 2, -2 * top, middle, -1.4 * BOX)
            wide = len(columns) * COLUMN - GAP
            _box(ax, middle, -1.4 * BOX - top, wide, f"{number}  {level}", colour)
        for column in columns:
            _line(ax, middle, -2.4 * BOX, (column + 0.5) * COLUMN, -2.7 * BOX)
            _aspect(ax, column, aspects[column], colour)
    origin = "levels, aspects and sections are the survey's"
    return note(figure, f"source: the registries of this edition; {origin}")


def _aspect(ax: plt.Axes, column: int, aspect: Aspect, colour: str) -> None:
    middle, left = (column + 0.5) * COLUMN, column * COLUMN + GAP
    text = f"{aspect.name}\nsection {aspect.section}"
    _box(ax, middle, -3.2 * BOX, COLUMN - GAP, text, colour, pale=True)
    y = -3.7 * BOX
    for branch in aspect.branches:
        y -= 0.8 * ROW
        ax.text(left, y, branch.name, color=colour, fontsize=8.5, weight="bold", va="center")
        top = y - ROW / 2
        for leaf in branch.leaves:
            y -= ROW
            ax.text(left + 0.09, y, spoken(leaf.name), fontsize=9, va="center")
            ax.plot([left + 0.02, left + 0.07], [y, y], color=colour, linewidth=0.8)
        ax.plot([left + 0.02] * 2, [top, y], color=colour, lw=0.8)
        y -= 0.8 * ROW


def _box(
    ax: plt.Axes, x: float, y: float, width: float, text: str, colour: str, pale: bool = False
) -> None:
    box = FancyBboxPatch(
        (x - width / 2, y - BOX / 2),
        width,
        BOX,
        boxstyle="round,pad=0,rounding_size=0.04",
        facecolor="white" if pale else colour,
        edgecolor=colour,
        linewidth=1.2,
        zorder=2,
    )
    ax.add_patch(box)
    ax.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        color=colour if pale else "white",
        fontsize=9.5,
        weight="bold",
        zorder=3,
    )


def _line(ax: plt.Axes, x: float, y: float, to_x: float, to_y: float) -> None:
    between = (y + to_y) / 2
    ax.plot([x, x, to_x, to_x], [y, between, between, to_y], color="#999999", lw=1.2, zorder=1)
