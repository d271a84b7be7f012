"""Two jobs on one tree: where they are placed, and when their bursts come; simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ddlnb.errors import require
from ddlnb.networks.network import Network
from ddlnb.networks.play import share
from ddlnb.networks.topologies import TwoTier
from ddlnb.studies.findings import Findings, findings

Flow = tuple[int, int, float, float]
NONE = 1.001  # a slowdown below it is none
BANDWIDTH = 1.25e9  # bytes per second of a host's cable: only ratios are reported
PLACEMENTS = {
    "apart": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "mixed": ((0, 4, 1, 5), (2, 6, 3, 7)),
}
"""The hosts of both jobs, in the order of their rings, on two leaves of four hosts."""


@dataclass
class Job:
    """A job that computes, sends round its ring, and begins again when all has arrived."""

    hosts: Sequence[int]
    compute: float
    bytes: float
    begin: float
    stops: list[float]

    @property
    def next_burst(self) -> float:
        """Return when it has computed, after its last burst."""
        return self.stops[-1] + self.compute if self.stops else self.begin

    def burst(self, at: float) -> list[Flow]:
        """Return the flows of a burst that begins then: each host sends to the next one."""
        after = [*self.hosts[1:], self.hosts[0]]
        return [(one, other, self.bytes, at) for one, other in zip(self.hosts, after, strict=True)]


def tree(oversubscription: float) -> Network:
    """Return two leaves of four hosts under one spine."""
    return TwoTier(2, 4, oversubscription).network(BANDWIDTH)


def slowdown(
    placement: str, duty: float, phase: float, oversubscription: float = 4.0, bursts: int = 12
) -> float:
    """Return how much longer an iteration of two equal jobs takes than that of one alone.

    ``duty`` is the share of an iteration alone in which a job sends; the second job begins
    ``phase`` of that iteration after the first one. Seconds are between the last two bursts.
    """
    require(0 < duty < 1, f"duty {duty} must be a share between 0 and 1")
    require(0 <= phase < 1, f"phase {phase} must be from 0 to below 1")
    network = tree(oversubscription)
    hosts = PLACEMENTS[placement]
    size = 1e9
    alone = share(network, Job(hosts[0], 0.0, size, 0.0, []).burst(0.0)).seconds
    period = alone / duty
    jobs = [Job(row, period - alone, size, period * phase * at, []) for at, row in enumerate(hosts)]
    flows: list[Flow] = []
    owners: list[tuple[Job, int]] = []
    for _ in range(2 * bursts):  # no burst can begin before the earliest next one
        job = min(jobs, key=lambda one: one.next_burst)
        begin = job.next_burst
        flows += job.burst(begin)
        owners += [(job, len(job.stops))] * len(job.hosts)
        job.stops.append(0.0)
        _settle(network, flows, owners)
    first = min(jobs, key=lambda one: one.stops[-1])
    return (first.stops[-1] - first.stops[-2]) / period


def _settle(network: Network, flows: list[Flow], owners: list[tuple[Job, int]]) -> None:
    """Play all bursts so far, and note when each has arrived."""
    stops = share(network, flows).messages["stop"]
    for job in {id(one): one for one, _ in owners}.values():
        job.stops = [0.0] * len(job.stops)
    for (job, number), stop in zip(owners, stops, strict=True):
        job.stops[number] = max(job.stops[number], float(stop))


def slowdown_table(
    duties: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    oversubscription: float = 4.0,
) -> pd.DataFrame:
    """Return the slowdown by duty cycle (rows), by placement and phase (columns).

    ``shifted`` bursts begin half an iteration after the other job's, ``aligned`` ones with them.
    """
    table = {
        f"{placement}, {name}": [
            slowdown(placement, duty, phase, oversubscription) for duty in duties
        ]
        for placement in PLACEMENTS
        for name, phase in (("aligned", 0.0), ("shifted", 0.5))
    }
    return pd.DataFrame(table, index=pd.Index(duties, name="duty cycle"))


def tree_findings(table: pd.DataFrame) -> Findings:
    """Return what placing apart, shifting, and both bring to two jobs, in sentences."""
    told = []
    low = table[table.index <= 0.5]
    mixed, moved = "mixed, aligned", "mixed, shifted"
    apart = table["apart, aligned"].max()
    free = [f"{duty:.0%}" for duty in table.index[table[moved] < NONE]]
    told.append(
        f"Two jobs on the same links, with bursts at the same time, are up to "
        f"{low[mixed].max():.2f} times as slow at duty cycles of at most 50 %; shifted by half an "
        f"iteration, up to {low[moved].max():.2f} times."
    )
    told.append(
        f"Shifted bursts meet no other ones at duty cycles of {', '.join(free)}."
        if free
        else "Shifted bursts meet others at every duty cycle."
    )
    told.append(
        "Jobs on leaves of their own lose nothing, however their bursts lie: once they are placed "
        "apart, shifting brings nothing more."
        if apart < NONE
        else f"Jobs on leaves of their own are still up to {apart:.2f} times as slow."
    )
    return findings(*told)
