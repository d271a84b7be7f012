"""Trivial forecasts of collectives, beside which the fitted model has to prove itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlnb.calibration.collectives.fit import key_of
from ddlnb.calibration.collectives.settings import hardware_of
from ddlnb.results.collectives.rows import SECONDS, bus_factor

if TYPE_CHECKING:
    import pandas as pd


def same_bus_bandwidth(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds at the bus bandwidth of the nearest size on the most nodes measured."""
    like = _alike(rows, row)
    most = like[like["nodes"] == like["nodes"].max()]
    distance = np.abs(np.log(most["size_bytes"].to_numpy(float) / row["size_bytes"]))
    nearest = most.iloc[int(distance.argmin())]
    factor = bus_factor(nearest["collective"], nearest["ranks"])
    per_byte = nearest[SECONDS] / (factor * nearest["size_bytes"])
    return float(per_byte * bus_factor(row["collective"], row["ranks"]) * row["size_bytes"])


def alpha_beta(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds of a latency and a bus bandwidth fitted to relative errors."""
    like = _alike(rows, row)
    pairs = zip(like["collective"], like["ranks"], strict=True)
    sent = like["size_bytes"].to_numpy(float) * np.array([bus_factor(*pair) for pair in pairs])
    times = like[SECONDS].to_numpy(float)
    from scipy.optimize import nnls

    columns = np.stack([1 / times, sent / times], axis=1)
    scales = columns.max(axis=0)
    latency, per_byte = nnls(columns / scales, np.ones(len(like)))[0] / scales
    sends = row["size_bytes"] * bus_factor(row["collective"], row["ranks"])
    return float(latency + per_byte * sends)


def nominal(rows: pd.DataFrame, row: Mapping[str, Any]) -> float:
    """Return the seconds at the rates of the data sheets."""
    gpu, network = hardware_of(row)
    rate = gpu.inside if row["nodes"] == 1 else min(gpu.inside, network.node_rate)
    return float(row["size_bytes"] * bus_factor(row["collective"], row["ranks"]) / rate)


TRIVIAL: dict[str, Callable[[pd.DataFrame, Mapping[str, Any]], float]] = {
    "same bus bandwidth": same_bus_bandwidth,
    "latency and bandwidth": alpha_beta,
    "nominal bandwidth": nominal,
}


def _alike(rows: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows most like the row: of its cluster, else its GPU, else all."""
    gpu, network = hardware_of(row)
    key = key_of(row, gpu, network)
    keys = [key_of(one, *hardware_of(one)) for one in rows.to_dict("records")]
    same = np.array([(k == key, k.gpu == key.gpu, True) for k in keys])
    collective = (rows["collective"] == row["collective"]).to_numpy()
    for like in same.T:
        if (like & collective).any():
            return rows[like & collective]
    return rows
