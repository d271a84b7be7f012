"""A network that becomes slower under a run: the plan kept, made anew, and known from the start.

    python -m benchmarks.drift_emulated [--out FOLDER] [--drifts NAME ...] [--kept]

A run begins on one emulated network, which becomes another one before iteration 12. Three
contenders take turns: the plan that was searched for the first network, kept; the same plan, made
anew when its ranks notice the drift (as `ddlnb measure --replan 10`); and the oracle, the plan that
is searched for the second network and runs from the start. A second call completes what is missing.
Printed are medians of iterations before the drift, after it, and from the takeover on, with the
forecasts of both plans, and what the re-plan gains and what its meetings cost. With --kept nothing
runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.drift_runs import (
    ANEW,
    CHANGE,
    CONTENDERS,
    DRIFTS,
    NOTICED,
    ORACLE,
    RUN,
    STAYS,
    WARMUP,
    kept_costs,
    run_drift,
    table,
)
from benchmarks.pictures import drift_iterations
from benchmarks.searched_emulated import ratio
from ddlnb.errors import UnknownName
from ddlnb.files import DATA
from ddlnb.plans.plan import Plan
from ddlnb.replanning.replanner import LEAST_GAIN
from ddlnb.replanning.searched import measured_cluster, simulated_seconds
from ddlnb.results.statistics import Interval

KEPT = DATA / "measured" / "2026-11-23_two-cores_drift"
BEFORE, DRIFTED, LATER = "before", "drifted", "later"


def phases(iterations: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the median seconds of an iteration of every run: before, drifted, later.

    Drifted are the iterations until the takeover of the same repetition, later those from it on;
    warm-up does not count. Without a takeover the meeting counts at which there could have been
    one.
    """
    anew = runs[runs["contender"] == ANEW].set_index(["drift", "repetition"])["takeover"]
    rows = iterations[iterations["iteration"] >= WARMUP].join(
        anew.fillna(NOTICED), on=["drift", "repetition"], how="inner"
    )
    phase = pd.Series(DRIFTED, rows.index)
    phase[rows["iteration"] < CHANGE] = BEFORE
    phase[rows["iteration"] >= rows["takeover"]] = LATER
    medians = rows.assign(phase=phase).groupby([*RUN, "phase"], sort=False)["seconds"].median()
    return medians.unstack("phase")[[BEFORE, DRIFTED, LATER]].reset_index()


def forecasts(name: str, folder: Path) -> dict[tuple[str, str], float]:
    """Return the simulated seconds of an iteration by contender, before and later.

    Plans are those of costs measured beforehand; what the re-plan measures itself may differ.
    """
    drift = DRIFTS[name]
    first, then = kept_costs(name, folder)
    fast, slow = drift.plan(first), drift.plan(then)

    def seconds(plan: Plan, phase: str) -> float:
        cluster = measured_cluster(first if phase == BEFORE else then, drift.workers)
        return simulated_seconds(plan, drift.workload, cluster)

    found = {(STAYS, phase): seconds(fast, phase) for phase in (BEFORE, LATER)}
    found |= {(ORACLE, phase): seconds(slow, phase) for phase in (BEFORE, LATER)}
    takes_over = found[STAYS, LATER] >= LEAST_GAIN * found[ORACLE, LATER]
    return found | {
        (ANEW, BEFORE): found[STAYS, BEFORE],
        (ANEW, LATER): found[ORACLE if takes_over else STAYS, LATER],
    }


def judged(name: str, folder: Path) -> pd.DataFrame:
    """Return a row per contender of a drift: milliseconds of an iteration, emulated and forecast.

    Emulated are medians over runs; ``spread`` is how far apart the runs are after the takeover.
    """
    runs = _of(name, table(folder, "runs"))
    found = _of(name, phases(table(folder, "iterations"), runs))
    forecast = forecasts(name, folder)
    lines = []
    for contender in CONTENDERS:
        own = found[found["contender"] == contender]
        said = runs[runs["contender"] == contender]
        if own.empty:
            continue
        later = own[LATER]
        lines.append(
            {
                "drift": name,
                "plan": contender,
                "runs": len(own),
                "messages": _messages(said),
                "before ms": 1e3 * own[BEFORE].median(),
                "forecast": 1e3 * forecast[contender, BEFORE],
                "drifted ms": 1e3 * own[DRIFTED].median(),
                "later ms": 1e3 * later.median(),
                "spread": later.max() / later.min() - 1,
                "forecast ": 1e3 * forecast[contender, LATER],
                "load": (said["during"] + said["stolen"]).max(),
            }
        )
    return pd.DataFrame(lines)


