"""The synchronisations by name: those of the package, and those that a user registers."""

from __future__ import annotations

from ddlnb.choices import parsed, register
from ddlnb.training.synchronisation.base import BulkSynchronousParallel, Synchronisation
from ddlnb.training.synchronisation.choco import Choco
from ddlnb.training.synchronisation.d_psgd import DPSGD
from ddlnb.training.synchronisation.dcd_psgd import DCDPSGD
from ddlnb.training.synchronisation.ecd_psgd import ECDPSGD
from ddlnb.training.synchronisation.local import AdaptiveLocalSGD, LocalSGD, PostLocalSGD
from ddlnb.training.synchronisation.relaxed import (
    AsynchronousParallel,
    DynamicStaleSynchronousParallel,
    RoundRobinSynchronousParallel,
    StaleSynchronousParallel,
)

SYNCHRONISATIONS: dict[str, type[Synchronisation]] = {
    kind.name: kind
    for kind in (
        BulkSynchronousParallel,
        LocalSGD,
        PostLocalSGD,
        AdaptiveLocalSGD,
        StaleSynchronousParallel,
        DynamicStaleSynchronousParallel,
        AsynchronousParallel,
        RoundRobinSynchronousParallel,
        DPSGD,
        DCDPSGD,
        ECDPSGD,
        Choco,
    )
}


def get_synchronisation(text: str | Synchronisation) -> Synchronisation:
    """Return the synchronisation that a text such as ``"ssp(3)"`` names.

    Raises UnknownName and InputError.

    >>> get_synchronisation("bsp")
    BulkSynchronousParallel()
    """
    if isinstance(text, Synchronisation):
        return text
    return parsed("synchronisation", text, SYNCHRONISATIONS)


def register_synchronisation(kind: type[Synchronisation]) -> None:
    """Add a synchronisation to SYNCHRONISATIONS, so that its name works in method texts.

    ``kind`` is a frozen dataclass that inherits from Synchronisation, with a ``name``, a ``loop``
    and a default for every parameter. ``del SYNCHRONISATIONS[name]`` removes it. Raises InputError,
    with the reason, for a class that cannot be registered.

    >>> import ddlnb
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pairwise(LocalSGD):
    ...     period: int = 2
    ...     name = "pairwise"
    >>> ddlnb.register_synchronisation(Pairwise)
    >>> print(ddlnb.training_method("pairwise + top-k(0.01)"))
    pairwise(2) + top-k(0.01) on A2A
    >>> del SYNCHRONISATIONS["pairwise"]
    """
    register("synchronisation", kind, Synchronisation, SYNCHRONISATIONS)
