"""The command line. Every command has a Python call of the same name and meaning."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from ddlnb.cli import forecast, lossy, measure, train
from ddlnb.cli.options import Batch, Credit, Csv, Model, Partition, Servers, print_table
from ddlnb.errors import DdlnbError

INTERRUPTED = 130  # the exit status that shells expect after Ctrl-C

app = typer.Typer(
    name="ddlnb",
    help="How far will training scale on a cluster, and which communication method gets it there?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

forecast.add_to(app)
lossy.add_to(app)
train.add_to(app)
measure.add_to(app)


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 2.

    Ctrl-C is one line, too, and exit status 130.
    """
    try:
        app()
    except DdlnbError as error:
        typer.echo(f"ddlnb: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        _say_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # by typer, which says nothing
            _say_interrupted()
        raise


def _say_interrupted() -> None:
    logging.getLogger("asyncio").disabled = True  # it tells of tasks that this end leaves undone
    typer.echo("ddlnb: interrupted", err=True)
    sys.exit(INTERRUPTED)


@app.command()
def models(csv: Csv = False) -> None:
    """List the models with their sizes, FLOPs and model intensity."""
    from ddlnb.workloads.intensity import intensity
    from ddlnb.workloads.tasks import TASKS
    from ddlnb.workloads.tracing import trace

    rows = []
    for task in TASKS.values():
        workload = trace(task)
        rows.append(
            {
                "model": task.name,
                "parameters": workload.parameters,
                "tensors": len(workload.gradients),
                "MB": round(workload.gradient_bytes / 1e6, 2),
                "GFLOP": round(workload.flops / 1e9, 3),
                "intensity": round(intensity(workload)),
                "local batch": task.local_batch,
                "about": task.about,
            }
        )
    print_table(
        rows,
        csv,
        "Models: GFLOP of one sample forward and backward (FMA = 2), intensity C / D (FMA = 1)",
    )


@app.command()
def methods(csv: Csv = False) -> None:
    """List the seven methods of the survey, their six aspects, and the engines that run each."""
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
            "messages": method.bucketing.__name__.replace("_", " "),
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


@app.command()
def plan(
    model: Model,
    method: Annotated[str, typer.Option(help="A method of `ddlnb methods`.")],
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
) -> None:
    """Print a method's plan: which gradients travel together, in what order."""
    from ddlnb.errors import require
    from ddlnb.plans.alpha_beta import AlphaBeta
    from ddlnb.plans.methods import get_method
    from ddlnb.workloads.tasks import get_task
    from ddlnb.workloads.workload import read_profile

    require(
        profile is None or batch is None,
        f"profile {profile!r} has a batch of its own; leave out --batch {batch}",
    )
    require(latency >= 0, f"latency {latency} must not be negative")
    require(bandwidth > 0, f"bandwidth {bandwidth} must be positive")
    chosen = get_method(method).tuned(partition=partition, credit=credit)
    if profile is not None:
        workload = read_profile(profile)
        task = get_task(model)
        require(
            workload.model == task.name,
            f"profile {profile!r} is of model {workload.model!r}, not of {task.name!r}",
        )
    else:
        from ddlnb.workloads.profiling import profile as measure_profile

        workload = measure_profile(model, batch, iterations=3, warmup=1)
    typer.echo(f"{workload!r}, {workload.source}")
    cost = AlphaBeta(latency, 1 / bandwidth)
    if chosen.needs_cost:
        typer.echo(f"planned for all-reduces of {cost}; see --latency and --bandwidth")
    typer.echo(chosen.plan(workload, cost=cost, servers=servers))


@app.command()
def profile(
    model: Model,
    batch: Batch = None,
    iterations: Annotated[int, typer.Option(help="Measured iterations.")] = 10,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: torch's.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Keep it in data/profiles under this name.")
    ] = None,
    csv: Csv = False,
) -> None:
    """Measure the seconds of every layer and gradient of a model on this machine."""
    from ddlnb.workloads.profiling import profile as measure_profile
    from ddlnb.workloads.profiling import write_profile

    workload = measure_profile(model, batch, iterations=iterations, threads=threads)
    backward: dict[str, float] = dict.fromkeys((layer.name for layer in workload.layers), 0.0)
    size = dict.fromkeys(backward, 0)
    for gradient in workload.gradients:
        backward[gradient.layer] += gradient.backward_seconds
        size[gradient.layer] += gradient.bytes
    rows = [
        {
            "layer": layer.name or "(the module itself)",
            "forward ms": round(1e3 * layer.forward_seconds, 3),
            "backward ms": round(1e3 * backward[layer.name], 3),
            "gradient bytes": size[layer.name],
        }
        for layer in workload.layers
    ]
    print_table(rows, csv, f"{workload!r}, {workload.source}")
    if name is not None:
        typer.echo(f"written to {write_profile(workload, name)}")


@app.command()
def reproduce(
    profile: Annotated[
        str, typer.Option(help="quick or full: a file of notebooks/parameters.")
    ] = "quick",
    jobs: Annotated[int, typer.Option(help="Notebooks at a time that do not take times.")] = 2,
    only: Annotated[str, typer.Option(help="Only notebooks whose name matches.")] = "*",
    fresh: Annotated[bool, typer.Option(help="Run again what is already there.")] = False,
) -> None:
    """Execute the notebooks and write the report: every figure and table, one command."""
    from ddlnb.cli.reproduce import reproduce as run_all

    report = run_all(profile, jobs=jobs, only=only, fresh=fresh, progress=True)
    typer.echo(f"Report: {report}")


@app.command()
def doctor(
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove what crashed sessions left; living ones stay."),
    ] = False,
    csv: Csv = False,
) -> None:
    """Say what this machine can run, and how to mend what it cannot. Fails if a need is unmet."""
    from ddlnb.cli.doctor import examine
    from ddlnb.launch import leftovers

    for removed in leftovers.remove(leftovers.find()) if clean else ():
        typer.echo(f"removed {removed}", err=True)
    findings = examine()
    rows = [
        {
            "part": finding.part,
            "": "yes" if finding.found else ("MISSING" if finding.needed else "no"),
            "detail": finding.detail,
            "mend": "" if finding.found else finding.mend,
        }
        for finding in findings
    ]
    print_table(rows, csv, "This machine")
    if any(finding.needed and not finding.found for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