def _messages(runs: pd.DataFrame) -> str:
    """Return how many messages the plan has, and the one that took over from it."""
    first = " or ".join(str(int(n)) for n in sorted(runs["messages"].unique()))
    then = " or ".join(str(int(n)) for n in sorted(runs["then_messages"].dropna().unique()))
    return f"{first}, then {then}" if then else first


def gains(name: str, folder: Path) -> str:
    """Return what the re-plan gains after a drift, and what it costs, in sentences."""
    runs = _of(name, table(folder, "runs"))
    found = _of(name, phases(table(folder, "iterations"), runs))
    later = found.pivot(index="repetition", columns="contender", values=LATER).dropna()
    anew = runs[runs["contender"] == ANEW]
    taken = anew["takeover"].dropna()
    forecast = forecasts(name, folder)
    drift = DRIFTS[name]
    lines = [
        f"{name}, {drift.first} becomes {drift.then}: the re-plan took over in {len(taken)} of "
        f"{len(anew)} runs"
        + (f", before iterations {_counted(taken)}" if len(taken) else "")
        + f" (the network changed before {CHANGE})"
    ]
    if len(later) > 1 and len(taken):
        expected = forecast[STAYS, LATER] / forecast[ANEW, LATER]
        lines.append(
            f"  from then on an iteration of the plan that stays takes "
            f"{_shown(ratio(later[STAYS], later[ANEW]))} times as long (forecast {expected:.3f})"
        )
    if len(later) > 1:
        expected = forecast[ANEW, LATER] / forecast[ORACLE, LATER]
        lines.append(
            f"  an iteration of the {'re-plan' if len(taken) else 'plan that stayed'} takes "
            f"{_shown(ratio(later[ANEW], later[ORACLE]))} times as long as the oracle's (forecast "
            f"{expected:.3f})"
        )
    quiet = 1e3 * (anew["quiet_seconds"] / anew["quiet_meetings"]).median()
    lines.append(f"  a meeting that finds no drift takes {quiet:.1f} ms (median, slowest rank)")
    if len(planned := anew[anew["planning_meetings"] > 0]):
        seconds = (planned["planning_seconds"] / planned["planning_meetings"]).median()
        saved = (later[STAYS] - later[ANEW]).median() / drift.scale
        paid = "by no iterations"
        if len(taken) and saved > 0:
            paid = f"after {seconds / saved:.0f} iterations"
        lines.append(
            f"  one that measures and searches takes {seconds:.2f} s of the clock, paid back {paid}"
        )
    return "\n".join(lines)


def _counted(iterations: pd.Series) -> str:
    counts = iterations.astype(int).value_counts().sort_index()
    return ", ".join(f"{number} ({count})" for number, count in counts.items())


def _shown(found: Interval) -> str:
    return f"{found.estimate:.3f} ({found.low:.3f} to {found.high:.3f})"


def _of(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["drift"] == name]


def drawn(folder: Path, names: Sequence[str]) -> pd.DataFrame:
    """Return what the figure takes: iterations with their network's change and their takeover."""
    rows = table(folder, "iterations").merge(table(folder, "runs")[[*RUN, "takeover"]], on=RUN)
    texts = {name: f"{DRIFTS[name].first} becomes {DRIFTS[name].then}" for name in names}
    rows = rows[rows["drift"].isin(names) & (rows["iteration"] >= WARMUP)]
    return rows.assign(drift=rows["drift"].map(texts), change=CHANGE)


def main(words: Sequence[str] | None = None) -> None:
    """Run what is missing and print what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--drifts", nargs="+", default=list(DRIFTS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="run nothing, print what is kept")
    parser.add_argument("--figure", type=Path, help="draw the iterations into this file")
    asked = parser.parse_args(words)
    for name in asked.drifts:
        if name not in DRIFTS:
            raise UnknownName("drift", name, DRIFTS)
        if not asked.kept:
            run_drift(name, asked.out, asked.repetitions)
    known = set(table(asked.out, "runs", RUN)["drift"])
    there = [name for name in asked.drifts if name in known]
    if not there:
        print(f"{asked.out} has none of these drifts")
        return
    rows = pd.concat([judged(name, asked.out) for name in there], ignore_index=True)
    print(rows.round(3).to_string(index=False))
    for name in there:
        print(gains(name, asked.out))
    if asked.figure:
        drift_iterations(drawn(asked.out, there)).savefig(asked.figure, dpi=110)


if __name__ == "__main__":
    main()
