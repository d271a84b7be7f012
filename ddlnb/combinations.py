"""Which choices fit together: every combination is tried, and those refused say why.

Nothing is listed here: the reasons are those that `TrainingMethod` and the simulator give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ddlnb.compression.base import Compressor
from ddlnb.compression.catalogue import COMPRESSORS
from ddlnb.compression.seconds import FREE
from ddlnb.errors import InputError
from ddlnb.plans.methods import METHODS
from ddlnb.training.cost.iteration import compressed_cost
from ddlnb.training.method import ARCHITECTURES, TrainingMethod
from ddlnb.training.synchronisation.base import Synchronisation
from ddlnb.training.synchronisation.catalogue import SYNCHRONISATIONS
from ddlnb.workloads.workload import Gradient, Layer, Workload

if TYPE_CHECKING:
    import pandas as pd

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
