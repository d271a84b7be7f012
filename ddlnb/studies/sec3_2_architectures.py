"""Section 3.2 on emulated links: parameter servers beside all-to-all, and what the formulas say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ddlnb.engines.measure import measure
from ddlnb.engines.transports.algorithms import ALGORITHMS, time_all_reduces
from ddlnb.errors import require_whole
from ddlnb.launch.emulation.links import Link, get_link
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.verify_links import PAYLOAD_SHARE
from ddlnb.plans.alpha_beta import (
    AlphaBeta,
    doubling_all_reduce,
    fit_alpha_beta,
    mesh_all_reduce,
    push_pull,
    ring_all_reduce,
    tree_all_reduce,
)
from ddlnb.plans.methods import Method
from ddlnb.provenance import machine
from ddlnb.units import KIB, MS
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Gradient, Layer, Workload

if TYPE_CHECKING:
    import pandas as pd


METHODS = {"PS": "WFBP-PS", "A2A": "WFBP-A2A"}
CELL = ["architecture", "workers", "servers"]
COLUMNS = [*CELL, "repetition", "iteration_seconds", "network", "machine", "source"]


def made_up_workload(
    layers: int = 8,
    layer_bytes: int = 64 * KIB,
    *,
    forward_seconds: float = 20e-3,
    backward_seconds: float = 40e-3,
) -> Workload:
    """Equal layers with a gradient each, so that the servers' shares are equal too."""
    require_whole(layers=layers, layer_bytes=layer_bytes)
    names = [f"layer{index}" for index in range(layers)]
    return Workload(
        "made-up",
        1,
        tuple(Layer(name, forward_seconds=forward_seconds / layers) for name in names),
        tuple(
            Gradient(
                f"{name}.weight",
                name,
                max(1, layer_bytes // 4),
                backward_seconds=backward_seconds / layers,
            )
            for name in reversed(names)
        ),
        "made up",
    )


def emulated_ranks(count: int, network: str | Link) -> Ranks | None:
    """Ranks on nodes of an emulated network; None where `lacking` says that there can be none."""
    return None if lacking() else Ranks(count, launcher="emulated", network=network)


def asked_link(network: str | Link) -> AlphaBeta:
    """The a and b of one message that the network promises: its latency, and its payload rate."""
    link = get_link(network)
    return AlphaBeta(link.latency, 1 / (PAYLOAD_SHARE * link.bandwidth))


def measure_architectures(
    workload: Workload,
    workers: Sequence[int],
    servers: Sequence[int],
    ranks: Ranks | None,
    *,
    iterations: int = 3,
    repetitions: int = 3,
) -> pd.DataFrame:
    """Seconds of an iteration with servers and without: one row per cell and repetition.

    One server and none with each number of workers; the other numbers of servers with the most
    workers. Without ranks the table is empty.
    """
    import pandas as pd

    if ranks is None:
        return pd.DataFrame(columns=COLUMNS)
    found = []
    for repetition in range(repetitions):  # of all cells, so that a drift hits all alike
        for count, methods, behind in _runs(workers, servers):
            rows = measure(
                replayed(workload),
                methods,
                workers=count,
                servers=behind,
                baselines=False,
                iterations=iterations,
                warmup=1,
                repetitions=1,
                ranks=ranks,
            )
            found.append(rows.assign(workers=count, repetition=repetition))
    names = {method: name for name, method in METHODS.items()}
    table = pd.concat(found, ignore_index=True)
    return table.assign(architecture=table["method"].map(names))[COLUMNS]


def architecture_formulas(
    workload: Workload, workers: Sequence[int], servers: Sequence[int], network: str | Link
) -> pd.DataFrame:
    """The same cells by formula, from what the network promises: nothing is fitted.

    ``link_seconds`` is the survey's bandwidth term (section 3.2): max(M, n M / k) b with k servers,
    2 (n-1) / n M b without. ``iteration_seconds`` lets the gradients leave one after the other as
    soon as they are there, as WFBP has it, with latencies, forward and backward pass.
    """
    import pandas as pd

    link = asked_link(network)
    rows = []
    for count, methods, behind in _runs(workers, servers):
        for name in METHODS:
            if METHODS[name] in methods:
                on_servers = name == "PS"
                cost = (
                    push_pull(link, count, behind) if on_servers else ring_all_reduce(link, count)
                )
                seconds = (
                    wait_free_push_pull(workload, link, count, behind)
                    if on_servers
                    else wait_free(workload, cost)
                )
                rows.append(
                    {
                        "architecture": name,
                        "workers": count,
                        "servers": behind if on_servers else 0,
                        "link_seconds": cost.seconds_per_byte * workload.gradient_bytes,
                        "iteration_seconds": seconds,
                    }
                )
    return pd.DataFrame(rows).assign(network=str(network), source="formula")


def wait_free(workload: Workload, cost: AlphaBeta) -> float:
    """Seconds of an iteration whose messages, one per gradient, follow one another.

    >>> one = made_up_workload(1, 1000, forward_seconds=1.0, backward_seconds=2.0)
    >>> wait_free(one, AlphaBeta(0.5, 1e-3))
    4.5
    """
    end = 0.0
    for gradient, ready in zip(workload.gradients, workload.ready_seconds, strict=True):
        end = max(end, ready) + cost.seconds(gradient.bytes)
    return workload.forward_seconds + end


def wait_free_push_pull(workload: Workload, link: AlphaBeta, workers: int, servers: int) -> float:
    """Seconds of an iteration with k servers, which get the gradients in turn.

    A server's link lets in n times a gradient, and when the last worker's share is there, lets out
    n sums. The next gradient comes in meanwhile; a gradient's own push and pull cannot overlap, so
    L messages of a server take as long as L + 1.

    >>> one = made_up_workload(1, 1000, forward_seconds=1.0, backward_seconds=2.0)
    >>> wait_free_push_pull(one, AlphaBeta(0.5, 1e-3), workers=2, servers=1)
    8.0
    """
    came, went = [0.0] * servers, [0.0] * servers
    for index, gradient in enumerate(workload.gradients):
        server, ready = index % servers, workload.ready_seconds[index]
        crossing = workers * link.seconds_per_byte * gradient.bytes
        came[server] = max(came[server], ready) + crossing
        went[server] = max(went[server], came[server]) + crossing
    return workload.forward_seconds + max(went) + 2 * link.latency_seconds


def architecture_table(rows: pd.DataFrame, formulas: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds of an iteration by cell: median, least and most, the formula's, and the ratio.

    ``over_formula`` is the median over the formula's; columns of measured times are empty where
    nothing was measured.
    """
    cells = rows.groupby(CELL)["iteration_seconds"]
    table = formulas.set_index(CELL)[["link_seconds", "iteration_seconds"]] / MS
    table.columns = ["formula_link_ms", "formula_ms"]
    for name, found in (("median_ms", cells.median()), ("least_ms", cells.min()),
                        ("most_ms", cells.max())):  # fmt: skip
        table[name] = found.reindex(table.index).astype(float) / MS
    return table.assign(over_formula=table["median_ms"] / table["formula_ms"])


def _runs(
    workers: Sequence[int], servers: Sequence[int]
) -> list[tuple[int, list[str | Method], int]]:
    """(workers, methods, servers) of every run."""
    runs: list[tuple[int, list[str | Method], int]]
    runs = [(count, list(METHODS.values()), 1) for count in workers]
    return runs + [(max(workers), [METHODS["PS"]], k) for k in servers if k != 1]


# Section 3.2 on emulated links: ring, tree, recursive doubling and mesh beside their formulas.
FORMULAS: dict[str, Callable[[AlphaBeta, int], AlphaBeta]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "recursive doubling": doubling_all_reduce,
    "direct mesh": mesh_all_reduce,
}
SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)
COLUMNS_2 = [
    "algorithm",
    "workers",
    "bytes",
    "repetition",
    "seconds",
    "network",
    "machine",
    "source",
]
# Their latencies follow one another. Those of a mesh overlap as far as the senders' cores allow:
# they count as 2 at best, the number in the formula, and as 2 (n-1) at worst.
FITTED = ("ring", "tree", "recursive doubling")
ONE = AlphaBeta(1.0, 1.0)  # a formula of it counts latencies and messages' worth of bytes


def measure_topologies(
    ranks: Ranks | None, sizes: Sequence[int] = SIZES, *, repetitions: int = 5
) -> pd.DataFrame:
    """Seconds of all-reduces among all ranks, the slowest rank's: one row per repetition.

    Without ranks the table is empty.
    """
    import pandas as pd

    require_whole(repetitions=repetitions, **{f"sizes[{i}]": size for i, size in enumerate(sizes)})
    if ranks is None:
        return pd.DataFrame(columns=COLUMNS_2)
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
    told = {"network": ranks.site.network_name, "machine": machine(), "source": ranks.site.source}
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
    latencies = np.array([c.latency_seconds for c in counted])
    crossing = np.array([c.seconds_per_byte for c in counted]) * points["bytes"].to_numpy(float)
    scale = crossing.max()
    columns = np.stack([latencies, crossing / scale], axis=1) / seconds[:, None]
    (latency, slope), _ = nnls(columns, np.ones_like(seconds))
    return AlphaBeta(float(latency), float(slope / scale))


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
    """Latencies, and bytes as multiples of M, that follow one another, by workers and algorithm."""
    import pandas as pd

    table = {
        (n, what): {name: getattr(formula(ONE, n), field) for name, formula in FORMULAS.items()}
        for n in workers
        for what, field in (("latencies", "latency_seconds"), ("bytes / M", "seconds_per_byte"))
    }
    return pd.DataFrame(table).rename_axis(columns=["workers", "one after the other"])


def topology_table(rows: pd.DataFrame, link: AlphaBeta, workers: int) -> pd.DataFrame:
    """Latencies and bytes by formula, the milliseconds they make, and those of an own fit.

    ``latencies`` and ``bytes_over_M`` count what follows one after the other on the critical path.
    ``error_%`` is the mean absolute error of the formula over the measured medians.
    """
    import pandas as pd

    fitted, points = own_fits(rows), medians(rows)
    lines = []
    for name, formula in by_formula(link, workers).items():
        count = FORMULAS[name](ONE, workers)
        line = {
            "algorithm": name,
            "latencies": count.latency_seconds,
            "bytes_over_M": count.seconds_per_byte,
            "formula_latency_ms": formula.latency_seconds / MS,
            "formula_ms_per_MiB": formula.seconds_per_byte * KIB**2 / MS,
        }
        if name in fitted:
            own = points[points["algorithm"] == name]
            off = own["bytes"].map(formula.seconds) / own["median"] - 1
            line["own_latency_ms"] = fitted[name].latency_seconds / MS
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
    size = (first.latency_seconds - second.latency_seconds) / apart if apart else math.inf
    return size if size > 0 else math.inf


def crossings(lines: Mapping[str, Mapping[str, AlphaBeta]], other: str = "ring") -> pd.DataFrame:
    """KiB from which the ring is faster than each other algorithm, by the source of the lines.

    Infinite: never, one is as good in latencies and in bytes.
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
