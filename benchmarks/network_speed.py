"""How quick collectives are simulated on networks, after the code has been compiled.

    python -m benchmarks.network_speed [--repetitions 3] [--csv FILE] [--figure FILE.png]

Lowering finds routes, which are kept for the network, and messages; playing finds when they begin
and arrive. The first time is with no route known, the others, of which this prints medians, are
with the routes kept. One thread does it all: CPU seconds are what it takes on an idle core, and the
bounds are theirs; elapsed seconds say how busy the machine was.
"""

import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from benchmarks.command import command
from benchmarks.pictures import simulation_speed
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.flows import Startup
from ddlnb.networks.network import Network
from ddlnb.networks.play import play
from ddlnb.networks.topologies import FatTree, Star, Topology, Torus, TwoTier
from ddlnb.plans.transfers import Collective, Primitive

STARTUP = Startup(inside=1e-6, between=5e-6)
MESSAGE_BYTES = 100e6


@dataclass(frozen=True)
class Case:
    """A collective of so many ranks on a topology."""

    collective: str
    primitive: Primitive
    ranks: int
    topology: Topology
    below_seconds: float | None = None

    def made(self) -> tuple[Collective, Network]:
        """Return both; the network is a new one, whose routes are not known."""
        network = self.topology.network(bandwidth=12.5e9, latency=1e-6)
        return get_collective(self.collective, self.ranks, primitive=self.primitive), network


RING = "ring(64)"
CASES = (
    *(Case(RING, "all-reduce", p**3 // 4, FatTree(p)) for p in (4, 8)),
    Case(RING, "all-reduce", 1024, FatTree(16), below_seconds=1.0),
    Case("ring", "all-reduce", 128, FatTree(8)),
    Case("halving-doubling", "all-reduce", 1024, FatTree(16)),
    *(Case("rotating", "all-to-all", ranks, FatTree(16)) for ranks in (16, 64)),
    Case("rotating", "all-to-all", 256, FatTree(16), below_seconds=5.0),
    Case("rotating", "all-to-all", 256, Star(256), below_seconds=5.0),
    Case("rotating", "all-to-all", 256, TwoTier(16, 16, 4.0, 4), below_seconds=5.0),
    Case("rotating", "all-to-all", 256, Torus(16, 16), below_seconds=5.0),
)


def timed(case: Case, repetitions: int) -> dict[str, object]:
    """Return a row: the case, its messages, and how long it takes to simulate it."""
    collective, network = case.made()
    cpu, elapsed = [], []
    for _ in range(repetitions + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        played = play(collective, network, MESSAGE_BYTES, startup=STARTUP)
        elapsed.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return {
        "collective": f"{case.collective} {case.primitive}",
        "network": network.name,
        "ranks": case.ranks,
        "messages": len(played.messages),
        "first_cpu_seconds": cpu[0],
        "cpu_seconds": statistics.median(cpu[1:]),
        "elapsed_seconds": statistics.median(elapsed[1:]),
        "below_seconds": case.below_seconds,
        "simulated_seconds": played.seconds,
    }


def main(*, repetitions: int = 3, csv: Path | None = None, figure: Path | None = None) -> None:
    """Print a table, and whether the bounds are kept.

    It is written to --csv as well, and CPU seconds against messages are drawn into --figure.
    """
    for case in (CASES[0], replace(CASES[-1], topology=Star(16), ranks=16)):
        timed(case, 1)  # compiles, or loads what was compiled
    table = pd.DataFrame([timed(case, repetitions) for case in CASES])
    if csv:
        table.to_csv(csv, index=False)
    if figure:
        simulation_speed(table).savefig(figure, dpi=150)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    late = table[table["cpu_seconds"] > table["below_seconds"]]
    if len(late):
        print("\nnot within its bound: " + "; ".join(late["collective"] + " on " + late["network"]))


if __name__ == "__main__":
    command(main)
