"""All-reduces on emulated links, beside what their lists of transfers count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ddlnb.engines.transports.timing import time_collectives
from ddlnb.errors import require_whole
from ddlnb.launch.ranks import Ranks
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.count import step_by_step
from ddlnb.plans.alpha_beta import AlphaBeta, fit_alpha_beta
from ddlnb.provenance import machine
from ddlnb.units import KIB, MS, size_in_words

ALL_REDUCES = (
    *("ring", "tree", "double-tree", "recursive-doubling", "halving-doubling"),
    "direct",
)
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
KEYS = ["algorithm", "workers", "bytes"]
COLUMNS = [*KEYS, "repetition", "seconds", "network", "machine", "source"]
# In these a rank sends one message at a time. Those that leave together, in the direct all-reduce
# and in the double tree, overlap as far as the senders' cores allow: they count as one latency at
# best, which is the number in the formula.
FITTED = ("ring", "tree", "recursive-doubling", "halving-doubling")
ONE = AlphaBeta(1.0, 1.0)  # A formula of it counts latencies, and bytes in multiples of M.


def measure_topologies(
    ranks: Ranks | None, sizes: Sequence[int] = SIZES, *, repetitions: int = 5
) -> pd.DataFrame:
    """Return the seconds of all-reduces among all ranks, by the slowest one, per repetition.

    Without ranks the table is empty.
    """
    require_whole(repetitions=repetitions, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    if ranks is None:
        return pd.DataFrame(columns=COLUMNS)
    found = ranks.run(time_collectives, ALL_REDUCES, tuple(sizes), repetitions)
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
    source = {"network": ranks.site.network_name, "machine": machine(), "source": ranks.site.source}
    return pd.DataFrame(rows).assign(**source)


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return median, least and most seconds by algorithm, workers and bytes."""
    return rows.groupby(KEYS, sort=False)["seconds"].agg(["median", "min", "max"]).reset_index()


def fit_link(rows: pd.DataFrame) -> AlphaBeta | None:
    """Return the one a and b with which the formulas of `FITTED` together fit best.

    Best is the least squared relative error over the medians; None if nothing was measured. That
    one pair has to fit all of them puts the formulas to the test.
    """
    import numpy as np
    from scipy.optimize import nnls

    if rows.empty:
        return None
    points = medians(rows[rows["algorithm"].isin(FITTED)])
    seconds = points["median"].to_numpy(float)
    counted = [formula(p.algorithm, ONE, p.workers) for p in points.itertuples()]
    latencies = np.array([c.latency_seconds for c in counted])
    crossing = np.array([c.seconds_per_byte for c in counted]) * points["bytes"].to_numpy(float)
    scale = crossing.max()
    columns = np.stack([latencies, crossing / scale], axis=1) / seconds[:, None]
    (latency, slope), _ = nnls(columns, np.ones_like(seconds))
    return AlphaBeta(float(latency), float(slope / scale))


def own_fits(rows: pd.DataFrame) -> dict[str, AlphaBeta]:
    """Return the a + b M of each algorithm alone, fitted to its medians."""
    return {
        str(name): fit_alpha_beta(part["bytes"].tolist(), part["median"].tolist())
        for name, part in medians(rows).groupby("algorithm", sort=False)
    }


def formula(name: str, link: AlphaBeta, workers: int) -> AlphaBeta:
    """Return the a + b M of an all-reduce whose steps follow one another, from one message's."""
    return step_by_step(get_collective(name, workers), link)


def by_formula(link: AlphaBeta, workers: int) -> dict[str, AlphaBeta]:
    """Return the a + b M of each all-reduce."""
    return {name: formula(name, link, workers) for name in ALL_REDUCES}


def counts(workers: Sequence[int] = (4, 8, 32)) -> pd.DataFrame:
    """Return the latencies, and bytes in multiples of M, that follow one another."""
    table = {
        (n, what): {name: getattr(cost, field) for name, cost in by_formula(ONE, n).items()}
        for n in workers
        for what, field in (("latencies", "latency_seconds"), ("bytes / M", "seconds_per_byte"))
    }
    return pd.DataFrame(table).rename_axis(columns=["workers", "one after the other"])


