"""The survey: its items, the notebooks that reproduce them, and what is checked by running it."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import (
    OWN,
    App,
    Csv,
    Family,
    Yes,
    announce,
    parameters_from,
    print_table,
    refuse_unused,
    require_extra,
    say,
)
from ddlnb.errors import look_up, require_known
from ddlnb.files import BUILD
from ddlnb.survey.notebooks import reproduce_help
from ddlnb.units import counted

if TYPE_CHECKING:
    import pandas as pd


app = App(cls=Family, help="The survey's items: how each is reproduced, and the verdict.")


@app.command(OWN)
def survey(
    item: Annotated[
        str | None, typer.Argument(help="Show all that is known of one, such as A27.")
    ] = None,
    profile: Annotated[str, typer.Option(help="The profile whose last run gives verdicts.")] = (
        "quick"
    ),
    csv: Csv = False,
) -> None:
    """List every checkable item of the survey: how it is reproduced, the verdict and its reason.

    Runs nothing: verdicts are those of the last `ddlnb survey reproduce`, and of tests that were
    run here.

    Examples: `ddlnb survey` and `ddlnb survey A27`.
    """
    from ddlnb.survey.evidence import NOT_REPRODUCED
    from ddlnb.survey.runner import index, last_run

    if item is None:
        table = index(profile).reset_index()
        if csv:
            print_table(table.to_dict("records"), csv, "The survey's items")
            return
        for row in table.itertuples():
            said = f"    {row.verdict}{f' ({row.how})' * bool(row.how)}"
            typer.echo(f"{row.id} ({row.section}): {row.item}")
            typer.echo(said + f": {row.reason}" * bool(row.reason))
        counts = table["verdict"].value_counts()
        typer.echo("; ".join(f"{count} {verdict}" for verdict, count in counts.items()) + ".")
        return
    found = last_run(profile)
    entry = look_up("item", item, found)
    lines = [
        {key: getattr(one, key) for key in ("how", "verdict", "date", "said", "where")}
        for one in entry.evidence
    ] or [{"how": "", "verdict": NOT_REPRODUCED, "date": "", "said": "", "where": ""}]
    section = entry.item.section
    where = f"section {section}" if section[0].isdigit() else section
    print_table(lines, csv, f"{item}, {where}: {entry.item.text}")
    if not csv:
        typer.echo(f"Source: {entry.item.source}.")
    if entry.item.missing and not csv:
        typer.echo(f"Missing: {entry.item.missing}.")


@app.command(epilog=reproduce_help())
def reproduce(
    profile: Annotated[
        str, typer.Option(help="quick, full or paper: a file of notebooks/parameters.")
    ] = "quick",
    jobs: Annotated[int, typer.Option(help="Notebooks at a time that do not take times.")] = 2,
    only: Annotated[
        list[str] | None, typer.Option(help="Only notebooks whose name matches. Repeatable.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Run again what is already there.")] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A parameter of notebooks, as name=value, such as 'options={warmup: 5}'; "
            "repeatable.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="Where ranks of notebooks run, and the engines of those that train: mpi, "
            "slurm:engines=8,device=cuda or ssh:node1,node2,host=10.1.0.5."
        ),
    ] = None,
    build: Annotated[
        Path, typer.Option(help="Folder in which the profile's results have theirs.")
    ] = BUILD,
    yes: Yes = False,
) -> None:
    """Execute the notebooks and build their site: every figure and table, one command.

    Examples: `ddlnb survey reproduce --profile full` and
    `ddlnb survey reproduce --only 'fig4_*'`.
    """
    require_extra("book", "reproducing the survey")
    from ddlnb.survey.launchers import place
    from ddlnb.survey.runner import reproduce as run_all

    elsewhere = {"where": where} if where and place(where) else {}
    site = run_all(
        profile,
        jobs=jobs,
        only=only or "*",
        fresh=fresh,
        progress=True,
        parameters=parameters_from(parameter or []) | elsewhere,
        build=build.absolute(),
        before=partial(announce, yes=yes),
    )
    typer.echo(f"Site: {site}")


@app.command()
def book(
    profile: Annotated[str, typer.Option(help="The profile whose last run is shown.")] = "quick",
    build: Annotated[
        Path, typer.Option(help="Folder in which the profile's results have theirs.")
    ] = BUILD,
) -> None:
    """Build the site of the last run again, without executing a notebook.

    Examples: `ddlnb survey book` and `ddlnb survey book --profile full`.
    """
    require_extra("book", "the site")
    from ddlnb.survey.runner import book as build_book

    typer.echo(f"Site: {build_book(profile, build=build.absolute())}")


@app.command()
def pictures(
    profile: Annotated[str, typer.Option(help="The profile whose last run is taken.")] = "quick",
) -> None:
    """Store the pictures of the last run in the repository's notebooks, small and marked.

    Examples: `ddlnb survey pictures` and `ddlnb survey pictures --profile smoke`.
    """
    require_extra("book", "pictures of notebooks")
    from ddlnb.survey.notebooks import store_pictures
    from ddlnb.survey.runner import last_outcomes

    said = store_pictures(last_outcomes(profile), BUILD / profile, version("ddlnb"))
    rows = [{"notebook": name, "pictures": what} for name, what in said.items()]
    print_table(rows, False, f"Pictures of profile {profile}")


@app.command()
def check(
    table: Annotated[Path, typer.Argument(help="A CSV file with one row per cell.")],
    gpus_per_node: Annotated[
        int, typer.Option(help="Runs with at most this many GPUs do not use the network.")
    ] = 4,
    csv: Csv = False,
) -> None:
    """Look for cells of a throughput table that cannot be right or contradict their neighbours.

    Exits with 1 when cells are suspicious.

    Examples: `ddlnb survey check data/published/fig4.csv` and
    `ddlnb survey check mine.csv --gpus-per-node 8 --csv`.
    """
    from ddlnb.results.rows import read_table
    from ddlnb.survey.checks import SUSPICIOUS, check_table, findings_frame

    rows = read_table(table)
    findings = check_table(rows, gpus_per_node=gpus_per_node)
    suspicious = [finding for finding in findings if finding.severity == SUSPICIOUS]
    if findings or csv:
        frame = findings_frame(findings)
        shown = frame if csv else frame.drop(columns="cells")  # messages name them, too
        print_table(shown.to_dict("records"), csv, f"Findings in {table}")
    if not csv:
        cells = {cell for finding in suspicious for cell in finding.cells}
        typer.echo(f"{counted(len(rows), 'cell')}, {len(cells) or 'none'} of them suspicious.")
    if suspicious:
        raise typer.Exit(1)


@app.command()
def board(
    write: Annotated[
        bool, typer.Option("--write", help="Forecast all sources again, and keep the board.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of forecast, such as 'large models'; repeatable."),
    ] = None,
    csv: Csv = False,
) -> None:
    """Print how far off forecasts of every public source are, beside a trivial forecast.

    The kept board is printed, or made again from the tables of data. Below it stand the constants
    of GPUs that are a judgement.

    Examples: `ddlnb survey board` and `ddlnb survey board --write`.
    """
    from ddlnb.survey import board as boards

    kinds = kind or list(boards.KINDS)
    for one in kinds:
        require_known("kind of forecast", one, boards.KINDS)
    if write:
        found = boards.board(kinds, progress=sys.stderr.isatty())
        boards.write_board(found if kind is None else boards.replaced(boards.read_board(), found))
    rows = boards.read_board()
    rows = rows[rows["kind"].isin(kinds)]
    print_table(rows.to_dict("records") if csv else _shown(rows), csv, "Forecasts by source")
    if not csv:
        say(_notes(boards.constants(), kinds))


def _shown(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "kind": row["kind"],
            "source": row["source"],
            "seen": "no" if row["left_out"] else "yes",
            "rows": row["rows"],
            "median": f"{row['median']:.1%}",
            "in 20 %": f"{row['near']:.0%}",
            "bias": f"{row['bias']:+.1%}",
            "inside": f"{row['inside']:.0%}",
            "trivial": f"{row['trivial']:.1%}",
            "digest": row["digest"][:8],
            "peer": row["peer"],
        }
        for row in rows.to_dict("records")
    ]


def _notes(constants: pd.DataFrame, kinds: list[str]) -> list[str]:
    """Return what a reader of the table must know."""
    from ddlnb.survey.board import ELSEWHERE, KINDS, judgements

    trivial = "; ".join(f"{name}: {KINDS[name].trivial}" for name in kinds)
    counts = constants["kind"].value_counts()
    judged = judgements(constants)
    return [
        "Errors are forecast over measured, less 1: the median of their sizes, the share within "
        "20 %, the median with its sign, and the share of runs within the 90 % interval. A source "
        "is seen if a row of it was fitted.",
        f"Trivial forecasts: {trivial}.",
        f"Peers: errors that they publish of their own forecasts. {ELSEWHERE}.",
        f"Constants of GPUs: {counts['sheet']} from data sheets, {counts['fit']} fitted, "
        f"{counts['judgement']} for {len(judged)} judgements:",
        *(f"- {row.source} ({row.constant})" for row in judged.itertuples()),
    ]


@app.command()
def strategies(
    layout: Annotated[
        list[str] | None,
        typer.Option(help="Only this layout, such as 'dp2 tp2 zero3'; may be given repeatedly."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="The small model of --layout: dense, mixture or scores.")
    ] = "dense",
    rows: Annotated[bool, typer.Option("--rows", help="Print every quantity in a row.")] = False,
    seed: Annotated[int, typer.Option(help="Of parameters and samples.")] = 1,
    csv: Csv = False,
) -> None:
    """Train with every strategy on 4 ranks, and print what was predicted beside what was counted.

    Strategies are data, tensor, sequence, pipeline, context and expert parallelism, ZeRO and
    recomputation, alone and together. Ends with status 1 if anything differs.

    Examples: `ddlnb survey strategies` and `ddlnb survey strategies --layout 'dp2 tp2 zero3'`.
    """
    from ddlnb.parallelism.executed.table import (
        CASES,
        DENSE,
        MIXTURE,
        SCORES,
        Case,
        strategy_rows,
        strategy_table,
    )
    from ddlnb.parallelism.layout import Layout

    models = {"dense": DENSE, "mixture": MIXTURE, "scores": SCORES}
    require_known("model", model, models)
    if not layout:
        refuse_unused(
            "each strategy has its own; give --layout", model=None if model == "dense" else model
        )
    cases = [Case(text, models[model], Layout.parse(text)) for text in layout or ()]
    found = strategy_rows(cases or CASES, seed=seed)
    shown = found if rows or csv else _for_people(strategy_table(found))
    print_table(shown.to_dict("records"), csv, "Strategies, predicted = counted")
    if not found["equal"].all():
        raise typer.Exit(1)


def _for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with predicted and counted in one column, and errors as short texts."""
    shown = table[["strategy", "layout"]].copy()
    for what in ("calls", "bytes"):
        both = zip(table[f"{what} predicted"], table[f"{what} counted"], strict=True)
        shown[what] = [f"{one:,} {'=' if one == other else '!='} {other:,}" for one, other in both]
    shown["memory off by"] = table["memory off by"].map("{:.1%}".format)
    shown["off one worker"] = table["off one worker"].map("{:.0e}".format)
    shown["equal"] = table["equal"].map({True: "yes", False: "NO"})
    return shown
