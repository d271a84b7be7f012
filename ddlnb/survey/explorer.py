"""Notebook explorer: the methods on a cluster whose numbers follow sliders.

A setting is where the sliders stand. Everything else follows from it, in a few milliseconds, by the
same simulator as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import get_cluster, write_cluster
from ddlnb.errors import require
from ddlnb.plans.methods import Method
from ddlnb.results.timeline import Timeline
from ddlnb.search.result import SearchResult
from ddlnb.search.search import WITHOUT_SERVERS, search_plan
from ddlnb.simulator.forecast import methods_on, single_seconds
from ddlnb.simulator.simulate import Cell, simulate, steady_seconds
from ddlnb.survey.findings import Findings, findings
from ddlnb.units import BITS_PER_BYTE, GB, US, show_seconds
from ddlnb.workloads.workload import Workload, read_profile

if TYPE_CHECKING:
    import pandas as pd


MODELS = {
    "resnet50": "resnet50_b64_rtx2080ti",
    "bert-base": "bert-base_b64_rtx2080ti",
    "bert-large": "bert-large_b8_rtx2080ti",
}
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
BASE = "survey-10GbE"  # what no slider changes is as there: nodes of four GPUs on PCIe
SHOWN = "MG-WFBP"  # the method whose timeline is shown first
SEARCHED_PLANS = 60  # half a second or so: the search follows when the sliders rest
PROMPT = 0.1  # seconds in which a reader takes a change as immediate
STEADY = (1, 2)  # the iterations that a timeline shows


@dataclass(frozen=True)
class Setting:
    """Where the sliders stand: Gb/s and microseconds between nodes, workers, samples per worker."""

    model: str = "resnet50"
    gigabits: float = 10.0
    latency_us: float = 50.0
    workers: int = 16
    batch: int = 64

    @property
    def workload(self) -> Workload:
        """The model at that batch; its seconds grow with the samples."""
        return _workload(self.model, self.batch)

    @property
    def cluster(self) -> Cluster:
        """The cluster with that network; all its fits but the network's stay."""
        base = _base()
        nodes = max(1, max(WORKERS) // base.gpus_per_node)
        rate = self.gigabits * GB / BITS_PER_BYTE
        effects = base.effects
        changed = {
            "between_bandwidth": rate,
            "between_latency": self.latency_us * US,
            "connection_bandwidth": min(effects.connection_bandwidth, rate),
            "duplex_bandwidth": 2 * rate,
        }
        return replace(
            base,
            name="explored",
            network=f"{self.gigabits:.3g} Gb/s, {self.latency_us:.3g} us",
            nodes=nodes,
            workers=self.workers,
            effects=replace(effects, **changed),
            fits={name: fit for name, fit in base.fits.items() if name not in changed},
            planning=None,
            about=f"{BASE} with another network, from the explorer",
        )


@lru_cache(maxsize=1)
def _base() -> Cluster:
    return get_cluster(BASE)


@lru_cache(maxsize=32)
def _workload(model: str, batch: int) -> Workload:
    require(model in MODELS, f"model {model!r} must be one of {', '.join(MODELS)}")
    return read_profile(MODELS[model]).at_batch(batch)


def explored_speeds(setting: Setting) -> pd.DataFrame:
    """Return a row per method: throughput in samples/s, efficiency, iteration seconds.

    ``efficiency`` is the share of linear scaling, ``waiting`` the share of an iteration in which a
    worker waits for messages.
    """
    import pandas as pd

    workload, cluster = setting.workload, setting.cluster
    cells = [Cell(workload, cluster, method) for method in methods_on(cluster)]
    single = single_seconds(cells[0])
    rows = [
        {
            "method": cell.method.name,
            "throughput": cell.samples / found.iteration_seconds,
            "efficiency": single / found.iteration_seconds,
            "waiting": found.exposed_seconds / found.iteration_seconds,
            "iteration_seconds": found.iteration_seconds,
        }
        for cell, found in zip(cells, steady_seconds(cells), strict=True)
    ]
    return pd.DataFrame(rows)


def explored_timeline(setting: Setting, method: str | Method) -> Timeline:
    """Return two steady iterations of a method, as one worker sees them."""
    line = simulate(setting.workload, setting.cluster, method, iterations=STEADY[1] + 1)
    return line.window(*STEADY)


def explored_search(setting: Setting) -> SearchResult:
    """Return the searched plan at a setting, without servers; it takes a moment, not a move."""
    return search_plan(
        setting.workload,
        setting.cluster,
        space=WITHOUT_SERVERS,
        most_plans=SEARCHED_PLANS,
        progress=False,
    )


def redraw_seconds(setting: Setting, moves: int = 20) -> list[float]:
    """Return how long each of some moves of the network's slider takes to simulate, in seconds.

    A move simulates all methods and the timeline of one.
    """
    taken = []
    for number in range(moves):
        start = perf_counter()
        moved = replace(setting, gigabits=setting.gigabits * (1 + (number + 1) / moves))
        explored_speeds(moved)
        explored_timeline(moved, SHOWN)
        taken.append(perf_counter() - start)
    return taken


def redraw_findings(seconds: Sequence[float]) -> Findings:
    """Return how long a move of a slider takes, and how many kept below PROMPT."""
    quick = sum(one <= PROMPT for one in seconds)
    return findings(
        f"A move of a slider is simulated in {show_seconds(median(seconds))} (median of "
        f"{len(seconds)}, {show_seconds(min(seconds))} to {show_seconds(max(seconds))}); "
        f"{quick} of them within {show_seconds(PROMPT)}."
    )


def save_explored(setting: Setting, path: str | Path) -> Path:
    """Write the cluster as a file that every command and function takes, and return its path.

    Raises InputError for a path that is no .yaml file.
    """
    require(Path(path).suffix == ".yaml", f"cluster file {str(path)!r} must have a name in .yaml")
    return write_cluster(setting.cluster, path)
