"""On what, and with what: a cluster by its name or that of its hardware; its network; methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    Credit,
    Partition,
    known_clusters,
    refuse_unused,
    require_writable_files,
)
from ddlnb.errors import InputError, require, require_whole
from ddlnb.files import temporary_folder
from ddlnb.plans.methods import Method, require_served, require_tunable
from ddlnb.reading import read_text
from ddlnb.units import show_bandwidth

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.simulator.questions import Held


MachineName = Annotated[
    str, typer.Option("--machine", help="Such as p4d or DGX-A100: `ddlnb cluster list machines`.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--change", help="Such as 'cut(host0, leaf0)'; may be given repeatedly."),
]


@dataclass(frozen=True)
class Hardware:
    """What was given of them; a group of options (`ddlnb.cli.options`)."""

    cluster: Annotated[
        str,
        typer.Option(
            help="One of `ddlnb cluster list`, or a .yaml file. Or name its hardware:",
            autocompletion=known_clusters,
        ),
    ] = ""
    gpu: Annotated[
        str, typer.Option(help="Such as A100, for a new cluster: `ddlnb cluster list gpus`.")
    ] = ""
    nodes: Annotated[
        int | None,
        typer.Option(help="Nodes of the new cluster, 1 by default; of --cluster, those in use."),
    ] = None
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs in each node. Default: the usual.")
    ] = None
    network: Annotated[
        str, typer.Option(help="Such as 25GbE, 200GbIB, 8x400GbIB, '400 Gb/s EFA'.")
    ] = ""
    machine: MachineName = ""

    @property
    def named(self) -> dict[str, Any]:
        """The hardware by name, by the names of its options: what was given of it."""
        given = {field.name: getattr(self, field.name) for field in fields(Hardware)[1:]}
        return {name: value for name, value in given.items() if value not in (None, "")}

    def chosen(self, save: Path | None = None) -> Cluster:
        """Return the cluster of a name or file, or of named hardware, and say what was assumed.

        It is written into the file ``save``, if there is one. Raises InputError for both together,
        for neither, for what cannot be, and for a file that holds another cluster.
        """
        from ddlnb.clusters.file import write_cluster

        if save is not None:
            require(
                save.suffix in (".yaml", ".yml"),
                f"cluster file {str(save)!r} must have a name in .yaml, by which --cluster knows "
                f"it",
            )
            require_writable_files(mine_yaml=save)
        found = self.found()
        if not self.cluster:
            typer.echo(assumptions(found), err=True)
        if save is not None:
            if save.exists():
                _require_same(found, save)
            typer.echo(f"Cluster in {write_cluster(found, save)}", err=True)
        return found

    def found(self) -> Cluster:
        """Return the cluster as `chosen` does, and say nothing."""
        from ddlnb.clusters.file import get_cluster
        from ddlnb.clusters.named import cluster_of

        if self.cluster:
            why = f"--cluster {self.cluster} says what hardware there is"
            refuse_unused(why, **{name: v for name, v in self.named.items() if name != "nodes"})
            found = get_cluster(self.cluster)
            return found if self.nodes is None else nodes_in_use(found, self.nodes)
        require(
            bool(self.gpu or self.machine),
            "give --cluster (see `ddlnb cluster list`), or the hardware by name, such as "
            "--gpu A100 --nodes 4 --gpus-per-node 8 --network 200GbIB, or --machine p4d --nodes 4",
        )
        nodes = 1 if self.nodes is None else self.nodes
        return cluster_of(self.gpu, nodes, self.gpus_per_node, self.network, machine=self.machine)


def _require_same(cluster: Cluster, file: Path) -> None:
    """Raise InputError for a file that writing the cluster would change: values may be yours."""
    from ddlnb.clusters.file import write_cluster

    with temporary_folder() as folder:
        same = read_text(write_cluster(cluster, folder / file.name)) == read_text(file)
    require(same, f"{str(file)!r} holds something else; name another file, or remove that one")


@dataclass(frozen=True)
class KeptHardware(Hardware):
    """The same, and a file that keeps the cluster."""

    save_cluster: Annotated[
        Path | None, typer.Option(help="Also write the cluster to this .yaml file.")
    ] = None

    def chosen(self, save: Path | None = None) -> Cluster:
        """Return the cluster as `Hardware.chosen` does."""
        return super().chosen(self.save_cluster if save is None else save)


@dataclass(frozen=True)
class Otherwise:
    """What is otherwise than the cluster and the methods say: network, workers, sizes."""

    partition: Partition = None
    credit: Credit = None
    topology: Annotated[
        str,
        typer.Option(
            help="How nodes are joined, such as 'fat-tree(4)': `ddlnb cluster list topologies`."
        ),
    ] = ""
    all_reduce: Annotated[
        str,
        typer.Option(
            help="Its algorithm, such as halving-doubling, or auto. A double-tree of at most 8 "
            "GPUs in one node is a ring, as in NCCL."
        ),
    ] = ""
    change: Changes = None
    slow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RANK:FACTOR",
            help="A worker that computes so many times as long, such as 0:2. Repeatable.",
        ),
    ] = None

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of messages that methods are to have; empty where none is given."""
        given = {"partition": self.partition, "credit": self.credit}
        return {name: size for name, size in given.items() if size is not None}

    def on(self, cluster: Cluster) -> Cluster:
        """Return the cluster with this network and these slower workers; what is not given stays.

        Raises InputError for what does not fit the cluster.
        """
        changed = replace(
            cluster,
            topology=self.topology or cluster.topology,
            all_reduce=self.all_reduce or cluster.all_reduce,
            changes=(*cluster.changes, *(self.change or [])),
        )
        return slowed(changed, self.slow)

    def methods(self, names: Sequence[str], on: Cluster, servers: int | None) -> list[Method]:
        """Return the methods of these names with these sizes; "all" are those that can run.

        Raises InputError for sizes that none of them has, and for servers where none has any.
        """
        from ddlnb.simulator.forecast import named_methods

        chosen = named_methods(names, on)
        require_tunable(chosen, **self.sizes)
        require_served(chosen, servers)
        return [method.tuned(**self.sizes) for method in chosen]


