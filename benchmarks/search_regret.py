"""How much longer searched plans take than the proven best of their class: its regret.

    python -m benchmarks.search_regret --out data/search/regret.csv

Random instances of up to 40 gradients, the same for the same seed: layers, gradients and their
seconds are drawn on a logarithmic scale, and so is how long all bytes take beside the computation.
The class is that of `tests.search.exact`; the search is held to it by its `Space`.
"""

import time
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command import command
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.files import ROOT
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Gate
from ddlnb.search.search import search_plan
from ddlnb.search.space import Space
from ddlnb.workloads.workload import Gradient, Layer, Workload
from tests.search.exact import MOST_GRADIENTS, proven_best

OUT = ROOT / "data" / "search" / "regret.csv"
WORKERS = 4


def instance(seed: int, most: int = MOST_GRADIENTS) -> tuple[Workload, Cluster]:
    """Return a random workload of at most so many gradients, and a cluster for it."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(min(8, most), most + 1))
    layers = int(draw.integers(2, count + 1))
    owner = np.sort(draw.integers(0, layers, count))[::-1]
    elements = np.exp(draw.uniform(np.log(1e2), np.log(1e7), count)).astype(int)
    backward = np.exp(draw.uniform(np.log(1e-4), np.log(1e-2), count))
    forward = np.exp(draw.uniform(np.log(1e-4), np.log(1e-2), layers))
    workload = Workload(
        f"random {seed}",
        1,
        tuple(Layer(f"l{i}", float(s)) for i, s in enumerate(forward)),
        tuple(
            Gradient(f"g{i}", f"l{owner[i]}", int(elements[i]), 4, float(backward[i]))
            for i in range(count)
        ),
        f"drawn with seed {seed}",
    )
    carrying = workload.compute_seconds * float(np.exp(draw.uniform(np.log(0.2), np.log(3.0))))
    latency = workload.compute_seconds * float(np.exp(draw.uniform(np.log(1e-3), np.log(1e-1))))
    share = 2 * (WORKERS - 1) / WORKERS
    effects = Effects(
        between_bandwidth=share * workload.gradient_bytes / carrying, operation_latency=latency
    )
    return workload, Cluster("random", "drawn", WORKERS, 1, effects)


def regret(seed: int, gate: Gate, most: int = MOST_GRADIENTS) -> dict[str, object]:
    """Return the row of one instance: seconds found and proven, and their relative difference."""
    workload, cluster = instance(seed, most)
    latency, per_byte, _ = cluster.all_reduce_seconds
    started = time.perf_counter()
    best = proven_best(workload, AlphaBeta(latency, per_byte), gate)
    solved = time.perf_counter()
    space = Space(
        partition=False,
        gates=(gate,),
        orders=("ready",),
        split=False,
        collectives=(),
        servers=False,
        methods=False,
    )
    found = search_plan(workload, cluster, space=space)
    return {
        "seed": seed,
        "gate": gate.value,
        "gradients": len(workload.gradients),
        "searched_seconds": found.iteration_seconds,
        "best_seconds": best.iteration_seconds,
        "proven_seconds": best.proven_seconds,
        "regret": found.iteration_seconds / best.proven_seconds - 1,
        "bound_seconds": found.lower_bound_seconds,
        "solver_took": round(solved - started, 3),
        "search_took": round(time.perf_counter() - solved, 3),
    }


def main(*, instances: int = 20, out: Path = OUT) -> None:
    """Write the rows of so many --instances for each gate; print the largest regret by gate."""
    rows = []
    for seed, gate in product(range(instances), Gate):
        rows.append(regret(seed, gate))
        print({key: rows[-1][key] for key in ("seed", "gate", "gradients", "regret")})
    frame = pd.DataFrame(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out, index=False)
    print(frame.groupby("gate")["regret"].describe()[["count", "mean", "max"]].to_string())


if __name__ == "__main__":
    command(main)
