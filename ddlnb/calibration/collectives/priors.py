"""What is known of a cluster's parameters before a row of it is seen: from words and data sheets.

Every parameter is positive, and its logarithm is taken as normal. Efficiencies of NVLink are those
that a ring and the switches reach on one node; they were chosen on the published rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ddlnb.calibration.collectives.cost import Array, Parameters
from ddlnb.calibration.collectives.hardware import KINDS, UNKNOWN, Gpu, Network
from ddlnb.units import MB

NAMES = tuple(field.name for field in fields(Parameters))
BETWEEN = ("between", "hop", "flush", "fine", "spread")  # of the network; the others of the nodes
RING_SHARE = 0.81  # of NVLink's rate in one direction
SWITCH_SHARE = 0.58
UNKNOWN_GPU = 0.3  # standard deviations of logarithms
UNKNOWN_RATE = 0.5
COPY_RATE, NO_COPY = 1.2e12, 1e15  # bytes/s of a copy in the memory of a GPU; none is made
DEDICATED, SHARED = 0.03, 0.14  # spread of the speeds of nodes


@dataclass(frozen=True)
class Prior:
    """Means and standard deviations of the logarithms, in the order of `NAMES`."""

    mean: Array
    std: Array

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """Return random logarithms, (count, parameters)."""
        return self.mean + self.std * random.standard_normal((count, len(NAMES)))

    def log_density(self, logarithms: Array) -> Array:
        """Return the logarithm of the density, up to a constant, (draws,)."""
        return -0.5 * (((logarithms - self.mean) / self.std) ** 2).sum(axis=1)


def prior_of(gpu: Gpu, network: Network) -> Prior:
    """Return what is known of clusters of this GPU on this network."""
    kind = KINDS.get(network.kind, UNKNOWN)
    inside = 0.08 if gpu.is_known else UNKNOWN_GPU
    rate = np.hypot(kind.certainty, 0.0 if network.rate_is_known else UNKNOWN_RATE)
    known = {
        "inside": (RING_SHARE * gpu.inside, inside),
        "switch": (SWITCH_SHARE * gpu.inside, inside),
        "between": (kind.efficiency * network.node_rate, rate),
        "hop": (kind.hop_seconds, 0.8 if kind is not UNKNOWN else 1.2),
        "flush": (kind.hop_seconds, 1.0 if kind is not UNKNOWN else 2.0),
        "fine": (kind.fine, 1.0),
        "few": (1.0, 0.2),
        "many": (1.0, 0.25),
        "host": (1.5e-6, 1.0),
        "pipe": (11 * MB, 0.4),
        "spread": (SHARED if network.is_shared else DEDICATED, 0.5),
    }
    known["copying"] = (COPY_RATE if network.is_copied else NO_COPY, 0.5)
    mean, std = zip(*(known[name] for name in NAMES), strict=True)
    return Prior(np.log(mean), np.array(std))


def parameters(logarithms: Array) -> Parameters:
    """Return draws of logarithms, (draws, parameters), as the cost model takes them."""
    return Parameters(*(column[:, None] for column in np.exp(logarithms).T))
