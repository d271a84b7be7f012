"""The command that plays one iteration of a large model under layouts: simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ddlnb.cli.options import Csv, print_table


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(iteration)


def iteration(
    layout: Annotated[
        list[str], typer.Option(help="Such as 'dp4 tp4 pp2 sp zero1 acc16'; repeatable.")
    ],
    model: Annotated[str, typer.Option(help="A large model, such as llama3-8b.")] = "llama3-8b",
    gpu: Annotated[str, typer.Option(help="A GPU by name.")] = "H100",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 4,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a node.")] = 8,
    network: Annotated[
        str | None, typer.Option(help="What joins nodes; default: what the GPU is sold with.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="How nodes are joined, such as 'two-tier(2, 2, 4.0)'.")
    ] = None,
    sequence: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 4096,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline of a single layout, for Perfetto.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw what the stages of every layout do, such as a.png.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Play one iteration of a large model under layouts, and say where its time goes; simulated.

    Seconds are averaged over pipeline stages: computation, update, bubble, and what is waited for
    on each axis (tp, cp, ep, data). Computation runs at what large matrices sustain, so that what
    is small or waits for kernels is too fast here: `ddlnb scale` has forecasts fitted to runs.
    """
    from dataclasses import replace

    from ddlnb.errors import require
    from ddlnb.files import require_writable_file
    from ddlnb.parallelism.layout import Layout
    from ddlnb.parallelism.memory import memory
    from ddlnb.parallelism.model import get_shape
    from ddlnb.parallelism.simulated.iteration import parts_of, play_iteration
    from ddlnb.parallelism.simulated.seconds import machines_of
    from ddlnb.units import GIB

    for path, example in ((trace, "iteration.json"), (picture, "stages.png")):
        if path is not None:
            require_writable_file(path, example)
    require(
        trace is None or len(layout) == 1,
        f"a trace is of one layout, and {len(layout)} are given; leave out --trace or the others",
    )
    require(
        trace is None or trace.suffix == ".json",
        f"trace file {str(trace)!r} must have a name in .json, which viewers open",
    )
    shape = replace(get_shape(model), sequence=sequence).shape
    machines = machines_of(
        gpu, nodes, gpus_per_node=gpus_per_node, network=network, topology=topology
    )
    lines, rows = {}, []
    for text in layout:
        one = Layout.parse(text)
        line = play_iteration(
            shape,
            one,
            machines.network,
            machines.flops,
            memory_bandwidth=machines.gpu.memory_bandwidth,
        )
        lines[text] = line
        parts = {"computation": 0.0, "update": 0.0} | parts_of(line)
        seconds = sum(parts.values())
        row: dict[str, Any] = {"layout": str(one), "seconds": round(seconds, 4)}
        row |= {name: round(value, 4) for name, value in parts.items()}
        row["tokens/s/GPU"] = round(one.samples * sequence / seconds / one.ranks)
        fullest = max(memory(shape, one, stage=stage).total for stage in range(one.pp))
        row["GiB"] = round(fullest / GIB, 1)
        rows.append(row)
    if trace is not None:
        lines[layout[0]].write_chrome_trace(trace)
    if picture is not None:
        from ddlnb.figures import pipeline_schedules

        pipeline_schedules(lines).savefig(picture)
    print_table(_aligned(rows), csv, f"One iteration of {model} on {machines.network.name}")


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with all reasons that any of them has, in one order."""
    last = ("tokens/s/GPU", "GiB")
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name not in last]
    return [{name: row.get(name, 0.0) for name in (*names, *last)} for row in rows]
