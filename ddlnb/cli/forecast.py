"""The command that forecasts how fast methods train on a cluster."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from ddlnb.cli.forecast_remarks import SCRIPTS, remarks
from ddlnb.cli.groups import grouped
from ddlnb.cli.hardware_options import KeptHardware
from ddlnb.cli.options import Draws, RowsFile, WorkerCounts, print_table, refuse_others
from ddlnb.cli.searched import bounds
from ddlnb.cli.simulated import Methods, Simulation
from ddlnb.cli.workloads import ModelName


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(forecast)


@grouped
def forecast(
    *,
    context: typer.Context,
    model: ModelName = "",
    hardware: KeptHardware,
    gpus: WorkerCounts = None,
    method: Methods = None,
    simulation: Simulation,
    draws: Draws = 200,
    fig4: Annotated[
        bool, typer.Option("--fig4", help="All 252 cells of the survey's Fig. 4 instead.")
    ] = False,
    csv: RowsFile = None,
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
    on = simulation.on(hardware.chosen())
    chosen = simulation.methods(method, on)
    servers = simulation.servers
    sound_pairs(on, chosen, gpus, servers)
    workload = simulation.workload(model, on)
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
