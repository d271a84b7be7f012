"""Calibrate any cluster to the tidy rows of runs on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddlnb.calibration.clusters import Calibration, calibrate_parameters
from ddlnb.calibration.observations import IterationTime, Observation, observe
from ddlnb.calibration.parameters import Parameter
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.effects import SHARE, UNITS, Effects
from ddlnb.errors import InputError, require
from ddlnb.plans.methods import Method, get_method
from ddlnb.results.rows import read_rows
from ddlnb.simulator.profiles import profile_for
from ddlnb.simulator.simulate import Cell

PRIOR_SPREAD = 0.7  # of a value that somebody wrote into a cluster file: a factor of two or so
WITHIN = 30  # times the written value, and its inverse, are the bounds
LEAST_SPREAD = 0.02  # of measured seconds, however alike their repetitions are


def calibrate_rows(cluster: Cluster, rows_path: str | Path) -> Calibration:
    """Fit the effects that the cluster lists to the rows of runs on it.

    The value in the cluster's file is the prior of each effect. Rows of methods count, baselines do
    not; each needs a profile of its model and batch for the cluster's hardware. Raises InputError
    where there is none, or nothing to fit.
    """
    return calibrate_parameters(row_observations(cluster, rows_path), listed_effects(cluster))


def listed_effects(cluster: Cluster) -> list[Parameter]:
    """Return a parameter for every effect that the cluster lists, with its value as the prior."""
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
    require(
        bool(found), f"cluster {cluster.name!r} lists no effect; add those that are to be fitted"
    )
    return found


def row_observations(cluster: Cluster, rows_path: str | Path) -> list[Observation]:
    """Return the rows of the cluster's network as observations."""
    rows = read_rows(rows_path)
    rows = rows[(rows["network"] == cluster.network) & (rows["engine"] == "torch")]
    found = []
    for row in rows.to_dict("records"):
        workload = profile_for(row["model"], cluster, int(row["local_batch"]))
        on, servers = cluster.with_workers(int(row["gpus"])), int(row["servers"]) or None
        cell = Cell(workload, on, as_measured(row), servers)
        spread = max(LEAST_SPREAD, noise_of(row))
        found.append(observe(IterationTime(cell), row["iteration_seconds"], spread, row["source"]))
    if not found:
        raise InputError(
            f"{rows_path} has no row of a method on network {cluster.network!r}; "
            f"measure some with ddlnb measure --network {cluster.network}"
        )
    return found


def as_measured(row: Mapping[str, Any]) -> Method:
    """Return the method of a measured row with the sizes that its settings name."""
    sizes = dict(word.split("=") for word in str(row["settings"]).split() if "=" in word)
    method = get_method(row["method"])
    return method.tuned(partition=sizes.get("partition"), credit=sizes.get("credit"))


def noise_of(row: Mapping[str, Any]) -> float:
    """Return the relative standard deviation of a row's repetitions; 0 if there was only one."""
    noise = row["std"] / row["throughput_samples_per_s"]
    return 0.0 if math.isnan(noise) else float(noise)
