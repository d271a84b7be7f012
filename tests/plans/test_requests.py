"""Exchanges in lockstep: the oracle that real engines are compared with."""

import pytest
import torch

from ddlnb.plans.requests import (
    EXCHANGES,
    AllGather,
    AllReduce,
    ReduceScatter,
    answer_together,
    lockstep,
    made_once,
    push_pull,
)


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_lossless_exchange_gives_every_worker_the_average(name):
    gradients = torch.tensor([[3.0, 1.0, 0.0, 4.0], [5.0, 1.0, 0.0, 4.0], [10.0, 1.0, 9.0, 4.0]])
    averages = lockstep([EXCHANGES[name](gradient / 3) for gradient in gradients])
    torch.testing.assert_close(torch.stack(averages), torch.tensor([[6.0, 1.0, 3.0, 4.0]] * 3))


def test_a_scattered_sum_is_known_to_its_own_worker_only():
    tensors = [torch.full((4,), float(10**rank)) for rank in range(3)]
    scattered = answer_together([ReduceScatter(tensor) for tensor in tensors])
    assert [one.tolist() for one in scattered] == [
        [111.0, 111.0, 1.0, 1.0],
        [10.0, 10.0, 111.0, 10.0],
        [100.0, 100.0, 100.0, 111.0],
    ]


def test_workers_that_ask_for_different_things_are_found_out():
    with pytest.raises(ValueError, match="disagree"):
        lockstep([EXCHANGES["all_reduce"](1.0), push_pull(1.0)])


def test_an_exchange_may_take_several_rounds():
    def twice(share):
        total = yield AllReduce(share)
        total = yield AllReduce(total / 2)
        return total

    assert lockstep([twice(1.0), twice(3.0)]) == [4.0, 4.0]


def test_what_all_workers_make_of_the_same_payloads_is_made_once_and_equal():
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return 7

    def flow(rank: int):
        payloads = yield AllGather(rank)
        total = made_once(payloads, make)
        return total, list(payloads)

    assert lockstep([flow(rank) for rank in range(3)]) == [(7, [0, 1, 2])] * 3
    assert made == [1]
    assert made_once([0, 1, 2], make) == 7  # a list of one worker's own, as on a network
    assert made == [1, 1]
