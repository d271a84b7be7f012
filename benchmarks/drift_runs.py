"""The runs of `benchmarks.drift_emulated`: contenders on a network that changes, kept run by run.

A folder has ``costs.csv``, of an all-reduce on both networks, by which plans are searched;
``runs.csv``, a line per run with its plans, meetings and load; and ``iterations.csv``, the seconds
of every iteration as rank 0 saw them, at full speed.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddlnb.engines.bench import Bench
from ddlnb.engines.job import Report
from ddlnb.engines.settings import MEASURING, MeasurementSettings
from ddlnb.engines.targets import Target
from ddlnb.files import provenance, write_atomically
from ddlnb.launch.capacity import watched_load
from ddlnb.launch.options import LaunchOptions, NetworkChange, emulated
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.plans.plan import Plan
from ddlnb.plans.plan_file import method_of
from ddlnb.replanning.replanner import REPETITIONS, searched_plan
from ddlnb.search.search import SEARCHED_METHOD, Searching
from ddlnb.workloads.replay import replayed
from ddlnb.workloads.workload import Workload, read_profile

STAYS, ANEW, ORACLE = "kept", "made anew", "oracle"
CONTENDERS = (STAYS, ANEW, ORACLE)
WARMUP, WINDOW = 2, 10
CHANGE = WARMUP + WINDOW  # after the first window, with which the second is compared
NOTICED = CHANGE + WINDOW  # the first meeting at which the drift can be noticed
ITERATIONS = 30  # timed ones: two windows until the takeover, and ten iterations after it
RUN = ["drift", "repetition", "contender"]


@dataclass(frozen=True)
class Drift:
    """What a network is and becomes, and what is replayed on it at which scale."""

    first: str
    then: str
    scale: float
    profile: str
    workers: int = 2

    @property
    def workload(self) -> Workload:
        """What is replayed, in seconds at full speed."""
        return read_profile(self.profile)

    def settings(self, first: AlphaBeta | None = None) -> MeasurementSettings:
        """Return how runs are measured: planned for this cost, on a network that changes."""
        return MeasurementSettings(
            site=emulated(self.first, self.scale),
            workers=self.workers,
            warmup=WARMUP,
            iterations=ITERATIONS,
            replan=WINDOW,
            becomes=NetworkChange(self.then, CHANGE),
            cost=first,
        )

    def plan(self, cost: AlphaBeta) -> Plan:
        """Return the plan that is searched for a cost, as `ddlnb measure` searches it."""
        planner = SEARCHED_METHOD.planner
        assert isinstance(planner, Searching)
        return searched_plan(planner, self.workload, cost, self.settings(cost))


DRIFTS = {
    "bandwidth": Drift("1Gb/s 50us", "100Mb/s 50us", 0.5, "small-transformer_b16_cpu-1thread"),
    "latency": Drift("1Gb/s 50us", "1Gb/s 5ms", 0.5, "small-transformer_b16_cpu-1thread"),
}


def run_drift(name: str, folder: Path, repetitions: int) -> None:
    """Run what the folder lacks of a drift; contenders take turns."""
    drift = DRIFTS[name]
    done = set(table(folder, "runs", RUN)[RUN].itertuples(index=False, name=None))
    turns = [
        (repetition, CONTENDERS[(index + repetition) % len(CONTENDERS)])
        for repetition in range(repetitions)
        for index in range(len(CONTENDERS))
    ]
    missing = [turn for turn in turns if (name, *turn) not in done]
    if not missing:
        return
    site = drift.settings().site
    with Ranks.at(site, drift.workers, imports=MEASURING, timeout_seconds=300) as ranks:
        if not kept_costs(name, folder):
            _add(folder, "costs", _measured_costs(name, ranks))
        first, then = kept_costs(name, folder)
        contenders = {
            STAYS: Target(STAYS, "torch", method_of(drift.plan(first))),
            ANEW: Target(ANEW, "torch", SEARCHED_METHOD),
            ORACLE: Target(ORACLE, "torch", method_of(drift.plan(then))),
        }
        bench = Bench(replayed(drift.profile), ranks, drift.settings(first))
        for repetition, contender in missing:
            with watched_load() as watch:
                job, reports = bench.run(
                    contenders[contender], iterations=ITERATIONS, warmup=WARMUP
                )
            where = dict(zip(RUN, (name, repetition, contender), strict=True))
            assert job.plan is not None
            load = {one: getattr(watch.load, one) for one in ("before", "during", "stolen")}
            steps = enumerate(reports[0].step_seconds)
            seconds = [{**where, "iteration": number, "seconds": took} for number, took in steps]
            _add(folder, "iterations", seconds)
            _add(folder, "runs", [{**where, **_run(job.plan, reports), **load, **provenance()}])
            print(f"{name}, repetition {repetition}, {contender}: {watch.load}", flush=True)


def _measured_costs(name: str, ranks: Ranks) -> list[dict[str, Any]]:
    """Return what an all-reduce costs on both networks, measured as a re-plan measures it."""
    drift = DRIFTS[name]
    settings = drift.settings()
    (change,) = settings.changes
    bench = Bench(replayed(drift.profile), ranks, settings)
    found = []
    for site in (settings.site, change.site(settings.site)):
        _become(ranks, site)
        cost = asdict(bench.measured_cost(REPETITIONS))
        found.append({"drift": name, "network": site.network_name, **cost})
    _become(ranks, settings.site)
    return found


def _become(ranks: Ranks, site: LaunchOptions) -> None:
    assert ranks.network is not None
    ranks.network.become(site.topology(ranks.count).slowed(site.scale))


def kept_costs(name: str, folder: Path) -> list[AlphaBeta]:
    """Return the costs on the first network and on what it becomes; none if none were measured."""
    rows = table(folder, "costs", ["drift"])
    own = rows[rows["drift"] == name]
    return [
        AlphaBeta(row.latency_seconds, row.seconds_per_byte, row.occupied_share)
        for row in own.itertuples()
    ]


def _run(plan: Plan, reports: list[Report]) -> dict[str, Any]:
    """Return what a run says of its plans and meetings; seconds of meetings are of the clock."""
    takeovers = reports[0].switches
    first = takeovers[0] if takeovers else None
    row = {
        "plan": plan.digest,
        "messages": len(plan.messages),
        "takeover": first.iteration if first else None,
        "then_plan": first.digest if first else None,
        "then_messages": first.messages if first else None,
        "takeovers": len(takeovers),
    }
    meetings = list(zip(*(report.sync_points for report in reports), strict=True))
    for name, drifted in (("quiet", False), ("planning", True)):
        seconds = [max(m.seconds for m in one) for one in meetings if one[0].drifted == drifted]
        row |= {f"{name}_meetings": len(seconds), f"{name}_seconds": sum(seconds)}
    return row


def table(folder: Path, name: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Return a table of the folder; with these columns and no lines if it is not there."""
    path = folder / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(columns))


def _add(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Add rows to a table; those of a run that was broken off after them are replaced."""
    old, new = table(folder, name), pd.DataFrame(rows)
    if len(old) and set(RUN) <= set(new):
        again = old[RUN].apply(tuple, axis=1) == tuple(new[RUN].iloc[0])
        old = old[~again]
    both = pd.concat([old, new], ignore_index=True) if len(old) else new
    write_atomically(folder / f"{name}.csv", both.to_csv(index=False, float_format="%.6g"))
