"""What `ddlnb trace` prints and writes of a job, and of an engine's messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ddlnb.cli.options import print_table
from ddlnb.cli.trace_lines import write_lines, write_picture
from ddlnb.files import write_atomically
from ddlnb.units import counted, show_bytes, show_seconds

if TYPE_CHECKING:
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.jobs.table import Job


def show_job(job: Job, out: Path | None, figure: Path | None, csv: bool) -> None:
    """Replay a job and say what its stragglers cost."""
    from ddlnb.traces.jobs.what_if import what_if
    from ddlnb.traces.jobs.words import sentences

    found = what_if(job)
    if csv:
        typer.echo(found.iterations.to_csv(index=False), nl=False)
    else:
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
        print_table(rows, False, f"{job!r}, replayed")
        causes = [
            {
                "cause": row["cause"],
                "costs (s per iteration)": f"{row['seconds']:+.3f}",
                "of the iteration": f"{row['share']:+.1%}",
            }
            for row in found.causes.to_dict("records")
        ]
        print_table(causes, False, "What each cause costs: the iteration, less one without it")
        for said in sentences(found):
            typer.echo(said)
    if out is not None:
        write_atomically(out, found.iterations.to_csv(index=False))
        typer.echo(f"Rows of {counted(len(found.iterations), 'iteration')} in {out}", err=csv)
    if figure is not None:
        from ddlnb.figures import job_stragglers

        typer.echo(f"picture: {write_picture(job_stragglers(found), figure)}", err=csv)


def show_messages(
    line: Timeline, out: Path | None, perfetto: Path | None, figure: Path | None, csv: bool
) -> None:
    """Say how long an engine's messages took."""
    frame = line.to_frame()
    if csv:
        typer.echo(frame.to_csv(index=False), nl=False)
    else:
        messages = frame.assign(seconds=frame["stop_seconds"] - frame["start_seconds"])
        largest = messages.groupby("name").agg({"bytes": "max", "seconds": ["median", "max"]})
        largest.columns = ["bytes", "median", "longest"]
        rows = [
            {
                "tensor": name,
                "size": show_bytes(int(row["bytes"])) if row["bytes"] else "unknown",
                "median": show_seconds(row["median"]),
                "longest": show_seconds(row["longest"]),
            }
            for name, row in largest.nlargest(10, "median").iterrows()
        ]
        sent = f"{counted(len(frame), 'message')} of {counted(len(largest), 'tensor')}"
        title = f"{sent} in {counted(line.iterations, 'iteration')}"
        print_table(rows, False, f"{line.method}: {title}; the slowest {len(rows)}")
    if out is not None:
        write_atomically(out, frame.to_csv(index=False))
        typer.echo(f"Rows of {counted(len(frame), 'message')} in {out}", err=csv)
    write_lines({line.method: line}, perfetto, figure)
