"""Two small clusters, two workloads, and true values of parameters that a fit should find."""

from collections.abc import Sequence

import numpy as np

from ddlnb.calibration.observations import IterationTime, Observation, observe, predictions
from ddlnb.calibration.parameters import Parameter, ParameterValues
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.methods import METHODS
from ddlnb.simulator.simulate import Cell
from ddlnb.workloads.workload import Gradient, Layer, Workload


def _cluster(network: str, bandwidth: float) -> Cluster:
    effects = Effects(
        inside_bandwidth=4e9,
        between_bandwidth=bandwidth,
        between_latency=5e-5,
        server_bandwidth=bandwidth,
        operation_latency=5e-5,
    )
    return Cluster(
        f"toy-{network}",
        network,
        nodes=8,
        gpus_per_node=2,
        effects=effects,
        server_place="extra machines",
        planning=AlphaBeta(1e-4, 1e-9),
    )


SLOW, FAST = _cluster("slow", 1e9), _cluster("fast", 8e9)


def _workload(model: str, elements: int) -> Workload:
    return Workload(
        model,
        8,
        tuple(Layer(f"l{i}", 2e-3) for i in range(4)),
        tuple(Gradient(f"g{i}", f"l{i}", elements * (1 + i), 4, 3e-3) for i in reversed(range(4))),
        "by hand",
    )


THIN, FAT = _workload("thin", 50_000), _workload("fat", 500_000)
RUN = ("BSP-A2A", "WFBP-A2A", "WFBP-PS")

INSIDE = Parameter("inside_bandwidth", low=5e8, high=5e10, prior=4e9, prior_spread=0.7)
SHARE = Parameter("between_share", low=0.1, high=1.0)
BANDWIDTH = Parameter("between_bandwidth", ("slow",), low=1e8, high=1e10)
LATENCY = Parameter("operation_latency", low=1e-6, high=1e-2, prior=5e-5, prior_spread=1.5)
SLOWNESS = Parameter("compute_factor", ("fat",), low=0.5, high=2.0, prior=1.0, prior_spread=0.2)
PARAMETERS = (INSIDE, SHARE, BANDWIDTH, LATENCY, SLOWNESS)
TRUTH = ParameterValues(PARAMETERS, (3e9, 0.6, 7e8, 5e-4, 1.2))


def cells(
    workers: Sequence[int] = (2, 4, 8),
    methods: Sequence[str] = RUN,
    workloads: Sequence[Workload] = (THIN, FAT),
    clusters: Sequence[Cluster] = (SLOW, FAST),
) -> list[Cell]:
    """A cell for every combination."""
    return [
        Cell(workload, cluster.with_workers(count), METHODS[method])
        for workload in workloads
        for cluster in clusters
        for count in workers
        for method in methods
    ]


def seen(
    chosen: Sequence[Cell],
    values: ParameterValues = TRUTH,
    *,
    noise: float = 0.01,
    seed: int = 0,
    source: str = "simulated",
) -> list[Observation]:
    """The seconds of cells with these values, and noise; by default those of the truth."""
    times = [IterationTime(cell) for cell in chosen]
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(len(times)))
    observed = predictions(times, [values])[0] * factors
    return [
        observe(time, seconds, noise, source) for time, seconds in zip(times, observed, strict=True)
    ]
