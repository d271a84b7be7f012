"""The board: every public source, how far off its forecasts are, and what a forecast must beat.

A row is a source and a kind of forecast. Each kind is an entry of `KINDS`: a function that returns
tidy rows (source, run, measured, forecast, low, high, trivial, left_out) and the name of the
trivial forecast that stands beside ours. The digest is the SHA-256 of what was forecast, without
anything that was measured: who keeps it before a table is opened can show later that nothing was
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from io import StringIO
from pathlib import Path

import pandas as pd

from ddlnb.errors import require_known
from ddlnb.files import DATA, write_atomically
from ddlnb.progress import Show, bar
from ddlnb.reading import read_text, yaml_of
from ddlnb.survey.items import Rows, tabled

KEPT = DATA / "forecasts" / "board.csv"
NEAR = 0.2
WORSE = 1.1  # a median error so many times the kept one is worse
ROUNDED = 0.001  # of a median error: less is nothing
KEY = ["kind", "source"]
QUESTION = ["run", "forecast", "low", "high"]  # what a digest is of
# What peers publish of their own forecasts, of the rows of a source or of rows like them.
PEERS = {
    "vtrain": "vTrain: 8.4 % on one node, 14.7 % on several",
    "SimuMax": "SimuMax: -13.5 to +0.1 %",
}
ELSEWHERE = "Charon: 5.4 %, on runs that are not here"
SHEET, FIT, JUDGEMENT = "sheet", "fit", "judgement"
CONSTANTS = ("generations", "nodes", "roofline")  # files of data/hardware beside the sheets
WORDS = {
    JUDGEMENT: ("assumed", "a judgement"),
    FIT: ("data/", "runs on", "ml-engineering", "measured"),
}


@dataclass(frozen=True)
class Kind:
    """A kind of forecast: ``rows`` makes them, ``quick`` in a few seconds.

    ``pooled``: the rows of all sources together are scored, too, as those of the source `EVERY`.
    """

    name: str
    trivial: str
    rows: Callable[[], pd.DataFrame]
    quick: bool = False
    pooled: bool = False


def _large_models() -> pd.DataFrame:
    from ddlnb.parallelism.forecast.validation import open_forecasts

    return open_forecasts()


def _data_parallel() -> pd.DataFrame:
    from ddlnb.calibration.data_parallel import forecasts

    rows = forecasts(draws=DRAWS)
    rows = rows[rows["limited"] == ""]
    return rows.assign(source=rows["source"] + ", " + rows["kind"], left_out=False)


def _collectives() -> pd.DataFrame:
    from ddlnb.calibration.collective_scores import collective_scores

    return collective_scores(by="source", draws=DRAWS)


def _compressors() -> pd.DataFrame:
    from ddlnb.training.cost.published import forecasts

    return forecasts()


def _testbed() -> pd.DataFrame:
    rows = pd.read_csv(DATA / "forecasts" / "by_name.csv").dropna()
    names = ["model", "network", "method"]
    return pd.DataFrame(
        {
            "source": "the survey's Fig. 4, by name",
            "run": rows[names].agg(", ".join, axis=1) + ", " + rows["gpus"].astype(str) + " GPUs",
            "measured": rows["throughput_samples_per_s_published"],
            "forecast": rows["throughput_samples_per_s"],
            "low": rows["low"],
            "high": rows["high"],
            "trivial": rows["linear"],
            "left_out": False,
        }
    )


EVERY = "all of them"
DRAWS = 40  # enough for an interval
KINDS = {
    kind.name: kind
    for kind in (
        Kind("large models", "the median MFU of the other sources", _large_models, pooled=True),
        Kind("data parallel", "linear scaling; the usual share of a sheet", _data_parallel),
        Kind("testbed", "linear scaling", _testbed, quick=True),
        Kind("collectives", "bytes over the sheet's bandwidth", _collectives),
        Kind("compressors", "the dense rate", _compressors),
    )
}


def board(kinds: Iterable[str] = tuple(KINDS), *, progress: Show = None) -> pd.DataFrame:
    """Return a row per kind and source, made again from the files of data: errors and digest.

    Columns: kind, source, left_out (whether no row of the source was fitted), rows; median, near
    (the share within 20 %), bias (the median of signed errors) and inside (the share within the
    90 % interval) of ours; trivial and trivial_near of the trivial forecast; peer, digest. Errors
    are forecast over measured, less 1. Raises UnknownName for a kind that there is not.
    """
    tables = []
    for name in bar(list(kinds), "forecasting", progress=progress):
        require_known("kind of forecast", name, KINDS)
        rows = KINDS[name].rows()
        scored = source_rows(rows)
        if KINDS[name].pooled:
            scored.loc[len(scored)] = _scored(EVERY, rows)
        scored.insert(0, "kind", name)
        tables.append(scored)
    return pd.concat(tables, ignore_index=True)


def source_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of tidy rows by source."""
    return pd.DataFrame([_scored(str(name), part) for name, part in rows.groupby("source")])


