"""How compressed methods learn on digits, and which orderings of papers hold there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddlnb.paths import DATA
from ddlnb.studies.findings import with_half_widths
from ddlnb.training.runs.compare import Comparison, compare
from ddlnb.training.runs.orderings import judged
from ddlnb.units import MB


def learn(methods: Sequence[str], *, steps: int, **options: Any) -> Comparison:
    """Run `ddlnb.compare` on these methods and digits, evaluated ten times on the way."""
    return compare("digits", methods, steps=steps, evaluate_every=max(1, steps // 10), **options)


def learning_table(learnt: Comparison) -> pd.DataFrame:
    """Return rate, final loss with its interval, diverged runs and traffic, one row per method."""
    found = learnt.summary().set_index("method")
    table = found[["learning_rate"]].round(4).rename(columns={"learning_rate": "learning rate"})
    table["test loss"] = with_half_widths(found, "test_loss")
    table["diverged"] = found["diverged"]
    return table.assign(**{"traffic per worker (MB)": (found["bytes"] / MB).round(3)})


def kept_curves(folder: Path = DATA / "measured") -> pd.DataFrame | None:
    """Return the curves of the newest study of orderings in the folder, None without one."""
    files = sorted(folder.glob("*orderings*/curves.csv"))
    return pd.read_csv(files[-1]) if files else None


def orderings_table(curves: pd.DataFrame, kept: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per ordering of two methods of these curves, and what kept curves say of it.

    ``verdict`` is that of `orderings.judged`, ``kept`` the verdict of the kept curves with
    ``kept_workers`` workers, one row for each number of them; "-" where they do not tell.
    """
    found = judged(curves).drop(columns=["source"]).rename(columns={"why": "said to be because of"})
    found = found.round(4)
    if kept is None:
        return found.assign(kept="-", kept_workers="-")
    pair = ["better", "worse"]
    then = judged(kept)[[*pair, "workers", "verdict"]]
    then = then.rename(columns={"verdict": "kept", "workers": "kept_workers"})
    both = found.merge(then.astype({"kept_workers": str}), on=pair, how="left")
    return both.fillna({"kept": "-", "kept_workers": "-"})
