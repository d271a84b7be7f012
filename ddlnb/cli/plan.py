"""The commands that print a plan, of a rule or searched, and what one worker does when."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    App,
    Credit,
    Partition,
    Workers,
    grouped,
    known_methods,
    print_table,
    refuse_unused,
    require_writable_files,
    say,
    write_picture,
)
from ddlnb.cli.questions import KeptHardware, Otherwise, warn_of_memory
from ddlnb.errors import require, require_whole
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import Method, get_method, require_served, require_tunable
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import write_plan
from ddlnb.simulator import questions
from ddlnb.simulator.questions import ForecastQuestion, Sent
from ddlnb.units import show_seconds
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    from ddlnb.clusters.cluster import Cluster
    from ddlnb.results.timeline import Timeline
    from ddlnb.search.compressed import Compression


def plan_on_cluster(
    workload: Workload,
    on: Cluster,
    method: Method,
    servers: int | None,
    time_limit: float | None,
    sent: Compression,
) -> Plan:
    """Return the plan of a method on a cluster; of a searched one, print how good it is."""
    from ddlnb.search.compressed import DENSE
    from ddlnb.search.search import Searching, search_plan
    from ddlnb.simulator.recommendation import tuned_in_words
    from ddlnb.simulator.simulate import plan_on, sized_on

    say([f"{workload!r} on {on!r}; {workload.source}"])
    if not isinstance(method.planner, Searching):
        refuse_unused(f"{method.name} is a rule, and searches nothing", time_limit=time_limit)
        require(
            sent == DENSE,
            f"--sent is what a search plans for, and {method.name} is a rule; ask "
            f"`ddlnb forecast lossy "
            f"--method 'bsp + {sent}' --base {method.name}`",
        )
        if method.tunes:
            typer.echo(tuned_in_words(sized_on(on, workload, method, servers)))
        return plan_on(on, workload, method, servers)
    refuse_unused("a searched plan goes without servers", servers=servers)
    show = sys.stderr.isatty()
    space = method.planner.space
    found = search_plan(
        workload, on, space=space, compression=sent, time_limit=time_limit, progress=show
    )
    say([str(found).partition("\n")[2]])
    if found.dense is not None:
        typer.echo(
            "An iteration that sends less may bring the loss down less: "
            "`ddlnb forecast lossy --curves` judges the time to a loss."
        )
    return found.plan


@dataclass(frozen=True)
class PlannedFor(KeptHardware):
    """What a plan is made for: without any, or a GPU alone, all-reduces of given cost."""

    cluster: Annotated[
        str,
        typer.Option(help="Plan for one of `ddlnb cluster list`, or a .yaml file; or name GPUs:"),
    ] = ""
    gpu: Annotated[
        str,
        typer.Option(
            help="A GPU of `ddlnb cluster list hardware`, such as A100, for a new cluster; without "
            "any of the next four only its seconds, by data sheet."
        ),
    ] = ""


app = App()


@app.command()
@grouped
def plan(
    *,
    asked: Annotated[dict[str, Any], questions.Sent],
    method: Annotated[
        str,
        typer.Option(
            help="A method of `ddlnb methods`, DDP, or searched.", autocompletion=known_methods
        ),
    ],
    servers: Annotated[
        int | None,
        typer.Option(help="Servers of PS methods; default: 1, on a cluster one for every node."),
    ] = None,
    partition: Partition = None,
    credit: Credit = None,
    latency: Annotated[
        float | None,
        typer.Option(help="Of one all-reduce, in seconds (a in a + b M); default: 0.0005."),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Of large all-reduces, in bytes per second (1 / b); default: 1e9."),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A profile of data/profiles; default: measured here and now.")
    ] = None,
    hardware: PlannedFor,
    gpus: Annotated[int | None, typer.Option(help="Workers of the cluster; default: all.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds that a search may take; default: to its end.")
    ] = None,
    sent: Annotated[
        str,
        typer.Option(help="Search for compressed gradients, such as 'top-k(0.01) + feedback'."),
    ] = "",
    compression: Annotated[
        str,
        typer.Option(
            help="Cost of --sent: sheet (default), a profile of data/profiles/compression, or free."
        ),
    ] = "",
    mixed: Annotated[
        bool, typer.Option("--mixed", help="With --sent: every message may be dense, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the plan to this file (.json).")
    ] = None,
) -> None:
    """Print a method's plan: which gradients travel together, in what order.

    It is made for all-reduces of --latency and --bandwidth, or for a cluster: by its name, or by
    that of its hardware.

    Examples: `ddlnb plan --model bert-large --method MG-WFBP --cluster survey-10GbE` and
    `ddlnb plan --model resnet50 --method searched --machine p4d --nodes 4 --out plan.json`.
    """

    require("model" in asked, "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    require_writable_files(plan_json=out)
    chosen = _tuned(method, partition, credit)
    if chosen.planner is None:
        require_served([chosen], servers)
    if hardware.cluster or hardware.named.keys() - {"gpu"}:
        refuse_unused(
            "seconds are those of the workload on the cluster",
            profile=profile,
            latency=latency,
            bandwidth=bandwidth,
        )
        on = hardware.chosen()
        on = on if gpus is None else on.with_workers(gpus)
        workload = questions.Sent(cluster=on, **asked).workload
        what = _sent(sent, compression, mixed)
        made = plan_on_cluster(workload, on, chosen, servers, time_limit, what)
        return _print_plan(made, out)
    refuse_unused(
        "without --cluster or the hardware of one (--nodes, --network, --machine) there is none",
        gpus=gpus,
        save_cluster=hardware.save_cluster,
        time_limit=time_limit,
        throughput=asked.pop("throughput", None),
        accumulate=asked.pop("accumulate", None),
    )
    refuse_unused(
        "compressed plans are searched on a --cluster",
        sent=sent,
        compression=compression,
        mixed=mixed,
    )
    require(
        chosen.planner is None,
        f"method {method!r} makes its plan for a cluster; give --cluster, or the hardware of one "
        f"(--gpu, --nodes, --network)",
    )
    cost = _cost(latency, bandwidth)
    if not chosen.needs_cost:
        why = f"{chosen.name} is planned without the cost of an all-reduce"
        refuse_unused(why, latency=latency, bandwidth=bandwidth)
    gradients = asked.pop("gradients", "")
    workload = _workload(profile, hardware.gpu, **asked)
    workload = workload.sent_as(gradients) if gradients else workload
    say([f"{workload!r}, {workload.source}"])
    if chosen.needs_cost:
        typer.echo(f"planned for all-reduces of {cost}; see --latency and --bandwidth")
    made = chosen.plan(workload, cost=cost, servers=1 if servers is None else servers)
    _print_plan(made, out)


def _cost(latency: float | None, bandwidth: float | None) -> AlphaBeta:
    """Return the cost of an all-reduce that is planned for without a cluster."""

    latency = 5e-4 if latency is None else latency
    bandwidth = 1e9 if bandwidth is None else bandwidth
    require(latency >= 0, f"latency {latency} must not be negative")
    require(bandwidth > 0, f"bandwidth {bandwidth} must be positive")
    return AlphaBeta(latency, 1 / bandwidth)


def _workload(
    profile: str | None,
    gpu: str,
    model: str,
    precision: str = "",
    local_batch: int | None = None,
    sequence: int | None = None,
) -> Workload:
    """Return the workload of a profile, of a GPU's data sheet, or as measured here and now."""
    from ddlnb.workloads.resolve import resolve

    task = resolve(model, sequence=None if profile else sequence)
    if isinstance(task, Workload):
        why = f"profile {model!r} has a batch and seconds of its own"
        refuse_unused(why, batch=local_batch, gpu=gpu, profile=profile, precision=precision)
        return task
    if profile is not None:
        refuse_unused(
            f"profile {profile!r} has a batch and seconds of its own",
            batch=local_batch,
            sequence=sequence,
            gpu=gpu,
        )
    if not gpu:
        refuse_unused("--precision is that of a data sheet (--gpu)", precision=precision)
    if profile is not None:
        workload = read_profile(profile)
        require(
            workload.model == task.name,
            f"profile {profile!r} is of model {workload.model!r}, not of {task.name!r}",
        )
        return workload
    from ddlnb.workloads.profiling import profile as measure_profile
    from ddlnb.workloads.roofline import estimate
    from ddlnb.workloads.tracing import trace

    if gpu:
        return estimate(
            trace(task, task.local_batch if local_batch is None else local_batch), gpu, precision
        )
    return measure_profile(task, local_batch, iterations=3, warmup=1)