def _scored(source: str, rows: pd.DataFrame) -> dict[str, object]:
    off, trivial = (rows[name] / rows["measured"] - 1 for name in ("forecast", "trivial"))
    inside = rows["measured"].between(rows["low"], rows["high"])
    return {
        "source": source,
        "left_out": bool(rows["left_out"].astype(bool).all()),
        "rows": len(rows),
        "median": off.abs().median(),
        "near": (off.abs() <= NEAR).mean(),
        "bias": off.median(),
        "inside": inside.mean(),
        "trivial": trivial.abs().median(),
        "trivial_near": (trivial.abs() <= NEAR).mean(),
        "peer": PEERS.get(source, ""),
        "digest": digest(rows),
    }


def digest(rows: pd.DataFrame) -> str:
    """Return the SHA-256 of what was forecast: runs, values and intervals, in four digits."""
    text = rows[QUESTION].to_csv(index=False, float_format="%.4g")
    return sha256(text.encode()).hexdigest()


def write_board(rows: pd.DataFrame, path: Path = KEPT) -> None:
    """Keep a board."""
    write_atomically(path, rows.to_csv(index=False, float_format="%.4g"))


def read_board(path: Path = KEPT) -> pd.DataFrame:
    """Return the kept board."""
    return pd.read_csv(StringIO(read_text(path)), keep_default_na=False)


def replaced(kept: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the kept board with the kinds of another one in the place of its own."""
    both = pd.concat([kept[~kept["kind"].isin(found["kind"])], found])
    return both.sort_values("kind", key=lambda kind: kind.map(list(KINDS).index), kind="stable")


def worse(found: pd.DataFrame, kept: pd.DataFrame) -> list[str]:
    """Return a line for every source that is gone, or worse than the kept one by over a tenth."""
    both = kept[kept["kind"].isin(found["kind"])].merge(
        found, on=KEY, how="left", suffixes=("_kept", "")
    )
    most = WORSE * both["median_kept"] + ROUNDED
    return [
        f"{row.kind}, {row.source}: {row.median:.1%}, kept {row.median_kept:.1%}"
        for row in both[~(both["median"] <= most)].itertuples()
    ]


@tabled("constant", "source", "kind")
def constants(folder: Path = DATA / "hardware") -> Rows:
    """Return the constants of GPUs with where they are from: kind (see `kind_of_source`), source.

    Data sheets count a row per GPU and number.
    """
    for path in sorted((folder / "gpus").glob("*.yaml")):
        for gpu, entry in yaml_of(read_text(path), path).items():
            numbers = [name for name, value in entry.items() if not isinstance(value, str | list)]
            of_one = entry.get("sources", {})
            yield from (
                (f"{gpu} {name}", of_one.get(name, entry["source"]), SHEET)
                for name in numbers
                if name not in ("sources", "year")
            )
    for name in CONSTANTS:
        path = folder / f"{name}.yaml"
        tree = yaml_of(read_text(path), path)
        yield from ((where, words, kind_of_source(words)) for where, words in _sources(tree, name))


def _sources(tree: object, where: str) -> list[tuple[str, str]]:
    if not isinstance(tree, dict):
        return []
    words = tree.get("from", tree.get("source"))
    if isinstance(words, str):
        return [(where, words)]
    return [pair for name, part in tree.items() for pair in _sources(part, f"{where}, {name}")]


def kind_of_source(words: str) -> str:
    """Return whether a constant is from a data sheet, fitted to measurements, or a judgement.

    >>> kind_of_source("assumed: as on AWS p5"), kind_of_source("25 runs on H100-SXM")
    ('judgement', 'fit')
    """
    for kind, signs in WORDS.items():
        if any(sign in words for sign in signs):
            return kind
    return SHEET


def judgements(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the judgements among constants; those with one reason count once."""
    judged = rows[rows["kind"] == JUDGEMENT]
    return judged.groupby("source", sort=False)["constant"].agg("; ".join).reset_index()
