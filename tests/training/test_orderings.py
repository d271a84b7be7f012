"""Orderings are judged by differences of seeds, and a run that diverged is the worse one."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from ddlnb.errors import InputError
from ddlnb.training.method import training_method
from ddlnb.training.runs.summaries import ORDERINGS, Ordering, judged, methods_of

PAIR = [Ordering("bsp", "local(4)", "made up", "here")]


def curves(better: list[float], worse: list[float]) -> pd.DataFrame:
    named = {str(training_method("bsp")): better, str(training_method("local(4)")): worse}
    rows = [
        {"method": name, "workers": 4, "seed": seed, "step": step, "test_loss": loss + 5 - step}
        for name, losses in named.items()
        for seed, loss in enumerate(losses)
        for step in (0, 5)
    ]
    return pd.DataFrame(rows).assign(diverged=lambda f: f["test_loss"].eq(math.inf))


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], "holds"),
        ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], "contradicted"),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], "undecided"),
        ([1.0, 2.0], [math.inf, math.inf], "holds"),
        ([math.inf, math.inf], [1.0, 2.0], "contradicted"),
        ([1.0, 2.0], [math.inf, 2.0], "undecided"),
        ([0.1, 0.1, 0.1], [66.9, math.inf, 110.5], "holds"),
        ([66.9, math.inf, 110.5], [0.1, 0.1, 0.1], "contradicted"),
        ([0.1, math.inf, 0.1], [66.9, math.inf, 110.5], "undecided"),
        ([0.1, 70.0, 0.1], [66.9, math.inf, 0.01], "undecided"),
        ([math.inf, 0.1], [0.1, math.inf], "undecided"),
        ([math.inf, math.inf], [math.inf, math.inf], "undecided"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side(better, worse, verdict):
    (row,) = judged(curves(better, worse), PAIR).to_dict("records")
    assert row["verdict"] == verdict
    assert row["seeds"] == len(better)
    assert row["better_diverged"] == better.count(math.inf)
    assert row["worse_diverged"] == worse.count(math.inf)
    assert 0 <= row["p_value"] <= row["p_holm"] <= 1


def test_rates_are_not_mixed_in_silence():
    """The better rate of every method differs from the worse one by more than methods differ."""
    one, other = curves([1.0, 1.1], [1.2, 1.2]), curves([3.0, 3.1], [3.2, 3.2])
    both = pd.concat([one.assign(learning_rate=0.1), other.assign(learning_rate=0.3)])
    with pytest.raises(InputError, match=r"vary in learning_rate \(learning_rate 0.1 and 0.3\)"):
        judged(both, PAIR)
    with pytest.raises(InputError, match="a step of seed 0 more than once"):
        judged(pd.concat([one, other]), PAIR)


def test_p_values_are_those_of_scipy_and_holm():
    from scipy.stats import ttest_rel

    better, worse = [1.0, 1.3, 0.9, 1.2], [1.4, 1.5, 1.6, 1.1]
    other = Ordering("local(4)", "bsp", "the other way round", "here")
    table = judged(curves(better, worse), [*PAIR, other])
    expected = ttest_rel(worse, better).pvalue
    assert table["p_value"].tolist() == pytest.approx([expected] * 2)
    assert table["p_holm"].tolist() == pytest.approx([2 * expected] * 2)


def test_seeds_are_compared_in_pairs():
    """Seeds differ by much more than methods do, and still the difference is seen."""
    (row,) = judged(curves([1.0, 5.0, 9.0], [1.11, 5.1, 9.09]), PAIR).to_dict("records")
    assert row["verdict"] == "holds"
    assert row["difference"] == pytest.approx(0.1)


def test_every_ordering_names_methods_that_there_are():
    assert len({str(training_method(name)) for name in methods_of()}) == len(methods_of())
    assert all(one.source and one.why for one in ORDERINGS)


def test_curves_without_a_pair_are_refused():
    with pytest.raises(InputError, match="no two methods"):
        judged(curves([1.0], [2.0]), PAIR)
