"""What a study found, in sentences computed from the rows that it judged."""

from __future__ import annotations


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
