"""The command that reads traces of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Csv, print_table

if TYPE_CHECKING:
    from ddlnb.traces.jobs.what_if import WhatIf


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(trace)


def trace(
    file: Annotated[Path, typer.Argument(help="A job's table of operations (.csv, .csv.gz).")],
    out: Annotated[
        Path | None, typer.Option(help="Write the rows of all iterations to this .csv file.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Read a trace of another tool: what it holds, where its time goes, what would save some."""
    from ddlnb.files import require_writable_file, write_atomically
    from ddlnb.traces.jobs.what_if import what_if
    from ddlnb.traces.read import read_trace

    if out is not None:
        require_writable_file(out, "rows.csv")
    found = what_if(read_trace(file))
    if csv:
        typer.echo(found.iterations.to_csv(index=False), nl=False)
    else:
        _show_job(found)
    if out is not None:
        write_atomically(out, found.iterations.to_csv(index=False))
        typer.echo(f"Rows of {len(found.iterations)} iterations in {out}", err=csv)


def _show_job(found: WhatIf) -> None:
    from ddlnb.traces.jobs.words import sentences

    rows = [
        {
            "step": int(row["step"]),
            "traced (s)": f"{row['traced_seconds']:.3f}",
            "replayed (s)": f"{row['replayed_seconds']:.3f}",
            "error": f"{row['error']:+.2%}",
            "nobody straggles (s)": f"{row['ideal_seconds']:.3f}",
        }
        for row in found.iterations.to_dict("records")
    ]
    print_table(rows, False, f"{found.job!r}, replayed")
    causes = [
        {
            "cause": row["cause"],
            "costs (s per iteration)": f"{row['seconds']:+.3f}",
            "of the iteration": f"{row['share']:+.1%}",
        }
        for row in found.causes.to_dict("records")
    ]
    print_table(causes, False, "What each cause costs: the iteration as it was, less one without")
    for said in sentences(found):
        typer.echo(said)
