"""A list of transfers with a mistake in it is refused, with the rank, the part and the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.transfers import Collective, Primitive, Transfers, transfers
from tests.networks.proof import WrongCollective, prove


def pair(*rows: Transfers, primitive: Primitive = "all-reduce", parts: int = 1) -> Collective:
    return Collective("by hand", primitive, 2, parts, np.concatenate(rows))


SWAP = transfers(0, [0, 1], [1, 0], 0, 1, True)
UP = transfers(0, [1], [0], 0, 1, True)
DOWN = transfers(1, [0], [1], 0, 1, False)


def test_a_swap_and_a_way_there_and_back_are_all_reduces():
    prove(pair(SWAP))
    prove(pair(UP, DOWN))


AGAIN = transfers(1, [0, 1], [1, 0], 0, 1, True)
TOO_EARLY = transfers(0, [0], [1], 0, 1, False)
BOTH = transfers(0, [0, 0], [1, 1], 0, 1, False)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([UP], r"at the end part 0 of rank 1 lacks what came from \[0\]; it was never written"),
        ([SWAP, AGAIN], "step 1 sums part 0 of rank 0 with what is in it already"),
        ([UP, TOO_EARLY], r"part 0 of rank 1 lacks what came from \[1\]; .* written in step 0"),
        ([UP, BOTH], "step 0 gives part 0 of rank 1 to be replaced by two at once"),
    ],
)
def test_a_mistake_is_named(rows, reason):
    with pytest.raises(WrongCollective, match=reason):
        prove(pair(*rows))


def test_a_part_is_not_sent_before_it_is_there():
    early = transfers(0, [1], [0], 0, 1, False)
    with pytest.raises(WrongCollective, match="step 0 sends part 0 of rank 1 before it has any"):
        prove(pair(early, primitive="broadcast"))


def test_an_all_to_all_must_not_go_astray():
    swap = transfers(0, [0, 1], [1, 0], [1, 2], [2, 3], False)
    prove(pair(swap, primitive="all-to-all", parts=4))
    astray = transfers(0, [0, 1], [1, 0], [1, 3], [2, 4], False)
    with pytest.raises(WrongCollective, match=r"part 2 of rank 0 lacks what came from \[1\]"):
        prove(pair(astray, primitive="all-to-all", parts=4))


MADE = [
    get_collective("ring", 5),
    get_collective("torus(2, 3)", 6),
    get_collective("direct", 4),
    get_collective("halving-doubling", 6),
    get_collective("double-tree(2)", 5),
    get_collective("recursive-doubling", 7),
]


@given(st.data())
def test_no_transfer_can_be_left_out_or_doubled(data):
    """Every row of a collective without waste is needed, and needed once if it adds."""
    made = data.draw(st.sampled_from(MADE))
    row = data.draw(st.integers(0, len(made.transfers) - 1))
    prove(made)
    with pytest.raises(WrongCollective):
        prove(replace(made, transfers=np.delete(made.transfers, row)))
    if made.transfers["reduces"][row]:
        with pytest.raises(WrongCollective):
            prove(replace(made, transfers=np.insert(made.transfers, row, made.transfers[row])))


@given(st.sampled_from(MADE), st.integers(0, 2**32 - 1))
def test_a_proven_list_sums_numbers(made, seed):
    """What the sets say is what happens to numbers: played step by step on small vectors."""
    own = np.random.default_rng(seed).integers(-99, 99, (made.workers, made.parts))
    held = own.copy()
    for step in range(made.steps):
        before = held.copy()
        for _, source, target, first, stop, adds in made.transfers[
            made.transfers["step"] == step
        ].tolist():
            arrived = before[source, first:stop]
            held[target, first:stop] = held[target, first:stop] * adds + arrived
    assert (held == own.sum(axis=0)).all()
