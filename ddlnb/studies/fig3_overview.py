"""What an overview of the six aspects shows (survey, Fig. 3, parts 1 to 6), one example of each.

Nothing is drawn by hand that the package can make: activities, compressed gradients, schedules and
networks are those of its own definitions, small enough to be seen whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddlnb.networks.network import Network
from ddlnb.networks.topologies import BCube, FatTree, Torus
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.simulate import simulate
from ddlnb.studies.sec3_1_2_synchronisation import activities
from ddlnb.training.cost.pure_case import made_up_cluster
from ddlnb.workloads.workload import Gradient, Layer, Workload

SYNCHRONISATIONS = ("bsp on PS", "ssp(1)", "asp", "local(4)")
COMPRESSORS = ("ef-sign", "qsgd(3)", "top-k(0.25)")
SCHEDULES = ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A")
ELEMENTS = 16  # of the gradient that is compressed
WORKERS = 4
# Layers a to e, of which the first three have few elements and compute quickly.
FIVE_LAYERS = Workload(
    "five layers",
    1,
    tuple(Layer(name, 0.010) for name in "abcde"),
    tuple(
        Gradient(f"{name}.weight", name, elements, 4, seconds)
        for name, elements, seconds in (
            ("e", 1_000_000, 0.030),
            ("d", 700_000, 0.030),
            ("c", 50_000, 0.006),
            ("b", 50_000, 0.006),
            ("a", 50_000, 0.006),
        )
    ),
    "made up",
)
PARTITION, CREDIT = "1MB", "1MB"
BANDWIDTH, LATENCY = "1 Gb/s", "1 ms"


@dataclass(frozen=True)
class Overview:
    """One example of each aspect that can be computed; architecture and protocol are pictures.

    ``activity`` is what workers do when, by synchronisation. ``compressed`` has the values of a
    gradient as they arrive, by compressor, itself under "gradient". ``schedules`` are simulated
    timelines by method, ``networks`` graphs of hosts and switches.
    """

    activity: pd.DataFrame
    compressed: Mapping[str, np.ndarray]
    schedules: Mapping[str, Timeline]
    networks: tuple[Network, ...]


def overview(seed: int = 0) -> Overview:
    """Return one example of each aspect of the taxonomy."""
    return Overview(
        activities(SYNCHRONISATIONS, workers=WORKERS, steps=8),
        compressed_gradient(seed),
        simulated_schedules(),
        tuple(one.network(1.0) for one in (FatTree(4), BCube(4, 2), Torus(4, 4))),
    )


def compressed_gradient(seed: int = 0) -> dict[str, np.ndarray]:
    """Return normal numbers, and what of them arrives through every compressor."""
    import torch

    from ddlnb.compression.base import Codec, Round
    from ddlnb.compression.catalogue import get_compressor

    gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))
    found = {"gradient": gradient.numpy()}
    for name in COMPRESSORS:
        codec = get_compressor(name)
        assert isinstance(codec, Codec)  # the catalogue's own
        payload = codec.encode(gradient, Round(rank=0, workers=1, step=0, seed=seed), {})
        found[name] = codec.decode(payload, ELEMENTS).numpy()
    return found


def simulated_schedules() -> dict[str, Timeline]:
    """Return four simulated iterations of a model of five layers, by method."""
    cluster = made_up_cluster(BANDWIDTH, LATENCY, WORKERS)
    found = {}
    for name in SCHEDULES:
        method = METHODS[name]
        if name.startswith("ByteScheduler"):
            method = method.tuned(partition=PARTITION, credit=CREDIT)
        found[name] = simulate(FIVE_LAYERS, cluster, method, iterations=4)
    return found
