"""Collectives on real ranks: the sum, the same bits on all of them, the bytes of the list."""

import hashlib
import math
from collections.abc import Iterator
from itertools import product

import pytest
import torch

from ddlnb.collective_transport.rank_schedule import RankSchedule
from ddlnb.collective_transport.transport import CollectiveTransport, time_collectives
from ddlnb.errors import InputError
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.networks.collectives.catalogue import COLLECTIVES, get_algorithm, get_collective
from ddlnb.networks.collectives.proof import due
from ddlnb.plans.requests import AllReduce
from ddlnb.plans.transfers import Collective
from ddlnb.units import KIB

SIZES = (1, 2, 3, 5, 8, 1001, 65_537)
FURTHER = ("ring(3)", "parameter-servers(2)", "parameter-servers(2, True)", "byteps(1)", "swing(2)")
IN_BLOCKS = ("all-reduce", "broadcast")
BLOCK_BYTES = 30_000  # so that the longest tensors travel in blocks


def runnable(ranks: int) -> Iterator[Collective]:
    """Everything that so many ranks can carry out, servers among them; on nodes of two if any."""
    for name in (*COLLECTIVES, *FURTHER):
        algorithm = get_algorithm(name)
        servers = algorithm.collective(ranks).servers if not algorithm.refuses(ranks) else 0
        workers = ranks - servers
        per_node = 2 if algorithm.knows_nodes and workers % 2 == 0 else 1
        if workers > 0 and not algorithm.refuses(workers, per_node):
            for primitive in algorithm.primitives:
                yield algorithm.collective(workers, per_node, primitive)


def own_tensor(rank: int, size: int, workers: int) -> torch.Tensor:
    """Whole numbers, whose sum is exact, and fractions; a server begins with zeros."""
    if rank >= workers:
        return torch.zeros(size)
    generator = torch.Generator().manual_seed(100 * size + rank)
    whole = torch.randint(-1000, 1000, (size,), generator=generator).float()
    return torch.where(torch.arange(size) % 2 == 0, whole, whole / 1024 / 3)


