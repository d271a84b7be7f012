"""The command that reads traces of other tools: of a rank, of an engine's messages, of a job."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    App,
    Batch,
    Csv,
    grouped,
    print_table,
    refuse_unused,
    rendered,
    require_writable_files,
    say,
    write_picture,
    write_rows,
)
from ddlnb.cli.questions import Hardware
from ddlnb.errors import InputError, require
from ddlnb.files import write_atomically
from ddlnb.units import GB, counted, digits, show_bytes, show_seconds
from ddlnb.workloads.workload import Workload

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.jobs.profiled import ProfiledJob
    from ddlnb.traces.jobs.table import JobTrace
    from ddlnb.traces.kineto.trace import KinetoTrace


def show_lines(lines: Mapping[str, Timeline]) -> None:
    """Print what one rank does in an iteration of each timeline."""
    rows: list[dict[str, Any]] = []
    for name, line in lines.items():
        each = 1 / line.iterations
        kinds = ("forward", "backward", "message", "wait", "update")
        ranks = len({span.rank for span in line.spans})
        seconds = {kind: line.seconds(kind) * each / ranks for kind in kinds}
        rows.append({"": name, **{kind: show_seconds(value) for kind, value in seconds.items()}})
    if rows:
        print_table(rows, False, "Seconds of an iteration on one rank, by what is done in them")


def write_lines(lines: Mapping[str, Timeline], perfetto: Path | None, figure: Path | None) -> None:
    """Write timelines as Chrome traces, and draw them, into the files that are asked for."""
    for name, line in lines.items():
        if perfetto is not None:
            require(perfetto.suffix == ".json", f"trace file {str(perfetto)!r} must end in .json")
            path = perfetto if len(lines) == 1 else perfetto.with_stem(f"{perfetto.stem}-{name}")
            typer.echo(f"trace: {line.write_chrome_trace(path)} (open it at ui.perfetto.dev)")
    if figure is not None:
        drawn = {name: line.on(min(s.rank for s in line.spans)) for name, line in lines.items()}
        write_picture(figure, "timelines", drawn, rank=None)


def show_job(job: JobTrace, out: Path | None, figure: Path | None, csv: bool) -> None:
    """Replay a job and say what its stragglers cost."""
    from ddlnb.traces.jobs.what_if import sentences, what_if

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
        say(sentences(found))
    what = f"Rows of {counted(len(found.iterations), 'iteration')}"
    write_rows(found.iterations, out, what, err=csv)
    write_picture(figure, "job_stragglers", found, err=csv)


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
    write_rows(frame, out, f"Rows of {counted(len(frame), 'message')}", err=csv)
    write_lines({line.method: line}, perfetto, figure)


def show_profiled(
    job: ProfiledJob,
    hardware: Hardware,
    out: Path | None = None,
    perfetto: Path | None = None,
    page: Path | None = None,
    csv: bool = False,
) -> None:
    """Say what the ranks of a job sent, who waited for whom, and what would save time."""
    tables, said = _found(job, hardware)
    if csv:
        typer.echo(job.by_group.to_csv(index=False), nl=False)
    else:
        for title, rows in tables.items():
            print_table(rows, False, title)
        say(said)
    if out is not None:
        write_atomically(out, job.by_group.to_csv(index=False))
        typer.echo(f"Rows of {counted(len(job.by_group), 'collective')} in {out}", err=csv)
    if perfetto is not None:
        write_lines({job.name: job.timeline()}, perfetto, None)
    if page is not None:
        write_atomically(page, _page(job, tables, said))
        typer.echo(f"Page: {page}", err=csv)


def page_of(job: ProfiledJob, hardware: Hardware) -> str:
    """Return the page of a job: sentences, a timeline to zoom, and the tables."""
    return _page(job, *_found(job, hardware))


COLOURS = {"computing": "#0072B2", "waiting": "#D55E00", "sending": "#009E73"}


def _page(job: ProfiledJob, tables: Mapping[str, list[dict[str, Any]]], said: list[str]) -> str:
    spans = job.spans[["rank", "kind", "start", "stop", "name"]]
    return rendered(
        "trace.html",
        title=f"{job.name}: {counted(len(job.ranks), 'rank')}",
        sentences=said,
        tables=[{"title": title, "rows": rows} for title, rows in tables.items() if rows],
        spans=[list(row) for row in spans.itertuples(index=False, name=None)],
        ranks=[one.rank for one in job.ranks],
        colours=COLOURS,
    )


def _found(
    job: ProfiledJob, hardware: Hardware
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return the tables of a job by title, and its sentences."""
    from ddlnb.traces.jobs.profiled import sentences

    groups = job.by_group.groupby(["group", "library", "collective", "size"], sort=False)
    means = groups.mean().drop(columns="rank").reset_index().to_dict("records")
    sizes, said = _sizes(job, hardware)
    tables = {
        _steps(job, "a step"): [_seconds_of(row) for row in job.by_rank.to_dict("records")],
        "What a rank sends in a step (means over ranks)": [_sent_row(row) for row in means],
        "Messages by size": sizes,
    }
    if len(job.ranks) > 1:
        tables["Replayed"] = [
            {
                "if": row["what"],
                "a step takes": show_seconds(row["seconds"]),
                "saved": f"{round(row['saves'], 3) + 0.0:.1%}",
            }
            for row in job.what_ifs().to_dict("records")
        ]
        path = job.critical().head(5).to_dict("records")
        from ddlnb.traces.jobs.table import COMPUTE

        named = {COMPUTE: "computation and idle time"}
        parts = [
            f"{named.get(one['kind'], one['kind'])} of rank {one['rank']} "
            f"{show_seconds(one['seconds'])}"
            for one in path
        ]
        said = [f"On the critical path of a step: {', '.join(parts)}.", *said]
    return tables, [*sentences(job), *said]


