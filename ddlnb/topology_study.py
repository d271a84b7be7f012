"""Section 3.2 on emulated links: ring, tree, recursive doubling and mesh beside their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddlnb.engines.transports.algorithms import ALGORITHMS, time_all_reduces
from ddlnb.errors import require_whole
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import (
    AlphaBeta,
    doubling_all_reduce,
    fit_alpha_beta,
    mesh_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from ddlnb.provenance import machine
from ddlnb.units import KIB, MS

if TYPE_CHECKING:
    import pandas as pd

FORMULAS: dict[str, Callable[[AlphaBeta, int], AlphaBeta]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "recursive doubling": doubling_all_reduce,
    "direct mesh": mesh_all_reduce,
}
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
COLUMNS = ["algorithm", "workers", "bytes", "repetition", "seconds", "network", "machine", "source"]
# Their start-ups follow one another. Those of a mesh overlap as far as the senders' cores allow:
# they count as 2 at best, the number in the formula, and as 2 (n-1) at worst.
FITTED = ("ring", "tree", "recursive doubling")
ONE = AlphaBeta(1.0, 1.0)  # a formula of it counts start-ups and messages' worth of bytes


def measure_topologies(
    ranks: Ranks | None, sizes: Sequence[int] = SIZES, *, repetitions: int = 5
) -> pd.DataFrame:
    """Seconds of all-reduces among all ranks, the slowest rank's: one row per repetition.

    Without ranks the table is empty.
    """
    import pandas as pd

    require_whole(repetitions=repetitions, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    if ranks is None:
        return pd.DataFrame(columns=COLUMNS)
    found = ranks.run(time_all_reduces, list(ALGORITHMS), tuple(sizes), repetitions)
    rows = [
        {
            "algorithm": name,
            "workers": ranks.count,
            "bytes": size,
            "repetition": repetition,
            "seconds": max(rank[name, size, repetition] for rank in found),
        }
        for name, size, repetition in found[0]
    ]
    told = {"network": ranks.network_name, "machine": machine(), "source": ranks.source}
    return pd.DataFrame(rows).assign(**told)


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Median, least and most seconds by algorithm, workers and bytes."""
    keys = ["algorithm", "workers", "bytes"]
    return rows.groupby(keys, sort=False)["seconds"].agg(["median", "min", "max"]).reset_index()


def fit_link(rows: pd.DataFrame) -> AlphaBeta | None:
    """The one a and b with which the formulas of `FITTED` together fit best.

    Least squared relative error over the medians; None if nothing was measured. That one pair has
    to do for all of them is what puts the formulas to the test.
    """
    import numpy as np
    from scipy.optimize import nnls

    if rows.empty:
        return None
    points = medians(rows[rows["algorithm"].isin(FITTED)])
    seconds = points["median"].to_numpy(float)
    counted = [FORMULAS[p.algorithm](ONE, p.workers) for p in points.itertuples()]
    startups = np.array([c.startup_seconds for c in counted])
    crossing = np.array([c.seconds_per_byte for c in counted]) * points["bytes"].to_numpy(float)
    scale = crossing.max()
    columns = np.stack([startups, crossing / scale], axis=1) / seconds[:, None]
    (startup, slope), _ = nnls(columns, np.ones_like(seconds))
    return AlphaBeta(float(startup), float(slope / scale))


def own_fits(rows: pd.DataFrame) -> dict[str, AlphaBeta]:
    """The a + b M of each algorithm alone, through its medians."""
    return {
        str(name): fit_alpha_beta(part["bytes"].tolist(), part["median"].tolist())
        for name, part in medians(rows).groupby("algorithm", sort=False)
    }


def by_formula(link: AlphaBeta, workers: int) -> dict[str, AlphaBeta]:
    """The a + b M of each algorithm that its formula makes of one message's."""
    return {name: formula(link, workers) for name, formula in FORMULAS.items()}


def counts(workers: Sequence[int] = (4, 8, 32)) -> pd.DataFrame:
    """Start-ups, and bytes as multiples of M, that follow one another, by workers and algorithm."""
    import pandas as pd

    table = {
        (n, what): {name: getattr(formula(ONE, n), field) for name, formula in FORMULAS.items()}
        for n in workers
        for what, field in (("start-ups", "startup_seconds"), ("bytes / M", "seconds_per_byte"))
    }
    return pd.DataFrame(table).rename_axis(columns=["workers", "one after the other"])


def topology_table(rows: pd.DataFrame, link: AlphaBeta, workers: int) -> pd.DataFrame:
    """Start-ups and bytes by formula, the milliseconds they make, and those of an own fit.

    ``startups`` and ``bytes_over_M`` count what follows one after the other on the critical path.
    ``error_%`` is the mean absolute error of the formula over the measured medians.
    """
    import pandas as pd

    fitted, points = own_fits(rows), medians(rows)
    lines = []
    for name, formula in by_formula(link, workers).items():
        count = FORMULAS[name](ONE, workers)
        line = {
            "algorithm": name,
            "startups": count.startup_seconds,
            "bytes_over_M": count.seconds_per_byte,
            "formula_startup_ms": formula.startup_seconds / MS,
            "formula_ms_per_MiB": formula.seconds_per_byte * KIB**2 / MS,
        }
        if name in fitted:
            own = points[points["algorithm"] == name]
            off = own["bytes"].map(formula.seconds) / own["median"] - 1
            line["own_startup_ms"] = fitted[name].startup_seconds / MS
            line["own_ms_per_MiB"] = fitted[name].seconds_per_byte * KIB**2 / MS
            line["error_%"] = 100 * off.abs().mean()
        lines.append(line)
    return pd.DataFrame(lines).set_index("algorithm")


def crossing_bytes(first: AlphaBeta, second: AlphaBeta) -> float:
    """Bytes at which both take as long; infinite if one is never slower than the other.

    >>> round(crossing_bytes(AlphaBeta(6e-3, 1e-9), AlphaBeta(2e-3, 3e-9)))
    2000000
    """
    apart = second.seconds_per_byte - first.seconds_per_byte
    size = (first.startup_seconds - second.startup_seconds) / apart if apart else math.inf
    return size if size > 0 else math.inf


def crossings(lines: Mapping[str, Mapping[str, AlphaBeta]], other: str = "ring") -> pd.DataFrame:
    """KiB from which the ring is faster than each other algorithm, by the source of the lines.

    Infinite: never, one is as good in start-ups and in bytes.
    """
    import pandas as pd

    table = {
        source: {
            name: crossing_bytes(by_name[other], line) / KIB
            for name, line in by_name.items()
            if name != other
        }
        for source, by_name in lines.items()
        if other in by_name
    }
    return pd.DataFrame(table).rename_axis(f"KiB from which the {other} is faster than")
