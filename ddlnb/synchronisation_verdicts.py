"""What the survey's section 3.1.2 lets one expect, and which of it held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlnb.errors import require
from ddlnb.studies.sec3_1_2_learning import at_equal
from ddlnb.studies.sec3_1_2_synchronisation import mean_staleness, timed, virtual_clock
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.orderings import (
    CONTRADICTED,
    HOLDS,
    diverged_text,
    pair_of,
    paired_verdict,
)

if TYPE_CHECKING:
    import pandas as pd

NEAR = 0.05  # relative, of a mean staleness
SLOWER = 4.0  # times: a worker that others run away from
ROUNDING = 1e-9  # seconds


def law_verdicts(
    waits: pd.DataFrame, staleness: pd.DataFrame, periods: pd.DataFrame, workers: int
) -> pd.DataFrame:
    """One row per law: of the frames of `waits`, `staleness` and `period_table`.

    ``workers`` are those of the staleness. The lead is looked for with a worker four times slower.
    """
    bounds = sorted(set(waits["bound"]))
    clock = virtual_clock(f"one-slow({SLOWER})")
    leads = [timed(f"ssp({bound})", clock, 4, 8 * bound + 8).lead for bound in bounds]
    rises = waits.sort_values("bound").groupby(["straggler", "seed"])["waiting_seconds"].diff()
    mean = float(mean_staleness(staleness)["asp on PS"])
    traffic = float((periods["traffic"] * periods.index / periods.index[0] - 1).abs().max())
    return _table(
        [
            _law(
                "SSP: the fastest worker gets s iterations ahead, and not more",
                leads == bounds and bool((waits["lead"] <= waits["bound"]).all()),
                f"leads {leads} with bounds {bounds}",
                "A21",
            ),
            _law(
                "SSP: waiting falls, or stays, as s grows",
                not bool((rises > ROUNDING).any()),
                f"{int((rises < -ROUNDING).sum())} falls, {int((rises > ROUNDING).sum())} rises",
                "A21",
            ),
            _law(
                "ASP: the mean staleness is about n - 1",
                abs(mean - (workers - 1)) <= NEAR * (workers - 1),
                f"{mean:.2f} with {workers} workers",
                "A23",
            ),
            _law(
                "local SGD: traffic falls as 1/H",
                traffic < ROUNDING,
                f"farthest from it by a share of {traffic:.1g}",
                "A22",
            ),
        ]
    )


def learning_verdicts(curves: pd.DataFrame, rivals: pd.DataFrame) -> pd.DataFrame:
    """One row per expectation about learning, judged on pairs of runs of equal seeds.

    ``curves`` are those of `converging`, with BSP, ASP and local SGD; ``rivals`` those of
    `same_traffic`. ``difference`` is in test loss: how much lower the better side's is.
    """
    steps, seconds = at_equal(curves, "step"), at_equal(curves, "seconds")
    names = list(dict.fromkeys(curves["method"]))
    ssp = [name for name in names if name.startswith("ssp")]
    local = [name for name in names if name.startswith("local")]
    require(bool(ssp) and bool(local), f"no ssp or no local SGD among {names}")
    rarest, bsp, asp = local[-1], "bsp on PS", "asp on PS"
    rival = next(name for name in dict.fromkeys(rivals["method"]) if name.startswith("local"))
    rows = [
        _pair("stale updates cost: BSP ahead of ASP at equal steps", steps, bsp, asp, "Table 1"),
        _pair("no waiting pays: ASP ahead of BSP at equal seconds", seconds, asp, bsp, "A23"),
        _pair(f"{ssp[0]} ahead of BSP at equal seconds", seconds, ssp[0], bsp, "A21"),
        _pair(f"rare averages cost: BSP ahead of {rarest} at equal steps", steps, bsp, rarest,
              "A22"),
        _pair(f"rare averages pay: {rarest} ahead of BSP at equal seconds", seconds, rarest, bsp,
              "A22"),
        _pair(f"{rival} ahead of BSP with as large a batch, equal traffic", rivals, rival, bsp,
              "A22"),
    ]  # fmt: skip
    return _table(rows)


def _law(expected: str, holds: bool, found: str, source: str) -> dict[str, Any]:
    verdict = HOLDS if holds else CONTRADICTED
    return {"expected": expected, "found": found, "verdict": verdict, "source": source}


def _pair(expected: str, ends: pd.DataFrame, better: str, worse: str, source: str) -> dict:
    cells = runs_by(ends, "method")
    judged = paired_verdict(*pair_of(*(cells.get((name,), {}) for name in (better, worse))))
    found = f"{judged['difference']:+.3f} ± {judged['half_width']:.3f} of test loss"
    return {
        "expected": expected,
        "found": ", ".join(filter(None, [found, diverged_text(judged)])),
        "verdict": judged["verdict"],
        "source": source,
    }


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows).set_index("expected")
