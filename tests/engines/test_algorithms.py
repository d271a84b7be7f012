"""All-reduce along several topologies: the sum, to the bit the same everywhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ddlnb.engines.transports.algorithms import ALGORITHMS, get_algorithm, ring, time_all_reduces
from ddlnb.errors import UnknownName
from ddlnb.launch.rank import RankContext

SIZES = (1, 2, 3, 5, 8, 1001, 65_537)


def reduce_all(context: RankContext, sizes: tuple[int, ...]) -> dict[tuple[str, int], torch.Tensor]:
    """The sums of whole numbers and of fractions, by algorithm and size, on this rank."""
    from ddlnb.engines.process_group import process_group

    found = {}
    with process_group(context, context.store(), context.count):
        in_pieces = partial(ring, segment_elements=701)
        for name, all_reduce in {**ALGORITHMS, "ring in pieces": in_pieces}.items():
            for size in sizes:
                tensor = own_tensor(context.rank, size)
                all_reduce(tensor)
                found[name, size] = tensor
    return found


def own_tensor(rank: int, size: int) -> torch.Tensor:
    """Whole numbers in the first row, whose sum is exact, and fractions in the second."""
    generator = torch.Generator().manual_seed(100 * size + rank)
    whole = torch.randint(-1000, 1000, (size,), generator=generator).float()
    return torch.stack([whole, torch.randn(size, generator=generator)])


@pytest.mark.item("A30", how="measured")
@pytest.mark.ranks
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_rank_ends_with_the_sum_and_with_the_same_bits(four_ranks, count):
    answers = four_ranks.run(reduce_all, SIZES, count=count, timeout_seconds=60)
    for name, size in answers[0]:
        expected = torch.stack([own_tensor(rank, size) for rank in range(count)]).sum(0)
        for answer in answers:
            said = f"{name} of {size} on {count}"
            assert torch.equal(answer[name, size][0], expected[0]), said
            assert torch.allclose(answer[name, size][1], expected[1], atol=1e-5), said
            assert torch.equal(answer[name, size], answers[0][name, size]), said


@pytest.mark.ranks
@pytest.mark.parametrize("count", [5, 6])
def test_more_ranks_that_are_no_power_of_two(six_ranks, count):
    answers = six_ranks.run(reduce_all, (3, 1001), count=count, timeout_seconds=60)
    for name, size in answers[0]:
        expected = torch.stack([own_tensor(rank, size)[0] for rank in range(count)]).sum(0)
        assert all(torch.equal(answer[name, size][0], expected) for answer in answers), name


@pytest.mark.ranks
def test_times_come_for_every_algorithm_size_and_counted_repetition(four_ranks):
    names = list(ALGORITHMS)
    for rank in four_ranks.run(time_all_reduces, names, (4, 1000), 2, count=3, timeout_seconds=60):
        assert set(rank) == {(n, s, r) for n in names for s in (4, 1000) for r in (0, 1)}
        assert all(seconds > 0 for seconds in rank.values())


def test_an_unknown_algorithm_is_refused_with_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean 'ring'"):
        get_algorithm("rings")


def find_limits(context: RankContext) -> float:
    from ddlnb.engines.process_group import process_group
    from ddlnb.engines.transports.mesh import MeshAllReduce

    with process_group(context, context.store(), context.count):
        return MeshAllReduce.measured().two_hops_up_to


@pytest.mark.ranks
def test_all_ranks_leave_the_mesh_at_the_same_size(four_ranks):
    """Or one would wait for a ring that the others do not run."""
    limits = four_ranks.run(find_limits, timeout_seconds=60)
    assert len(set(limits)) == 1
    assert limits[0] >= 0
