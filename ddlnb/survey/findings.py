"""What a study found, as text that is computed from the rows that it judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pandas as pd

from ddlnb.results.statistics import Verdict
from ddlnb.survey.items import ItemVerdict

ITEMS_TYPE = "application/vnd.ddlnb.items+json"  # of a cell's output: verdicts for the report


class Findings(str):
    """Markdown text whose numbers come from rows; a notebook cell shows it formatted.

    ``items`` are verdicts on items of the survey. They travel in the cell's output, unseen, to the
    report's index of the survey.
    """

    items: tuple[ItemVerdict, ...] = ()

    def _repr_markdown_(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return {ITEMS_TYPE: [asdict(verdict) for verdict in self.items]} if self.items else {}


def findings(*sentences: str, items: Iterable[ItemVerdict] = ()) -> Findings:
    """Return the sentences as a list with a bullet each; empty ones are left out.

    ``items`` are what the rows say of items of the survey.

    >>> print(findings("One holds.", "", "Two are undecided."))
    - One holds.
    - Two are undecided.
    """
    found = Findings("\n".join(f"- {sentence}" for sentence in sentences if sentence))
    found.items = tuple(items)
    return found


def item_verdict(item: str, verdicts: Iterable[Verdict], how: str, said: str = "") -> ItemVerdict:
    """Return one verdict on an item of several parts: it holds only if each of them does.

    >>> item_verdict("A21", [Verdict.HOLDS, Verdict.UNDECIDED], "measured").verdict
    <Verdict.UNDECIDED: 'undecided'>
    """
    found = set(verdicts)
    worst = next((one for one in (Verdict.CONTRADICTED, Verdict.UNDECIDED) if one in found), None)
    return ItemVerdict(item, worst or (Verdict.HOLDS if found else None), how, said)


def with_half_widths(table: pd.DataFrame, measure: str) -> list[str]:
    """Return the texts of a measure whose half widths stand in a column beside it.

    >>> with_half_widths(pd.DataFrame({"loss": [0.5], "loss_half_width": [0.02]}), "loss")
    ['0.5000 ± 0.0200']
    """
    pairs = zip(table[measure], table[f"{measure}_half_width"], strict=True)
    return [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs]
