"""The commands that forecast how fast every method trains, lossy ones too, and how it scales."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.advice.question import ScalingQuestion
from ddlnb.cli.options import (
    OWN,
    App,
    Csv,
    Family,
    RowsFile,
    WorkerCounts,
    grouped,
    print_answer,
    print_table,
    refuse_others,
    require_writable_files,
    say,
    write_picture,
    write_rows,
)
from ddlnb.cli.questions import Hardware, KeptHardware, Otherwise, warn_of_memory
from ddlnb.errors import InputError, ResultsError, require
from ddlnb.plans.methods import BASELINES, METHODS
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import read_plan
from ddlnb.simulator.questions import ForecastQuestion, Held, Trained
from ddlnb.units import counted
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.clusters.cluster import Cluster


app = App(cls=Family)


@app.command(OWN)
@grouped
def forecast(
    *,
    context: typer.Context,
    hardware: KeptHardware,
    asked: Annotated[dict[str, Any], ForecastQuestion],
    otherwise: Otherwise,
    fig4: Annotated[
        bool, typer.Option("--fig4", help="All 252 cells of the survey's Fig. 4 instead.")
    ] = False,
    csv: RowsFile = None,
) -> None:
    """Forecast how fast every method trains on a cluster, with intervals, and recommend one.

    Examples: `ddlnb forecast --model resnet50 --cluster survey-100GbE --gpus 8,32` and
    `ddlnb forecast --model gpt2 --machine p4d --nodes 16 --method MG-WFBP --method DDP`.
    """
    require_writable_files(rows_csv=csv)
    if fig4:
        why = "--fig4 forecasts all cells of the figure as they were run"
        refuse_others(context, why, "fig4", "draws", "csv")
        return _fig4(csv, **asked)
    require("model" in asked, "give --model and --cluster, or --fig4 for the survey's cells")
    from ddlnb.simulator.forecast import forecast as answer

    on = otherwise.on(hardware.chosen())
    if "methods" in asked or otherwise.sizes or otherwise.all_reduce or asked.get("servers"):
        named = asked.get("methods", ["all"])
        asked["methods"] = otherwise.methods(named, on, asked.get("servers"))
    found = answer(cluster=on, **asked)
    write_rows(found.rows, csv)  # before what a closed pipe would end
    print_answer(found)


def _fig4(csv: Path | None, **given: int) -> None:
    from ddlnb.survey.remarks import SCRIPTS
    from ddlnb.survey.testbed import write_forecast

    rows = write_forecast(csv, progress=sys.stderr.isatty(), **given)
    typer.echo(f"{len(rows)} cells of Fig. 4 forecast" + (f" in {csv}" if csv else ""))
    typer.echo(
        f"They are forecast as the survey ran them, with {SCRIPTS}. With --model and --cluster "
        f"each method is forecast as its paper describes it, and the same cell has other numbers."
    )


@app.command()
@grouped
def scaling(
    *,
    hardware: Hardware,
    asked: Annotated[dict[str, Any], ScalingQuestion],
    csv: RowsFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the curves into this file, such as curves.png.")
    ] = None,
) -> None:
    """Say how far training scales: the best method at every size, and the bottleneck beyond.

    Examples: `ddlnb forecast scaling --model gpt2 --machine p4d --nodes 16` and
    `ddlnb forecast scaling --model bert-base --cluster survey-10GbE --share 0.5`.
    """
    require("model" in asked, "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    require_writable_files(scaling_csv=csv, scaling_png=figure)
    from ddlnb.advice.scaling import scaling as answer

    found = answer(cluster=hardware.chosen(), **asked)
    write_rows(found.rows, csv)
    write_picture(figure, "scaling_curves", found.rows, found.share, found.title)
    print_answer(found)


@app.command()
@grouped
def lossy(
    *,
    hardware: KeptHardware,
    asked: Annotated[dict[str, Any], Trained],
    gpus: WorkerCounts = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as 'bsp + top-k(0.01) + feedback' or 'local(8)'; repeatable. Default: the "
            "four of `ddlnb advise`."
        ),
    ] = None,
    plan: Annotated[
        list[Path] | None,
        typer.Option(help="A plan of `ddlnb plan --sent --out`, as a method. Repeatable."),
    ] = None,
    compression: Annotated[
        str,
        typer.Option(
            help="Cost of compression: sheet (by the GPU's data sheet), a profile of "
            "data/profiles/compression, or free, a bound."
        ),
    ] = "sheet",
    curves: Annotated[
        Path | None,
        typer.Option(help="Curves of `ddlnb train --out`, to judge the time to --target."),
    ] = None,
    target: Annotated[float | None, typer.Option(help="The test loss to reach.")] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="The lossless method whose messages bsp on A2A sends: all-reduces of whole "
            "tensors. Default: MG-WFBP."
        ),
    ] = None,
    straggler: Annotated[
        str,
        typer.Option(
            help="Slows workers down, such as 'one-slow(2)' or 'log-normal(0.3)': its seconds are "
            "taken as factors of the computation. See `ddlnb train --list`."
        ),
    ] = "",
    csv: Csv = False,
) -> None:
    """Print what lossy methods cost on a cluster and, given curves, whether to use them there.

    Without curves only the seconds of an iteration are compared, not how many are needed.

    Examples: `ddlnb forecast lossy --model resnet50 --cluster survey-10GbE --method 'local(8)'` and
    `ddlnb forecast lossy --model bert-large --machine p4d --nodes 2 --method 'bsp + qsgd(127)'`.
    """
    from ddlnb.advice.options import LOSSY
    from ddlnb.clusters.file import get_cluster
    from ddlnb.training.cost.estimate import BASE, as_one_vector
    from ddlnb.training.executors.clock import get_straggler

    require("model" in asked, "give --model and --cluster; see `ddlnb cluster list`")
    require((curves is None) == (target is None), "give --curves and --target together")
    require(curves is None or not method, "the curves say which methods; leave out --method")
    require(curves is None or not plan, "the curves say which methods; leave out --plan")
    require(curves is None or not gpus, "the curves say how many workers; leave out --gpus")
    first = hardware.chosen()
    slower = get_straggler(straggler) if straggler else None
    workload = Trained(cluster=first, **asked).workload
    warn_of_memory(Held(cluster=first, **asked), first)
    options = {"compression": compression, "base": base or BASE, "slower": slower}
    if curves is not None:
        assert target is not None
        measured = _read_curves(curves)
        if "method" in measured:
            _require_counts(measured["method"].unique(), compression, base)
        how = _assumed(compression, base or BASE, straggler)
        return _print_times(measured, target, workload, first, options, how, csv)
    kept = [read_plan(path) for path in plan or ()]
    named = method or (() if kept else LOSSY)
    _require_counts(named, "sheet" if kept else compression, base)
    rows = []
    for count in gpus or [first.workers]:
        rows += _costs(workload, first, count, [*named, *kept], options, usual=named is LOSSY)
    shown = rows if csv else [_shown(row) for row in rows]
    compresses = any("+" in str(row["method"]) or row["compression_seconds"] for row in rows)
    how = _assumed(compression if compresses else "", base or BASE, straggler)
    print_table(shown, csv, f"Simulated: {asked['model']} on {first.name}{how}")
    if not csv:
        most = get_cluster(first, max(gpus or [first.workers]))
        quicker = as_one_vector(workload, most, named, **options)
        planned = OWN_PLANS.format(first.name) if first.planning else ""
        say([*_notes(rows), *filter(None, [quicker, planned])])


OWN_PLANS = (
    "Methods that weigh costs merge gradients here by the cluster's own cost of an all-reduce; "
    "`ddlnb forecast` takes the cost with which {} says that they were run."
)


def _require_counts(names: Sequence[str], compression: str, base: str | None) -> None:
    """Raise InputError for a cost of compression, or a base, that changes none of the methods."""
    from ddlnb.training.method import training_method

    methods = [training_method(name) for name in names if name not in {*METHODS, *BASELINES}]
    require(
        compression == "sheet" or any(method.compressor for method in methods),
        f"compression {compression!r} changes nothing: {'; '.join(names)} does not compress; leave "
        f"out --compression",
    )
    require(
        base is None or any(method.overlaps for method in methods),
        f"base {base!r} changes nothing: only bsp on A2A sends messages as those of a lossless "
        f"method, and {'; '.join(names)} does not; leave out --base",
    )


def _assumed(compression: str, base: str, straggler: str) -> str:
    """Return what a title says of compression, if there is any, and of stragglers."""
    named = {"free": "free of cost (a bound)", "sheet": "by the GPU's data sheet"}
    cost = named.get(compression, f"as in profile {compression}")
    said = f", compression {cost}, messages of bsp with compression as of {base}"
    return said * bool(compression) + f", workers slowed down by {straggler}" * bool(straggler)


def _costs(
    workload: Workload,
    cluster: Cluster,
    workers: int,
    methods: list[str | Plan],
    options: dict[str, Any],
    *,
    usual: bool = False,
) -> list[dict[str, Any]]:
    """Return one row of seconds and bytes per method, the quickest lossless ones first.

    Every method is compared with the quickest lossless one that takes no more machines. Of the
    ``usual`` ones, which nobody named, those that a workload cannot tell are left out, with a word.
    """
    from ddlnb.clusters.file import get_cluster
    from ddlnb.training.cost.estimate import best_lossless, iteration_cost

    here, slower = get_cluster(cluster, workers), options["slower"]
    best = {
        most: best_lossless(workload, here, slower, most_machines=most)
        for most in (0, here.server_machines("PS"))
    }
    found = [*dict.fromkeys(best.values())]
    for one in methods:
        try:
            found.append(iteration_cost(workload, here, one, **options))
        except InputError as error:
            if not usual:
                raise
            typer.echo(f"Left out: {one}, as {error}", err=True)
    return [
        {
            "gpus": workers,
            "method": cost.method,
            "iteration_seconds": cost.iteration_seconds,
            "compute_seconds": cost.compute_seconds,
            "compression_seconds": cost.compression_seconds,
            "waiting_seconds": cost.waiting_seconds,
            "bytes_sent": cost.bytes_sent,
            "bytes_received": cost.bytes_received,
            "hidden_behind": cost.hidden_behind,
            "server_machines": cost.server_machines,
            "over_best_lossless": best[cost.server_machines].iteration_seconds
            / cost.iteration_seconds,
            "source": cost.source,
        }
        for cost in found
    ]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    milliseconds = {
        what: round(1e3 * row[f"{name}_seconds"], 2)
        for what, name in (
            ("ms", "iteration"),
            ("computing", "compute"),
            ("compressing", "compression"),
            ("waiting", "waiting"),
        )
    }
    return {
        "gpus": row["gpus"],
        "method": row["method"],
        **milliseconds,
        "times as fast": round(row["over_best_lossless"], 3),
        "MB both ways": round((row["bytes_sent"] + row["bytes_received"]) / 1e6, 3),
        "servers": row["server_machines"],
        "hidden behind": row["hidden_behind"],
    }


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    """Return what a reader of the table must know."""
    from ddlnb.training.cost.overlapped import NOTHING

    notes = [
        "Times are those of an iteration, in ms; a method is so many times as fast as the best "
        "lossless one that takes no more machines for parameter servers."
    ]
    alone = dict.fromkeys(row["method"] for row in rows if row["hidden_behind"] == NOTHING)
    if alone:
        notes.append(
            f"Communication follows the computation, and overlaps none: {'; '.join(alone)}."
        )
    served = dict.fromkeys(row["method"] for row in rows if row["server_machines"])
    if served:
        notes.append(f"Parameter servers run on machines of their own: {'; '.join(served)}.")
    if any("extrapolated" in row["source"] for row in rows):
        notes.append(
            "Seconds of compression are extrapolated to larger tensors (--csv says where)."
        )
    return [
        *notes,
        "Iterations of different methods do not bring the loss down equally: give --curves of "
        "`ddlnb train` to judge the time to a target loss.",
    ]


def _read_curves(path: Path) -> pd.DataFrame:
    from ddlnb.results.schema import read_frame

    try:
        return read_frame(path)
    except ResultsError as error:
        raise InputError(f"curves: {error}; make them with ddlnb train --out") from error


def _print_times(
    measured: pd.DataFrame,
    target: float,
    workload: Workload,
    cluster: Cluster,
    options: dict[str, Any],
    how: str,
    csv: bool,
) -> None:
    from ddlnb.training.cost.time_to_target import MARGIN, recommendations, time_to_target

    table = time_to_target(measured, target, workload, [cluster], **options)
    if csv:
        typer.echo(table.to_csv(index=False), nl=False)
        return
    columns = ["workers", "method", "seconds", "low", "high", "speedup", "iteration_seconds"]
    columns += ["hidden_behind", "server_machines"]
    title = (
        f"Seconds to a test loss of {target}: iterations measured on {measured['task'].iloc[0]}, "
        f"their seconds simulated for {workload.model} on {cluster.name}{how}"
    )
    shown = table[columns].round(4)
    shown["method"] = shown["method"].mask(table["is_dense"], table["carried_by"] + " (lossless)")
    print_table(shown.to_dict("records"), csv, title)
    say(f"{counted(one.workers, 'worker')}: {one}." for one in recommendations(table))
    typer.echo(
        f"Intervals are of 95 % over seeds, widened by the steps between two evaluations. What is "
        f"uncertain of the cluster and of compression is not in them, nor whether "
        f"{workload.model} needs as many iterations relative to BSP. A gain counts beyond "
        f"{MARGIN:.0%}."
    )
