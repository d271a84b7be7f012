"""The cells of `benchmarks.searched_emulated`: an emulated network, a model, and what is planned.

A plan is searched for the twin of the network, which knows its links from the micro-benchmark that
`benchmarks.emulated` keeps. Twins are written beside the rows, so that a second call has the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.emulated import CREDIT, NETWORKS, PARTITION
from ddlnb.calibration.calibrated_model import calibrate_here, micro_benchmark, read_micro_benchmark
from ddlnb.clusters.cluster import Cluster
from ddlnb.clusters.file import read_cluster, write_cluster
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.files import DATA
from ddlnb.launch.options import EMULATED, LaunchOptions
from ddlnb.plans.methods import METHODS, Method
from ddlnb.plans.plan import Gate, Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.replanning.replanner import in_order
from ddlnb.search.search import SearchResult, search_plan
from ddlnb.search.space import SEARCHED, Space
from ddlnb.simulator.simulate import plan_on, simulate
from ddlnb.survey.simulated_here import PROBE_ITERATIONS, WARMUP
from ddlnb.workloads.workload import Workload, read_profile

LINKS = "links"  # the folder of micro-benchmarks, if these were measured beside the cells
MICRO_BENCHMARKS = DATA / "measured" / "2026-11-21_two-cores_emulated"
# The kept ones are of the old clock, which counted a forward pass too few of these methods.
GATED = [name for name, one in METHODS.items() if one.gate is Gate.OWN_LAYER]
# All messages take the engine's mesh, the only all-reduce whose cost the twins know. Plans with
# servers are those of the methods, whose sizes suit these models.
SPACE = Space(collectives=(), split=False, servers=False)
# Other plans that are tried beside the one that was found: the same with all its messages at once,
# and the one for a twin with the latency of idle links. All-reduces that overlap show less of their
# latency, so the twin, fitted to training, has less; a message that goes alone shows all of it.
AT_ONCE = f"{SEARCHED} at once"
IDLE_LINKS = f"{SEARCHED} for idle links"
DISTURBED = "1Gb/s 50us"  # the network that new cells change
SLOW_NODE = 2.0  # times as many seconds per byte of the first node's link, in the cells "unlike"
LOSS = "1%"


@dataclass(frozen=True)
class Cell:
    """A model on so many emulated nodes: ``change`` is "", "unlike" or "loss"."""

    network: str
    profile: str
    workers: int
    change: str = ""

    @property
    def name(self) -> str:
        """The cell in words, by which it is asked for."""
        words = [self.network, self.change, self.workload.model, str(self.workers)]
        return " ".join(word for word in words if word)

    @property
    def workload(self) -> Workload:
        """What is replayed, in seconds at full speed."""
        return read_profile(self.profile)

    def site(self, nodes: int) -> LaunchOptions:
        """Return where the cell is run with so many nodes, servers among them."""
        if self.change == "unlike":
            rate, latency = self.network.split()
            half = f"{1000 / SLOW_NODE:g}Mb/s" if rate == "1Gb/s" else ""
            links = (f"{half} {latency}", *[self.network] * (nodes - 1))
            return LaunchOptions(EMULATED, network=links, scale=NETWORKS[self.network].scale)
        return self.links

    @property
    def links(self) -> LaunchOptions:
        """Where the links are measured for the twin: on the network itself, if they are alike."""
        case = NETWORKS[self.network]
        if self.change == "loss":
            return LaunchOptions(EMULATED, network=f"{self.network} loss {LOSS}", scale=case.scale)
        return case.site(self.network)

    def twin(self, folder: Path) -> Cluster:
        """Return the simulated twin, calibrated once and kept in the folder.

        Of unlike links it is that of the links as they were, and one of them is slow. The simulator
        knows nothing of losses: with these, the twin has the latency and bandwidth that they leave.
        """
        twin = _calibrated(folder, self.links, self.workers)
        return twin.with_heterogeneity(link={0: SLOW_NODE}) if self.change == "unlike" else twin


@dataclass(frozen=True)
class Planned:
    """What is searched among all-reduces, the plans that are tried, and forecasts of all, by name.

    ``plans`` are as our engine runs them; the first is the one that was found.
    """

    cell: Cell
    twin: Cluster
    found: SearchResult
    plans: dict[str, Plan]
    forecasts: dict[str, float]

    def fixed(self, count: int) -> list[Method]:
        """Return the methods that are forecast to be the quickest, of both architectures."""
        ranked = sorted(_methods(), key=lambda one: self.forecasts[one.name])
        chosen = ranked[:count]
        for one in ranked[count:]:
            if one.architecture not in {known.architecture for known in chosen}:
                chosen.append(one)
        return chosen

    def plan_of(self, name: str) -> Plan:
        """Return the plan of this name, or that of a method, under the name of the search."""
        if name in self.plans:
            return replace(self.plans[name], method=SEARCHED)
        method = next(one for one in _methods() if one.name == name)
        cell = self.cell
        fixed = plan_on(self.twin, cell.workload, method, _servers(method, cell))
        return replace(fixed, method=SEARCHED)


def planned(cell: Cell, folder: Path) -> Planned:
    """Search the plans of a cell, and forecast them and every method on the same twin."""
    twin, workload = cell.twin(folder), cell.workload
    found = search_plan(workload, twin, space=SPACE, progress=False)
    idle = search_plan(workload, _idle(twin), space=SPACE, progress=False)
    forecasts = {
        one.name: simulate(workload, twin, one, servers=_servers(one, cell)).iteration_seconds
        for one in [*_methods(), method_of(replace(idle.plan, method=IDLE_LINKS))]
    }
    forecasts |= dict.fromkeys((SEARCHED, AT_ONCE), found.iteration_seconds)
    plans = {
        SEARCHED: in_order(found.plan),
        AT_ONCE: replace(found.plan, method=AT_ONCE),
        IDLE_LINKS: replace(in_order(idle.plan), method=IDLE_LINKS),
    }
    first = {replace(plan, method=SEARCHED).digest: name for name, plan in reversed(plans.items())}
    plans = {name: plans[name] for name in plans if name in first.values()}
    return Planned(cell, twin, found, plans, forecasts)


def _idle(twin: Cluster) -> Cluster:
    """Return the twin with the latency of an all-reduce on idle links, if that is longer."""
    assert twin.planning is not None
    longer = max(0.0, twin.planning.latency_seconds - twin.cost.latency_seconds)
    latency = twin.effects.operation_latency + longer
    return twin.with_effects(operation_latency=latency)


def _methods() -> list[Method]:
    """Return the catalogue's methods, with sizes that suit models as small as these."""
    return [one.tuned(partition=PARTITION, credit=CREDIT) for one in METHODS.values()]


