"""What a reader of a forecast must know about it: remarks below its table.

The command that forecasts how fast methods train on a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Draws, RowsFile, WorkerCounts, grouped, print_table, refuse_others
from ddlnb.cli.plan import bounds
from ddlnb.cli.questions import KeptHardware, Methods, ModelName, Simulation

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster
    from ddlnb.plans.methods import Method


SCRIPTS = "the settings and schedulers of its authors' scripts"


def remarks(
    rows: pd.DataFrame, on: Cluster, methods: Sequence[Method], *, drawn: bool
) -> list[str]:
    """Return the remarks that apply to these rows of `ddlnb.forecast`; often there is none.

    ``methods`` are those that were forecast, and ``drawn`` says whether intervals were asked for.
    """
    said = [_left_out(on, methods), _within_a_node(rows, on, methods), _as_run(rows, on, methods)]
    if drawn:
        said.append(_assumed(on))
    return [one for one in said if one]


def _left_out(on: Cluster, methods: Sequence[Method]) -> str:
    from ddlnb.plans.methods import METHODS

    if on.takes_servers or any(one.name not in METHODS for one in methods):
        return ""
    able = [one.name for one in METHODS.values() if one.architecture != "PS"]
    if [one.name for one in methods] != able:
        return ""  # chosen by name
    lacking = _listed([name for name in METHODS if name not in able])
    why = "(server_place)" if on.server_place is None else f"on {on.topology or 'its network'}"
    return f"{on.name} has no parameter servers {why}, so that {lacking} are left out."


def _within_a_node(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    served = {one.name for one in methods if one.architecture == "PS"}
    within = rows[rows["method"].isin(served) & rows["gpus"].between(2, on.gpus_per_node)]
    if within.empty:
        return ""
    counts = _listed([str(count) for count in sorted(within["gpus"].unique())])
    names = _listed(list(dict.fromkeys(within["method"])))
    verb = "reduces" if within["method"].nunique() == 1 else "reduce"
    return (
        f"On {counts} GPUs, within one node, no parameter server takes part, as in BytePS: {names} "
        f"{verb} gradients inside the node."
    )


def _as_run(rows: pd.DataFrame, on: Cluster, methods: Sequence[Method]) -> str:
    """Say that cells of Fig. 4 have another forecast, where methods were run in another way."""
    from ddlnb.survey.testbed import BATCHES, CLUSTERS, run_otherwise

    is_of_figure = on.name in CLUSTERS.values() and all(
        BATCHES.get(model) == batch
        for model, batch in zip(rows["model"], rows["local_batch"], strict=True)
    )
    names = [one.name for one in methods if run_otherwise(one.name)]
    if not is_of_figure or not names or on.label != on.name:
        return ""
    return (
        f"Each method is forecast as its paper describes it. In the survey's Fig. 4 "
        f"{_listed(names)} ran differently, with {SCRIPTS}; --fig4 forecasts that, and shows other "
        f"numbers for the same cell."
    )


def _assumed(on: Cluster) -> str:
    from ddlnb.clusters.cluster import ASSUMED_ERROR
    from ddlnb.clusters.effects import UNITS

    known = [f"{name} within a factor of {UNITS[name].within:g}" for name in on.assumed]
    if on.model_error == ASSUMED_ERROR:
        known.append(f"simulated seconds within a model_error of {ASSUMED_ERROR:.0%}")
    if not known:
        return ""
    return (
        f"Intervals are wide where {on.name} gives none, and assume to be known: "
        f"{_listed(known)}. Give your own to narrow them (docs/own_cluster.md)."
    )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[:-1] else words)


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
        from ddlnb.survey.testbed import write_forecast

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
