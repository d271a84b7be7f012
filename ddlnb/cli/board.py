"""The command that prints how far off forecasts of every public source are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlnb.cli.options import Csv, print_table, say
from ddlnb.errors import require_known

if TYPE_CHECKING:
    import pandas as pd


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
