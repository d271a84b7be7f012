"""The command that simulates what one worker does when."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Workers, grouped, print_table
from ddlnb.cli.questions import KeptHardware, Methods, ModelName, Simulation

if TYPE_CHECKING:
    from ddlnb.results.timeline import Timeline


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(timeline)


@grouped
def timeline(
    *,
    model: ModelName,
    hardware: KeptHardware,
    method: Methods = None,
    gpus: Workers = None,
    simulation: Simulation,
    iterations: Annotated[int, typer.Option(help="Iterations to show.")] = 3,
    out: Annotated[
        Path, typer.Option(help="Chrome trace to write (.json); a picture (.png) goes next to it.")
    ] = Path("trace.json"),
) -> None:
    """Simulate what one worker does when, as a trace for Perfetto and a picture."""
    from ddlnb.clusters.file import get_cluster
    from ddlnb.errors import require, require_whole
    from ddlnb.files import require_writable_file
    from ddlnb.simulator.breakdown import breakdown
    from ddlnb.simulator.forecast import sound_pairs
    from ddlnb.simulator.simulate import Cell, simulate
    from ddlnb.units import show_seconds

    require(out.suffix == ".json", f"trace file {str(out)!r} must have a name in .json")
    require_writable_file(out, "trace.json")
    require_whole(iterations=iterations)
    on = get_cluster(simulation.on(hardware.chosen()), gpus)
    chosen = simulation.methods(method or ["MG-WFBP"], on)
    servers = simulation.servers
    sound_pairs(on, chosen, servers=servers)
    workload = simulation.workload(model, on)
    lines = {
        one.name: simulate(workload, on, one, servers=servers, iterations=iterations)
        for one in chosen
    }
    split = breakdown([Cell(workload, on, one, servers) for one in chosen])
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
    for name, line in lines.items():
        if str(on.unlike):
            typer.echo(f"{name}: {_lanes(line)}")
        path = out if len(lines) == 1 else out.with_stem(f"{out.stem}-{name}")
        typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    typer.echo(f"picture: {_picture(lines, out.with_suffix('.png'))}")


def _lanes(line: Timeline) -> str:
    """Return how long each worker that is shown waits per iteration."""
    from ddlnb.units import show_seconds

    ranks = sorted({span.rank for span in line.spans})
    waits = {rank: line.on(rank).exposed_communication_seconds for rank in ranks}
    said = (f"worker {rank} waits {show_seconds(seconds)}" for rank, seconds in waits.items())
    return f"{', '.join(said)} per iteration; each stands for those that are like it"


def _picture(lines: dict[str, Timeline], path: Path) -> Path:
    """Draw the timelines one below the other into a .png file, and return its path."""
    import io

    from ddlnb.figures import timelines
    from ddlnb.files import write_atomically

    image = io.BytesIO()
    drawn = {}
    for name, line in lines.items():
        ranks = sorted({span.rank for span in line.spans})
        for rank in ranks:
            drawn[name if len(ranks) == 1 else f"{name}, worker {rank}"] = line.on(rank)
    timelines(drawn, rank=None).savefig(image, format="png", dpi=150, bbox_inches="tight")
    return write_atomically(path, image.getvalue())
