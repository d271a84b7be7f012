"""The commands about simulated clusters: clusters, forecast, timeline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.forecast_remarks import SCRIPTS, remarks
from ddlnb.cli.hardware import (
    ClusterName,
    GpuName,
    GpusPerNode,
    MachineName,
    NetworkName,
    Nodes,
    PrecisionName,
    SaveCluster,
    chosen_cluster,
)
from ddlnb.cli.networks import AllReduceName, Changes, TopologyName, on_network
from ddlnb.cli.options import (
    Batch,
    Credit,
    Csv,
    Partition,
    numbers,
    print_table,
    refuse_unused,
)
from ddlnb.cli.searched import bounds
from ddlnb.cli.workloads import (
    Accumulate,
    Gradients,
    ModelName,
    Sequence,
    Throughput,
    workload_for,
)

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method
    from ddlnb.results.timeline import Timeline

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


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (clusters, forecast, timeline):
        app.command()(command)


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


def forecast(
    model: ModelName = "",
    cluster: ClusterName = "",
    gpu: GpuName = "",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    network: NetworkName = "",
    machine: MachineName = "",
    save_cluster: SaveCluster = None,
    gpus: Annotated[
        list[int] | None, numbers("Workers, such as 8,16. Default: all of the cluster.")
    ] = None,
    method: Methods = None,
    batch: Batch = None,
    servers: ServerCount = None,
    sequence: Sequence = None,
    throughput: Throughput = None,
    precision: PrecisionName = "",
    gradients: Gradients = "",
    accumulate: Accumulate = 1,
    partition: Partition = None,
    credit: Credit = None,
    topology: TopologyName = "",
    all_reduce: AllReduceName = "",
    change: Changes = None,
    slow: Slow = None,
    draws: Annotated[int, typer.Option(help="Draws behind the 90 % intervals; 0: none.")] = 200,
    fig4: Annotated[
        bool, typer.Option("--fig4", help="All 252 cells of the survey's Fig. 4 instead.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """Forecast how fast every method trains on a cluster, with intervals, and recommend one."""
    import sys

    from ddlnb.advice.of_forecast import advice
    from ddlnb.errors import require, require_whole
    from ddlnb.files import require_writable_file, write_atomically
    from ddlnb.simulator.forecast import forecast as forecast_rows
    from ddlnb.simulator.forecast import sound_pairs
    from ddlnb.units import show_rate, show_rates

    require_whole(0, draws=draws)
    if fig4:
        refuse_unused(
            "--fig4 forecasts all cells of the figure as they were run",
            model=model,
            cluster=cluster,
            gpu=gpu,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            network=network,
            machine=machine,
            save_cluster=save_cluster,
            gpus=gpus,
            method=method,
            batch=batch,
            servers=servers,
            throughput=throughput,
            precision=precision,
            sequence=sequence,
            gradients=gradients,
            accumulate=accumulate != 1,
            partition=partition,
            credit=credit,
            topology=topology,
            all_reduce=all_reduce,
            change=change,
            slow=slow,
        )
    if csv is not None:
        require_writable_file(csv, "rows.csv")
    if fig4:
        from ddlnb.calibration.fig4 import write_forecast

        rows = write_forecast(csv, draws=draws, progress=sys.stderr.isatty())
        typer.echo(f"{len(rows)} cells of Fig. 4 forecast" + (f" in {csv}" if csv else ""))
        typer.echo(
            f"They are forecast as the survey ran them, with {SCRIPTS}. With --model and --cluster "
            f"each method is forecast as its paper describes it, and the same cell has other "
            f"numbers."
        )
        return
    require(bool(model), "give --model and --cluster, or --fig4 for the survey's cells")
    whole = chosen_cluster(cluster, gpu, nodes, gpus_per_node, network, machine, save_cluster)
    on = _slowed(on_network(whole, topology, all_reduce, change), slow)
    chosen = _methods(method, on, partition, credit)
    sound_pairs(on, chosen, gpus, servers)
    workload = workload_for(
        model,
        on,
        batch,
        throughput,
        precision,
        sequence=sequence,
        gradients=gradients,
        accumulate=accumulate,
    )
    rows = forecast_rows(workload, on, chosen, gpus=gpus, servers=servers, draws=draws)
    if csv is not None:
        write_atomically(csv, rows.to_csv(index=False))
    unit = "samples/s"
    shown = [
        {
            "GPUs": row["gpus"],
            "method": row["method"],
            unit: show_rate(row["throughput_samples_per_s"]),
            "90 % interval": show_rates(row["low"], row["high"]) if draws else "-",
            "speed-up": f"{row['speedup']:.2f}",
            "efficiency": f"{row['speedup'] / row['gpus']:.0%}",
            "fastest in": _chance(row["chance_best"]) if draws else "-",
        }
        for row in rows.to_dict("records")
    ]
    print_table(
        shown, False, f"Simulated: {workload!r} on {on.label} ({on.network}); {workload.source}"
    )
    if str(on.unlike):
        typer.echo(f"Unlike workers: {on.unlike}.")
    found = bounds(rows, workload, on, chosen)
    for said in (advice(rows, on), *found, *remarks(rows, on, chosen, drawn=draws > 0)):
        typer.echo(said)
    if csv is not None:
        typer.echo(f"Rows in {csv}")


def timeline(
    model: ModelName,
    cluster: ClusterName = "",
    gpu: GpuName = "",
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    network: NetworkName = "",
    machine: MachineName = "",
    save_cluster: SaveCluster = None,
    method: Methods = None,
    gpus: Annotated[int | None, typer.Option(help="Workers; default: all of the cluster.")] = None,
    batch: Batch = None,
    servers: ServerCount = None,
    sequence: Sequence = None,
    throughput: Throughput = None,
    precision: PrecisionName = "",
    gradients: Gradients = "",
    accumulate: Accumulate = 1,
    partition: Partition = None,
    credit: Credit = None,
    topology: TopologyName = "",
    all_reduce: AllReduceName = "",
    change: Changes = None,
    slow: Slow = None,
    iterations: Annotated[int, typer.Option(help="Iterations to show.")] = 3,
    out: Annotated[
        Path, typer.Option(help="Chrome trace to write (.json); a picture (.png) goes next to it.")
    ] = Path("trace.json"),
) -> None:
    """Simulate what one worker does when, as a trace for Perfetto and a picture."""
    from ddlnb.clusters.file import get_cluster
    from ddlnb.errors import require, require_whole
    from ddlnb.files import require_writable_file
    from ddlnb.simulator.breakdown import breakdown
    from ddlnb.simulator.forecast import sound_pairs
    from ddlnb.simulator.simulate import Cell, simulate
    from ddlnb.units import show_seconds

    require(out.suffix == ".json", f"trace file {str(out)!r} must have a name in .json")
    require_writable_file(out, "trace.json")
    require_whole(iterations=iterations)
    whole = chosen_cluster(cluster, gpu, nodes, gpus_per_node, network, machine, save_cluster)
    on = _slowed(on_network(whole, topology, all_reduce, change), slow)
    on = get_cluster(on, gpus)
    chosen = _methods(method or ["MG-WFBP"], on, partition, credit)
    sound_pairs(on, chosen, servers=servers)
    workload = workload_for(
        model,
        on,
        batch,
        throughput,
        precision,
        sequence=sequence,
        gradients=gradients,
        accumulate=accumulate,
    )
    lines = {
        one.name: simulate(workload, on, one, servers=servers, iterations=iterations)
        for one in chosen
    }
    split = breakdown([Cell(workload, on, one, servers) for one in chosen])
    rows = [
        {
            "method": name,
            "iteration": show_seconds(parts.iteration_seconds),
            "computation": show_seconds(parts.computation),
            "contention": show_seconds(parts.contention),
            "latency": show_seconds(parts.latency),
            "bandwidth": show_seconds(parts.bandwidth),
        }
        for name, parts in zip(lines, split, strict=True)
    ]
    print_table(rows, False, f"Simulated: {workload!r} on {on!r}; where an iteration goes")
    for name, line in lines.items():
        if str(on.unlike):
            typer.echo(f"{name}: {_lanes(line)}")
        path = out if len(lines) == 1 else out.with_stem(f"{out.stem}-{name}")
        typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    typer.echo(f"picture: {_picture(lines, out.with_suffix('.png'))}")


def _slowed(on: Cluster, slow: list[str] | None) -> Cluster:
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


def _lanes(line: Timeline) -> str:
    """Return how long each worker that is shown waits per iteration."""
    from ddlnb.units import show_seconds

    ranks = sorted({span.rank for span in line.spans})
    waits = {rank: line.on(rank).exposed_communication_seconds for rank in ranks}
    said = (f"worker {rank} waits {show_seconds(seconds)}" for rank, seconds in waits.items())
    return f"{', '.join(said)} per iteration; each stands for those that are like it"


def _picture(lines: dict[str, Timeline], path: Path) -> Path:
    """Draw the timelines one below the other into a .png file, and return its path."""
    import io

    from ddlnb.figures import timelines
    from ddlnb.files import write_atomically

    image = io.BytesIO()
    drawn = {}
    for name, line in lines.items():
        ranks = sorted({span.rank for span in line.spans})
        for rank in ranks:
            drawn[name if len(ranks) == 1 else f"{name}, worker {rank}"] = line.on(rank)
    timelines(drawn, rank=None).savefig(image, format="png", dpi=150, bbox_inches="tight")
    return write_atomically(path, image.getvalue())


def _chance(share: float) -> str:
    return "no interval" if math.isnan(share) else f"{share:.0%} of draws"


def _methods(
    names: list[str] | None, on: Cluster, partition: str | None, credit: str | None
) -> list[Method]:
    """Return the methods of these names, or all that the cluster can run."""
    from ddlnb.plans.methods import require_tunable
    from ddlnb.simulator.forecast import named_methods

    chosen = named_methods(names or "all", on)
    require_tunable(chosen, partition=partition, credit=credit)
    return [method.tuned(partition=partition, credit=credit) for method in chosen]
