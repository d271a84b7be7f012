"""How far off forecasts of Fig. 4 are on its published cells, beside trivial forecasts.

Those with a date in their name are blind; data/forecasts/fig4.csv is a fit to these cells.

    python -m benchmarks.fig4_score [--cells FILE] [--forecast FILE ...] [--csv FILE]

Errors are relative to what is published, in %: ``mean`` and ``median`` of absolute ones, ``bias``
of signed ones; ``inside`` is the share of cells within the 90 % interval, which trivial forecasts
have not. Regret is the share of the best published throughput that is lost by the method that a
forecast ranks first. Trivial forecasts see the published cells with up to 8 GPUs. Cells on the
wrong interface are those of parameter servers over 100GbE that are as fast as over 10GbE.
"""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from textwrap import fill

import pandas as pd

from benchmarks.command import command
from ddlnb.errors import require
from ddlnb.files import DATA, changed_in, git_said, write_atomically
from ddlnb.plans.methods import SURVEYED
from ddlnb.results.rows import Cell, cells_of
from ddlnb.results.schema import KEY
from ddlnb.survey.checks import SUSPICIOUS, check_table
from ddlnb.survey.fig4_forecast import (
    MORE,
    read_forecast,
    regret_rows,
    score_rows,
    score_table,
    summary_table,
)
from ddlnb.survey.published import FIG4, FIG4_CELLS
from ddlnb.survey.testbed import BATCHES, CLUSTERS
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


def read_published(path: str | Path) -> pd.DataFrame:
    """Return published cells of Fig. 4 with any number of GPUs. Raises ResultsError."""
    return FIG4.read(Path(path))


def missing_cells(published: pd.DataFrame) -> list[Cell]:
    """Return the cells of Fig. 4 that a table lacks which has others with as many GPUs."""
    there = {*cells_of(published)}
    sizes = sorted({cell.gpus for cell in there if cell.gpus > 1})
    whole = product(BATCHES.items(), CLUSTERS, SURVEYED, sizes)
    cells = [Cell(*model, network, method, gpus) for model, network, method, gpus in whole]
    return [cell for cell in cells if cell not in there]


def regret_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by size and forecast the mean and largest regret in %, and how often it is nothing.

    Suspicious cells are left out.
    """
    found = regret_rows(rows[~rows["suspicious"]])
    table = found.assign(percent=100 * found["regret"], best=found["regret"] == 0)
    return table.groupby(["size", "forecast"], observed=True).agg(
        questions=("percent", "size"),
        mean=("percent", "mean"),
        max=("percent", "max"),
        best_advised=("best", "sum"),
    )


def worst_cells(rows: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """Return the rows with the largest absolute errors, the largest first, errors in %."""
    order = rows["relative_error"].abs().sort_values(ascending=False, kind="stable").index
    worst = rows.loc[order[:count]].assign(error=100 * rows["relative_error"])
    columns = ["published", "predicted", "low", "high", "error", "suspicious"]
    return worst[["model", "network", "method", "gpus", *columns]]


def file_table(paths: Iterable[Path]) -> pd.DataFrame:
    """Return the digest of every file, and the commit that last changed it, with its date.

    A forecast is blind if that date is before the cells were opened. The commit is empty where git
    knows none, and ends in ``+`` if the file differs from it.
    """
    rows = [(str(path), sha256(path.read_bytes()).hexdigest(), last_commit(path)) for path in paths]
    return pd.DataFrame(rows, columns=["file", "sha256", "commit"])


def last_commit(path: Path) -> str:
    """Return the short commit that last changed a file, and its date; empty if git knows none.

    After the commit stands ``+`` if the file differs from it.
    """
    folder, name = path.resolve().parent, path.resolve().name
    with suppress(OSError, subprocess.SubprocessError):
        found = git_said(folder, "log", "-1", "--format=%h %cI", "--", name)
        return found and found.replace(" ", f"{changed_in(folder, name)} ")
    return ""


if __name__ == "__main__":
    command(main)
