"""What a study found, as text that is computed from the rows that it judged."""

from __future__ import annotations

import pandas as pd


class Findings(str):
    """Markdown text whose numbers come from rows; a notebook cell shows it formatted."""

    def _repr_markdown_(self) -> str:
        return str(self)


def findings(*sentences: str) -> Findings:
    """Return the sentences as a list with a bullet each; empty ones are left out.

    >>> print(findings("One holds.", "", "Two are undecided."))
    - One holds.
    - Two are undecided.
    """
    return Findings("\n".join(f"- {sentence}" for sentence in sentences if sentence))


def with_half_widths(table: pd.DataFrame, measure: str) -> list[str]:
    """Return the texts of a measure whose half widths stand in a column beside it.

    >>> with_half_widths(pd.DataFrame({"loss": [0.5], "loss_half_width": [0.02]}), "loss")
    ['0.5000 ± 0.0200']
    """
    pairs = zip(table[measure], table[f"{measure}_half_width"], strict=True)
    return [f"{mean:.4f} ± {half:.4f}" for mean, half in pairs]
