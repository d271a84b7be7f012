"""The command that simulates what one worker does when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    App,
    Workers,
    grouped,
    known_methods,
    print_table,
    require_writable_files,
    write_picture,
)
from ddlnb.cli.questions import KeptHardware, Otherwise
from ddlnb.errors import require, require_whole
from ddlnb.simulator.questions import Sent
from ddlnb.units import show_seconds

if TYPE_CHECKING:
    from ddlnb.results.timeline import Timeline

app = App()
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="A method, 'all' or DDP; repeatable. Default: MG-WFBP.",
        autocompletion=known_methods,
    ),
]
ServerCount = Annotated[
    int | None, typer.Option("--servers", help="Parameter servers; default: one for every node.")
]


@app.command()
@grouped
def timeline(
    *,
    hardware: KeptHardware,
    asked: Annotated[dict[str, Any], Sent],
    method: Methods = None,
    gpus: Workers = None,
    servers: ServerCount = None,
    otherwise: Otherwise,
    iterations: Annotated[int, typer.Option(help="Iterations to show.")] = 3,
    out: Annotated[
        Path, typer.Option(help="Chrome trace to write (.json); a picture (.png) goes next to it.")
    ] = Path("trace.json"),
) -> None:
    """Simulate what one worker does when, as a trace for Perfetto and a picture.

    Examples: `ddlnb timeline --model resnet50 --cluster survey-100GbE --method all` and
    `ddlnb timeline --model gpt2 --machine p4d --nodes 4 --iterations 2 --out gpt2.json`.
    """
    from ddlnb.clusters.file import get_cluster
    from ddlnb.simulator.breakdown import breakdown
    from ddlnb.simulator.forecast import sound_pairs
    from ddlnb.simulator.recommendation import tuned_in_words
    from ddlnb.simulator.simulate import Cell, simulate

    require("model" in asked, "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    require(out.suffix == ".json", f"trace file {str(out)!r} must have a name in .json")
    require_writable_files(trace_json=out)
    require_whole(iterations=iterations)
    on = get_cluster(otherwise.on(hardware.chosen()), gpus)
    chosen = otherwise.methods(method or ["MG-WFBP"], on, servers)
    sound_pairs(on, chosen, servers=servers)
    workload = Sent(cluster=on, **asked).workload
    lines = {
        one.name: simulate(workload, on, one, servers=servers, iterations=iterations)
        for one in chosen
    }
    cells = [Cell(workload, on, one, servers) for one in chosen]
    split = breakdown(cells)
    rows = [
        {
            "method": name,
            "iteration": show_seconds(parts.iteration_seconds),
            "computation": show_seconds(parts.computation),
            "contention": show_seconds(parts.contention),
            "latency": show_seconds(parts.latency),
            "bandwidth": show_seconds(parts.bandwidth),
        }
        for name, parts in zip(lines, split, strict=True)
    ]
    print_table(rows, False, f"Simulated: {workload!r} on {on!r}; where an iteration goes")
    for name, parts in zip(lines, split, strict=True):
        if parts.is_reordered:
            typer.echo(f"{name}: without some of these, messages go in an order that takes longer.")
    for cell in cells:
        if cell.method.tunes:
            typer.echo(tuned_in_words(cell.sized))
    for name, line in lines.items():
        if str(on.heterogeneity):
            typer.echo(f"{name}: {_lanes(line)}")
        path = out if len(lines) == 1 else out.with_stem(f"{out.stem}-{name}")
        typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    _draw(lines, out.with_suffix(".png"))


def _lanes(line: Timeline) -> str:
    """Return how long each worker that is shown waits per iteration."""
    ranks = sorted({span.rank for span in line.spans})
    waits = {rank: line.on(rank).exposed_communication_seconds for rank in ranks}
    said = (f"worker {rank} waits {show_seconds(seconds)}" for rank, seconds in waits.items())
    return f"{', '.join(said)} per iteration; each stands for those that are like it"


def _draw(lines: dict[str, Timeline], path: Path) -> None:
    """Draw the timelines one below the other into a .png file."""
    drawn = {}
    for name, line in lines.items():
        ranks = sorted({span.rank for span in line.spans})
        for rank in ranks:
            drawn[name if len(ranks) == 1 else f"{name}, worker {rank}"] = line.on(rank)
    write_picture(path, "timelines", drawn, rank=None)
