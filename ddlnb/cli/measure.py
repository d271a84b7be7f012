"""The command that trains with lossless methods on real workers and prints the throughput."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.models import profile as profile_layers
from ddlnb.cli.options import (
    OWN,
    App,
    Csv,
    Family,
    Model,
    Yes,
    announce,
    grouped,
    numbers,
    print_answer,
    require_extra,
)
from ddlnb.engines.settings import (
    DEFAULTS,
    MEASUREMENT_PROFILES,
    MeasurementSettings,
    get_measurement_profile,
)
from ddlnb.errors import PlanError, require_whole
from ddlnb.launch.capacity import fitting_workers, watched_load
from ddlnb.launch.options import EMULATED, HERE, LaunchOptions
from ddlnb.plans.methods import get_method, require_served
from ddlnb.plans.plan_file import fitted, method_of, read_plan
from ddlnb.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlnb.workloads.task import Task

app = App(cls=Family)
START_SECONDS = 8.0  # until ranks are up and have loaded torch
RUN_SECONDS = 1.5  # of every run, before its first iteration and after its last


@app.command(OWN)
@grouped
def measure(
    *,
    model: Model,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, or 'all'; repeatable.")
    ] = None,
    plan: Annotated[
        list[Path] | None,
        typer.Option(help="A plan of `ddlnb plan --out` to run as it is; repeatable."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(MEASUREMENT_PROFILES)}: the survey's warm-up, iterations, runs and "
            f"numbers of workers, as far as there is room; options that you give count instead."
        ),
    ] = None,
    workers: Annotated[
        list[int] | None,
        numbers(f"Worker processes. Several are measured in turn. Default: {DEFAULTS.workers}."),
    ] = None,
    asked: Annotated[dict[str, Any], MeasurementSettings],
    site: Annotated[dict[str, Any], LaunchOptions],
    replay: Annotated[
        str | None,
        typer.Option(help="A profile of data/profiles to replay instead of computing."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results file (.csv); repeating the command completes it.")
    ] = None,
    yes: Yes = False,
    csv: Csv = False,
) -> None:
    """Train a model with the methods on real workers, and print what was measured.

    Examples: `ddlnb measure --model small-conv --method MG-WFBP --workers 2` and
    `ddlnb measure --model resnet50 --launcher emulated --network 10GbE --workers 4`.
    """
    require_extra("run", "measuring")
    counts = _counts(workers, profile)
    if len(site.get("network", ())) == 1:
        (site["network"],) = site["network"]
    if profile is not None:
        asked = get_measurement_profile(profile).options | asked
    settings = MeasurementSettings(workers=max(counts), site=LaunchOptions(**site), **asked)
    if profile and not workers:
        counts, left_out = fitting_workers(counts, settings.site, settings.device)
        if left_out:
            typer.echo(left_out, err=True)
    from ddlnb.engines.measure import measure_scaling
    from ddlnb.workloads.replay import replayed

    task = model if replay is None else replayed(replay, of=model)
    methods = _methods(method, plan, task, settings)
    if settings.device == "cuda" and "all" in methods:
        _say_left_out(settings)
    seconds = expected_seconds(task, methods, workers=counts, settings=settings, out=out)
    announce(seconds, yes)
    before = _runs(out)
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
    if before and _runs(out) == before:
        typer.echo(f"Nothing was measured: {out} has every run already.")
    elif settings.site.launcher in (HERE.launcher, EMULATED):  # else on machines not watched here
        typer.echo(watch.load)
    if out is not None:
        typer.echo(f"Rows in {out}, single runs in {out.with_suffix('.runs.csv')}")


def expected_seconds(
    model: str | Task,
    methods: Any,
    *,
    workers: int | Sequence[int],
    settings: MeasurementSettings,
    out: str | Path | None = None,
) -> float | None:
    """Return about how long `measure_scaling` takes here for what is not in ``out`` yet.

    It is said by kept times: a worker computes as long as the profile of its model and batch that
    is kept in data/profiles, all share the cores of this machine, and every link of an emulated
    network carries all gradients twice. None where no time is kept, or nothing runs here.
    """
    from ddlnb.engines.targets import cells_of, missing_runs, targets_of
    from ddlnb.files import PROFILES, cores
    from ddlnb.launch.options import is_here
    from ddlnb.registry import several
    from ddlnb.results.rows import ResultsFile
    from ddlnb.workloads.resolve import get_task
    from ddlnb.workloads.workload import read_profile

    task, site = get_task(model), settings.site
    name = f"{task.name}_b{settings.batch_of(task)}_cpu-1thread"
    on_cores = settings.device == "cpu" and is_here(site.launcher, "")
    if not on_cores or not (task.recorded or (PROFILES / f"{name}.json").is_file()):
        return None
    kept = task.recorded or read_profile(name)
    done, total = ResultsFile(out if out is not None and Path(out).exists() else None), 0.0
    for count in several(workers):
        at_count = settings.changed(workers=count)
        seconds = kept.compute_seconds * (max(1, count / cores()) if site.scale == 1 else 1)
        if site.is_emulated:
            slowest = min(wire.link.bandwidth for wire in site.topology(count).wires)
            seconds += 2 * kept.gradient_bytes / slowest
        cells = cells_of(task, targets_of(methods, at_count), at_count)
        runs = len(missing_runs(cells, settings.repetitions, done))
        iterations = (settings.warmup + settings.iterations) / site.scale
        total += runs * (RUN_SECONDS + iterations * seconds)
    return START_SECONDS + total if total else 0.0


def _runs(out: Path | None) -> str:
    """Return the single runs that a results file has, nothing if there is none."""
    runs = None if out is None else out.with_suffix(".runs.csv")
    return read_text(runs) if runs is not None and runs.exists() else ""


def _methods(
    named: list[str] | None,
    plans: list[Path] | None,
    model: str | Task,
    settings: MeasurementSettings,
) -> Any:
    """Return what to run: methods by name and kept plans, or all methods where neither is given.

    Raises InputError, before anything starts, for servers that none of it uses and for a plan of
    another model's gradients.
    """
    from ddlnb.engines.targets import targets_of

    kept = {path: read_plan(path) for path in plans or ()}
    methods: Any = [*(named or []), *map(method_of, kept.values())] or "all"
    if not any(one.uses_servers for one in targets_of(methods, settings)):
        require_served(map(get_method, methods), settings.servers)
    if kept:
        from ddlnb.workloads.resolve import get_task
        from ddlnb.workloads.tracing import trace

        task = get_task(model)
        workload = task.recorded or trace(task, settings.batch_of(task))
        for path, one in kept.items():
            try:
                fitted(one, workload)
            except PlanError as error:
                raise PlanError(f"{str(path)!r}: {error}") from None
    return methods


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
        counts = workers or [DEFAULTS.workers]
        several = len(counts) > 1
        require_whole(
            **{f"workers[{i}]" if several else "workers": n for i, n in enumerate(counts)}
        )
        return counts
    return list(get_measurement_profile(profile).workers)


app.command("profile")(profile_layers)
