"""Calibrate the simulated twin of this machine, or of a network emulated on it."""

from __future__ import annotations

from collections.abc import Sequence

from ddlnb.calibration.clusters import Calibration, calibrate_parameters
from ddlnb.calibration.measured import as_measured, noise_of
from ddlnb.calibration.micro_benchmark import MicroBenchmark
from ddlnb.calibration.observations import AllReduceTime, IterationTime, Observation, observe
from ddlnb.calibration.parameters import Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import Effects
from ddlnb.files import machine
from ddlnb.launch.options import HERE, LaunchOptions
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.simulator.simulate import Cell

LEAST_DELAY = 1e-5  # seconds of a hop through an emulated network without a delay
LEAST_SPREAD = 0.03  # of a median of three runs on a shared machine, however alike they are
ALL_REDUCE_SPREAD = 0.3  # timed apart from the runs, where waking up is a part of it


def twin(workers: int, planning: AlphaBeta | None = None, site: LaunchOptions = HERE) -> Cluster:
    """Return this machine with a number of workers, joined as the site says, without effects.

    Every worker is a node of one GPU; the parameter servers are processes beside them, or nodes.
    """
    about = "Processes of one machine, joined by its loopback, which share its cores"
    if site.is_emulated:
        about = f"Nodes emulated on one machine, joined by {site.network_name}"
    return Cluster(
        name=f"{site.name}-{workers}-workers",
        network=site.network_name,
        nodes=workers,
        gpus_per_node=1,
        effects=Effects(),
        server_place="extra machines",
        planning=planning,
        about=about,
        facts={"machine": machine()},
    )


def here_parameters(clusters: Sequence[Cluster], site: LaunchOptions = HERE) -> list[Parameter]:
    """Return what is fitted; only how cores are shared depends on the number of workers.

    A hop takes no time of its own between processes of one machine. On an emulated network it
    takes the delay that the network was asked for, and what the system adds.
    """
    shared = [
        Parameter("update_latency", low=1e-7, high=1e-3, prior=2e-5, prior_spread=1.0),
        Parameter("update_bandwidth", low=1e8, high=1e11, prior=2e9, prior_spread=1.0),
        Parameter("priority_latency", low=1e-7, high=1e-2, prior=3e-5, prior_spread=1.5),
        Parameter("sum_bandwidth", low=1e8, high=1e11, prior=2e9, prior_spread=1.0),
    ]
    if site.is_emulated:
        delay = max(site.link.latency, LEAST_DELAY)
        shared.append(
            Parameter(
                "between_latency", low=delay / 10, high=10 * delay, prior=delay, prior_spread=1.0
            )
        )
    return shared + [
        Parameter(effect, (cluster.name,), low=low, high=high, prior=prior, prior_spread=spread)
        for cluster in clusters
        for effect, low, high, prior, spread in (
            ("operation_latency", 1e-6, 1e-1, 5e-4, 1.5),
            ("between_bandwidth", 1e7, 1e11, 1e9, 1.0),
            ("between_share", 0.02, 1.0, 0.4, 1.0),
            ("latency_share", 0.02, 1.0, 0.4, 1.0),
            ("occupied_share", 0.02, 1.0, 0.4, 1.0),
            ("compute_share", 0.05, 1.0, 0.7, 0.5),
            ("message_compute", 1e-6, 1e-2, 1e-4, 1.0),
            ("server_latency", 1e-6, 1e-2, 1e-4, 1.5),
        )
    ]


def here_observations(found: MicroBenchmark) -> list[Observation]:
    """Return the rows and the idle all-reduces of a micro-benchmark as observations."""
    observed = []
    twins = {
        workers: twin(workers, found.planning_cost(workers), found.site)
        for workers in map(int, found.rows["gpus"].unique())
    }
    for row in found.rows.to_dict("records"):
        workers = int(row["gpus"])
        workload = found.workloads[row["model"], workers]
        servers = int(row["servers"]) or None
        cell = Cell(workload, twins[workers], as_measured(row), servers)
        spread = max(LEAST_SPREAD, noise_of(row) / row["repetitions"] ** 0.5)
        observed.append(
            observe(IterationTime(cell), row["iteration_seconds"], spread, row["source"])
        )
    for one in found.all_reduces:
        if not one.while_computing:
            on = twin(one.workers, site=found.site)
            timed = AllReduceTime(on, one.message_bytes)
            observed.append(observe(timed, one.seconds, ALL_REDUCE_SPREAD, "measured"))
    return observed


def calibrate_here(found: MicroBenchmark, *, seed: int = 0) -> tuple[Calibration, list[Cluster]]:
    """Fit to a micro-benchmark; return the fit, and a cluster for each number of workers."""
    workers = sorted({one.workers for one in found.all_reduces})
    bases = [twin(count, found.planning_cost(count), found.site) for count in workers]
    fitted = calibrate_parameters(
        here_observations(found),
        here_parameters(bases, found.site),
        robust=True,
        starts=3,
        seed=seed,
    )
    return fitted, fitted.clusters(bases)
