"""What the commands that simulate have in common: methods, servers, workers that are slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method

Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method, 'all' (default) or DDP; repeatable.")
]
ServerCount = Annotated[
    int | None, typer.Option(help="Parameter servers; default: one for every node in use.")
]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK:FACTOR",
        help="A worker that computes so many times as long, such as 0:2. Repeatable.",
    ),
]


def slowed(on: Cluster, slow: list[str] | None) -> Cluster:
    """Return the cluster with these workers slower; what its file says of others stays."""
    if not slow:
        return on
    from dataclasses import replace

    from ddlnb.errors import InputError

    compute = dict(on.unlike.compute)
    for text in slow:
        rank, _, factor = text.partition(":")
        try:
            compute[int(rank)] = float(factor)
        except ValueError:
            raise InputError(
                f"--slow {text!r} must be a rank and a factor, such as 0:2 for a worker 0 that "
                f"computes twice as long"
            ) from None
    return replace(on, unlike=replace(on.unlike, compute=tuple(compute.items())))


def chosen_methods(
    names: list[str] | None, on: Cluster, partition: str | None, credit: str | None
) -> list[Method]:
    """Return the methods of these names, or all that the cluster can run."""
    from ddlnb.plans.methods import require_tunable
    from ddlnb.simulator.forecast import named_methods

    chosen = named_methods(names or "all", on)
    require_tunable(chosen, partition=partition, credit=credit)
    return [method.tuned(partition=partition, credit=credit) for method in chosen]