def _sent_row(row: Mapping[str, Any]) -> dict[str, Any]:
    seconds = ("wire", "waiting", "hidden", "exposed")
    return {
        "group": row["group"] or "-",
        "library": row["library"],
        "collective": row["collective"],
        "ranks": int(row["size"]),
        "calls": f"{row['calls']:.3g}",
        "bytes": show_bytes(row["bytes"]) if row["bytes"] else "unknown",
        **{name: show_seconds(row[name]) for name in seconds},
    }


def _steps(job: ProfiledJob, what: str) -> str:
    count = counted(len(job.job.steps), "step")
    return f"{job.name}: {counted(len(job.ranks), 'rank')}, {count}; seconds of {what}"


def _seconds_of(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: show_seconds(value) for name, value in row.items() if name != "rank"}
    return {"rank": int(row["rank"]), **rest}


def _sizes(job: ProfiledJob, hardware: Hardware) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages by size with their bus bandwidth, beside its forecast where it has one.

    Also returned is what a forecast says of them.
    """
    from ddlnb.calibration.expected import bus_bandwidths, judged

    said: list[str] = []
    named = hardware.named
    on = hardware.chosen() if named else None
    rows = job.by_size(on.gpus_per_node if on else USUAL_GPUS)
    if not len(rows):
        return [], said
    if on is None:
        rows = rows.assign(busbw=bus_bandwidths(rows))
    else:
        found = judged(rows, str(on.facts["gpu"]), on.network)
        rows, said = found.rows, list(found.said)
    return [size_row(row) for row in rows.to_dict("records")], said


def size_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of collectives of one size: seconds, bus bandwidth, forecast, verdict."""
    cells = {
        "collective": row["collective"],
        "ranks": int(row["ranks"]),
        "nodes": int(row["nodes"]),
        "size": show_bytes(row["size_bytes"]),
        "median": show_seconds(row["seconds"]),
        "bus GB/s": digits(row["busbw"] / GB, 4) if row["busbw"] == row["busbw"] else "-",
    }
    if "verdict" not in row:
        return {**cells, "calls": int(row["calls"])}
    is_known = row["expected"] == row["expected"]
    interval = f"{show_seconds(row['low'])} to {show_seconds(row['high'])}" if is_known else "-"
    takes = row["chosen"] if is_known else "-"
    return {**cells, "forecast (90 %)": interval, "verdict": row["verdict"], "NCCL takes": takes}


USUAL_GPUS = 8  # of a node, where nothing is said
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
    say([repr(trace)])
    _show_operations(trace)
    _show_longest(trace)
    needed = bool(model or batch or cluster or out or perfetto or figure)
    if any(event.is_communication for event in trace.events):
        from ddlnb.traces.jobs.profiled import profiled_job
        from ddlnb.traces.kineto.rank import rank_trace

        alone = profiled_job([rank_trace(trace)], trace.name)
        if len(alone.sent):
            show_profiled(alone, Hardware())
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
    if len(workload.layers) > 1:
        print_table(_longest_layers(workload), False, "Layers that take longest, of an iteration")
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
    typer.echo(f"On the critical path: {shares}. A host that waits for the device counts as host.")


