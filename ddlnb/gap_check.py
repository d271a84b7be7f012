"""Spectral gaps of the mixing weights 1/(degree+1), computed here and as they were written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlnb.training.synchronisation.graphs import make_graph, spectral_gap

if TYPE_CHECKING:
    import pandas as pd

DERIVED = "[d]"
PAPER = "[d], equals [P] CHOCO Table 2"
IN_PAPER = (4, 16, 36)
# As text, for the digits to which they are given.
STATED = {
    "ring": {4: "0.67", 8: "0.195", 16: "0.051", 32: "0.0128", 36: "0.010", 64: "0.0032"},
    "torus": {4: "0.67", 16: "0.40", 36: "0.20", 64: "0.117"},
    "complete": {4: "1", 16: "1", 36: "1", 64: "1"},
}


def gap_check() -> pd.DataFrame:
    """A row per graph and number of workers: the gap computed, the one stated, and whether alike.

    ``same`` when the computed gap, rounded to the digits that were given, is the one stated.

    >>> bool(gap_check()["same"].all())
    True
    """
    import pandas as pd

    rows = []
    for graph, stated in STATED.items():
        for workers, text in stated.items():
            computed = spectral_gap(make_graph(graph, workers))
            decimals = len(text.partition(".")[2])
            rows.append(
                {
                    "graph": graph,
                    "workers": workers,
                    "computed": computed,
                    "stated": float(text),
                    "same": round(computed, decimals) == float(text),
                    "tag": PAPER if workers in IN_PAPER and graph != "complete" else DERIVED,
                }
            )
    return pd.DataFrame(rows)
