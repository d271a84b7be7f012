"""What `ddlnb trace` prints and writes of a rank that torch.profiler recorded."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import typer

from ddlnb.cli.trace_lines import show_lines, write_lines
from ddlnb.errors import InputError
from ddlnb.files import write_atomically
from ddlnb.units import counted, show_seconds

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.kineto.trace import KinetoTrace
    from ddlnb.workloads.workload import Workload

MUCH_LONGER = 1.1  # a host that takes less than this times the GPU's seconds is not what bounds it


def show_kineto(
    trace: KinetoTrace,
    model: str,
    batch: int | None,
    cluster: Cluster | None,
    methods: list[str] | None,
    throughput: float | None,
    out: Path | None,
    perfetto: Path | None,
    figure: Path | None,
) -> None:
    """Say what a traced rank did, and simulate the same on a cluster."""
    typer.echo(repr(trace))
    _show_operations(trace)
    needed = bool(model or batch or cluster or out or perfetto or figure)
    try:
        if trace.gpu:
            _show_gpu(trace)
        workload = trace.workload(*_structure(model, batch))
        line = trace.timeline(workload)
    except InputError as error:
        if needed:
            raise
        typer.echo(f"No workload: {error}.")
        return
    typer.echo(
        f"{workload!r}: {counted(len(workload.layers), 'layer')}, forward "
        f"{show_seconds(workload.forward_seconds)}, backward "
        f"{show_seconds(workload.backward_seconds)} (medians over "
        f"{counted(line.iterations, 'iteration')})."
    )
    lines = {"traced": line}
    if cluster is not None:
        lines |= _simulated(workload, cluster, methods or ["MG-WFBP"], throughput)
    show_lines(lines)
    if out is not None:
        write_atomically(out, workload.to_json() + "\n")
        typer.echo(f"profile: {out}")
    write_lines(lines, perfetto, figure)


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
        f"{counted(len(graph.operations), 'operation')} with "
        f"{counted(len(graph.edges), 'dependency', 'dependencies')}, and no circle among "
        f"them. From these alone they would take "
        f"{show_seconds(graph.replayed_seconds)}; traced: {show_seconds(trace.seconds)}."
    )
    spent = graph.critical_seconds()
    shares = ", ".join(
        f"{what} {show_seconds(seconds)} ({seconds / graph.replayed_seconds:.0%})"
        for what, seconds in spent.items()
    )
    typer.echo(f"On the critical path: {shares}.")


def _show_gpu(trace: KinetoTrace) -> None:
    """Say how busy the GPU was, and which of host and GPU the trace waits for."""
    times = trace.gpu_times
    busy = sum(one.busy_seconds for one in times)
    kinds = {
        kind: median(one.busy_seconds for one in times if one.kind == kind)
        for kind in ("forward", "backward", "update")
    }
    each = ", ".join(f"{kind} {show_seconds(seconds)}" for kind, seconds in kinds.items())
    typer.echo(
        f"The GPU was busy for {show_seconds(busy)} ({busy / trace.seconds:.0%}): {each} of an "
        f"iteration (medians), and {show_seconds(times[-1].busy_seconds)} outside of these passes."
    )
    host, gpu = (trace.operations.seconds_if(**{who: 0}) for who in ("gpu", "host"))
    said = f"The host alone would take {show_seconds(host)}, the GPU alone {show_seconds(gpu)}: "
    if host > MUCH_LONGER * gpu:
        said += (
            "the GPU waits for the host. The profiler makes the host slower, and the seconds below "
            "contain this waiting; `ddlnb profile --device cuda` measures without it."
        )
    elif gpu > MUCH_LONGER * host:
        said += "the host waits for the GPU."
    else:
        said += "both bound the iteration."
    typer.echo(said)
    sent = [event for event in trace.events if event.is_communication]
    if sent and not any(event.category == "kernel" for event in sent):
        why = "; there is one rank, and nothing to send" if trace.ranks == 1 else ""
        typer.echo(f"Its {len(sent)} collectives launched no kernel of their library{why}.")


def _simulated(
    workload: Workload, cluster: Cluster, methods: list[str], throughput: float | None
) -> dict[str, Timeline]:
    from ddlnb.simulator.profiles import workload_on
    from ddlnb.simulator.simulate import simulate

    there = workload_on(workload, cluster, throughput=throughput)
    return {name: simulate(there, cluster, name) for name in methods}
