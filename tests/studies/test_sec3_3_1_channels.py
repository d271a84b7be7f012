"""Lines between two processes: every message arrives whole and in order, and nothing stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlnb.errors import RankError
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.studies.sec3_3_1_channels import KINDS, POLLED, UNIX, connect
from ddlnb.studies.sec3_3_1_protocols import time_trips

SIZES = (1, 7, 4096, 300_001)


def exchange(context: RankContext, kind: str, rounds: int) -> bool:
    """Rank 0 sends two messages in a row, rank 1 answers with their bytes reversed."""
    line = connect(context, kind, max(SIZES))
    try:
        for number in range(rounds):
            for size in SIZES:
                messages = [bytes((number + k + i) % 251 for i in range(size)) for k in (0, 1)]
                if context.rank == 0:
                    for message in messages:
                        line.send(memoryview(bytearray(message)))
                    if bytes(line.receive(2 * size if size == 1 else size)) != expected(messages):
                        return False
                else:
                    arrived = [bytes(line.receive(size)) for _ in messages]
                    line.send(memoryview(expected(arrived)))
        return True
    finally:
        line.close()


def expected(messages: list[bytes]) -> bytes:
    """An answer that depends on every byte of both messages and on their order."""
    first, second = messages
    if len(first) == 1:
        return first + second
    return bytes(a ^ b for a, b in zip(first, reversed(second), strict=True))


@pytest.mark.ranks
@pytest.mark.parametrize("kind", KINDS)
def test_messages_arrive_whole_and_in_order(four_ranks, kind):
    assert four_ranks.run(exchange, kind, 3, count=2, timeout_seconds=60) == [True, True]


@pytest.mark.ranks
@pytest.mark.parametrize("kind", KINDS)
def test_trips_are_timed_and_nothing_stays_behind(four_ranks, kind):
    shared = Path("/dev/shm")
    before = set(shared.glob("psm_*"))
    asked, answered = four_ranks.run(
        time_trips, kind, (8, 5000), 5, 10.0, count=2, timeout_seconds=60
    )
    assert set(asked) == set(answered) == {8, 5000}
    for trips in asked.values():
        assert trips.seconds > 0
        assert trips.count == 5
        assert trips.cpu_seconds >= 0
    assert not set(shared.glob("psm_*")) - before


def vanish(context: RankContext, kind: str) -> None:
    """Rank 1 leaves while rank 0 waits for it."""
    line = connect(context, kind, 10)
    try:
        if context.rank == 0:
            line.receive(10)
    finally:
        line.close()


@pytest.mark.ranks
@pytest.mark.parametrize("kind", [UNIX, POLLED])
def test_an_end_that_has_gone_is_an_error_and_no_waiting_for_ever(kind):
    with Ranks(2) as ranks, pytest.raises(RankError):
        ranks.run(vanish, kind, timeout_seconds=2)
