"""The searched plan against the best methods and DDP on emulated links, in alternating runs.

    python -m benchmarks.searched_emulated [--out FOLDER] [--cells NAME ...] [--kept] [--list]
    python -m benchmarks.searched_emulated --links --out FOLDER      # on a machine of your own

For every cell a plan is searched on the twin of its network. It, the same with all messages at
once, a plan for the latency of idle links, and the methods with the best forecasts are tried, a few
iterations each, and the quickest of these is the one that counts as searched: where no plan beats a
method, that method's own. Then it, the two best methods of the trial and DDP with its defaults run
in turn, in runs of their own. Rows are kept cell by cell, each with the load of the machine; a
second call completes what is missing. Printed are the medians, ratios of pairs of runs with their
95 % intervals, and the lower bound that no plan of all-reduces among the workers goes below, by the
same twin. With --kept nothing runs.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command import command
from benchmarks.searched_cells import CELLS, Cell, Planned, measure_links, planned
from ddlnb.calibration.calibrated_model import saved_loads, saving_load
from ddlnb.calibration.statistics import Interval, mean_interval
from ddlnb.engines.measure import measure
from ddlnb.engines.settings import MEASURING, MeasurementSettings
from ddlnb.errors import require_known
from ddlnb.files import DATA, write_atomically
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import METHODS
from ddlnb.plans.plan_file import method_of
from ddlnb.search.space import SEARCHED
from ddlnb.survey.simulated_here import WARMUP
from ddlnb.units import counted
from ddlnb.workloads.replay import replayed

KEPT = DATA / "measured" / "2026-11-23_sixteen-cores_searched"
DDP = "DDP"
ROWS = "rows.csv"
TRIAL = "trial.csv"
WARNED = "warnings.txt"
TRIED = 3  # methods, by their forecasts, that are tried once beside the plan that was found
FIXED = 2  # of these, the quickest stay
TARGETS = {"best": ("the best method", 1.08), "DDP": ("DDP", 1.23)}


def run_cell(cell: Cell, folder: Path, *, iterations: int, repetitions: int) -> None:
    """Run what the folder lacks of a cell, and keep its rows, its load and what was warned of."""
    own = folder_of(cell, folder)
    own.mkdir(parents=True, exist_ok=True)
    made = planned(cell, folder)
    fixed = made.fixed(TRIED)
    nodes = cell.workers * (1 + any(one.architecture == "PS" for one in fixed))
    settings = MeasurementSettings(
        site=cell.site(nodes),
        workers=cell.workers,
        servers=cell.workers,
        cost=cell.twin(folder).planning,
        topology="mesh",
        iterations=iterations,
        repetitions=repetitions,
        warmup=WARMUP,
    )
    task = replayed(cell.workload)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with saving_load(own / ROWS), Ranks.at(settings.site, nodes, imports=MEASURING) as ranks:
            measure(
                task,
                [*map(method_of, made.plans.values()), *fixed],
                settings=settings.changed(repetitions=1, baselines=False),
                ranks=ranks,
                out=own / TRIAL,
                progress=True,
            )
            ranked = [name for name in _trial(own) if name not in made.plans][:FIXED]
            best = [one for one in fixed if one.name in ranked]
            measure(
                task,
                [method_of(made.plan_of(_trial(own)[0])), *best],
                settings=settings.changed(baselines=[DDP]),
                ranks=ranks,
                out=own / ROWS,
                progress=True,
            )
    if caught:
        known = (own / WARNED).read_text() if (own / WARNED).exists() else ""
        said = dict.fromkeys(str(one.message) for one in caught)
        write_atomically(own / WARNED, known + "".join(f"{line}\n" for line in said))


def _trial(own: Path) -> list[str]:
    """Return the names that were tried in a cell, the quickest first."""
    rows = pd.read_csv(own / TRIAL).sort_values("iteration_seconds")
    return [str(name) for name in rows["method"]]


def folder_of(cell: Cell, folder: Path) -> Path:
    """Return where the rows of a cell are."""
    return folder / cell.name.replace("/", "p").replace(" ", "-")


def judged(cell: Cell, folder: Path) -> dict[str, object]:
    """Return a row about a cell that was measured: seconds, bound, ratios and their intervals."""
    own = folder_of(cell, folder)
    made = planned(cell, folder)
    seconds = paired_seconds(pd.read_csv((own / ROWS).with_suffix(".runs.csv")))
    medians = seconds.median()
    best = medians.drop([SEARCHED, DDP]).idxmin()
    loads = [load.during + load.stolen for _, load in saved_loads(own)]
    bound = made.found.bound.seconds

    def beside(label: str, slower: str) -> dict[str, float]:
        over = ratio(seconds[slower], seconds[SEARCHED])
        return {
            f"{label} ms": 1e3 * medians[slower],
            f"over {label}": over.estimate,
            f"{label} low": over.low,
            f"{label} high": over.high,
            f"most over {label}": medians[slower] / bound,
        }

    return {
        "cell": cell.name,
        "plan": _trial(own)[0],
        "runs": len(seconds),
        "searched ms": 1e3 * medians[SEARCHED],
        "spread": seconds[SEARCHED].max() / seconds[SEARCHED].min() - 1,
        "forecast ms": 1e3 * made.forecasts[_trial(own)[0]],
        "bound ms": 1e3 * bound,
        "best method": best,
        **beside("best", best),
        **beside("DDP", DDP),
        "load": max(loads, default=math.nan),
    }


def paired_seconds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return seconds of an iteration, a column for each contender, of repetitions that all ran.

    >>> runs = pd.DataFrame({"repetition": [0, 0, 1], "method": ["a", "b", "a"],
    ...                      "iteration_seconds": [1.0, 2.0, 3.0]})
    >>> paired_seconds(runs).to_dict("list")
    {'a': [1.0], 'b': [2.0]}
    """
    table = runs.pivot_table("iteration_seconds", "repetition", "method", sort=False)
    return table.dropna()