def _servers(method: Method, cell: Cell) -> int | None:
    return cell.workers if method.architecture == "PS" else None


def measure_links(site: LaunchOptions, workers: Sequence[int], folder: Path) -> None:
    """Measure the links of a network on this machine, for the twins of the cells in the folder."""
    probing = MeasurementSettings(
        site=site,
        partition=PARTITION,
        credit=CREDIT,
        topology="mesh",
        iterations=PROBE_ITERATIONS,
        repetitions=1,
        warmup=WARMUP,
        baselines=False,
    )
    micro_benchmark(
        folder / LINKS / site.name,
        workers=workers,
        settings=probing,
        server_per_worker=True,
        progress=True,
    )


def _calibrated(folder: Path, site: LaunchOptions, workers: int) -> Cluster:
    """Return the twin, by the links that were measured for the folder, or else by the kept ones."""
    path = folder / "twins" / f"{site.name}-{workers}-workers.yaml"
    if not path.exists():
        own = folder / LINKS / site.name
        links = own if own.exists() else MICRO_BENCHMARKS / site.name
        probed = read_micro_benchmark(links, site)
        if not own.exists():
            probed = replace(probed, rows=probed.rows[~probed.rows["method"].isin(GATED)])
        _, clusters = calibrate_here(probed)
        path.parent.mkdir(parents=True, exist_ok=True)
        for one in clusters:
            write_cluster(one, path.with_name(f"{one.name}.yaml"))
    return read_cluster(path)


def _cells() -> list[Cell]:
    made = [
        Cell(network, profile, workers)
        for network, case in NETWORKS.items()
        for workers in (4, 8)
        for profile in case.profiles
    ]
    first = next(one for one in made if one.network == DISTURBED)
    changed = [
        replace(first, change=change, workers=workers)
        for change in ("unlike", "loss")
        for workers in (4, 8)
    ]
    return made + changed


CELLS: dict[str, Cell] = {cell.name: cell for cell in _cells()}
