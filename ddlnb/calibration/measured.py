"""Calibrates any cluster from the tidy rows of runs on it."""

from __future__ import annotations

import math
from pathlib import Path

from ddlnb.calibration.fit import Calibration, calibrate_parameters
from ddlnb.calibration.observations import Observation, observe
from ddlnb.calibration.parameters import Parameter
from ddlnb.calibration.quantities import IterationTime
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import SHARE, UNITS, Effects
from ddlnb.errors import InputError, require
from ddlnb.plans.methods import get_method
from ddlnb.results.rows import read_rows
from ddlnb.simulator.forecast import profile_for
from ddlnb.simulator.simulate import Cell

PRIOR_SPREAD = 0.7  # of a value that somebody wrote into a cluster file: a factor of two or so
WITHIN = 30  # times the written value, and its inverse, are the bounds
LEAST_SPREAD = 0.02  # of measured seconds, however alike their repetitions are


def calibrate_rows(cluster: Cluster, rows_path: str | Path) -> Calibration:
    """The fit of the effects that the cluster lists to the rows of runs on it.

    The value in the cluster's file is the prior of each effect. Rows of methods count, baselines do
    not; each needs a profile of its model and batch for the cluster's hardware. Raises InputError
    where there is none, or nothing to fit.
    """
    return calibrate_parameters(row_observations(cluster, rows_path), listed_effects(cluster))


def listed_effects(cluster: Cluster) -> list[Parameter]:
    """A parameter for every effect that the cluster lists, with its value as the prior."""
    found = []
    for effect, unit in UNITS.items():
        value = getattr(cluster.effects, effect)
        if value in (0.0, math.inf) or value == getattr(Effects(), effect):
            continue
        most = 1.0 if unit is SHARE else value * WITHIN
        low = max(value / WITHIN, unit.least) if unit is SHARE else value / WITHIN
        found.append(
            Parameter(
                effect, low=low, high=min(most, unit.most), prior=value, prior_spread=PRIOR_SPREAD
            )
        )
    require(bool(found), f"cluster {cluster.name!r} lists no effect; add those that are to be fit")
    return found


def row_observations(cluster: Cluster, rows_path: str | Path) -> list[Observation]:
    """The rows of the cluster's network as observations, each with the noise of its repetitions."""
    rows = read_rows(rows_path)
    rows = rows[(rows["network"] == cluster.network) & (rows["engine"] == "torch")]
    found = []
    for row in rows.to_dict("records"):
        workload = profile_for(row["model"], cluster, int(row["local_batch"]))
        sizes = dict(part.split("=") for part in str(row["settings"]).split())
        method = get_method(row["method"]).tuned(
            partition=sizes.get("partition"), credit=sizes.get("credit")
        )
        cell = Cell(
            workload, cluster.with_workers(int(row["gpus"])), method, int(row["servers"]) or None
        )
        relative = row["std"] / row["throughput_samples_per_s"]
        spread = max(LEAST_SPREAD, relative if relative == relative else 0.0)
        found.append(observe(IterationTime(cell), row["iteration_seconds"], spread, row["source"]))
    if not found:
        raise InputError(
            f"{rows_path} has no row of a method on network {cluster.network!r}; "
            f"measure some with ddlnb measure --network {cluster.network}"
        )
    return found
