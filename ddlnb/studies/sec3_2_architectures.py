"""Section 3.2 on emulated links: parameter servers beside all-to-all, and what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlnb.engines.measure import measure
from ddlnb.errors import require_whole
from ddlnb.launch.emulation.links import Link, get_link
from ddlnb.launch.emulation.network import lacking
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.verify_links import PAYLOAD_SHARE
from ddlnb.plans.alpha_beta import AlphaBeta, push_pull, ring_all_reduce
from ddlnb.plans.methods import Method
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
    soon as they are there, as WFBP has it, with start-ups, forward and backward pass.
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
    return workload.forward_seconds + max(went) + 2 * link.startup_seconds


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
