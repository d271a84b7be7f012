"""Fitted clusters in words and units for people."""

from __future__ import annotations

import numpy as np

from ddlnb.calibration.collectives.fit import FittedCollectives
from ddlnb.calibration.collectives.priors import NAMES, NO_COPY
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
    """Return a row for each parameter of each cluster: median and 90 % interval in its unit.

    Where nothing is copied there is no rate of copying.
    """
    rows: list[dict[str, object]] = []
    for key, cluster in fitted.clusters.items():
        low, middle, high = np.exp(np.quantile(cluster.draws, (0.05, 0.5, 0.95), axis=0))
        for name, (meaning, unit) in MEANINGS.items():
            n = NAMES.index(name)
            if name == "copying" and high[n] > NO_COPY / 2:
                continue
            median, least, most = (_shown(part[n] / unit) for part in (middle, low, high))
            interval = {"median": median, "90 % interval": f"{least} to {most}"}
            network = f"{key.network} {key.gigabits or '?'} Gb/s"
            what = {"GPU": key.gpu, "network": network, "nodes": cluster.most_nodes}
            rows.append({**what, "parameter": meaning, **interval, "source": key.source[-40:]})
    return rows


def _shown(value: float) -> str:
    """Return three digits of a number, and of a large one all before the point.

    >>> _shown(0.04261), _shown(999.6), _shown(1474.6)
    ('0.0426', '1,000', '1,475')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