def expected(collective: Collective, rank: int, size: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (part, content) of the parts that this rank ends with."""
    own = [own_tensor(worker, size, collective.workers) for worker in range(collective.workers)]
    parts = [one.tensor_split(collective.parts) for one in (*own, torch.stack(own).sum(0))]
    for part, (whose, where) in enumerate(zip(*due(collective), strict=True)):
        if where in (-1, rank):
            yield part, parts[whose][part]


def run_all(context: RankContext, sizes: tuple[int, ...]) -> dict[tuple, tuple]:
    """Return by collective and size: wrong parts, a digest, and the bytes beyond those listed."""
    from ddlnb.launch.rank import process_group

    found = {}
    with (
        process_group(context, context.store(), context.count),
        CollectiveTransport(context.host, context.timeout_seconds) as transport,
    ):
        for number, collective in enumerate(runnable(context.count)):
            cuts = (math.inf, BLOCK_BYTES) if collective.primitive in IN_BLOCKS else (math.inf,)
            for size, block_bytes in product(sizes, cuts):
                schedule = RankSchedule(collective, context.rank, block_bytes)
                tensor = own_tensor(context.rank, size, collective.workers)
                transport.carry(schedule, 0, tensor).wait()
                found[number, str(collective), size, block_bytes] = (
                    wrong_parts(collective, context.rank, tensor),
                    hashlib.sha256(tensor.numpy().tobytes()).hexdigest(),
                    schedule.bytes_sent(tensor) - collective.bytes_sent(4 * size)[context.rank],
                )
    return found


def wrong_parts(collective: Collective, rank: int, tensor: torch.Tensor) -> list[int]:
    """Return the parts that are not what they should be: whole numbers exactly, others nearly."""
    if rank >= collective.workers:
        return []
    parts = tensor.tensor_split(collective.parts)
    return [
        part
        for part, content in expected(collective, rank, len(tensor))
        if not torch.allclose(parts[part], content, atol=1e-3, rtol=0)
    ]


def check(answers: list[dict[tuple, tuple]], ranks: int) -> None:
    listed = list(runnable(ranks))
    for (number, text, size, block_bytes), _ in answers[0].items():
        collective = listed[number]
        key = (number, text, size, block_bytes)
        said = f"{text}, {size} elements in blocks of {block_bytes} bytes"
        of_workers = [answer[key] for answer in answers[: collective.workers]]
        assert [wrong for wrong, _, _ in of_workers] == [[]] * collective.workers, said
        if collective.primitive in ("all-reduce", "all-gather", "broadcast"):
            assert len({digest for _, digest, _ in of_workers}) == 1, said
        # A part is longer than another by one element at most, in every block.
        blocks = max(1, math.ceil(4 * size / block_bytes)) + 1
        for rank, answer in enumerate(answers):
            off = abs(answer[key][2])
            assert off <= 4 * blocks * collective.parts_sent[rank], said


@pytest.mark.item("A30", how="measured")
@pytest.mark.ranks
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_collective_does_on_ranks_what_its_operation_says(six_ranks, count):
    check(six_ranks.run(run_all, SIZES, count=count, timeout_seconds=120), count)


@pytest.mark.ranks
@pytest.mark.parametrize("count", [5, 6])
def test_more_ranks_that_are_no_power_of_two(six_ranks, count):
    check(six_ranks.run(run_all, (3, 1001), count=count, timeout_seconds=120), count)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.ranks
def test_eight_ranks():
    with Ranks(8, imports=(__name__,)) as ranks:
        check(ranks.run(run_all, (3, 1001), timeout_seconds=200), 8)


@pytest.mark.ranks
def test_times_come_for_every_collective_size_and_counted_repetition(six_ranks):
    names = ["ring", "tree", "double-tree"]
    for rank in six_ranks.run(time_collectives, names, (4, 1000), 2, count=3, timeout_seconds=60):
        assert set(rank) == {(n, s, r) for n in names for s in (4, 1000) for r in (0, 1)}
        assert all(seconds > 0 for seconds in rank.values())


def use_mesh(context: RankContext) -> tuple[float, list[float], list[float]]:
    """Return the limit of two hops, and sums and bytes of a message below and above 8 KiB."""
    from ddlnb.collective_transport.transport import MeshTransport
    from ddlnb.launch.rank import process_group

    reached = context.host, 60.0
    with process_group(context, context.store(), context.count):
        with MeshTransport(*reached) as mesh:
            limit = mesh.two_hops_up_to
        means, sent = [], []
        with MeshTransport(*reached, two_hops_up_to=64 * KIB) as mesh:
            for size in MESSAGES:
                before, tensor = mesh.bytes_sent, torch.full((size // 4,), 1.0 + context.rank)
                means.append(float(mesh.start(0, AllReduce(tensor)).wait().mean()))
                sent.append(mesh.bytes_sent - before)
        return limit, means, sent


MESSAGES = (4 * KIB, 32 * KIB, 256 * KIB)


@pytest.mark.ranks
def test_a_mesh_sends_small_messages_whole_and_all_ranks_leave_it_at_the_same_size(six_ranks):
    """Or one would wait for a ring that the others do not run."""
    found = six_ranks.run(use_mesh, count=4, timeout_seconds=60)
    assert len({limit for limit, _, _ in found}) == 1
    assert found[0][0] >= 0
    for _, means, sent in found:
        assert means == [10.0, 10.0, 10.0]
        assert sent == [3 * MESSAGES[0], 1.5 * MESSAGES[1], 1.5 * MESSAGES[2]]


def test_what_ends_in_different_parts_does_not_travel_in_blocks():
    scatter = get_collective("ring", 4, primitive="reduce-scatter")
    with pytest.raises(InputError, match="reduce-scatter leaves ranks different parts"):
        RankSchedule(scatter, 0, block_bytes=1000)
