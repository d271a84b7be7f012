"""Exchanges in lockstep: the oracle that real engines are compared with."""

from __future__ import annotations

import pytest

from ddlnb.exchange import EXCHANGES, AllReduce, lockstep, push_pull


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_lossless_exchange_gives_every_worker_the_average(name):
    gradients = [3.0, 5.0, 10.0]
    shares = [gradient / len(gradients) for gradient in gradients]
    averages = lockstep([EXCHANGES[name](share) for share in shares])
    assert averages == pytest.approx([6.0] * 3)


def test_workers_that_ask_for_different_things_are_found_out():
    with pytest.raises(ValueError, match="disagree"):
        lockstep([EXCHANGES["all_reduce"](1.0), push_pull(1.0)])


def test_an_exchange_may_take_several_rounds():
    def twice(share):
        total = yield AllReduce(share)
        total = yield AllReduce(total / 2)
        return total

    assert lockstep([twice(1.0), twice(3.0)]) == [4.0, 4.0]
