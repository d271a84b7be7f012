"""The command that forecasts how fast methods train on a cluster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

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
from ddlnb.cli.options import Batch, Credit, Partition, numbers, print_table, refuse_others
from ddlnb.cli.searched import bounds
from ddlnb.cli.simulated import Methods, ServerCount, Slow, chosen_methods, slowed
from ddlnb.cli.workloads import (
    Accumulate,
    Gradients,
    ModelName,
    Sequence,
    Throughput,
    workload_for,
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(forecast)


def forecast(
    context: typer.Context,
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
        why = "--fig4 forecasts all cells of the figure as they were run"
        refuse_others(context, why, "fig4", "draws", "csv")
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
    on = slowed(on_network(whole, topology, all_reduce, change), slow)
    chosen = chosen_methods(method, on, partition, credit)
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


def _chance(share: float) -> str:
    return "no interval" if math.isnan(share) else f"{share:.0%} of draws"
