"""Advice as the commands `scale` and `advise` print it: layouts, sentences, files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ddlnb.cli.advice_tables import shown_layout_reasons, shown_layouts
from ddlnb.cli.options import print_table

if TYPE_CHECKING:
    from ddlnb.advice.advise import Advice
    from ddlnb.advice.layouts.advise import LayoutAdvice


def print_layout_advice(
    found: LayoutAdvice, csv: Path | None = None, page: Path | None = None
) -> None:
    """Print options and reasons, and what `print_sentences` does."""
    ranking = found.question.ranking
    print_table(
        shown_layouts(found),
        False,
        f"Forecast: {found.question}, {found.question.tokens:,} tokens per step, {len(ranking)} of "
        f"{len(ranking.outlook.cases)} layouts fit; options, the first one is to be taken",
    )
    print_table(shown_layout_reasons(found), False, "The best layout, with one thing changed")
    print_sentences(found, csv, page)


def print_sentences(
    found: Advice | LayoutAdvice, csv: Path | None = None, page: Path | None = None
) -> None:
    """Print the sentences of an advice; write its options and its page where they are to go."""
    from ddlnb.files import write_atomically

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
