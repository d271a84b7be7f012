"""A list of transfers with a mistake in it is refused, with the rank and the part."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddlnb.errors import InputError
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.networks.collectives.proof import prove
from ddlnb.plans.transfers import Collective, Primitive, Transfers, transfers


def pair(*rows: Transfers, primitive: Primitive = "all-reduce", parts: int = 1) -> Collective:
    return Collective("by hand", primitive, 2, parts, np.concatenate(rows))


SWAP = transfers(0, [0, 1], [1, 0], 0, 1, True)
UP = transfers(0, [1], [0], 0, 1, True)
DOWN = transfers(1, [0], [1], 0, 1, False)
ALL_TO_ALL = transfers(0, [0, 1], [1, 0], [1, 2], [2, 3], False)


@pytest.mark.parametrize(
    "right", [pair(SWAP), pair(UP, DOWN), pair(ALL_TO_ALL, primitive="all-to-all", parts=4)]
)
def test_what_is_right_is_proven(right):
    prove(right)


AGAIN = transfers(1, [0, 1], [1, 0], 0, 1, True)
TOO_EARLY = transfers(0, [0], [1], 0, 1, False)
BOTH = transfers(0, [0, 0], [1, 1], 0, 1, False)
ASTRAY = transfers(0, [0, 1], [1, 0], [1, 3], [2, 4], False)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (pair(UP), "part 0 of rank 1 is wrong"),
        (pair(SWAP, AGAIN), "part 0 of rank 0 is wrong"),
        (pair(UP, TOO_EARLY), "part 0 of rank 1 is wrong"),
        (pair(UP, BOTH), "step 0 has part 0 of rank 1 replaced by two"),
        (pair(transfers(0, [1], [0], 0, 1, False), primitive="broadcast"), "part 0 of rank 0"),
        (pair(ASTRAY, primitive="all-to-all", parts=4), "part 2 of rank 0"),
        (pair(ALL_TO_ALL, primitive="all-to-all", parts=8), "of 8 parts among 2 workers; .* of 4,"),
    ],
)
def test_a_mistake_is_named(wrong, reason):
    with pytest.raises(InputError, match=reason):
        prove(wrong)


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
    with pytest.raises(InputError):
        prove(replace(made, transfers=np.delete(made.transfers, row)))
    if made.transfers["reduces"][row]:
        with pytest.raises(InputError):
            prove(replace(made, transfers=np.insert(made.transfers, row, made.transfers[row])))
