"""The command line. Every command has a Python call of the same name and meaning."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ddlnb.cli import (
    advise,
    calibrate,
    check,
    clusters,
    collectives,
    forecast,
    goodput,
    hardware,
    import_logs,
    iteration,
    lossy,
    measure,
    models,
    networks,
    scale,
    scaling,
    strategies,
    survey,
    timeline,
    trace,
    train,
    unlike,
)
from ddlnb.cli import (
    plan as methods,
)
from ddlnb.cli.options import Csv, Yes, announce, parameters_from, print_table
from ddlnb.cli.run import run
from ddlnb.errors import require, require_extra
from ddlnb.files import BUILD
from ddlnb.survey.times import command_help, reproduce_help

app = typer.Typer(
    name="ddlnb",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    *(models, methods, clusters, forecast, timeline, scaling, advise, calibrate, check),
    *(lossy, train, measure, survey, import_logs, trace, collectives, networks, hardware),
    *(scale, goodput, strategies, iteration, unlike),
)
for commands in COMMANDS:
    commands.add_to(app)

for registered in app.registered_commands:  # and those below, which take minutes by kept times
    assert registered.callback is not None
    registered.epilog = command_help(registered.callback.__name__)


@app.callback(invoke_without_command=True)
def ddlnb(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    extensions: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE.py",
            help="Run this file first: what it registers has a name here, too. Repeatable.",
        ),
    ] = None,
) -> None:
    """How far will training scale on a cluster, and which communication method gets it there?"""
    for file in extensions or []:
        from ddlnb.workloads.resolve import run_file

        require(
            file.suffix == ".py" and file.is_file(),
            f"--with {str(file)!r} is no Python file; give one that registers methods or "
            f"compressors, such as mine.py (docs/own_method.md)",
        )
        run_file(file)
    if version:
        typer.echo(f"ddlnb {metadata.version('ddlnb')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> NoReturn:
    """Run the command line; see `ddlnb.cli.run` for how it ends."""
    run(app, "ddlnb")


@app.command(epilog=reproduce_help())
def reproduce(
    profile: Annotated[
        str, typer.Option(help="quick, full or paper: a file of notebooks/parameters.")
    ] = "quick",
    jobs: Annotated[int, typer.Option(help="Notebooks at a time that do not take times.")] = 2,
    only: Annotated[str, typer.Option(help="Only notebooks whose name matches.")] = "*",
    fresh: Annotated[bool, typer.Option(help="Run again what is already there.")] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A parameter of notebooks, as name=value, such as 'options={launcher: mpi}'; "
            "repeatable.",
        ),
    ] = None,
    build: Annotated[
        Path, typer.Option(help="Folder in which the profile's results have theirs.")
    ] = BUILD,
    yes: Yes = False,
) -> None:
    """Execute the notebooks and write the report: every figure and table, one command."""
    require_extra("book", "reproducing the survey")
    from ddlnb.survey.runner import reproduce as run_all

    report = run_all(
        profile,
        jobs=jobs,
        only=only,
        fresh=fresh,
        progress=True,
        parameters=parameters_from(parameter or []),
        build=build.absolute(),
        before=partial(announce, yes=yes),
    )
    typer.echo(f"Report: {report}")


@app.command()
def doctor(
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Remove what crashed sessions left; living ones stay."),
    ] = False,
    csv: Csv = False,
) -> None:
    """Say what this machine can run, and how to fix what it cannot. Fails if a need is unmet."""
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
            "fix": "" if finding.found else finding.fix,
        }
        for finding in findings
    ]
    print_table(rows, csv, "This machine")
    if any(finding.needed and not finding.found for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    main()
