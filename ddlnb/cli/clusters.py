"""The command that lists simulated clusters and their effects."""

from __future__ import annotations

from typing import Annotated

import typer

from ddlnb.cli.options import Csv, print_table


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(clusters)


def clusters(
    name: Annotated[str | None, typer.Argument(help="Show the effects of this one.")] = None,
    csv: Csv = False,
) -> None:
    """List the clusters, or every effect of one."""
    from ddlnb.clusters.cluster import describe
    from ddlnb.clusters.file import cluster_names, get_cluster

    if name is not None:
        one = get_cluster(name)
        rows = describe(one)
        if csv:
            return print_table(rows, csv, one.name)
        short = [{key: text for key, text in row.items() if key != "meaning"} for row in rows]
        print_table(short, csv, f"{one!r}: {one.about}")
        if str(one.unlike):
            typer.echo(f"Unlike workers: {one.unlike}.")
        for row in rows:
            typer.echo(f"{row['effect']}: {row['meaning']}")
        for fact, value in one.facts.items():
            typer.echo(f"fact about {fact}: {value}")
        return
    listed = []
    for known in cluster_names():
        one = get_cluster(known)
        listed.append(
            {
                "cluster": known,
                "network": one.network,
                "nodes": one.nodes,
                "GPUs per node": one.gpus_per_node,
                "all-reduce": one.all_reduce,
                "topology": one.topology or "star",
                "servers": one.server_place or "none",
                "fitted effects": len(one.fits),
                "about": one.about,
            }
        )
    print_table(listed, csv, "Clusters")
