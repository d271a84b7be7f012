"""What is published about protocols, what is measured, and channels that carry messages whole."""

from itertools import product
from pathlib import Path

import pytest

from ddlnb.errors import RankError
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.survey import sec3_3_1_protocols as protocols
from ddlnb.survey.sec3_3_1_protocols import KINDS, POLLED, UNIX, connect, time_trips

SIZES = (1, 7, 4096, 300_001)


def test_the_surveys_table_has_its_words_and_lines_and_every_fact_a_tag():
    table = protocols.survey_table()
    assert table["latency"].tolist() == ["high", "high", "medium", "low"]
    assert table.loc[("TCP/IP", "10GbE"), "latency (us)"] == pytest.approx(95.0, abs=0.05)
    assert table.loc[("RDMA over InfiniBand", "100GbIB"), "latency (us)"] < 7
    assert table.loc["RoCE", "latency (us)"].isna().all()
    rows = protocols.quoted_protocols()
    assert set(rows["source"]) == {"published"}
    assert "100GbIB, RDMA over InfiniBand" in set(rows["network"])
    assert protocols.facts()["tag"].str.startswith("A ").all()
    assert (protocols.facts() != "").all(axis=None)


def test_parts_of_rdma_are_looked_for_where_they_would_be(tmp_path):
    none = protocols.rdma_parts(tmp_path)["here"].drop("libibverbs")
    assert not none.any()
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM")
    (tmp_path / "proc/modules").write_text("nvidia_peermem 16384 0 - Live 0x0\n")
    assert protocols.rdma_parts(tmp_path)["here"].drop("libibverbs").all()


@pytest.mark.ranks
def test_every_channel_and_size_is_a_row_and_without_emulation_none_is_emulated(monkeypatch):
    monkeypatch.setattr(protocols, "emulated_ranks", lambda *_: None)
    rows = protocols.measure_protocols("1Gb/s 1ms", [8, 4096], trips=5, rounds=2)
    assert len(rows) == 2 * len(KINDS)
    assert set(rows["source"]) == {"measured"}
    assert (rows["seconds"] > 0).all()
    assert (rows["slowest_round"] >= rows["seconds"]).all()
    assert len(protocols.latency_table(rows)) == len(KINDS)


def exchange(context: RankContext, kind: str, rounds: int) -> bool:
    """Rank 0 sends two messages in a row, rank 1 answers with both as one."""
    channel = connect(context, kind, 2 * max(SIZES))
    try:
        for number, size in product(range(rounds), SIZES):
            messages = [bytes((number + k + i) % 251 for i in range(size)) for k in (0, 1)]
            if context.rank == 0:
                for message in messages:
                    channel.send(memoryview(bytearray(message)))
                if bytes(channel.receive(2 * size)) != b"".join(messages):
                    return False
            else:
                arrived = [bytes(channel.receive(size)) for _ in messages]
                channel.send(memoryview(b"".join(arrived)))
        return True
    finally:
        channel.close()


@pytest.mark.ranks
@pytest.mark.parametrize("kind", KINDS)
def test_messages_arrive_whole_and_in_order(six_ranks, kind):
    assert six_ranks.run(exchange, kind, 3, count=2, timeout_seconds=60) == [True, True]


@pytest.mark.ranks
@pytest.mark.parametrize("kind", KINDS)
def test_trips_are_timed_and_nothing_stays_behind(six_ranks, kind):
    shared = Path("/dev/shm")
    before = set(shared.glob("psm_*"))
    asked, answered = six_ranks.run(
        time_trips, kind, (8, 5000), 5, 10.0, count=2, timeout_seconds=60
    )
    assert set(asked) == set(answered) == {8, 5000}
    assert all(t.seconds > 0 and t.count == 5 and t.cpu_seconds >= 0 for t in asked.values())
    assert not set(shared.glob("psm_*")) - before


def vanish(context: RankContext, kind: str) -> None:
    """Rank 1 leaves while rank 0 waits for it."""
    channel = connect(context, kind, 10)
    try:
        if context.rank == 0:
            channel.receive(10)
    finally:
        channel.close()


@pytest.mark.thorough(but=1)
@pytest.mark.ranks
@pytest.mark.parametrize("kind", [UNIX, POLLED])
def test_an_end_that_has_gone_is_an_error_and_no_waiting_for_ever(kind):
    with Ranks(2, imports=(__name__,)) as ranks, pytest.raises(RankError):
        ranks.run(vanish, kind, timeout_seconds=2)
