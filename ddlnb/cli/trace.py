"""The command that reads traces of other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddlnb.cli.groups import grouped
from ddlnb.cli.hardware_options import Hardware
from ddlnb.cli.options import Batch, Csv, refuse_unused
from ddlnb.cli.workloads import Throughput
from ddlnb.units import counted


@dataclass(frozen=True)
class TracedOn(Hardware):
    """What a trace is simulated on, if anything."""

    cluster: Annotated[
        str,
        typer.Option(
            help="Simulate what was traced on this one of `ddlnb clusters`, or a .yaml file. Or "
            "name its hardware:"
        ),
    ] = ""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(trace)


@grouped
def trace(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            help="What torch.profiler exported, a timeline of Horovod or BytePS (.json), or a "
            "job's table of operations (.csv); each may be compressed (.gz)."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The model that was traced: names for layers and gradients.")
    ] = "",
    batch: Batch = None,
    on: TracedOn,
    throughput: Throughput = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to simulate; repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write what is found: a profile (.json) of a traced rank, a job's iterations or "
            "an engine's messages (.csv)."
        ),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write the timeline as a Chrome trace (.json).")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw what is found (.png).")] = None,
    csv: Csv = False,
) -> None:
    """Read a trace of another tool: what it holds, where its time goes, what would save some."""
    from ddlnb.cli.trace_kineto import show_kineto
    from ddlnb.cli.trace_show import show_job, show_messages
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.jobs.table import Job
    from ddlnb.traces.kineto.trace import KinetoTrace
    from ddlnb.traces.read import read_trace

    for path, example in ((out, "out.csv"), (perfetto, "trace.json"), (figure, "trace.png")):
        if path is not None:
            require_writable_file(path, example)
    simulated = bool(on.cluster or on.named)
    for option, given in {"method": method, "throughput": throughput}.items():
        require(
            simulated or not given,
            f"--{option} needs the --cluster to simulate it on, or its hardware (--gpu, --nodes)",
        )
    require(
        not throughput or bool(model),
        "--throughput shares out the work of a model over its seconds, and a trace does not say "
        "how much work its layers are; give the --model, too",
    )
    found = read_trace(file)
    if isinstance(found, KinetoTrace):
        refuse_unused("a trace of one rank has no rows", csv=csv)
        cluster = on.chosen() if simulated else None
        show_kineto(found, model, batch, cluster, method, throughput, out, perfetto, figure)
        return
    refuse_unused(
        f"{file.name} holds no layers",
        model=model,
        batch=batch,
        cluster=on.cluster,
        **on.named,
        method=method,
        throughput=throughput,
    )
    if isinstance(found, Job):
        refuse_unused("a job has too many ranks for one timeline", perfetto=perfetto)
        show_job(found, out, figure, csv)
        return
    if not isinstance(found, Timeline):
        refuse_unused("a graph has no times", out=out, perfetto=perfetto, figure=figure, csv=csv)
        typer.echo(
            f"{file.name}: {counted(found.number_of_nodes(), 'operation')} with "
            f"{counted(found.number_of_edges(), 'dependency', 'dependencies')}, and no circle "
            f"among them."
        )
        return
    show_messages(found, out, perfetto, figure, csv)