def _sent(sent: str, compression: str, mixed: bool) -> Compression:
    """Return what is sent: dense gradients unless a compressor is named."""
    from ddlnb.compression.profile import SHEET
    from ddlnb.search.compressed import DENSE
    from ddlnb.training.cost.searched import Compressed

    if not sent:
        why = "dense gradients are sent; name a compressor with --sent"
        refuse_unused(why, compression=compression, mixed=mixed)
        return DENSE
    return Compressed(sent, compression or SHEET, mixed)


def _tuned(name: str, partition: str | None, credit: str | None) -> Method:
    """Return the method with these sizes. Raises InputError for one that it does not have."""

    named = get_method(name)
    require_tunable([named], partition=partition, credit=credit)
    return named.tuned(partition=partition, credit=credit)


def _print_plan(plan: Plan, out: Path | None) -> None:
    """Print the plan, and write it where that is asked for."""
    say([str(plan)])
    if out is not None:
        typer.echo(f"Plan {plan.digest} in {write_plan(plan, out)}")


timeline_app = App()
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


@timeline_app.command()
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
    from ddlnb.simulator.forecast import sound_pairs
    from ddlnb.simulator.recommendation import tuned_in_words
    from ddlnb.simulator.simulate import Cell, breakdown, simulate

    require("model" in asked, "give --model; see `ddlnb models`, or docs/own_model.md for yours")
    require(out.suffix == ".json", f"trace file {str(out)!r} must have a name in .json")
    require_writable_files(trace_json=out)
    require_whole(iterations=iterations)
    on = get_cluster(otherwise.on(hardware.chosen()), gpus)
    chosen = otherwise.methods(method or ["MG-WFBP"], on, servers)
    sound_pairs(on, chosen, servers=servers)
    workload = Sent(cluster=on, **asked).workload
    warn_of_memory(ForecastQuestion(cluster=on, **asked), on)
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
