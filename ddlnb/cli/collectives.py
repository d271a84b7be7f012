"""The command that fits measured collectives and forecasts those of more nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Csv, print_table
from ddlnb.errors import require
from ddlnb.files import PUBLISHED
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.calibration.collectives import FittedCollectives


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(collectives)


def collectives(
    fit: Annotated[
        Path, typer.Option(help="Measured rows, as `ddlnb import` writes them.")
    ] = PUBLISHED / "collectives_upto2nodes.csv",
    table: Annotated[
        Path | None,
        typer.Option(
            help="Rows with the same columns and no times, to be forecast: collective, size_bytes "
            "and nodes or ranks, and words for gpu, network, settings. '-' is the standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The table with time_us, low and high; printed without it."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the measured rows and forecasts of more nodes.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Leave rows out, forecast them from the others, and print the errors. With --out, "
            "write every such row.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    csv: Csv = False,
) -> None:
    """Fit measured collectives, and forecast the times of others, such as of more nodes.

    Times are microseconds; low and high are a 90 % interval. Without --table, what was fitted is
    printed: a few parameters for each cluster.
    """
    from ddlnb.files import require_writable_file
    from ddlnb.results.collectives import read_collectives

    require(not (validate and table), "--validate forecasts rows of --fit; leave out --table or it")
    for path, example in ((out, "out.csv"), (figure, "figure.png")):
        if path is not None:
            require_writable_file(path, example)
    rows = read_collectives(fit)
    if validate:
        _validate(rows, out, seed, csv)
        return
    from ddlnb.calibration.collectives import fit_collectives

    fitted = fit_collectives(rows, seed=seed)
    if table is not None:
        _forecast(fitted, table, out)
    else:
        require(out is None, "--out needs --table, rows to forecast, or --validate")
        print_table(_parameter_rows(fitted), csv, f"Fitted to {counted(len(rows), 'row')}")
    if figure is not None:
        from ddlnb.figures.collectives import collective_rates

        collective_rates(rows, fitted).savefig(figure, dpi=150)
        typer.echo(f"Figure: {figure}", err=True)


def _forecast(fitted: FittedCollectives, table: Path, out: Path | None) -> None:
    from ddlnb.calibration.collectives import forecast
    from ddlnb.results.collectives import completed, read_questions

    asked = read_questions(table)
    _write(asked.assign(**forecast(fitted, completed(asked))), out)


def _validate(rows: pd.DataFrame, out: Path | None, seed: int, csv: bool) -> None:
    from ddlnb.calibration.collectives import summary, validate_collectives

    found = validate_collectives(rows, seed=seed, progress=sys.stderr.isatty())
    print_table(summary(found), csv, "Median error of rows that were left out, and coverage")
    if out is not None:
        _write(found, out)


def _write(table: pd.DataFrame, out: Path | None) -> None:
    from ddlnb.files import write_atomically

    text = table.to_csv(index=False, float_format="%.6g")
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    typer.echo(f"{counted(len(table), 'row')} in {out}.", err=True)


def _parameter_rows(fitted: FittedCollectives) -> list[dict[str, object]]:
    from ddlnb.calibration.collectives import described

    return described(fitted)
