"""The commands that forecast: how fast every method trains, and how far training scales."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ddlnb.advice.question import ScalingQuestion
from ddlnb.cli.lossy import lossy
from ddlnb.cli.options import (
    OWN,
    App,
    Family,
    RowsFile,
    grouped,
    print_answer,
    refuse_others,
    require_writable_files,
    write_picture,
    write_rows,
)
from ddlnb.cli.questions import Hardware, KeptHardware, Otherwise
from ddlnb.errors import require
from ddlnb.simulator.questions import ForecastQuestion

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
    if "methods" in asked or otherwise.changes or asked.get("servers"):
        named = asked.get("methods", ["all"])
        asked["methods"] = otherwise.methods(named, on, asked.get("servers"))
    found = answer(cluster=on, **asked)
    print_answer(found)
    write_rows(found.rows, csv)


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
    print_answer(found)
    write_rows(found.rows, csv)
    write_picture(figure, "scaling_curves", found.rows, found.share, found.title)


app.command()(lossy)
