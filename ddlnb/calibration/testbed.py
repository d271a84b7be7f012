"""The survey's comparative study (section 4, Fig. 4): what was run there, and how.

The methods there were configured by public scripts (github HKBU-HPML/ddl-benchmarks), not always
as their papers say, and some of their cost is that of the scripts. `as_run` gives each method the
way it was run. The clusters in data/clusters and METHODS are what a user has today: the same
network, and every method proper.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache

from ddlnb.calibration.setup import Setup, read_setup
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster
from ddlnb.errors import UnknownName
from ddlnb.paths import CALIBRATION, PUBLISHED
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.bucketing import Bucketing, merged
from ddlnb.plans.methods import METHODS, Method, get_method
from ddlnb.plans.plan import Message
from ddlnb.simulator.simulate import Cell
from ddlnb.units import MB
from ddlnb.workloads.workload import Workload, read_profile

HARDWARE = "rtx2080ti"
BATCHES = {"resnet50": 64, "bert-base": 64, "bert-large": 8}
CLUSTERS = {
    "10GbE": "survey-10GbE",
    "100GbE": "survey-100GbE",
    "100GbIB": "survey-100GbIB",
}
GPUS = (4, 8, 16, 32)
SMALL = 8192  # elements of a tensor that MG-WFBP's code does not send alone
# By which of its tables MG-WFBP planned: the InfiniBand cards' also where they carried TCP.
PLANNED_FOR = {"10GbE": "10GbE", "100GbE": "56GbIB", "100GbIB": "56GbIB"}


def merged_as_run(workload: Workload, cost: AlphaBeta) -> list[Message]:
    """Merge as MG-WFBP's public code does: a small tensor never travels alone.

    One that the rule of `ddlnb.plans.bucketing.merged` leaves alone joins the message before it.
    """
    joined: list[Message] = []
    for message in merged(workload, cost):
        if joined and len(message.pieces) == 1 and message.elements < SMALL:
            before = joined.pop()
            priority = min(before.priority, message.priority)
            message = Message((*before.pieces, *message.pieces), priority)
        joined.append(message)
    return joined


def as_run(method: str | Method) -> Method:
    """Return the method the way the survey ran it.

    MG-WFBP: small tensors do not travel alone. ByteScheduler-A2A: parts of 4 million parameters, 16
    million in flight. ByteScheduler-PS: the schedule of WFBP-PS on BytePS, where only the server's
    queue differs. The others are as they are in METHODS.
    """
    method = get_method(method)
    if method.name == "MG-WFBP":
        return replace(method, bucketing=Bucketing(merged_as_run, needs_cost=True))
    if method.name == "ByteScheduler-A2A":
        return replace(method, partition_bytes=16 * MB, credit_bytes=64 * MB)
    if method.name == "ByteScheduler-PS":
        return replace(METHODS["WFBP-PS"], name=method.name, scheduling=method.scheduling)
    return method


def run_otherwise(name: str) -> bool:
    """Return whether the survey ran this method in another way than METHODS describes it."""
    return name in METHODS and as_run(name) != METHODS[name]


def fig4_workload(model: str) -> Workload:
    """Return the profile of a model on the survey's GPU at its local batch. Raises UnknownName."""
    if model not in BATCHES:
        raise UnknownName("model of Fig. 4", model, BATCHES)
    return read_profile(f"{model}_b{BATCHES[model]}_{HARDWARE}")


def fig4_cluster(network: str, gpus: int) -> Cluster:
    """Return the survey's testbed on one of its networks, with this many GPUs. Raises UnknownName.

    Within one node no network is used: its rows are one configuration, run once for each network.
    """
    return fig4_clusters(network)[gpus] if gpus in GPUS else _whole(network).with_workers(gpus)


def _whole(network: str) -> Cluster:
    if network not in CLUSTERS:
        raise UnknownName("network of Fig. 4", network, CLUSTERS)
    return get_cluster(CLUSTERS[network])


def fig4_clusters(network: str) -> dict[int, Cluster]:
    """Return the testbed by number of GPUs; its file is read once."""
    whole = _whole(network)
    return {gpus: whole.with_workers(gpus) for gpus in GPUS}


@cache
def planning_costs() -> dict[tuple[str, int], AlphaBeta]:
    """Return the costs that MG-WFBP's public code plans with, by network and number of workers."""
    with (PUBLISHED / "mgwfbp_planning.csv").open(newline="") as file:
        tables = {
            (row["network"], int(row["workers"])): AlphaBeta(
                float(row["latency_seconds"]), float(row["seconds_per_byte"])
            )
            for row in csv.DictReader(file)
        }
    workers = sorted({workers for _, workers in tables})
    return {
        (network, count): tables[table, count]
        for network, table in PLANNED_FOR.items()
        for count in workers
    }


def cell_as_run(workload: Workload, cluster: Cluster, method: str | Method) -> Cell:
    """Return the cell of a method as the survey ran it, with the cost by which it planned."""
    method = as_run(method)
    cost = planning_costs().get((cluster.network, cluster.workers))
    return Cell(workload, replace(cluster, planning=cost), method)


def survey_setup() -> Setup:
    """Return what is fitted, given the profiles of the survey's models as they are now."""
    return read_setup(
        CALIBRATION / "survey.yaml", {model: fig4_workload(model) for model in BATCHES}
    )
