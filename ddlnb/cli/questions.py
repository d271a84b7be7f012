"""The options that say on what: a cluster by its name, or by the names of its hardware.

The options that say what is trained and how its gradients are sent, and the workload of them.

What commands that simulate have in common: what is trained how, on networks of which shape.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.networks import AllReduceName, Changes, TopologyName, on_network
from ddlnb.cli.options import Batch, Credit, Partition, refuse_unused

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method
    from ddlnb.workloads.workload import Workload


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
    """What was given of them; a group of options (`ddlnb.cli.options`)."""

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
        from ddlnb.clusters.file import write_cluster
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


ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="A model of `ddlnb models`, my.py:task, package.module:task, a Hugging Face "
        "config.json or architecture, or a kept profile.",
    ),
]
Throughput = Annotated[
    float | None,
    typer.Option(help="Samples per second of one GPU, measured; else a profile or a data sheet."),
]
Sequence = Annotated[
    int | None, typer.Option("--sequence", help="Tokens of a sample; default: the model's own.")
]
Gradients = Annotated[
    str, typer.Option("--gradients", help="Send gradients as fp16, bf16 or fp32; forecast only.")
]
Accumulate = Annotated[
    int,
    typer.Option("--accumulate", help="Exchange once in so many batches; forecast only."),
]


def workload_for(
    model: str,
    on: Cluster,
    batch: int | None,
    throughput: float | None,
    precision: str = "",
    *,
    sequence: int | None = None,
    gradients: str = "",
    accumulate: int = 1,
) -> Workload:
    """Return what one worker computes and sends; see `ddlnb.simulator.profiles.workload_on`."""
    from ddlnb.errors import require_whole
    from ddlnb.simulator.profiles import workload_on

    require_whole(accumulate=accumulate)
    found = workload_on(
        model, on, batch, sequence=sequence, throughput=throughput, precision=precision
    ).accumulated(accumulate)
    return found.sent_as(gradients) if gradients else found


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


@dataclass(frozen=True)
class Simulation:
    """The options of `forecast` and `timeline`: of the workload, of methods and of the network."""

    batch: Batch = None
    servers: ServerCount = None
    sequence: Sequence = None
    throughput: Throughput = None
    precision: PrecisionName = ""
    gradients: Gradients = ""
    accumulate: Accumulate = 1
    partition: Partition = None
    credit: Credit = None
    topology: TopologyName = ""
    all_reduce: AllReduceName = ""
    change: Changes = None
    slow: Slow = None

    def on(self, cluster: Cluster) -> Cluster:
        """Return the cluster with this network and these slower workers."""
        return slowed(on_network(cluster, self.topology, self.all_reduce, self.change), self.slow)

    def methods(self, names: list[str] | None, on: Cluster) -> list[Method]:
        """Return the methods of these names, or all, with these sizes; see `chosen_methods`.

        Raises InputError for servers where none of them has any.
        """
        from ddlnb.plans.methods import require_served

        chosen = chosen_methods(names, on, self.partition, self.credit)
        require_served(chosen, self.servers)
        return chosen

    def workload(self, model: str, on: Cluster) -> Workload:
        """Return what one worker computes and sends."""
        return workload_for(
            model,
            on,
            self.batch,
            self.throughput,
            self.precision,
            sequence=self.sequence,
            gradients=self.gradients,
            accumulate=self.accumulate,
        )


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
