"""The options that say on what: a cluster by its name, or by the names of its hardware."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import refuse_unused

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster", help="One of `ddlnb clusters`, or a .yaml file. Or name its hardware:"
    ),
]
GpuName = Annotated[
    str, typer.Option("--gpu", help="A GPU of `ddlnb hardware`, such as A100, for a new cluster.")
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", help="Nodes of the new cluster, 1 by default; of --cluster, those in use."
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", help="GPUs in each node. Default: the usual.")
]
NetworkName = Annotated[
    str, typer.Option("--network", help="Such as 25GbE, 200GbIB, 8x400GbIB, '400 Gb/s EFA'.")
]
MachineName = Annotated[
    str, typer.Option("--machine", help="A machine of `ddlnb hardware`, such as p4d or DGX-A100.")
]
SaveCluster = Annotated[
    Path | None, typer.Option("--save-cluster", help="Also write the cluster to this .yaml file.")
]
PrecisionName = Annotated[
    str, typer.Option("--precision", help="fp32, tf32, fp16, bf16, fp8: of seconds by data sheet.")
]


@dataclass(frozen=True)
class Hardware:
    """What was given of them; a group of options (`ddlnb.cli.groups`)."""

    cluster: ClusterName = ""
    gpu: GpuName = ""
    nodes: Nodes = None
    gpus_per_node: GpusPerNode = None
    network: NetworkName = ""
    machine: MachineName = ""

    @property
    def named(self) -> dict[str, Any]:
        """The hardware by name, by the names of its options: what was given of it."""
        names = [field.name for field in fields(Hardware) if field.name != "cluster"]
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value not in (None, "")}

    def chosen(self) -> Cluster:
        """Return the cluster of a name or file, or of named hardware, and say what was assumed.

        Raises InputError for both together, for neither, and for what cannot be.
        """
        from ddlnb.clusters.file import get_cluster
        from ddlnb.clusters.named import cluster_of
        from ddlnb.errors import require

        if self.cluster:
            why = f"--cluster {self.cluster} says what hardware there is"
            refuse_unused(why, **{name: v for name, v in self.named.items() if name != "nodes"})
            found = get_cluster(self.cluster)
            return found if self.nodes is None else nodes_in_use(found, self.nodes)
        require(
            bool(self.gpu or self.machine),
            "give --cluster (see `ddlnb clusters`), or the hardware by name, such as --gpu A100 "
            "--nodes 4 --gpus-per-node 8 --network 200GbIB, or --machine p4d --nodes 4",
        )
        nodes = 1 if self.nodes is None else self.nodes
        found = cluster_of(self.gpu, nodes, self.gpus_per_node, self.network, machine=self.machine)
        typer.echo(assumptions(found), err=True)
        return found


@dataclass(frozen=True)
class KeptHardware(Hardware):
    """The same, and a file that keeps the cluster."""

    save_cluster: SaveCluster = None

    def chosen(self) -> Cluster:
        """Return the cluster as `Hardware.chosen` does, and write its file where it is to go."""
        from ddlnb.clusters.write import write_cluster
        from ddlnb.errors import require
        from ddlnb.files import require_writable_file

        path = self.save_cluster
        if path is None:
            return super().chosen()
        require(
            path.suffix in (".yaml", ".yml"),
            f"cluster file {str(path)!r} must have a name in .yaml, by which --cluster knows it",
        )
        require_writable_file(path, "mine.yaml")
        found = super().chosen()
        typer.echo(f"Cluster in {write_cluster(found, path)}", err=True)
        return found


def nodes_in_use(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with the GPUs of so many of its nodes in use.

    Raises InputError for more nodes than it has.
    """
    from ddlnb.errors import require, require_whole

    require_whole(nodes=nodes)
    require(
        nodes <= cluster.nodes,
        f"nodes {nodes:,} exceed the {cluster.nodes:,} of cluster {cluster.name!r}; give at most "
        f"{cluster.nodes:,}, or the hardware by name (--gpu, --gpus-per-node, --network)",
    )
    return cluster.with_workers(nodes * cluster.gpus_per_node)


def assumptions(cluster: Cluster) -> str:
    """Return in one line what a cluster of named hardware is, and what nobody gave."""
    missing = [f"{what} {text}" for what, text in cluster.facts.items() if text.startswith("not ")]
    said = f"Cluster {cluster.about}: rates of data sheets, less what open measurements say is lost"
    said += "; servers on extra machines" if cluster.server_place else ""
    return "; ".join([said, *missing]) + "."
