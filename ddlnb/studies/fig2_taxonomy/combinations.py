"""Which choices fit together, and how the survey would describe a method that is made of them.

Every combination is tried; the reasons of those refused are the ones that `TrainingMethod` and the
simulator give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import pandas as pd

from ddlnb.compression.base import Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS
from ddlnb.studies.findings import Findings, findings
from ddlnb.training.cost.estimate import iteration_cost
from ddlnb.training.method import ARCHITECTURES, TrainingMethod, training_method
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.workloads.workload import Gradient, Layer, Workload

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
