"""The synchronisations there are, by name."""

from __future__ import annotations

from ddlnb.spec import parsed
from ddlnb.training.local import AdaptiveLocalSGD, LocalSGD, PostLocalSGD
from ddlnb.training.relaxed import (
    AsynchronousParallel,
    DynamicStaleSynchronousParallel,
    RoundRobinSynchronousParallel,
    StaleSynchronousParallel,
)
from ddlnb.training.synchronisation import BulkSynchronousParallel, Synchronisation

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
    )
}


def get_synchronisation(text: str | Synchronisation) -> Synchronisation:
    """The synchronisation that a text such as ``"ssp(3)"`` stands for.

    Raises UnknownName and InputError.

    >>> get_synchronisation("bsp")
    BulkSynchronousParallel()
    """
    if isinstance(text, Synchronisation):
        return text
    return parsed("synchronisation", text, SYNCHRONISATIONS)
