"""Section 5.3: the best density of top-k, and a density of its own for every layer."""

import math

import numpy as np
import pandas as pd
import pytest

from ddlnb.calibration.statistics import Verdict
from ddlnb.errors import InputError
from ddlnb.survey import sec5_3_compression_level as level_study
from ddlnb.survey.sec5_1_adaptive_periods import FASTER, OPEN, SLOWER
from ddlnb.survey.sec5_3_compression_level import layer_methods, layer_times
from ddlnb.survey.time_to_target import made_up_cluster, made_up_digits
from ddlnb.training.runs.compare import compare

DIGITS = made_up_digits(1e4)


def swept(seconds_by_density: dict[float, list[float]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table and curves in which an iteration takes a second, so that iterations are seconds."""
    rows, curves = [], []
    for density, steps in {1.0: [50.0, 50.0, 50.0], **seconds_by_density}.items():
        method = "bsp on A2A" if density == 1 else f"bsp + top-k({density}) + feedback on A2A"
        kind = "dense" if density == 1 else "fixed"
        rows.append((method, density, kind, float(np.mean(steps)), 1.0))
        for seed, step in enumerate(steps):
            falls = [(step - 1, 0.9), (step, 0.1)] if step < math.inf else [(100, 0.9)]
            curves += [("quadratic", method, 8, seed, *point, 0.0) for point in falls]
    columns = ["method", "density", "kind", "seconds", "iteration_seconds"]
    names = ["task", "method", "workers", "seed", "step", "test_loss", "averaging_bytes_sent"]
    table = pd.DataFrame(rows, columns=columns).assign(machine="m", network="n")
    return table, pd.DataFrame(curves, columns=names)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({0.01: [90, 91, 92], 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.INTERIOR),
        ({0.01: [30, 31, 32], 0.1: [90, 91, 92], 0.3: [95, 96, 97]}, level_study.AT_LEAST),
        ({0.01: [90, 91, 92], 0.1: [60, 61, 60], 0.3: [30, 31, 32]}, level_study.AT_MOST),
        ({0.01: [33, 25, 40], 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.OPEN),
        ({0.01: [math.inf] * 3, 0.1: [30, 31, 32], 0.3: [60, 61, 60]}, level_study.INTERIOR),
    ],
)
def test_a_minimum_is_where_the_intervals_say(seconds, said):
    table, curves = swept(seconds)
    (row,) = level_study.level_verdicts(table, curves, 0.5).to_dict("records")
    assert row["verdict"] == said
    assert row["beats_dense"] == (row["seconds"] < 50)
    # Beyond an end of the sweep nobody has looked.
    found = level_study.level_findings(pd.DataFrame([row])).items[0].verdict
    assert found == (Verdict.HOLDS if said == level_study.INTERIOR else Verdict.UNDECIDED)


LINK = made_up_cluster("100 Mb/s", "5 us", workers=4)


def test_time_by_layer_stands_beside_the_best_fixed_density_as_seeds_say():
    of_top_k = [f"bsp + top-k({density}) + feedback" for density in (0.01, 0.1)]
    methods = ["bsp", *of_top_k, *layer_methods(DIGITS, [LINK], 4)]
    asked = {"workers": 4, "seeds": 2, "steps": 24, "evaluate_every": 4}
    curves = compare("digits", methods, **asked, jobs=1).curves
    target = float(curves.loc[curves["step"] == 24, "test_loss"].max())
    times = layer_times(curves, target, DIGITS, [LINK], 4)
    assert times["kind"].tolist()[:3] == ["dense", "fixed", "fixed"]
    assert set(times["kind"][3:]) == {"by layer"}
    np.testing.assert_allclose(times["seconds"], times["iterations"] * times["iteration_seconds"])
    best = times[times["kind"] == "fixed"]["seconds"].idxmin()
    assert times.loc[best, "verdict"] == ""
    assert set(times["verdict"].drop(best)) <= {FASTER, SLOWER, OPEN}
    fixed = times[times["kind"] == "fixed"].sort_values("density")
    assert fixed["density"].tolist() == [0.01, 0.1]
    assert (fixed["iteration_seconds"].diff()[1:] > 0).all()
    assert times["label"].tolist()[:2] == ["best lossless", "k/D = 0.01"]
    assert "by layer, up to 1 % longer" in set(times["label"])

    layered = curves["method"].str.contains("layer")
    with pytest.raises(InputError, match="curves lack"):
        layer_times(curves[~layered], target, DIGITS, [LINK], 4)
    lost = curves["test_loss"].mask(curves["method"].str.contains(" top-k"), 9.0)
    with pytest.raises(InputError, match="no fixed density reaches"):
        layer_times(curves.assign(test_loss=lost), target, DIGITS, [LINK], 4)
    # Who is there at once in every run is faster, who is never there slower.
    early = curves["test_loss"].mask(layered & (curves["step"] > 0), 0.0)
    late = curves["test_loss"].mask(layered, 9.0)
    for losses, said in ((early, FASTER), (late, SLOWER)):
        times = layer_times(curves.assign(test_loss=losses), target, DIGITS, [LINK], 4)
        assert set(times.loc[times["kind"] == "by layer", "verdict"]) == {said}
