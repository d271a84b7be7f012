"""The command that says what a month of training on a large cluster yields: `ddlnb goodput`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.options import App, numbers, print_table, require_writable_files, say, write_rows
from ddlnb.errors import require_positive
from ddlnb.units import counted, seconds_from

app = App()
USUAL_REPLICA = 64  # GPUs


@app.command()
def goodput(
    gpus: Annotated[int, typer.Option(help="GPUs of the job.")] = 1024,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs that one failure takes out.")] = 8,
    replica: Annotated[
        int | None,
        typer.Option(
            help="GPUs of one copy of the model, which elastic training leaves out; default: 64, "
            "or as many of a smaller job as divide it."
        ),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Time in which training stands still for a checkpoint.")
    ] = "4 s",
    restart: Annotated[
        str, typer.Option(help="From a failure to the first new step: detect, schedule, load.")
    ] = "600 s",
    repair: Annotated[str, typer.Option(help="Until a broken node is back.")] = "86400 s",
    interval: Annotated[
        str | None, typer.Option(help="Work between checkpoints; default: by Daly's formula.")
    ] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(help="Time between failures of this job; default: as on published clusters."),
    ] = None,
    spares: Annotated[
        list[int] | None, numbers("Spare nodes, such as 0,8. Default: none, and some.")
    ] = None,
    days: Annotated[float, typer.Option(help="How long the job runs.")] = 30.0,
    draws: Annotated[int, typer.Option(help="Clusters that are drawn, each with its rate.")] = 200,
    csv: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
) -> None:
    """Forecast what failures, checkpoints, restarts and stragglers leave of the time of a job.

    Examples: `ddlnb goodput --gpus 16384` and `ddlnb goodput --gpus 1024 --spares 0,8 --days 90`.
    """
    from ddlnb.parallelism.goodput.compare import goodput_sentences, goodput_table
    from ddlnb.parallelism.goodput.failures import DAY, FailureRate
    from ddlnb.parallelism.goodput.simulate import Job

    require_positive(days=days)
    require_writable_files(goodput_csv=csv)
    job = Job(
        gpus,
        gpus_per_node,
        math.gcd(gpus, USUAL_REPLICA) if replica is None else replica,
        seconds_from(checkpoint),
        seconds_from(restart),
        seconds_from(repair),
        interval_seconds=math.nan if interval is None else seconds_from(interval),
    )
    rate = None if mtbf is None else FailureRate.seen(seconds_from(mtbf), gpus)
    counts = spares or sorted({0, max(1, job.nodes // 64), max(1, job.nodes // 16)})
    jobs = [
        replace(job, spare_nodes=count, elastic=elastic)
        for count in counts
        for elastic in (False, True)
    ]
    table = goodput_table(jobs, draws=draws, seconds=days * DAY, rate=rate)
    shown = [
        {
            "spare nodes": row["spare_nodes"],
            "missing nodes": "leave replicas out" if row["elastic"] else "are waited for",
            "goodput": f"{row['goodput']:.0%}",
            "90 % of clusters": f"{row['low']:.0%} to {row['high']:.0%}",
            "effective": f"{row['effective']:.0%}",
            "failures": f"{row['failures']:.0f}",
            "waiting": f"{row['waiting']:.1%}",
            "replicas out": f"{row['shrunk']:.1%}",
            "restarts": f"{row['restarts']:.1%}",
            "redone": f"{row['redone']:.1%}",
            "checkpoints": f"{row['checkpoints']:.1%}",
            "stragglers": f"{row['slowed']:.1%}",
        }
        for row in table.to_dict("records")
    ]
    what = f"Simulated: {days:g} days of a job on {counted(gpus, 'GPU')}"
    write_rows(table, csv)
    print_table(shown, False, f"{what} (goodput and failures are medians, losses are means)")
    say(goodput_sentences(job, table, rate))
