"""How far off forecasts of Fig. 4 are on its published cells, beside trivial forecasts.

Those with a date in their name are blind; data/forecasts/fig4.csv is a fit to these cells.

    python -m benchmarks.fig4_score [--cells FILE] [--forecast FILE ...] [--csv FILE]

Errors are relative to what is published, in %: ``mean`` and ``median`` of absolute ones, ``bias``
of signed ones; ``inside`` is the share of cells within the 90 % interval, which trivial forecasts
have not. Regret is the share of the best published throughput that is lost by the method that a
forecast ranks first. Trivial forecasts see the published cells with up to 8 GPUs. Cells on the
wrong interface are those of parameter servers over 100GbE that are as fast as over 10GbE.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill

import pandas as pd

from benchmarks.command import command
from ddlnb.errors import require
from ddlnb.files import DATA, write_atomically
from ddlnb.results.schema import KEY
from ddlnb.survey.checks import SUSPICIOUS, check_table
from ddlnb.survey.published import FIG4_CELLS
from ddlnb.survey.score import (
    MORE,
    file_table,
    missing_cells,
    read_forecast,
    read_published,
    regret_table,
    score_rows,
    score_table,
    summary_table,
    worst_cells,
)
from ddlnb.units import counted

FORECASTS = tuple(sorted((DATA / "forecasts").glob("fig4*.csv")))
WIDTH = 100  # columns of a terminal
BY = ("method", "network", "model", "gpus")


def main(
    *,
    cells: Path = FIG4_CELLS,
    forecast: Sequence[Path] = FORECASTS,
    csv: Path | None = None,
) -> None:
    """Print the score of every forecast on the published --cells; --csv writes the scored rows."""
    published = read_published(cells)
    forecasts = {path.name: read_forecast(path) for path in forecast}
    require(len(forecasts) == len(forecast), "several forecasts have one name; rename a file")
    rows = score_rows(published, forecasts)
    if csv is not None:
        write_atomically(csv, rows.to_csv(index=False, float_format="%.6g"))
    for block in report(published, rows, [cells, *forecast]):
        print(block, end="\n\n")


def report(published: pd.DataFrame, rows: pd.DataFrame, files: Sequence[Path]) -> Iterator[str]:
    """Yield the blocks of text that are printed: files, cells, tables of scores, and reasons."""
    for file in file_table(files).itertuples():
        yield f"{file.file}\n  sha256 {file.sha256}\n  last changed in {file.commit or 'no commit'}"
    yield about_cells(published, rows)
    tested = rows[rows["size"] == MORE]
    of, tested = (f"cells with {MORE} GPUs", tested) if len(tested) else ("all cells", rows)
    yield table(f"Errors and regret in % of {of}, by what is left out", summary_table(tested))
    yield table("Errors in %, by number of GPUs", score_table(rows, "size"))
    yield table("Regret in %, suspicious cells left out", regret_table(rows))
    for by in BY:
        yield table(f"Errors in % of {of}, by {by}", score_table(tested, by))
    for name, part in tested[tested["low"].notna()].groupby("forecast", observed=True):
        yield table(f"The worst of {of} by {name}, error in %", worst_cells(part), index=False)
    found = [one for one in check_table(published) if one.severity == SUSPICIOUS]
    reasons = (wrapped(f"{one.rule}: {one.message}", "- ") for one in found)
    yield "\n".join(["Why cells are suspicious", *(reasons if found else ["None is."])])


def about_cells(published: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Return how many cells are judged and suspicious, and which of their sizes are missing."""
    sizes = published.loc[published["gpus"] > 1, "gpus"].value_counts().sort_index()
    each = ", ".join(f"{n} with {counted(gpus, 'GPU')}" for gpus, n in sizes.items())
    suspicious = rows.drop_duplicates([*KEY])["suspicious"].sum()
    missing = "; ".join(map(str, missing_cells(published))) or "none"
    return wrapped(
        f"{counted(sizes.sum(), 'published cell')}: {each}; {suspicious} of them are suspicious, "
        f"as said at the end. Missing of these sizes: {missing}."
    )


def wrapped(text: str, bullet: str = "") -> str:
    hanging = " " * len(bullet)
    return fill(
        text, WIDTH, initial_indent=bullet, subsequent_indent=hanging, break_on_hyphens=False
    )


def table(title: str, frame: pd.DataFrame, **how: bool) -> str:
    return f"{title}\n{frame.to_string(float_format='%.1f', na_rep='', **how)}"


if __name__ == "__main__":
    command(main)
