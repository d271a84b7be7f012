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

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import command
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
from ddlnb.errors import require_known
from ddlnb.files import DATA
from ddlnb.plans.plan import Plan
from ddlnb.replanning.replanner import LEAST_GAIN, measured_cluster, simulated_seconds

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

    found = {
        (contender, phase): seconds(plan, phase)
        for contender, plan in ((STAYS, fast), (ORACLE, slow))
        for phase in (BEFORE, LATER)
    }
    takes_over = found[STAYS, LATER] >= LEAST_GAIN * found[ORACLE, LATER]
    found[ANEW, BEFORE] = found[STAYS, BEFORE]
    found[ANEW, LATER] = found[ORACLE if takes_over else STAYS, LATER]
    return found


def judged(name: str, folder: Path) -> pd.DataFrame:
    """Return a row per contender of a drift: milliseconds of an iteration, emulated and forecast.

    Emulated are medians over runs; ``spread`` is how far apart the runs are after the takeover.
    """
    runs, found = _of(name, folder)
    own, phase = runs.groupby("contender"), found.groupby("contender")
    medians = 1e3 * phase[[BEFORE, DRIFTED, LATER]].median()
    forecast = 1e3 * pd.Series(forecasts(name, folder)).unstack()
    columns = {
        "drift": name,
        "plan": medians.index,
        "runs": phase.size(),
        "messages": own[["messages", "then_messages"]].apply(_messages),
        "before ms": medians[BEFORE],
        "forecast": forecast[BEFORE],
        "drifted ms": medians[DRIFTED],
        "later ms": medians[LATER],
        "spread": phase[LATER].max() / phase[LATER].min() - 1,
        "forecast ": forecast[LATER],
        "load": (runs["during"] + runs["stolen"]).groupby(runs["contender"]).max(),
    }
    table = pd.DataFrame(columns, index=medians.index)
    return table.loc[[one for one in CONTENDERS if one in table.index]]


def _messages(runs: pd.DataFrame) -> str:
    """Return how many messages the plan has, and the one that took over from it."""
    counts = [" or ".join(str(int(n)) for n in sorted(runs[one].dropna().unique())) for one in runs]
    return ", then ".join(filter(None, counts))


def gains(name: str, folder: Path) -> str:
    """Return what the re-plan gains after a drift, and what it costs, in sentences."""
    runs, found = _of(name, folder)
    later = found.pivot(index="repetition", columns="contender", values=LATER).dropna()
    anew = runs[runs["contender"] == ANEW]
    taken = anew["takeover"].dropna()
    forecast, drift = forecasts(name, folder), DRIFTS[name]

    def times_as_long(slower: str, quicker: str) -> tuple[str, str]:
        low, high = forecast[quicker, LATER], forecast[slower, LATER]
        measured = ratio(later[slower], later[quicker])
        shown = f"{measured.estimate:.3f} ({measured.low:.3f} to {measured.high:.3f})"
        return shown, f"(forecast {high / low:.3f})"

    lines = [
        f"{name}, {drift.first} becomes {drift.then}: the re-plan took over in {len(taken)} of "
        f"{len(anew)} runs"
        + (f", before iterations {_counted(taken)}" if len(taken) else "")
        + f" (the network changed before {CHANGE})"
    ]
    if len(later) > 1 and len(taken):
        shown, expected = times_as_long(STAYS, ANEW)
        lines.append(
            f"  from then on an iteration of the plan that stays takes {shown} times as long "
            f"{expected}"
        )
    if len(later) > 1:
        shown, expected = times_as_long(ANEW, ORACLE)
        lines.append(
            f"  an iteration of the {'re-plan' if len(taken) else 'plan that stayed'} takes "
            f"{shown} times as long as the oracle's {expected}"
        )
    quiet = 1e3 * (anew["quiet_seconds"] / anew["quiet_meetings"]).median()
    lines.append(f"  a meeting that finds no drift takes {quiet:.1f} ms (median, slowest rank)")
    if len(planned := anew[anew["planning_meetings"] > 0]):
        seconds = (planned["planning_seconds"] / planned["planning_meetings"]).median()
        saved = (later[STAYS] - later[ANEW]).median() / drift.scale
        gained = len(taken) and saved > 0
        paid = f"after {seconds / saved:.0f} iterations" if gained else "by no iterations"
        lines.append(
            f"  one that measures and searches takes {seconds:.2f} s of the clock, paid back {paid}"
        )
    return "\n".join(lines)


def _counted(iterations: pd.Series) -> str:
    counts = iterations.astype(int).value_counts().sort_index()
    return ", ".join(f"{number} ({count})" for number, count in counts.items())


def _of(name: str, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of a drift, and the seconds of their phases."""
    runs = table(folder, "runs").query("drift == @name")
    return runs, phases(table(folder, "iterations").query("drift == @name"), runs)


def drawn(folder: Path, names: Sequence[str]) -> pd.DataFrame:
    """Return what the figure takes: iterations with their network's change and their takeover."""
    rows = table(folder, "iterations").merge(table(folder, "runs")[[*RUN, "takeover"]], on=RUN)
    texts = {name: f"{DRIFTS[name].first} becomes {DRIFTS[name].then}" for name in names}
    rows = rows[rows["drift"].isin(names) & (rows["iteration"] >= WARMUP)]
    return rows.assign(drift=rows["drift"].map(texts), change=CHANGE)


def main(
    *,
    out: Path = KEPT,
    drifts: Sequence[str] = tuple(DRIFTS),
    repetitions: int = 3,
    kept: bool = False,
    figure: Path | None = None,
) -> None:
    """Run what is missing, or nothing with --kept, and print what is there.

    Iterations are drawn into the file after --figure.
    """
    for name in drifts:
        require_known("drift", name, DRIFTS)
        if not kept:
            run_drift(name, out, repetitions)
    known = set(table(out, "runs", RUN)["drift"])
    there = [name for name in drifts if name in known]
    if not there:
        print(f"{out} has none of these drifts")
        return
    rows = pd.concat([judged(name, out) for name in there], ignore_index=True)
    print(rows.round(3).to_string(index=False))
    for name in there:
        print(gains(name, out))
    if figure:
        drift_iterations(drawn(out, there)).savefig(figure, dpi=110)


if __name__ == "__main__":
    command(main)
