"""The command that trains with lossless methods on real workers and prints the throughput."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ddlnb.cli.models import profile as profile_layers
from ddlnb.cli.options import OWN, Csv, Family, Model, Yes, announce, numbers, print_answer
from ddlnb.engines.settings import (
    DEFAULTS,
    MEASUREMENT_PROFILES,
    MeasurementSettings,
    get_measurement_profile,
)
from ddlnb.errors import require_extra
from ddlnb.launch.capacity import fitting_workers
from ddlnb.launch.options import EMULATED, HERE, LaunchOptions, meanings

_MEANINGS = meanings(MeasurementSettings) | meanings(LaunchOptions)

app = typer.Typer(cls=Family)


def _take_defaults(context: typer.Context, name: str | None) -> str | None:
    """Make the values of a measurement profile the defaults of the options that have them."""
    if name is not None:
        profile = get_measurement_profile(name)
        called = {
            "repetitions": "repeat",
            "timeout_seconds": "timeout",
            "start_timeout_seconds": "start_timeout",
        }
        context.default_map = {called.get(k, k): value for k, value in profile.options.items()}
    return name


def option(name: str, *flags: str) -> Any:
    """Return the command line's option for a field of the settings or of their site."""
    return typer.Option(*flags, help=_MEANINGS[name])


Methods = Annotated[
    list[str] | None, typer.Option("--method", help="A method, or 'all'; repeatable.")
]
KeptPlans = Annotated[
    list[Path] | None,
    typer.Option("--plan", help="A plan of `ddlnb plan --out` to run as it is; repeatable."),
]
Engines = Annotated[list[str] | None, option("engine", "--engine")]
Baselines = Annotated[bool, option("baselines")]
Workers = Annotated[
    list[int] | None,
    numbers(f"{_MEANINGS['workers']} Several are measured in turn. Default: {DEFAULTS.workers}."),
]
LocalBatch = Annotated[int | None, option("local_batch", "--batch")]
Iterations = Annotated[int, option("iterations")]
Warmup = Annotated[int, option("warmup")]
Optimizer = Annotated[str, option("optimizer")]
Partition = Annotated[str | None, option("partition")]
Credit = Annotated[str | None, option("credit")]
Timeout = Annotated[float, option("timeout_seconds", "--timeout")]
StartTimeout = Annotated[float, option("start_timeout_seconds", "--start-timeout")]
Profile = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(MEASUREMENT_PROFILES)}: the survey's warm-up, iterations, runs and "
        f"numbers of workers, as far as there is room; options that you give count instead.",
        callback=_take_defaults,
        is_eager=True,
    ),
]


