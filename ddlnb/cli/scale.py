"""The command about large models: which layout is fastest, or forecasts of a table of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(scale)


def scale(
    table: Annotated[
        Path | None,
        typer.Option(help="A CSV with one run per row: model, GPU, network, layout, batch."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the table goes, with its forecasts added.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave rows that cannot be read empty.")
    ] = False,
) -> None:
    """Forecast training of a large model on many GPUs, for every way to split it.

    With --table, rows of a CSV with the columns of data/published/nanotron_h100_upto64.csv get
    tokens_per_s_per_gpu, its 90 % interval, memory_gb and fits.
    """
    from ddlnb.errors import InputError
    from ddlnb.files import require_writable_file
    from ddlnb.parallelism.forecast.table import forecast_table

    if table is None:
        raise InputError("give --table IN.csv --out OUT.csv")
    if out is None:
        raise InputError("--table needs --out: the file that the forecasts go to")
    require_writable_file(out, "forecast.csv")
    found = forecast_table(
        table, keep_going=keep_going, say=lambda line: typer.echo(f"note: {line}", err=True)
    )
    typer.echo(f"{len(found.rows)} rows: {found.write(out)}")