def _show_longest(trace: KinetoTrace) -> None:
    """Print what takes the device longest, of an iteration."""
    total = sum(one.seconds for one in trace.longest)
    rows = [
        {
            "what": one.name if len(one.name) <= NAME else f"{one.name[: NAME - 3]}...",
            "an iteration": show_seconds(one.seconds),
            "share": f"{one.seconds / total:.0%}",
            "operations" if trace.gpu else "calls": f"{one.calls:.3g}",
        }
        for one in trace.longest[:LONGEST]
        if total
    ]
    if rows:
        where = "the GPU longest, by what launched it" if trace.gpu else "the CPU longest"
        print_table(rows, False, f"What takes {where}")


def _longest_layers(workload: Workload) -> list[dict[str, str]]:
    backward: dict[str, float] = defaultdict(float)
    for gradient in workload.gradients:
        backward[gradient.layer] += gradient.backward_seconds
    whole = {one.name: one.forward_seconds + backward[one.name] for one in workload.layers}
    longest = sorted(workload.layers, key=lambda one: -whole[one.name])[:LONGEST]
    return [
        {
            "layer": one.name,
            "forward": show_seconds(one.forward_seconds),
            "backward": show_seconds(backward[one.name]),
            "share": f"{whole[one.name] / workload.compute_seconds:.0%}",
        }
        for one in longest
        if workload.compute_seconds
    ]


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
            "contain this waiting; `ddlnb measure profile --device cuda` measures without it. What "
            "helps is fewer and longer kernels: a larger batch, torch.compile, CUDA graphs."
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


@dataclass(frozen=True)
class TracedOn(Hardware):
    """What a trace is simulated on, if anything."""

    cluster: Annotated[
        str,
        typer.Option(
            help="Simulate what was traced on this one of `ddlnb cluster list`, or a .yaml file. "
            "Or name its hardware:"
        ),
    ] = ""


app = App()
LONGEST, NAME = 8, 48  # operations that are listed, and letters of their names


@app.command()
@grouped
def trace(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="What torch.profiler exported, of several ranks their files or folder; a timeline "
            "of Horovod or BytePS (.json); or a job's table of operations (.csv); each may be "
            "compressed (.gz).",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The model that was traced: names for layers and gradients.")
    ] = "",
    batch: Batch = None,
    on: TracedOn,
    throughput: Annotated[
        float | None,
        typer.Option(
            help="Samples per second of one GPU, measured; else a profile or a data sheet."
        ),
    ] = None,
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
    page: Annotated[
        Path | None, typer.Option(help="Write one HTML page of the ranks of a job.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Read a trace of another tool: what it holds, where its time goes, what would save some.

    With the ranks' hardware by name, bandwidths are judged.

    Examples: `ddlnb trace traces/ --gpu H100 --nodes 4 --network 8x400GbIB` and
    `ddlnb trace trace.json.gz --model resnet50 --cluster survey-10GbE`.
    """
    from ddlnb.results.timeline import Timeline
    from ddlnb.traces.jobs.profiled import ProfiledJob
    from ddlnb.traces.jobs.table import JobTrace
    from ddlnb.traces.kineto.trace import KinetoTrace
    from ddlnb.traces.read import read_trace

    require_writable_files(out_csv=out, trace_json=perfetto, trace_png=figure, ranks_html=page)
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
    file = files[0]
    found = read_trace(file if len(files) == 1 else files, sys.stderr.isatty())
    made, other = (".json", ".csv") if isinstance(found, KinetoTrace) else (".csv", ".json")
    is_timed = isinstance(found, KinetoTrace | ProfiledJob | JobTrace | Timeline)
    require(
        out is None or out.suffix.lower() != other or not is_timed,
        f"--out {str(out)!r}: what comes of {file.name} is written as {made}; name it so",
    )
    if isinstance(found, ProfiledJob):
        refuse_unused(
            "traces of ranks are no workload of one rank; give one file",
            **{"model": model, "batch": batch, "cluster": on.cluster, "method": method},
            throughput=throughput,
        )
        refuse_unused("ranks are drawn on a page: --page ranks.html", figure=figure)
        show_profiled(found, on, out, perfetto, page, csv)
        return
    refuse_unused("a page is of several ranks; give their folder", page=page)
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
    if isinstance(found, JobTrace):
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
