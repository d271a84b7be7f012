"""What each rank is to do in a collective, worked out from the list alone."""

import numpy as np
import pytest
import torch

from ddlnb.collective_transport.rank_schedule import (
    OWN,
    RankSchedule,
    Source,
    in_elements,
    longest_message,
    part_bounds,
    turns,
)
from ddlnb.networks.collectives.catalogue import COLLECTIVES, get_algorithm, get_collective
from ddlnb.plans.transfers import Collective, transfers


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("workers", [3, 4, 8])
def test_what_ranks_send_is_what_the_list_counts(name, workers):
    algorithm = get_algorithm(name)
    if algorithm.refuses(workers):
        return
    for primitive in algorithm.primitives:
        made = get_collective(name, workers, primitive=primitive)
        tensor = torch.zeros(10 * made.parts, dtype=torch.uint8)
        sent = [RankSchedule(made, rank).bytes_sent(tensor) for rank in range(made.ranks)]
        assert sent == (10 * made.parts_sent).tolist()


def test_two_that_swap_let_theirs_leave_before_they_add():
    swap = get_collective("recursive-doubling", 2)
    (turn,) = turns(swap, 0)
    assert turn.overwrites == (0,)
    move = in_elements(turn, (0, 5), 0)
    assert move.sums == (((0, 5), (Source(OWN, 0, 5), Source(0, 0, 5))),)
    (move,) = (in_elements(turn, (0, 5), 1) for turn in turns(swap, 1))
    assert move.sums == (((0, 5), (Source(0, 0, 5), Source(OWN, 0, 5))),)  # in the order of ranks


def test_rows_of_one_step_between_two_ranks_are_one_letter():
    rows = np.concatenate([transfers(0, [0], [1], 0, 1, True), transfers(0, [0], [1], 1, 2, False)])
    made = Collective("mixed", "all-reduce", 2, 2, rows)
    (sending,), (receiving,) = turns(made, 0), turns(made, 1)
    assert sending.sends[0].intervals == ((0, 2),)
    assert receiving.receives[0].sums == (True, False)
    assert longest_message(made) == 2


@pytest.mark.parametrize(("elements", "parts"), [(0, 3), (2, 3), (10, 4), (12, 4)])
def test_parts_are_cut_as_torch_cuts(elements, parts):
    bounds = part_bounds(elements, parts)
    pieces = torch.arange(elements).tensor_split(parts)
    assert [len(piece) for piece in pieces] == np.diff(bounds).tolist()
    assert (bounds[0], bounds[-1]) == (0, elements)
