"""What is expected of large batches, and whether it holds on curves of `large_batches`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddlnb.errors import UnknownName, require
from ddlnb.results.statistics import paired_comparison
from ddlnb.studies.findings import Findings, findings, item_verdict
from ddlnb.studies.sec3_1_1_large_batch.quality import ends
from ddlnb.studies.sec3_1_1_large_batch.recipes import LAMB, LARS, LINEAR, SAME, TUNED, WARM

_EXPECTED = (
    ("a larger batch at the same rate loses", SAME, SAME, True, "survey 3.1.1, A20"),
    ("linear scaling gives part of it back", LINEAR, SAME, False, "Goyal et al. 2017 [k]"),
    ("linear scaling still loses", WARM, WARM, True, "survey 3.1.1, A20"),
    ("warm-up helps linear scaling", WARM, LINEAR, False, "Goyal et al. 2017 [k]"),
    ("SGD loses even with a rate tuned there", TUNED, TUNED, True, "survey 3.1.1, A20"),
    ("LARS recovers part of what linear scaling lost", LARS, WARM, False, "survey 3.1.1, A20"),
    ("LARS is better than SGD tuned as well", LARS, TUNED, False, "survey 3.1.1, A20"),
    ("LAMB is better than SGD tuned as well", LAMB, TUNED, False, "You et al. 2020 [k]"),
)


def verdicts(curves: pd.DataFrame, measure: str = "test_accuracy") -> pd.DataFrame:
    """Judge every expectation about the largest batch on pairs of runs with equal seeds.

    ``measure`` is test_accuracy or test_loss; ``difference`` is how much better the better side is,
    in units of the measure, with the half width of its 95 % t-interval. A side is a recipe and a
    batch; to lose is to be worse than itself at the smallest batch. A run that diverged counts as
    infinitely bad in loss, and with the accuracy that it had then. Raises UnknownName.
    """
    if measure not in ("test_accuracy", "test_loss"):
        raise UnknownName("measure", measure, ("test_accuracy", "test_loss"))
    smallest, largest = int(curves["batch"].min()), int(curves["batch"].max())
    sign = -1.0 if measure == "test_accuracy" else 1.0
    rows = []
    for said, one, other, loses, source in _EXPECTED:
        sides = [(one.name, smallest if loses else largest), (other.name, largest)]
        if not all(((curves["recipe"] == r) & (curves["batch"] == b)).any() for r, b in sides):
            continue
        better, worse = (sign * _by_seed(curves, *side, measure) for side in sides)
        rows.append(
            {
                "expected": said,
                "better": "{}, {}".format(*sides[0]),
                "worse": "{}, {}".format(*sides[1]),
                "measure": measure,
                **paired_comparison(better, worse).columns(),
                "source": source,
            }
        )
    require(bool(rows), "the curves have no two recipes that something is expected of")
    return pd.DataFrame(rows)


def verdict_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on accuracy and on loss, to be read."""
    both = [verdicts(curves, measure) for measure in ("test_accuracy", "test_loss")]
    table = pd.concat(both).set_index(["measure", "expected"])
    return table.rename(columns=lambda name: name.replace("_", " ")).round(4)


def large_batch_findings(curves: pd.DataFrame) -> Findings:
    """Say what the largest batch costs each recipe in accuracy, and which expectations hold."""
    smallest, largest = int(curves["batch"].min()), int(curves["batch"].max())
    costs = []
    for name in dict.fromkeys(curves["recipe"]):
        start, end = (
            _by_seed(curves, name, batch, "test_accuracy").mean() for batch in (smallest, largest)
        )
        costs.append(f"{name} {1 - end / start:.0%}")
    judged = verdicts(curves)
    table = judged.groupby("verdict")["expected"].agg("; ".join)
    of_survey = judged[judged["source"].str.endswith("A20")]
    return findings(
        f"From batch {smallest} to batch {largest} the recipes lose this share of their mean "
        f"accuracy: {', '.join(costs)}.",
        *(
            f"{str(verdict).capitalize()} in accuracy: {expected}."
            for verdict, expected in table.items()
        ),
        items=[
            item_verdict("A20", [row["verdict"]], "measured", f"{row['expected']}, in accuracy")
            for row in of_survey.to_dict("records")
        ],
    )


def recovered(curves: pd.DataFrame) -> pd.Series:
    """Return by recipe which share of the accuracy lost by linear scaling it has, of means.

    The loss is that of linear scaling with warm-up, from the smallest batch to the largest; 0 is as
    bad, 1 all of it back. NaN where nothing was lost. Raises InputError without that recipe.
    """
    smallest, largest = int(curves["batch"].min()), int(curves["batch"].max())
    require(bool((curves["recipe"] == WARM.name).any()), f"the curves have no {WARM.name!r}")
    start, end = (
        _by_seed(curves, WARM.name, batch, "test_accuracy").mean() for batch in (smallest, largest)
    )
    names = [name for name in dict.fromkeys(curves["recipe"]) if name != WARM.name]
    means = [_by_seed(curves, name, largest, "test_accuracy").mean() for name in names]
    shares = [(mean - end) / (start - end) if start > end else float("nan") for mean in means]
    return pd.Series(shares, index=names, name=f"recovered at batch {largest}")


def recovered_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Return `recovered` as a table, rounded."""
    return recovered(curves).round(2).to_frame().rename_axis("recipe")


def _by_seed(curves: pd.DataFrame, recipe: str, batch: int, measure: str) -> np.ndarray:
    last = ends(curves[(curves["recipe"] == recipe) & (curves["batch"] == batch)])
    return last[measure].to_numpy(dtype=float)