def all_reduce_answer(rows: pd.DataFrame, workers: int) -> str:
    """Return in a sentence what the two newer all-reduces save, and which one was the fastest."""
    cost = by_formula(ONE, workers)
    ring, halving, double = cost["ring"], cost["halving-doubling"], cost["double-tree"]
    said = (
        f"Among {workers} workers halving-doubling takes {halving.latency_seconds:g} latencies "
        f"where a ring takes {ring.latency_seconds:g}, and {halving.seconds_per_byte:.3g} M where "
        f"it takes {ring.seconds_per_byte:.3g} M; a double tree in blocks takes "
        f"{double.latency_seconds:g} latencies and {double.seconds_per_byte:.3g} M."
    )
    if rows.empty:
        return said
    points = medians(rows[rows["workers"] == workers])
    best = points.loc[points.groupby("bytes")["median"].idxmin()]
    fastest = ", ".join(f"{p.algorithm} at {size_in_words(p.bytes)}" for p in best.itertuples())
    return f"{said} Fastest here, by the median: {fastest}."


def topology_table(rows: pd.DataFrame, link: AlphaBeta, workers: int) -> pd.DataFrame:
    """Return what each formula counts, the milliseconds it makes of them, and an own fit.

    Latencies and bytes are those that follow one another on the critical path; the error is the
    mean absolute one of the formula over the measured medians.
    """
    fitted, points = own_fits(rows), medians(rows)
    lines = []
    for name, cost in by_formula(link, workers).items():
        count = formula(name, ONE, workers)
        line = {
            "algorithm": name,
            "latencies": count.latency_seconds,
            "bytes / M": count.seconds_per_byte,
            "latency, formula (ms)": cost.latency_seconds / MS,
            "per MiB, formula (ms)": cost.seconds_per_byte * KIB**2 / MS,
        }
        if name in fitted:
            own = points[points["algorithm"] == name]
            off = own["bytes"].map(cost.seconds) / own["median"] - 1
            line["latency, own fit (ms)"] = fitted[name].latency_seconds / MS
            line["per MiB, own fit (ms)"] = fitted[name].seconds_per_byte * KIB**2 / MS
            line["error of the formula (%)"] = 100 * off.abs().mean()
        lines.append(line)
    return pd.DataFrame(lines).set_index("algorithm").round(1)


def crossing_bytes(first: AlphaBeta, second: AlphaBeta) -> float:
    """Return the bytes at which both take as long, infinite if one is never slower.

    >>> round(crossing_bytes(AlphaBeta(6e-3, 1e-9), AlphaBeta(2e-3, 3e-9)))
    2000000
    """
    apart = second.seconds_per_byte - first.seconds_per_byte
    size = (first.latency_seconds - second.latency_seconds) / apart if apart else math.inf
    return size if size > 0 else math.inf


def crossing_table(
    rows: pd.DataFrame, asked: AlphaBeta, common: AlphaBeta, workers: int
) -> pd.DataFrame:
    """Return `crossings` by the asked link, by the common fit and by the algorithms' own fits."""
    lines = {"asked": by_formula(asked, workers), "common fit": by_formula(common, workers)}
    return crossings({**lines, "own fits": own_fits(rows)}).round(1)


def crossings(lines: Mapping[str, Mapping[str, AlphaBeta]]) -> pd.DataFrame:
    """Return the KiB from which the ring is faster than each other algorithm, by source of lines.

    Infinite means never: the other is at least as good in latencies and in bytes.
    """
    table = {
        source: {
            name: crossing_bytes(by_name["ring"], line) / KIB
            for name, line in by_name.items()
            if name != "ring"
        }
        for source, by_name in lines.items()
        if "ring" in by_name
    }
    return pd.DataFrame(table).rename_axis("KiB from which the ring is faster than")
