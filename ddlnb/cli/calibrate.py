"""The command that fits the effects of a cluster to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.options import Csv, numbers, print_table
from ddlnb.units import counted


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(calibrate)


def calibrate(
    what: Annotated[
        str,
        typer.Argument(
            help="'survey': its testbed, from what is published. 'here': this machine, from a "
            "micro-benchmark of some minutes. Or a cluster, with --rows measured on it."
        ),
    ],
    rows: Annotated[
        Path | None, typer.Option(help="Rows of `ddlnb measure` on the cluster.")
    ] = None,
    workers: Annotated[
        list[int] | None, numbers("For 'here': numbers of workers. Default: 2,4.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what is measured and for cluster files; default build/NAME. Not for "
            "'survey', whose files --write replaces."
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="For 'survey': replace the files in data/.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random starts.")] = 0,
    csv: Csv = False,
) -> None:
    """Fit the effects of a cluster to measurements, and print an interval for each."""
    from ddlnb.calibration.calibrate import calibrate as fit

    result = fit(what, rows=rows, workers=workers, out=out, write=write, seed=seed, progress=True)
    found = result.calibration
    values = counted(len(found.observations), "value")
    print_table(result.parameter_rows(), csv, f"Effects fitted to {values}")
    if csv:
        return
    typer.echo(found.in_words)
    for path in result.paths:
        typer.echo(f"written: {path}")
