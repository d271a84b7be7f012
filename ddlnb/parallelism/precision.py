"""How many bytes each kept number takes: a row per way to train."""

from __future__ import annotations

from dataclasses import dataclass

from ddlnb.errors import UnknownName


@dataclass(frozen=True)
class Precision:
    """Bytes per parameter, gradient, its optimizer states, activation, and loss input (logits).

    ``reduced`` is what a gradient takes while it is exchanged.
    """

    name: str
    parameter: int
    gradient: int
    optimizer: int
    activation: int
    reduced: int
    logit: int = 4


PRECISIONS = {
    one.name: one
    for one in (
        # Adam keeps a copy of the parameters and two moments, each in 4 bytes (ZeRO, section 3.1).
        Precision("mixed", 2, 2, 12, 2, 2),
        # Gradients are added up in 4 bytes, and exchanged so.
        Precision("mixed, fp32 gradients", 2, 4, 12, 2, 4),
        Precision("fp32", 4, 4, 8, 4, 4),
        Precision("fp64", 8, 8, 16, 8, 8, 8),
    )
}


def get_precision(name: str | Precision) -> Precision:
    """Return the precision of this name; raises UnknownName for another one.

    >>> get_precision("mixed").optimizer
    12
    """
    if isinstance(name, Precision):
        return name
    if name not in PRECISIONS:
        raise UnknownName("precision", name, PRECISIONS)
    return PRECISIONS[name]
