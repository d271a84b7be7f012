"""Transfers, collectives and training on emulated trees and tori, each beside its forecast.

    python -m benchmarks.emulated_networks [--out FILE.csv] [--cases NAME ...] [--repetitions 9]

Ranks start once for each case, and its network changes under them: whole, then with a cable cut or
halved. Forecasts are max-min fair flows (`ddlnb.networks.play`) on links that carry payload alone,
and of iterations those of a cluster with the topology. They take one number from the emulated
network: what a message costs before its first byte, from messages of a few bytes. Rows are kept; a
second call completes what is missing and prints the tables. With --kept nothing runs.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from benchmarks.command import command
from benchmarks.emulated_methods import (
    cluster_of,
    forecast_seconds,
    hop_seconds,
    iteration_seconds,
    made_up,
    methods_on,
    workers_for,
)
from benchmarks.socket_transfers import Begins, Flow, transfer_seconds
from ddlnb.clusters.cluster import Cluster
from ddlnb.emulation.verify_links import PAYLOAD_SHARE
from ddlnb.files import DATA
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.launch.topology import get_link
from ddlnb.networks.collectives.catalogue import get_algorithm, get_collective
from ddlnb.networks.fabric import emulated_network
from ddlnb.networks.flows import Startup
from ddlnb.networks.network import Network, changed
from ddlnb.networks.play import play, share
from ddlnb.networks.routes import route
from ddlnb.networks.topologies import get_topology
from ddlnb.plans.transfers import Collective

KEPT = DATA / "measured" / "2026-11-22_two-cores_networks" / "cells.csv"
TREE_LINK = "50Mb/s 1ms"  # slow enough that two cores have little to do
TORUS_LINK = "20Mb/s 1ms"  # of which every host has four
WARMUP = 2  # repetitions that do not count
KEYS = ["case", "change", "kind", "what", "bytes"]
SECONDS = ["emulated_seconds", "simulated_seconds"]
CLOSE = 0.1  # the error that the forecasts are held to, in the median
FLOW_BYTES = (200_000, 1_000_000)
MESSAGE_BYTES = (1_000_000, 4_000_000)
COLLECTIVES = ("ring", "halving-doubling", "double-tree", "direct", "torus(3, 3)")


@dataclass(frozen=True)
class Case:
    """A topology of links with a routing, and the changes it is measured with, one at a time."""

    topology: str
    link: str
    routing: str
    changes: tuple[str, ...]

    def network(self, change: str = "") -> Network:
        """Return the network with one change, or as it is."""
        link = get_link(self.link)
        whole = get_topology(self.topology).network(link.bandwidth, link.latency)
        whole = replace(whole, routing=self.routing)
        return changed(whole, [change]) if change else whole


CASES: dict[str, Case] = {
    "tree": Case("two-tier(2, 4, 4.0)", TREE_LINK, "ecmp hash", ("scale(leaf0, spine0, 0.5)",)),
    "two spines": Case("two-tier(2, 4, 2.0, 2)", TREE_LINK, "ecmp hash", ("cut(leaf0, spine0)",)),
    "torus": Case("torus(3, 3)", TORUS_LINK, "dimension order", ("scale(host0, host1, 0.5)",)),
}


def patterns(hosts: int, size: int) -> dict[str, list[Flow]]:
    """Return sets of flows that begin at once, by name; larger sets have smaller flows."""
    chance, half = random.Random(hosts), hosts // 2
    pairs = [chance.sample(range(hosts), 2) for _ in range(hosts)]
    return {
        "one flow": [(0, half, size)],
        "each to the next": [(i, (i + 1) % hosts, size) for i in range(hosts)],
        "half to half": [(i, (i + half) % hosts, size) for i in range(hosts)],
        "all to one": [(i, 0, size // 2) for i in range(1, hosts)],
        "random pairs": [(source, target, size) for source, target in pairs],
        "all to all": [(i, k, size // 4) for i in range(hosts) for k in range(hosts) if i != k],
    }


def payload(network: Network) -> Network:
    """Return the network with what its links carry of payload: full frames without headers."""
    return network.with_links(
        tuple(replace(link, bandwidth=PAYLOAD_SHARE * link.bandwidth) for link in network.links)
    )


def run(case: Case, name: str, repetitions: int, done: set[tuple]) -> Iterator[dict]:
    """Yield a row per cell of a case that is not done yet: emulated seconds and the forecast."""
    whole = case.network()
    with Ranks(whole.ranks, launcher="emulated", network=emulated_network(whole)) as ranks:
        costs = {
            "transfers": _flow_startup(ranks, whole),
            "all-reduce": _collective_startup(ranks, whole),
            "iteration": hop_seconds(ranks),
        }
        for change in ("", *case.changes):
            assert ranks.network is not None
            ranks.network.become(emulated_network(case.network(change)))
            cells = chain(
                _transfers(ranks, case, change, repetitions),
                _collectives(ranks, case, change, repetitions),
                _iterations(ranks, case, change),
            )
            for kind, what, size, emulate, forecast in cells:
                if (name, change, kind, what, size) in done:
                    continue
                seconds = emulate(costs[kind])
                yield {
                    "case": name,
                    "topology": case.topology,
                    "routing": case.routing,
                    "link": case.link,
                    "change": change,
                    "kind": kind,
                    "what": what,
                    "hosts": whole.ranks,
                    "bytes": size,
                    "repetitions": len(seconds),
                    "emulated_seconds": float(np.median(seconds)),
                    "least_seconds": float(np.min(seconds)),
                    "most_seconds": float(np.max(seconds)),
                    "message_seconds": costs[kind],
                    "simulated_seconds": forecast(costs[kind]),
                }


# What is measured: its kind, name and bytes, and how it is emulated and forecast, with the seconds
# that a message costs.
Cell = tuple[str, str, int, Callable[[float], Sequence[float]], Callable[[float], float]]


def _transfers(ranks: Ranks, case: Case, change: str, repetitions: int) -> Iterator[Cell]:
    simulated = payload(case.network(change))
    for size in FLOW_BYTES:
        for what, flows in patterns(ranks.count, size).items():
            timed = [(source, target, float(count), 0.0) for source, target, count in flows]
            yield (
                *("transfers", what, size),
                lambda _, flows=flows: _last(ranks, flows, repetitions),
                lambda cost, timed=timed: (
                    share(simulated, timed, startup=Startup(between=cost)).seconds
                ),
            )


def _collectives(ranks: Ranks, case: Case, change: str, repetitions: int) -> Iterator[Cell]:
    simulated = payload(case.network(change))
    for size in MESSAGE_BYTES:
        for what in COLLECTIVES:
            if get_algorithm(what).refuses(ranks.count, 1):
                continue
            one = get_collective(what, ranks.count)
            yield (
                *("all-reduce", what, size),
                lambda _, one=one, size=size: _collective_seconds(ranks, one, size, repetitions),
                lambda cost, one=one, size=size: (
                    play(one, simulated, size, startup=Startup(between=cost)).seconds
                ),
            )


def _iterations(ranks: Ranks, case: Case, change: str) -> Iterator[Cell]:
    bandwidth = PAYLOAD_SHARE * get_link(case.link).bandwidth

    def cluster(method: str, cost: float, change: str = "") -> Cluster:
        workers = workers_for(method, ranks.count)
        return cluster_of(case.topology, case.routing, change, workers, bandwidth, cost)

    def forecast(method: str, cost: float) -> float:
        # Messages are merged for the whole network, whatever happens to it later.
        now = replace(cluster(method, cost, change), planning=cluster(method, cost).cost)
        return forecast_seconds(now, method, ranks.count - now.workers)

    for method in methods_on(ranks.count):
        yield (
            *("iteration", method, made_up().gradient_bytes),
            lambda cost, method=method: iteration_seconds(ranks, method, cluster(method, cost)),
            partial(forecast, method),
        )


def _last(ranks: Ranks, flows: Sequence[Flow], repetitions: int) -> np.ndarray:
    """Return the seconds until the last flow had arrived, of every repetition that counts."""
    found: dict[int, list[float]] = {}
    for part in ranks.run(transfer_seconds, flows, WARMUP + repetitions):
        found |= part
    return np.max(list(found.values()), axis=0)[WARMUP:]


def _flow_startup(ranks: Ranks, network: Network) -> float:
    """Return what a flow costs besides latency and bytes, from one of a single byte."""
    source, target = network.endpoints[0], network.endpoints[network.ranks // 2]
    seconds = _last(ranks, [(0, network.ranks // 2, 1)], 15)
    return max(0.0, float(np.median(seconds)) - route(network, source, target).latency)


def _collective_startup(ranks: Ranks, network: Network) -> float:
    """Return what a message of a collective costs besides latency and bytes, from a small ring."""
    ring, size = get_collective("ring", network.ranks), 4 * network.ranks
    seconds = _collective_seconds(ranks, ring, size, 15)
    without = play(ring, payload(network), size).seconds
    return max(0.0, (float(np.median(seconds)) - without) / ring.steps)


def _collective_seconds(
    ranks: Ranks, collective: Collective, size: int, repetitions: int
) -> np.ndarray:
    """Return the seconds of the slowest rank, of every repetition that counts."""
    found = ranks.run(_carry_out, collective, size // 4, WARMUP + repetitions)
    return np.max(found, axis=0)[WARMUP:]


def _carry_out(
    context: RankContext, collective: Collective, elements: int, repetitions: int
) -> list[float]:
    """Return the seconds that each repetition takes at this rank, from a common beginning."""
    import torch

    from ddlnb.collective_transport.rank_schedule import RankSchedule
    from ddlnb.collective_transport.transport import CollectiveTransport
    from ddlnb.launch.rank import process_group

    schedule, tensor = RankSchedule(collective, context.rank), torch.ones(elements)
    with (
        process_group(context, context.store(), context.count),
        CollectiveTransport(context.host, context.timeout_seconds) as transport,
    ):
        return Begins(context).seconds_of(
            lambda: transport.carry(schedule, 0, tensor).wait(), repetitions
        )


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with ``error``: forecast over emulated seconds, minus 1."""
    return rows.assign(error=rows["simulated_seconds"] / rows["emulated_seconds"] - 1)


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by which factor a change multiplies the time of a cell, emulated and forecast."""
    keys = ["case", "kind", "what", "bytes"]
    whole = rows[rows["change"] == ""].set_index(keys)[SECONDS]
    after = rows[rows["change"] != ""].set_index([*keys, "change"])[SECONDS]
    ratio = (after / whole).reset_index()
    ratio = ratio.rename(columns=lambda name: name.removesuffix("_seconds"))
    return ratio.assign(error=ratio["simulated"] / ratio["emulated"] - 1)


def summary(rows: pd.DataFrame) -> str:
    """Return the errors of both tables in words."""
    tables = {" simulated against emulated": errors(rows), ", effect of a change": effects(rows)}
    return "\n".join(
        f"{kind}{what}: {_in_words(cells['error'])}"
        for what, table in tables.items()
        for kind, cells in table.groupby("kind", sort=False)
    )


def _in_words(error: pd.Series) -> str:
    size = error.abs()
    return (
        f"median error {size.median():.1%}, within {CLOSE:.0%}: {(size <= CLOSE).sum()} of "
        f"{len(size)}, largest {size.max():.1%}"
    )


def main(
    *,
    out: Path = KEPT,
    cases: Sequence[Literal[*CASES]] = tuple(CASES),
    repetitions: int = 9,
    kept: bool = False,
) -> None:
    """Run what is missing, or nothing with --kept, and print cells, effects and a summary."""
    rows = pd.read_csv(out, keep_default_na=False) if out.exists() else pd.DataFrame(columns=KEYS)
    for name in [] if kept else cases:
        done = set(rows[KEYS].itertuples(index=False, name=None))
        for row in run(CASES[name], name, repetitions, done):
            rows = pd.DataFrame([*rows.to_dict("records"), row])
            rows.to_csv(out, index=False, float_format="%.6g")
    print(errors(rows)[[*KEYS, *SECONDS, "error"]].round(4).to_string(index=False))
    print(effects(rows).round(3).to_string(index=False))
    print(summary(rows))


if __name__ == "__main__":
    command(main)