@app.command(OWN)
def measure(
    model: Model,
    method: Methods = None,
    plan: KeptPlans = None,
    profile: Profile = None,
    batch: LocalBatch = None,
    workers: Workers = None,
    servers: Annotated[int | None, option("servers")] = DEFAULTS.servers,
    engine: Engines = None,
    baselines: Baselines = True,
    iterations: Iterations = DEFAULTS.iterations,
    warmup: Warmup = DEFAULTS.warmup,
    repeat: Annotated[int, option("repetitions")] = DEFAULTS.repetitions,
    optimizer: Optimizer = "sgd",
    partition: Partition = None,
    credit: Credit = None,
    out: Annotated[
        Path | None, typer.Option(help="Results file (.csv); repeating the command completes it.")
    ] = None,
    launcher: Annotated[str, option("launcher")] = HERE.launcher,
    host: Annotated[str, option("host")] = HERE.host,
    on: Annotated[list[str] | None, option("hosts")] = None,
    network: Annotated[list[str] | None, option("network")] = None,
    scale: Annotated[float, option("scale")] = HERE.scale,
    ranks_per_node: Annotated[int, option("ranks_per_node")] = HERE.ranks_per_node,
    replay: Annotated[
        str | None,
        typer.Option(help="A profile of data/profiles to replay instead of computing."),
    ] = None,
    device: Annotated[str, option("device")] = DEFAULTS.device,
    backend: Annotated[str, option("backend")] = DEFAULTS.backend,
    topology: Annotated[str, option("topology")] = DEFAULTS.topology,
    collective: Annotated[str | None, option("collective")] = DEFAULTS.collective,
    replan: Annotated[int | None, option("replan")] = DEFAULTS.replan,
    becomes: Annotated[list[str] | None, option("becomes")] = None,
    timeout: Timeout = DEFAULTS.timeout_seconds,
    start_timeout: StartTimeout = DEFAULTS.start_timeout_seconds,
    yes: Yes = False,
    csv: Csv = False,
) -> None:
    """Train a model with the methods on real workers, and print what was measured.

    Examples: `ddlnb measure --model small-conv --method MG-WFBP --workers 2` and
    `ddlnb measure --model resnet50 --launcher emulated --network 10GbE --workers 4`.
    """
    require_extra("run", "measuring")
    counts = _counts(workers, profile)
    settings = MeasurementSettings(
        workers=max(counts),
        servers=servers,
        engine=engine or DEFAULTS.engine,
        baselines=baselines,
        local_batch=batch,
        iterations=iterations,
        warmup=warmup,
        repetitions=repeat,
        optimizer=optimizer,
        partition=partition,
        credit=credit,
        device=device,
        backend=backend,
        topology=topology,
        collective=collective,
        replan=replan,
        becomes=becomes or (),
        timeout_seconds=timeout,
        start_timeout_seconds=start_timeout,
        site=LaunchOptions(
            launcher=launcher,
            host=host,
            hosts=tuple(on or ()),
            network=network[0] if network and len(network) == 1 else network,
            scale=scale,
            ranks_per_node=ranks_per_node,
        ),
    )
    if profile and not workers:
        counts, left_out = fitting_workers(counts, settings.site, settings.device)
        if left_out:
            typer.echo(left_out, err=True)
    from ddlnb.engines.measure import expected_seconds, measure_scaling
    from ddlnb.launch.capacity import watched_load
    from ddlnb.workloads.replay import replayed

    task = model if replay is None else replayed(replay, of=model)
    methods = _methods(method, plan)
    if settings.device == "cuda" and "all" in methods:
        _say_left_out(settings)
    seconds = expected_seconds(task, methods, workers=counts, settings=settings, out=out)
    announce(seconds, yes)
    with watched_load() as watch:
        found = measure_scaling(
            task,
            methods,
            workers=counts,
            settings=settings,
            out=out,
            progress=sys.stderr.isatty(),
        )
    if csv:
        typer.echo(found.rows.to_csv(index=False), nl=False)
        return
    print_answer(found)
    if settings.site.launcher in (HERE.launcher, EMULATED):  # else on machines not watched here
        typer.echo(watch.load)
    if out is not None:
        typer.echo(f"Rows in {out}, single runs in {out.with_suffix('.runs.csv')}")


def _methods(named: list[str] | None, plans: list[Path] | None) -> Any:
    """Return what to run: methods by name and kept plans, or all methods where neither is given."""
    if not plans:
        return named or "all"
    from ddlnb.plans.plan_file import method_of, read_plan

    return [*(named or []), *(method_of(read_plan(path)) for path in plans)]


def _say_left_out(settings: MeasurementSettings) -> None:
    """Say which methods "all" does not have on GPUs, and why."""
    from ddlnb.engines.targets import left_out_on_gpus

    if names := left_out_on_gpus(settings):
        typer.echo(
            f"Left out: {', '.join(names)}, whose credit waits for the end of all-reduces, which "
            f"nobody observes on GPUs.",
            err=True,
        )


def _counts(workers: list[int] | None, profile: str | None) -> list[int]:
    """Return the numbers of workers: as given, of the profile, or the default."""
    if workers or profile is None:
        from ddlnb.errors import require_whole

        counts = workers or [DEFAULTS.workers]
        several = len(counts) > 1
        require_whole(
            **{f"workers[{i}]" if several else "workers": n for i, n in enumerate(counts)}
        )
        return counts
    return list(get_measurement_profile(profile).workers)


app.command("profile")(profile_layers)
