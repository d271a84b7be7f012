"""Ranks slowed on purpose: every way gives the gradients of one worker on the joined batch."""

from __future__ import annotations

import pytest

from ddlnb.errors import InputError
from ddlnb.parallelism.executed.slowed import SlowedModel, unlike_rows

QUICK = SlowedModel(layers=6, width=8, sample_seconds=1e-3)
ROUNDING = 1e-13  # of gradients over the largest of them, in 8 bytes


class Started:
    """Stands for ranks that are never asked to run."""

    count = 2


@pytest.mark.ranks
def test_gradients_are_those_of_one_worker_on_the_joined_batch(four_ranks):
    rows = unlike_rows(
        four_ranks, (2.5, 2.5, 1.0, 0.01), samples=16, micro_batches=4, model=QUICK, iterations=1
    ).set_index("way")
    assert rows.loc["shares by speed", "shares"] == "2 x 7, 1 x 2, 1 x 0"  # one is too slow
    assert (rows["gradient_error"] < ROUNDING).all()
    assert (rows["gradient_error"] > 0).any()  # sums in another order: it was computed
    assert len(rows) == 5


@pytest.mark.parametrize(
    ("speeds", "options", "message"),
    [
        ((1.0,), {}, "1 speeds are given for 2 ranks"),
        ((1.0, 2.5), {}, r"must begin with the fastest; give \(2.5, 1.0\)"),
        ((2.5, 1.0), {"samples": 6, "micro_batches": 4}, "use one of 1, 2, 3, 6"),
    ],
)
def test_what_cannot_be_executed_is_refused(speeds, options, message):
    with pytest.raises(InputError, match=message):
        unlike_rows(Started(), speeds, **options)


def test_models_that_take_no_time_are_refused():
    with pytest.raises(InputError, match="sample_seconds"):
        SlowedModel(sample_seconds=0.0)
    with pytest.raises(InputError, match="there are no layers 3 to 9"):
        QUICK.build(3, 9, seed=0)
