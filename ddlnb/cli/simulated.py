"""What commands that simulate have in common: what is trained how, on networks of which shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.hardware_options import PrecisionName
from ddlnb.cli.networks import AllReduceName, Changes, TopologyName, on_network
from ddlnb.cli.options import Batch, Credit, Partition
from ddlnb.cli.workloads import Accumulate, Gradients, Sequence, Throughput, workload_for

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method
    from ddlnb.workloads.workload import Workload

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
        from ddlnb.plans.served import require_served

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
