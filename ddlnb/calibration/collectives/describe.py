"""Fitted clusters in words and units for people."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddlnb.calibration.collectives.fit import FittedCollectives
from ddlnb.calibration.collectives.priors import NAMES
from ddlnb.units import GB, MB, US

MEANINGS: dict[str, tuple[str, float]] = {
    "inside": ("bus bandwidth of a ring in a node (GB/s)", GB),
    "switch": ("all-reduce in NVLink's switches (GB/s)", GB),
    "between": ("a node sends to others (GB/s)", GB),
    "hop": ("a hop between nodes, more than NCCL's (us)", US),
    "flush": ("and with the protocol Simple (us)", US),
    "few": ("factor of NCCL's latencies with LL", 1.0),
    "many": ("and with the other protocols", 1.0),
    "host": ("a call, outside of NCCL (us)", US),
    "pipe": ("bytes in flight at a stage of a tree (MB)", MB),
    "spread": ("spread of the logarithm of nodes' speeds", 1.0),
    "copying": ("what is gathered is copied (GB/s)", GB),
}


def described(fitted: FittedCollectives) -> list[dict[str, object]]:
    """Return a row for each parameter of each cluster: median and 90 % interval in its unit."""
    show: Callable[[float], str] = "{:.3g}".format
    rows: list[dict[str, object]] = []
    for key, cluster in fitted.clusters.items():
        low, middle, high = np.exp(np.quantile(cluster.draws, (0.05, 0.5, 0.95), axis=0))
        for name, (meaning, unit) in MEANINGS.items():
            n = NAMES.index(name)
            values = (part[n] / unit for part in (middle, low, high))
            median, least, most = (show(value) for value in values)
            interval = {"median": median, "90 % interval": f"{least} to {most}"}
            network = f"{key.network} {key.gigabits or '?'} Gb/s"
            what = {"GPU": key.gpu, "network": network, "nodes": cluster.most_nodes}
            rows.append({**what, "parameter": meaning, **interval, "source": key.source[-40:]})
    return rows
