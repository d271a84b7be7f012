"""Networks on the command line: the catalogue of them, and a cluster on another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Csv, print_table, refuse_unused

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster

TopologyName = Annotated[
    str,
    typer.Option(
        "--topology", help="How nodes are joined, such as 'fat-tree(4)': `ddlnb networks`."
    ),
]
AllReduceName = Annotated[
    str, typer.Option("--all-reduce", help="Its algorithm, such as halving-doubling, or auto.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--change", help="Such as 'cut(host0, leaf0)'; may be given repeatedly."),
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(networks)


def networks(
    topology: Annotated[
        str | None, typer.Argument(help="Show this one, such as 'fat-tree(4)'.")
    ] = None,
    change: Changes = None,
    infragraph: Annotated[
        Path | None, typer.Option(help="Also write it to this file as InfraGraph.")
    ] = None,
    csv: Csv = False,
) -> None:
    """List topologies, routings, changes and collectives, or show one topology."""
    from ddlnb.networks.collectives.catalogue import COLLECTIVES
    from ddlnb.networks.network import CHANGES
    from ddlnb.networks.routes import ROUTINGS
    from ddlnb.networks.topologies import TOPOLOGIES
    from ddlnb.registry import usage

    if topology is not None:
        return _show(topology, change or [], infragraph, csv)
    refuse_unused("the list of networks has no cables", change=change, infragraph=infragraph)
    rows = [
        {"what": what, "name": usage(kind), "meaning": _first_line(kind)}
        for what, known in (
            ("topology", TOPOLOGIES),
            ("change", CHANGES),
            ("collective", COLLECTIVES),
        )
        for kind in known.values()
    ]
    rows += [
        {"what": "routing", "name": name, "meaning": _first_line(find)}
        for name, find in ROUTINGS.items()
    ]
    print_table(rows, csv, "Networks")


def _show(text: str, changes: list[str], infragraph: Path | None, csv: bool) -> None:
    from ddlnb.errors import InputError
    from ddlnb.networks.infragraph import write_infragraph
    from ddlnb.networks.network import changed
    from ddlnb.networks.topologies import get_topology
    from ddlnb.units import GB, show_bandwidth

    network = changed(get_topology(text).network(GB), changes)
    joined = {(link.start, link.end): link.bandwidth for link in network.links[::2]}
    rows = [
        {
            "from": network.devices[start].name,
            "to": network.devices[end].name,
            "bandwidth": f"{bandwidth / GB:g}",
        }
        for (start, end), bandwidth in joined.items()
    ]
    print_table(rows, csv, f"{network!r}; bandwidths as multiples of a host's cable")
    if infragraph is not None:
        if infragraph.suffix not in (".yaml", ".yml"):
            raise InputError(f"InfraGraph file {str(infragraph)!r} must have a name in .yaml")
        typer.echo(
            f"InfraGraph in {write_infragraph(network, infragraph)}, with {show_bandwidth(GB)} "
            f"for a host's cable"
        )


def _first_line(kind: object) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def on_network(
    cluster: Cluster, topology: str, all_reduce: str, changes: list[str] | None
) -> Cluster:
    """Return the cluster on another topology, with another all-reduce, or with changes.

    What is not given stays. Raises InputError for what does not fit the cluster.
    """
    return replace(
        cluster,
        topology=topology or cluster.topology,
        all_reduce=all_reduce or cluster.all_reduce,
        changes=(*cluster.changes, *(changes or [])),
    )
