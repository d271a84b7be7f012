"""The commands about methods: the list of them, and the plan that a method makes for a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.hardware import PrecisionName
from ddlnb.cli.options import (
    Batch,
    Credit,
    Csv,
    Model,
    Partition,
    Servers,
    print_table,
    refuse_unused,
)
from ddlnb.cli.workloads import Gradients, Sequence

if TYPE_CHECKING:
    from ddlnb.plans.methods import Method
    from ddlnb.plans.plan import Plan
    from ddlnb.search.sent import Sent


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(methods)
    app.command()(plan)


def methods(csv: Csv = False) -> None:
    """List the methods, their six aspects, and the engines that run each."""
    from ddlnb.engines.catalogue import ENGINES, support
    from ddlnb.plans.methods import METHODS
    from ddlnb.units import show_bytes

    rows = [
        {
            "method": method.name,
            "sync": method.synchronisation,
            "compression": method.compression or "-",
            "scheduling": method.scheduling or "-",
            "arch.": method.architecture,
            "messages": method.bucketing.name,
            "partition": show_bytes(method.partition_bytes) if method.partition_bytes else "-",
            "credit": show_bytes(method.credit_bytes) if method.credit_bytes else "-",
            "forward needs": method.gate.value,
            "engines": " ".join(e for m, e, reason in support() if m == method.name and not reason),
        }
        for method in METHODS.values()
    ]
    print_table(rows, csv, "Methods")
    if not csv:
        for method in METHODS.values():
            typer.echo(f"{method.name}: {method.sentence()}.")
        for engine in ENGINES.values():
            lack = engine.missing()
            typer.echo(f"engine {engine.name}: {engine.about}{lack and f' (not here: {lack})'}.")


def plan(
    model: Model,
    method: Annotated[str, typer.Option(help="A method of `ddlnb methods`, DDP, or searched.")],
    batch: Batch = None,
    servers: Servers = 1,
    partition: Partition = None,
    credit: Credit = None,
    latency: Annotated[
        float, typer.Option(help="Latency of one all-reduce, in seconds (a in a + b M).")
    ] = 5e-4,
    bandwidth: Annotated[
        float, typer.Option(help="Asymptotic all-reduce bandwidth, in bytes per second (1 / b).")
    ] = 1e9,
    profile: Annotated[
        str | None, typer.Option(help="A profile of data/profiles; default: measured here and now.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="Seconds from the data sheet of this GPU instead, such as A100.")
    ] = "",
    precision: PrecisionName = "",
    sequence: Sequence = None,
    gradients: Gradients = "",
    cluster: Annotated[
        str, typer.Option(help="Plan for this cluster of `ddlnb clusters`, or file, instead.")
    ] = "",
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
        typer.Option(help="Cost of --sent: free, or a profile of data/profiles/compression."),
    ] = "",
    mixed: Annotated[
        bool, typer.Option("--mixed", help="With --sent: every message may be dense, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the plan to this file (.json).")
    ] = None,
) -> None:
    """Print a method's plan: which gradients travel together, in what order."""
    from ddlnb.cli.searched import plan_on_cluster
    from ddlnb.errors import require
    from ddlnb.files import require_writable_file
    from ddlnb.plans.alpha_beta import AlphaBeta
    from ddlnb.workloads.catalogue import get_task
    from ddlnb.workloads.workload import read_profile

    if out is not None:
        require_writable_file(out, "plan.json")
    if cluster:
        refuse_unused("seconds are those of the workload on the cluster", profile=profile, gpu=gpu)
        chosen = _tuned(method, partition, credit)
        what = _sent(sent, compression, mixed)
        made = plan_on_cluster(
            model, cluster, gpus, chosen, batch, sequence, gradients, time_limit, what
        )
        return _print_plan(made, out)
    refuse_unused("without --cluster there is none", gpus=gpus, time_limit=time_limit)
    refuse_unused(
        "compressed plans are searched on a --cluster",
        sent=sent,
        compression=compression,
        mixed=mixed,
    )
    if profile is not None:
        refuse_unused(
            f"profile {profile!r} has a batch and seconds of its own",
            batch=batch,
            sequence=sequence,
            gpu=gpu,
        )
    if not gpu:
        refuse_unused("--precision is that of a data sheet (--gpu)", precision=precision)
    require(latency >= 0, f"latency {latency} must not be negative")
    require(bandwidth > 0, f"bandwidth {bandwidth} must be positive")
    chosen = _tuned(method, partition, credit)
    if profile is not None:
        workload = read_profile(profile)
        task = get_task(model)
        require(
            workload.model == task.name,
            f"profile {profile!r} is of model {workload.model!r}, not of {task.name!r}",
        )
    else:
        from ddlnb.workloads.profiling import profile as measure_profile
        from ddlnb.workloads.roofline import estimate
        from ddlnb.workloads.tracing import trace

        task = get_task(model)
        task = task if sequence is None else task.with_sequence(sequence)
        if gpu:
            traced = trace(task, task.local_batch if batch is None else batch)
            workload = estimate(traced, gpu, precision)
        else:
            workload = measure_profile(task, batch, iterations=3, warmup=1)
    workload = workload.sent_as(gradients) if gradients else workload
    typer.echo(f"{workload!r}, {workload.source}")
    cost = AlphaBeta(latency, 1 / bandwidth)
    if chosen.needs_cost:
        typer.echo(f"planned for all-reduces of {cost}; see --latency and --bandwidth")
    _print_plan(chosen.plan(workload, cost=cost, servers=servers), out)


def _sent(sent: str, compression: str, mixed: bool) -> Sent:
    """Return what is sent: dense gradients unless a compressor is named."""
    from ddlnb.search.sent import DENSE
    from ddlnb.training.cost.sent import Compressed

    if not sent:
        why = "dense gradients are sent; name a compressor with --sent"
        refuse_unused(why, compression=compression, mixed=mixed)
        return DENSE
    return Compressed(sent, compression or "free", mixed)


def _tuned(name: str, partition: str | None, credit: str | None) -> Method:
    """Return the method with these sizes. Raises InputError for one that it does not have."""
    from ddlnb.plans.methods import get_method, require_tunable

    named = get_method(name)
    require_tunable([named], partition=partition, credit=credit)
    return named.tuned(partition=partition, credit=credit)


def _print_plan(plan: Plan, out: Path | None) -> None:
    """Print the plan, and write it where that is asked for."""
    typer.echo(plan)
    if out is not None:
        from ddlnb.plans.plan_file import write_plan

        typer.echo(f"Plan {plan.digest} in {write_plan(plan, out)}")
