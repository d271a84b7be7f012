"""The command that looks for suspicious cells of a throughput table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.options import Csv, print_table
from ddlnb.units import counted


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(check)


def check(
    table: Annotated[Path, typer.Argument(help="A CSV file with one row per cell.")],
    gpus_per_node: Annotated[
        int, typer.Option(help="Runs with at most this many GPUs do not use the network.")
    ] = 4,
    csv: Csv = False,
) -> None:
    """Look for cells of a throughput table that cannot be right or contradict their neighbours.

    Exits with 1 when cells are suspicious.
    """
    from ddlnb.results.checks import SUSPICIOUS, check_table, findings_frame
    from ddlnb.results.tables import read_table

    rows = read_table(table)
    findings = check_table(rows, gpus_per_node=gpus_per_node)
    suspicious = [finding for finding in findings if finding.severity == SUSPICIOUS]
    if findings or csv:
        print_table(findings_frame(findings).to_dict("records"), csv, f"Findings in {table}")
    if not csv:
        cells = {cell for finding in suspicious for cell in finding.cells}
        typer.echo(f"{counted(len(rows), 'cell')}, {len(cells) or 'none'} of them suspicious.")
    if suspicious:
        raise typer.Exit(1)
