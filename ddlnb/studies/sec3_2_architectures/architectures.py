"""An iteration with parameter servers and with all-to-all, on emulated links and by formula."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ddlnb.engines.measure import measure
from ddlnb.errors import require_whole
from ddlnb.launch.emulation.links import Link
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.plans.methods import Method
from ddlnb.studies.sec3_2_architectures.links import asked_link
from ddlnb.units import KIB, MS
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Gradient, Layer, Workload

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
    """Return equal layers with a gradient each, so that the servers have equal shares."""
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


def measure_architectures(
    workload: Workload,
    workers: Sequence[int],
    servers: Sequence[int],
    ranks: Ranks | None,
    *,
    iterations: int = 3,
    repetitions: int = 3,
) -> pd.DataFrame:
    """Return the seconds of an iteration with servers and without, one row per repetition.

    One server and none with each number of workers; the other numbers of servers with the most
    workers. Without ranks the table is empty.
    """
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
    """Return the same cells by formula, from what the network promises; nothing is fitted.

    ``link_seconds`` is the survey's bandwidth term (section 3.2): max(M, n M / k) b with k servers,
    2 (n-1) / n M b without. ``iteration_seconds`` lets the gradients leave one after the other as
    soon as they are there, as WFBP does, with latencies, forward and backward pass.
    """
    link = asked_link(network)
    rows = []
    for count, methods, behind in _runs(workers, servers):
        ring = ring_all_reduce(link, count)
        found = {
            "PS": (
                behind,
                push_pull(link, count, behind),
                wait_free_push_pull(workload, link, count, behind),
            ),
            "A2A": (0, ring, wait_free(workload, ring)),
        }
        rows += [
            {
                "architecture": name,
                "workers": count,
                "servers": used,
                "link_seconds": cost.seconds_per_byte * workload.gradient_bytes,
                "iteration_seconds": seconds,
            }
            for name, (used, cost, seconds) in found.items()
            if METHODS[name] in methods
        ]
    return pd.DataFrame(rows).assign(network=str(network), source="formula")


def wait_free(workload: Workload, cost: AlphaBeta) -> float:
    """Return the seconds of an iteration whose messages, one per gradient, follow one another.

    >>> one = made_up_workload(1, 1000, forward_seconds=1.0, backward_seconds=2.0)
    >>> wait_free(one, AlphaBeta(0.5, 1e-3))
    4.5
    """
    end = 0.0
    for gradient, ready in zip(workload.gradients, workload.ready_seconds, strict=True):
        end = max(end, ready) + cost.seconds(gradient.bytes)
    return workload.forward_seconds + end


def wait_free_push_pull(workload: Workload, link: AlphaBeta, workers: int, servers: int) -> float:
    """Return the seconds of an iteration with k servers, which get the gradients in turn.

    A server's link lets in n times a gradient and, when the last worker's share is there, lets out
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
    """Return milliseconds by cell: by formula, and the median, least and most that was measured.

    The last column is the median over the formula. Measured columns are empty where nothing was.
    """
    cells = rows.groupby(CELL)["iteration_seconds"]
    table = formulas.set_index(CELL)[["link_seconds", "iteration_seconds"]] / MS
    table.columns = ["busiest link, formula (ms)", "iteration, formula (ms)"]
    for name, found in (("median", cells.median()), ("least", cells.min()), ("most", cells.max())):
        table[f"{name} (ms)"] = found.reindex(table.index).astype(float) / MS
    over = table["median (ms)"] / table["iteration, formula (ms)"]
    return table.assign(**{"median / formula": over}).round(2)


def _runs(
    workers: Sequence[int], servers: Sequence[int]
) -> list[tuple[int, list[str | Method], int]]:
    """Return the workers, methods and servers of every run."""
    runs: list[tuple[int, list[str | Method], int]]
    runs = [(count, list(METHODS.values()), 1) for count in workers]
    return runs + [(max(workers), [METHODS["PS"]], k) for k in servers if k != 1]
