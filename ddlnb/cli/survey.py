"""The command that lists the survey's items: where each is reproduced, how, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddlnb.cli.options import Csv, print_table
from ddlnb.errors import UnknownName
from ddlnb.files import BUILD

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.survey.evidence import Entry


def survey(profile: str = "quick") -> pd.DataFrame:
    """Return the index of the survey: a row per checkable item, indexed by its number.

    The columns are texts: the ``section``, the ``item`` in our words, ``how`` it is reproduced,
    its ``verdict``, ``where`` (notebooks and tests), what is ``missing``, and its ``source``:
    stated in the survey, read in a primary paper, derived, or known. Items A are of the survey
    itself, C and D of those of layers (arXiv 2403.07585) and large scale (2404.06114). Verdicts are
    those of the last `reproduce` of the profile and of tests that were run here; without a run they
    are "not run", or "by a test, not run here".
    Raises UnknownName for an unknown profile.

    >>> import ddlnb
    >>> from ddlnb.cli.survey import survey
    >>> index = survey()
    >>> index.loc["A16", ["section", "how"]].to_list()
    ['1-2', 'computed']
    """
    import pandas as pd

    rows = [
        {
            "id": key,
            "section": entry.item.section,
            "how": entry.how,
            "verdict": entry.verdict,
            "item": entry.item.text,
            "where": "; ".join(dict.fromkeys(one.where for one in entry.evidence)),
            "missing": entry.item.missing,
            "source": entry.item.source,
        }
        for key, entry in _last_run(profile).items()
    ]
    return pd.DataFrame(rows).set_index("id")


def _last_run(profile: str) -> dict[str, Entry]:
    from ddlnb.survey.evidence import entries
    from ddlnb.survey.runner import last_outcomes

    return entries(last_outcomes(profile), BUILD / profile)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("survey")(command)


def command(
    item: Annotated[
        str | None, typer.Argument(help="Show all that is known of one, such as A27.")
    ] = None,
    profile: Annotated[str, typer.Option(help="The profile whose last run gives verdicts.")] = (
        "quick"
    ),
    csv: Csv = False,
) -> None:
    """List every checkable item of the survey: how it is reproduced, and the verdict.

    Runs nothing: verdicts are those of the last `ddlnb reproduce`, and of tests that were run here.
    """
    from ddlnb.survey.evidence import NOT_REPRODUCED

    if item is None:
        table = survey(profile)
        if not csv:
            table = table.drop(columns=["where", "missing", "source"])
        rows = table.reset_index().to_dict("records")
        print_table(
            [{str(k): v for k, v in row.items()} for row in rows], csv, "The survey's items"
        )
        return
    found = _last_run(profile)
    if item not in found:
        raise UnknownName("item", item, found)
    entry = found[item]
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