def ratio(slower: pd.Series, quicker: pd.Series) -> Interval:
    """Return the geometric mean of the ratios of paired runs, with its t-interval."""
    found = mean_interval(np.log(slower.to_numpy() / quicker.to_numpy()))
    return Interval(*(math.exp(value) for value in found))


def summary(rows: pd.DataFrame) -> str:
    """Return geometric means with their targets, and what the bound would allow, in words.

    The bound is one of all-reduces: where a plan or the best method has servers, on machines of
    their own, it says nothing.
    """
    bounded = rows[~rows["plan"].map(_has_servers) & ~rows["best method"].map(_has_servers)]
    lines = []
    for label, (who, target) in TARGETS.items():
        column = f"over {label}"
        slower, quicker = (rows[f"{label} high"] < 1).sum(), (rows[f"{label} low"] > 1).sum()
        ratios = rows[column]
        lines.append(
            f"searched over {who}: geometric mean {_geometric(ratios):.3f} (target {target}), "
            f"least {ratios.min():.3f}, most {ratios.max():.3f}, {len(rows)} of {len(CELLS)} "
            f"cells; beyond noise quicker in {quicker}, slower in {slower}; in "
            f"{counted(len(bounded), 'cell')} without servers {_geometric(bounded[column]):.3f}, "
            f"where the bound allows {_geometric(bounded[f'most {column}']):.3f}"
        )
    found = int(rows["plan"].str.startswith(SEARCHED).sum())
    off = rows["forecast ms"] / rows["searched ms"]
    lines.append(
        f"the trial was won by a plan that was found in {counted(found, 'cell')}, by a method "
        f"in {len(rows) - found}; their forecasts are {_geometric(off):.3f} of the measured "
        f"seconds in the geometric mean, and {(off - 1).abs().median():.1%} off in the median"
    )
    return "\n".join(lines)


def _has_servers(name: str) -> bool:
    return name in METHODS and METHODS[name].architecture == "PS"


def _geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def plan_text(cell: Cell, made: Planned) -> str:
    """Return what is planned for a cell, and the forecasts, in a line."""
    found = made.found
    ranked = sorted(made.forecasts.items(), key=lambda item: item[1])
    forecasts = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in ranked)
    return (
        f"{cell.name}: bound {1e3 * found.bound.seconds:.1f} ms, {len(found.plan.messages)} "
        f"messages; forecast ms: {forecasts}"
    )


def main(
    *,
    out: Path = KEPT,
    cells: Sequence[str] = tuple(CELLS),
    iterations: int = 5,
    repetitions: int = 4,
    links: bool = False,
    kept: bool = False,
    list: bool = False,
) -> None:
    """Run what is missing, or nothing with --kept, and print what is there.

    With --links the links are measured here first, since a machine needs its own; with --list plans
    and forecasts alone are printed.
    """
    for name in cells:
        require_known("cell", name, CELLS)
    chosen = [CELLS[name] for name in cells]
    if links:
        for site in dict.fromkeys(cell.links for cell in chosen):
            workers = sorted({cell.workers for cell in chosen if cell.links == site})
            measure_links(site, workers, out)
    if list:
        for cell in chosen:
            print(plan_text(cell, planned(cell, out)), flush=True)
        return
    if not kept:
        for cell in chosen:
            run_cell(cell, out, iterations=iterations, repetitions=repetitions)
    there = [one for one in chosen if (folder_of(one, out) / ROWS).exists()]
    if not there:
        print(f"{out} has none of these cells")
        return
    rows = pd.DataFrame([judged(cell, out) for cell in there])
    print(rows.round(3).to_string(index=False))
    print(summary(rows))
    if missing := [cell.name for cell in chosen if cell not in there]:
        print(f"not run: {', '.join(missing)}")


if __name__ == "__main__":
    command(main)