def slowed(on: Cluster, slow: list[str] | None) -> Cluster:
    """Return the cluster with these workers slower; what its file says of others stays."""
    if not slow:
        return on

    compute, named = dict(on.heterogeneity.compute), set[int]()
    for text in slow:
        rank, _, factor = text.partition(":")
        try:
            worker, times = int(rank), float(factor)
        except ValueError:
            raise InputError(
                f"--slow {text!r} must be a rank and a factor, such as 0:2 for a worker 0 that "
                f"computes twice as long"
            ) from None
        require(worker not in named, f"--slow names worker {worker} twice; give it one factor")
        compute[worker] = times
        named.add(worker)
    return replace(on, heterogeneity=replace(on.heterogeneity, compute=tuple(compute.items())))


def nodes_in_use(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with the GPUs of so many of its nodes in use.

    Raises InputError for more nodes than it has.
    """

    require_whole(nodes=nodes)
    require(
        nodes <= cluster.nodes,
        f"nodes {nodes:,} exceed the {cluster.nodes:,} of cluster {cluster.name!r}; give at most "
        f"{cluster.nodes:,}, or the hardware by name (--gpu, --gpus-per-node, --network)",
    )
    return cluster.with_workers(nodes * cluster.gpus_per_node)


def assumptions(cluster: Cluster) -> str:
    """Return in one line what a cluster of named hardware is, and what nobody gave."""
    from ddlnb.hardware.catalogue import get_interconnect

    missing = [f"{what} {text}" for what, text in cluster.facts.items() if text.startswith("not ")]
    said = f"Cluster {cluster.about}: rates of data sheets, less what open measurements say is lost"
    said += "; servers on extra machines" if cluster.server_place else ""
    joined = get_interconnect(cluster.network) if "between" in cluster.facts else None
    if joined and joined.bandwidth.value < joined.protocol.share.value * joined.line_rate:
        rate, name = show_bandwidth(joined.bandwidth.value), joined.protocol.name
        said += f"; {name} moves {rate} of {joined.name}, and no more of a faster line; RDMA does"
    return "; ".join([said, *missing]) + "."


def warn_of_memory(asked: Held, on: Cluster) -> None:
    """Say on stderr if no GPU of the cluster holds what is trained; an optimizer is Adam."""
    from ddlnb.advice.question import question_about

    held = question_about(asked, on)
    if held.fits(held.held_batch) is False and held.footprint is not None:
        memory = held.footprint.said(held.held_batch, held.gpu_memory)
        typer.echo(f"{memory} It does not fit: no GPU here reaches these times.", err=True)
