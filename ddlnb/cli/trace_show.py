"""What `ddlnb trace` prints and writes of each kind of trace."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ddlnb.cli.options import print_table
from ddlnb.errors import InputError, require
from ddlnb.files import write_atomically
from ddlnb.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.jobs.table import Job
    from ddlnb.traces.kineto.trace import KinetoTrace
    from ddlnb.workloads.workload import Workload


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
        typer.echo(f"Rows of {len(found.iterations)} iterations in {out}", err=csv)
    if figure is not None:
        from ddlnb.figures import job_stragglers

        typer.echo(f"picture: {_drawn(job_stragglers(found), figure)}", err=csv)


def show_kineto(
    trace: KinetoTrace,
    model: str,
    batch: int | None,
    cluster: str,
    methods: list[str] | None,
    out: Path | None,
    perfetto: Path | None,
    figure: Path | None,
) -> None:
    """Say what a traced rank did, and simulate the same on a cluster."""
    typer.echo(repr(trace))
    _show_operations(trace)
    needed = bool(model or batch or cluster or out or perfetto or figure)
    try:
        workload = trace.workload(*_structure(model, batch))
        line = trace.timeline(workload)
    except InputError as error:
        if needed:
            raise
        typer.echo(f"No workload: {error}.")
        return
    typer.echo(
        f"{workload!r}: {len(workload.layers)} layers, forward "
        f"{show_seconds(workload.forward_seconds)}, backward "
        f"{show_seconds(workload.backward_seconds)} (medians over "
        f"{line.iterations} iteration{'s' * (line.iterations > 1)})."
    )
    lines = {"traced": line}
    if cluster:
        lines |= _simulated(workload, cluster, methods or ["MG-WFBP"])
    _show_lines(lines)
    if out is not None:
        write_atomically(out, workload.to_json() + "\n")
        typer.echo(f"profile: {out}")
    _write(lines, perfetto, figure)


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
        title = f"{len(frame):,} messages of {len(largest)} tensors in {line.iterations} iterations"
        print_table(rows, False, f"{line.method}: {title}; the slowest {len(rows)}")
    if out is not None:
        write_atomically(out, frame.to_csv(index=False))
        typer.echo(f"Rows of {len(frame):,} messages in {out}", err=csv)
    _write({line.method: line}, perfetto, figure)


def _structure(model: str, batch: int | None) -> tuple[Workload | None, int | None]:
    """Return the structure of the model that was traced, and the batch."""
    if not model:
        return None, batch
    from ddlnb.workloads.resolve import resolve
    from ddlnb.workloads.tracing import trace
    from ddlnb.workloads.workload import Workload

    found = resolve(model)
    if isinstance(found, Workload):
        return found, batch
    return trace(found, batch or found.local_batch), batch


def _show_operations(trace: KinetoTrace) -> None:
    graph = trace.operations
    typer.echo(
        f"{len(graph.operations):,} operations with {len(graph.edges):,} dependencies, and no "
        f"circle among them. From these alone they would take "
        f"{show_seconds(graph.replayed_seconds)}; traced: {show_seconds(trace.seconds)}."
    )
    spent = graph.critical_seconds()
    shares = ", ".join(
        f"{what} {show_seconds(seconds)} ({seconds / graph.replayed_seconds:.0%})"
        for what, seconds in spent.items()
    )
    typer.echo(f"On the critical path: {shares}.")


def _simulated(workload: Workload, cluster: str, methods: list[str]) -> dict[str, Timeline]:
    from ddlnb.clusters.file import get_cluster
    from ddlnb.simulator.simulate import simulate

    on = get_cluster(cluster)
    return {name: simulate(workload, on, name) for name in methods}


def _show_lines(lines: Mapping[str, Timeline]) -> None:
    rows: list[dict[str, Any]] = []
    for name, line in lines.items():
        each = 1 / line.iterations
        kinds = ("forward", "backward", "message", "wait", "update")
        ranks = len({span.rank for span in line.spans})
        seconds = {kind: line.seconds(kind) * each / ranks for kind in kinds}
        rows.append({"": name, **{kind: show_seconds(value) for kind, value in seconds.items()}})
    if rows:
        print_table(rows, False, "Seconds of an iteration on one rank, by what is done in them")


def _write(lines: Mapping[str, Timeline], perfetto: Path | None, figure: Path | None) -> None:
    for name, line in lines.items():
        if perfetto is not None:
            require(perfetto.suffix == ".json", f"trace file {str(perfetto)!r} must end in .json")
            path = perfetto if len(lines) == 1 else perfetto.with_stem(f"{perfetto.stem}-{name}")
            typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    if figure is not None:
        from ddlnb.figures import timelines

        drawn = {name: line.on(min(s.rank for s in line.spans)) for name, line in lines.items()}
        typer.echo(f"picture: {_drawn(timelines(drawn, rank=None), figure)}")


def _drawn(figure: Any, path: Path) -> Path:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150, bbox_inches="tight")
    return write_atomically(path, image.getvalue())
