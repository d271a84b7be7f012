"""Advice on how to split a large model, as the commands `scale` and `advise` print it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ddlnb.cli.advice_tables import shown_layout_reasons, shown_layouts
from ddlnb.cli.options import print_table

if TYPE_CHECKING:
    from ddlnb.advice.layouts.advise import LayoutAdvice


def print_layout_advice(
    found: LayoutAdvice, csv: Path | None = None, page: Path | None = None
) -> None:
    """Print options, reasons and sentences; write the options and the page where they are to go."""
    from ddlnb.files import write_atomically

    ranking = found.question.ranking
    print_table(
        shown_layouts(found),
        False,
        f"Forecast: {found.question}, {found.question.tokens:,} tokens per step, {len(ranking)} of "
        f"{len(ranking.outlook.cases)} layouts fit; options, the first one is to be taken",
    )
    print_table(shown_layout_reasons(found), False, "The best layout, with one thing changed")
    for said in found.sentences:
        typer.echo(said)
    for said in found.unknowns:
        typer.echo(f"Not known: {said}")
    if csv is not None:
        write_atomically(csv, found.options.to_csv(index=False))
        typer.echo(f"Options in {csv}")
    if page is not None:
        from ddlnb.cli.advice_page import advice_page

        write_atomically(page, advice_page(found))
        typer.echo(f"Page: {page}")
