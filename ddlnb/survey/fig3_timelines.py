"""What overlapped with what: the facts that a reader looks for in a timeline, as one table.

What an overview of the six aspects shows (survey, Fig. 3, parts 1 to 6), one example of each.

Nothing is drawn by hand that the package can make: activities, compressed gradients, schedules and
networks are those of its own definitions, small enough to be seen whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ddlnb.errors import require
from ddlnb.files import BUILD
from ddlnb.networks.network import Network
from ddlnb.networks.topologies import BCube, FatTree, Torus
from ddlnb.plans.methods import METHODS
from ddlnb.results.timeline import Timeline
from ddlnb.simulator.simulate import simulate
from ddlnb.survey.sec3_1_2_synchronisation import activities
from ddlnb.training.cost.pure_case import made_up_cluster
from ddlnb.units import MB, MS
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


__all__ = [
    "EARLY",
    "LATE",
    "PLACES",
    "overlap",
    "overlap_table",
    "overview",
    "places_of_waits",
    "write_traces",
]

EARLY, LATE = "started in backward", "still sent in next forward"
PLACES = "places of waits"


def overlap_table(timelines: Mapping[str, Timeline], rank: int = 0) -> pd.DataFrame:
    """Return one row per method: times and messages of one rank, averaged over the iterations.

    The columns are those of `overlap`, before them the milliseconds of computing and waiting, and
    after them the number of places at which the worker waits: 1 if it waits for all layers at
    once. Raises InputError for a rank without spans.
    """
    rows = {}
    for name, whole in timelines.items():
        timeline = whole.on(rank)
        require(bool(timeline.spans), f"timeline of {name!r} has no spans of rank {rank}")
        iterations = sorted({span.iteration for span in timeline.spans})
        counts = pd.DataFrame([overlap(timeline, iteration) for iteration in iterations])
        rows[name] = {
            **{
                f"{kind} (ms)": timeline.seconds(kind) / MS / len(iterations)
                for kind in ("forward", "backward", "wait", "update")
            },
            **counts.mean(),
            "largest (MB)": counts["largest (MB)"].max(),
            PLACES: places_of_waits(timeline),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").round(3)


def overlap(timeline: Timeline, iteration: int) -> dict[str, float]:
    """Count the messages of one iteration, and those that overlap with computation.

    EARLY counts messages that started before the iteration's backward pass ended, and LATE those
    still under way when the next forward pass had started; it is NaN in the last iteration.
    """
    spans = [span for span in timeline.spans if span.iteration == iteration]
    sent = [span for span in spans if span.kind == "message"]
    end = max(span.stop_seconds for span in spans if span.kind == "backward")
    following = [
        span.start_seconds
        for span in timeline.spans
        if span.kind == "forward" and span.iteration == iteration + 1
    ]
    late = sum(span.stop_seconds > min(following) for span in sent) if following else float("nan")
    return {
        "messages": len(sent),
        "largest (MB)": max((span.bytes for span in sent), default=0) / MB,
        EARLY: sum(span.start_seconds < end for span in sent),
        LATE: late,
    }


def places_of_waits(timeline: Timeline) -> int:
    """Return at how many places of an iteration the worker waits."""
    return len({span.name for span in timeline.spans if span.kind == "wait"})


def write_traces(timelines: Mapping[str, Timeline], folder: str | Path | None = None) -> list[str]:
    """Write a Chrome trace per method to the folder, by default build/traces; return their names.

    chrome://tracing and Perfetto open them; `Timeline.write_chrome_trace` says what they hold.
    """
    folder = Path(folder) if folder is not None else BUILD / "traces"
    return [
        timeline.write_chrome_trace(folder / f"{name}.json").name
        for name, timeline in timelines.items()
    ]
