"""The table of collectives whose times are asked for: the columns of measured ones, without times.

Cells may be empty where the others imply them. What cannot be told from a row is refused, with the
row, its value, the rule and the way out.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.errors import InputError, ResultsError
from ddlnb.results.collectives.rows import COLLECTIVES, COUNTS

if TYPE_CHECKING:
    import pandas as pd

USUAL_GPUS = 8  # of a node, where a row has only its number of ranks or of nodes
STDIN = Path("-")
NEEDED = ("collective", "size_bytes")
_ALIASES = {re.sub("_", "", name): name for name in COLLECTIVES} | {
    "bcast": "broadcast",
    "sendreceive": "sendrecv",
}


def read_questions(path: str | Path) -> pd.DataFrame:
    """Return the table in a CSV file, every cell as its text; "-" is the standard input.

    Raises ResultsError for a file that is no table.
    """
    import pandas as pd

    path = Path(path)
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8-sig")
        lines = [line for line in csv.reader(text.splitlines()) if line]
    except FileNotFoundError as error:
        raise ResultsError(f"there is no table {path}") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultsError(f"{path} cannot be read as a table: {error}") from error
    if not lines:
        raise ResultsError(f"{path} is empty; give a table with {', '.join(NEEDED)}")
    for number, line in enumerate(lines, start=1):
        if len(line) != len(lines[0]):
            raise ResultsError(
                f"{path} line {number} has {len(line)} values, and the first line "
                f"{len(lines[0])}; write as many values as there are columns"
            )
    return pd.DataFrame(lines[1:], columns=[name.strip() for name in lines[0]], dtype=str)


def completed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with numbers as numbers, and with nodes, GPUs per node and ranks in each.

    Names of collectives may be written otherwise ("AllReduce"). Where only one of the three counts
    is there, nodes have eight GPUs; ranks over nodes counts before GPUs per node, some of which
    may idle. Raises InputError that names the row.
    """
    import pandas as pd

    missing = [name for name in NEEDED if name not in table]
    if missing or not any(name in table for name in ("nodes", "ranks")):
        raise InputError(
            f"the table lacks the columns {', '.join(missing or ['nodes'])}; it needs "
            f"{', '.join(NEEDED)} and nodes or ranks"
        )
    rows = [_completed(row, n) for n, row in enumerate(table.to_dict("records"), start=1)]
    return pd.DataFrame(rows, index=table.index)


def _completed(row: dict[str, object], number: int) -> dict[str, object]:
    where = f"row {number} of the table"
    name = _ALIASES.get(re.sub(r"[^a-z]", "", str(row["collective"]).casefold()))
    if name is None:
        raise InputError(
            f"{where} has the collective {row['collective']!r}; write one of "
            f"{', '.join(COLLECTIVES)}"
        )
    size = _number(row, "size_bytes", where)
    if size is None:
        raise InputError(f"{where} has no size_bytes; write the number of bytes of the buffer")
    nodes, each, ranks = (_number(row, count, where, whole=True) for count in COUNTS)
    if nodes is None and ranks is None:
        raise InputError(f"{where} has neither nodes nor ranks; write one of them")
    if nodes is None:
        assert ranks is not None
        nodes = math.ceil(ranks / min(ranks, each or USUAL_GPUS))
    ranks = ranks or nodes * (each or USUAL_GPUS)
    if ranks < 2:
        raise InputError(f"{where} has 1 rank, which exchanges nothing; remove it")
    if ranks % nodes:
        raise InputError(
            f"{where} has {ranks:g} ranks on {nodes:g} nodes; a node needs the same number of "
            "ranks as any other: write such counts"
        )
    counts = {"nodes": int(nodes), "gpus_per_node": int(ranks // nodes), "ranks": int(ranks)}
    return {**row, "collective": name, "size_bytes": size, **counts}


def _number(row: dict[str, object], column: str, where: str, whole: bool = False) -> float | None:
    """Return the positive number in a cell; None if the cell is empty. Raises InputError."""
    text = str(row.get(column, "")).strip()
    if text.casefold() in ("", "nan", "none"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (whole and value % 1):
        kind = "whole number" if whole else "number"
        raise InputError(f"{where} has {column} {text!r}; write a positive {kind}, or leave it out")
    return value
