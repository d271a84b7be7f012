"""What section 3.1.2 of the survey leads one to expect, and which of it held."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddlnb.errors import require
from ddlnb.results.statistics import Verdict, paired_comparison
from ddlnb.studies.findings import Findings, findings, item_verdict
from ddlnb.studies.sec3_1_2_synchronisation.learning import at_equal
from ddlnb.studies.sec3_1_2_synchronisation.virtual_clock import timed, virtual_clock
from ddlnb.studies.sec3_1_2_synchronisation.waiting import mean_staleness
from ddlnb.training.runs.by_cell import runs_by
from ddlnb.training.runs.orderings import pair_of

NEAR = 0.05  # Relative distance at which a mean staleness still agrees with its law.
SLOWER = 4.0  # How many times slower the straggler is, ahead of which others can get.
TABLE = "Table 1"  # The source of an expectation that is no item of the text.
HOW = {"law": "simulated", "learning": "measured"}
ROUNDING = 1e-9  # Seconds, or shares, that are taken for zero.


def law_verdicts(
    waits: pd.DataFrame, staleness: pd.DataFrame, periods: pd.DataFrame, workers: int
) -> pd.DataFrame:
    """Judge the laws of waiting, staleness and traffic, one row per law.

    The frames are those of `waits`, `staleness` and `period_table`; ``workers`` are those of the
    staleness. The lead is looked for with a worker SLOWER times slower.
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
    """Judge each expectation about learning on pairs of runs with equal seeds.

    ``curves`` are those of `converging`, with BSP, ASP and local SGD; ``rivals`` those of
    `same_traffic`. What is found is how much lower the test loss of the better side is.
    """
    steps, seconds = at_equal(curves, "step"), at_equal(curves, "seconds")
    names = list(dict.fromkeys(curves["method"]))
    ssp = [name for name in names if name.startswith("ssp")]
    local = [name for name in names if name.startswith("local")]
    require(bool(ssp) and bool(local), f"no ssp or no local SGD among {names}")
    rarest, bsp, asp = local[-1], "bsp on PS", "asp on PS"
    rival = next(name for name in dict.fromkeys(rivals["method"]) if name.startswith("local"))
    rows = [
        _pair("stale updates cost: BSP ahead of ASP at equal steps", steps, bsp, asp, TABLE),
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
    verdict = Verdict.HOLDS if holds else Verdict.CONTRADICTED
    return {"expected": expected, "found": found, "verdict": verdict, "source": source}


def _pair(expected: str, ends: pd.DataFrame, better: str, worse: str, source: str) -> dict:
    cells = runs_by(ends, "method")
    pair = pair_of(*(cells.get((name,), {}) for name in (better, worse)))
    judged = paired_comparison(*pair)
    found = f"{judged.difference.estimate:+.3f} ± {judged.difference.half_width:.3f} of test loss"
    if judged.better_diverged or judged.worse_diverged:
        diverged = f"{judged.better_diverged} and {judged.worse_diverged} of {judged.seeds}"
        found += f", {diverged} runs diverged"
    return {"expected": expected, "found": found, "verdict": judged.verdict, "source": source}


def judge(
    waits: pd.DataFrame,
    staleness: pd.DataFrame,
    periods: pd.DataFrame,
    curves: pd.DataFrame,
    rivals: pd.DataFrame,
    workers: int,
) -> pd.DataFrame:
    """Return the verdicts on all laws and on all expectations about learning."""
    laws = law_verdicts(waits, staleness, periods, workers)
    learning = learning_verdicts(curves, rivals)
    return pd.concat([laws, learning], keys=["law", "learning"], names=["about"])


def synchronisation_findings(judged: pd.DataFrame) -> Findings:
    """Say how many laws of `judge` hold, and which expectations about learning."""
    laws, learning = judged.loc["law"], judged.loc["learning"]
    by_verdict = learning.groupby("verdict", sort=False)
    return findings(
        f"{(laws['verdict'] == Verdict.HOLDS).sum()} of {len(laws)} laws hold exactly.",
        *(
            f"{str(verdict).capitalize()}, about learning: {'; '.join(rows.index)}."
            for verdict, rows in by_verdict
        ),
        items=[
            item_verdict(row["source"], [row["verdict"]], HOW[about], f"{expected}: {row['found']}")
            for (about, expected), row in judged[judged["source"] != TABLE].iterrows()
        ],
    )


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows).set_index("expected")
