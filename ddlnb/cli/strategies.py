"""The command that carries out ways to split a model on real ranks, and prints what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Csv, print_table, refuse_unused

if TYPE_CHECKING:
    import pandas as pd


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(strategies)


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
    """
    from ddlnb.errors import UnknownName
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
    if model not in models:
        raise UnknownName("model", model, models)
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
