"""Collectives without processes: ranks are threads here, with a process group each."""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ddlnb.collective_transport import connections as peers
from ddlnb.collective_transport.connections import Frame, Stream
from ddlnb.collective_transport.rank_schedule import RankSchedule
from ddlnb.collective_transport.transport import (
    CollectiveTransport,
    MeshTransport,
    halves,
    per_message,
)
from ddlnb.errors import InputError, MissingPart, UnknownName
from ddlnb.networks.collectives.catalogue import get_collective
from ddlnb.plans.requests import AllReduce, ReduceScatter
from ddlnb.units import KIB

WORKERS = 4
HERE = "127.0.0.1"
SECONDS = 60.0


def among(count: int, run: Callable[[dist.ProcessGroup], Any]) -> list[Any]:
    """Return what every rank makes of its group."""
    store = dist.HashStore()

    def rank(number: int) -> Any:
        return run(dist.ProcessGroupGloo(store, number, count, timedelta(seconds=SECONDS)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def connected(count: int, run: Callable[[CollectiveTransport, int], Any]) -> list[Any]:
    """Return what every rank makes of a transport among them, and of its number."""

    def rank(group: dist.ProcessGroup) -> Any:
        with CollectiveTransport(HERE, SECONDS, group) as transport:
            return run(transport, group.rank())

    return among(count, rank)


def of(name: str, count: int, rank: int) -> RankSchedule:
    return RankSchedule(get_collective(name, count), rank)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_every_length_are_summed(dtype):
    """Whole ones up to 240, which all of them hold exactly."""

    def run(transport: CollectiveTransport, rank: int) -> torch.Tensor:
        tensor = torch.arange(80).to(dtype) + rank
        return transport.carry(of("ring", 3, rank), 0, tensor).wait()

    for tensor in connected(3, run):
        assert torch.equal(tensor, 3 * torch.arange(80).to(dtype) + 3)


@pytest.fixture
def alone() -> Iterator[None]:
    """A default group of one worker."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_worker_alone_has_its_own_sum_at_once():
    tensor = torch.ones(3)
    with MeshTransport(HERE, SECONDS) as mesh, halves(HERE, SECONDS) as split:
        assert mesh.start(0, AllReduce(tensor)).wait() is tensor
        assert split.start(0, ReduceScatter(tensor)).wait() is tensor
        assert mesh.bytes_sent == split.bytes_sent == 0
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.usefixtures("alone")
def test_a_transport_whose_collective_does_not_exist_opens_nothing():
    with pytest.raises(UnknownName, match="rinng"):
        per_message(("rinng",), 1, HERE, SECONDS)
    assert "collectives" not in {thread.name for thread in threading.enumerate()}


def test_messages_that_ranks_start_in_different_orders_meet_themselves():
    """Of all sizes, twice each, and the callbacks of each."""
    elements = [1, 5000, 30_000, 7, 100_000, 2, 3, 20_000]

    def run(group: dist.ProcessGroup) -> tuple[list[float], float, list[str]]:
        order = random.Random(group.rank())
        events: list[str] = []
        means = []
        with MeshTransport(HERE, SECONDS, group, two_hops_up_to=64 * KIB) as mesh:
            for _ in range(2):
                tensors = [torch.full((length,), group.rank() + 1.0) for length in elements]
                handles = {
                    number: mesh.start(
                        number,
                        AllReduce(tensors[number]),
                        partial(events.append, "released"),
                        partial(events.append, "answered"),
                    )
                    for number in order.sample(range(len(elements)), len(elements))
                }
                means += [float(handles[number].wait().mean()) for number in sorted(handles)]
            return means, mesh.bytes_sent, events

    for means, sent, events in among(WORKERS, run):
        count = 2 * len(elements)
        assert means == [10.0] * count
        small = sum(length for length in elements if 4 * length <= 8 * KIB)
        assert sent == pytest.approx(8 * (3 * small + 1.5 * (sum(elements) - small)), rel=1e-3)
        assert sorted(events) == ["answered"] * count + ["released"] * count


def test_a_rank_that_leaves_is_named_to_those_that_wait_for_it():
    """And whoever starts another message hears of it, too."""

    def run(transport: CollectiveTransport, rank: int) -> list[str]:
        said = []
        for message in range(2) if rank != 1 else ():
            with pytest.raises(ConnectionError) as error:
                transport.carry(of("direct", 3, rank), message, torch.zeros(1000)).wait()
            said.append(str(error.value))
        return said

    first, _, last = connected(3, run)
    assert all("closed its connection before" in each for each in first + last)
    assert "rank 1" in "".join(first + last)


def test_tensors_of_other_lengths_are_told_apart():
    """The longer one would be cut in silence."""

    def run(transport: CollectiveTransport, rank: int) -> str:
        with pytest.raises((InputError, ConnectionError)) as error:
            transport.carry(of("exchange", 2, rank), 7, torch.zeros(10 + rank)).wait()
        return str(error.value)

    said = " ".join(connected(2, run))
    assert "sent 4" in said
    assert "bytes of message 7 where 4" in said


def test_nothing_is_carried_once_a_rank_has_closed():
    """Neither what is on its way nor what comes later."""

    def run(group: dist.ProcessGroup) -> None:
        transport = CollectiveTransport(HERE, 5.0, group)
        group.barrier().wait()
        schedule = of("ring", 2, group.rank())
        if group.rank() == 0:
            handle = transport.carry(schedule, 0, torch.ones(4))
            transport.close()
            with pytest.raises(ConnectionError, match="this rank closed its connections"):
                handle.wait()
            with pytest.raises(ConnectionError, match="this rank closed its connections"):
                transport.carry(schedule, 1, torch.ones(4))
        group.barrier().wait()
        transport.close()

    among(2, run)


def test_a_callback_that_fails_is_told_to_the_one_that_waits():
    def run(transport: CollectiveTransport, rank: int) -> None:
        schedule = of("ring", 2, rank)
        with pytest.raises(ZeroDivisionError):
            transport.carry(schedule, 0, torch.ones(4), answered=lambda: 1 / 0).wait()
        with pytest.raises(ZeroDivisionError):
            transport.carry(schedule, 1, torch.ones(4))

    connected(2, run)


def test_a_long_run_needs_no_more_memory():
    """Also where messages have fewer elements than ranks, so that some parts are empty."""

    def run(transport: CollectiveTransport, rank: int) -> list[int]:
        counts = []
        for _ in range(2):
            for _ in range(20):
                transport.carry(of("ring", WORKERS, rank), 0, torch.ones(2)).wait()
            counts.append(sum(map(len, transport._spare.values())) + len(transport._arrived))
        return counts

    for before, after in connected(WORKERS, run):
        assert after < before + 10


def test_strangers_are_turned_away_and_keep_nobody_waiting(monkeypatch):
    """Who connects without the token of the run takes nobody's place, whatever it says or not."""
    strangers: list[socket.socket] = []
    told = peers._all_cards

    def overheard(token, address, group):
        if group.rank() == 0:
            strangers.extend(socket.create_connection(address, 5) for _ in range(4))
            wrong, short, hasty, _silent = strangers
            wrong.sendall(b"x" * 20)
            short.sendall(token[:3])
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            hasty.close()  # with a reset
        return told(token, address, group)

    monkeypatch.setattr(peers, "_all_cards", overheard)

    def run(transport: CollectiveTransport, rank: int) -> float:
        return float(transport.carry(of("ring", 2, rank), 0, torch.ones(5)).wait().sum())

    assert connected(2, run) == [10.0, 10.0]
    for stranger in strangers[:2] + strangers[3:]:
        stranger.settimeout(5)
        assert stranger.recv(1) == b""
        stranger.close()


def test_a_rank_that_does_not_call_and_one_that_is_not_reached_are_named():
    """Each leaves after it has said where it listens."""

    def run(group: dist.ProcessGroup, leaver: int) -> str:
        if group.rank() == leaver:
            with socket.create_server((HERE, 0)) as listener:
                address = listener.getsockname()
            peers._all_cards(b"t" * 16, address, group)
            return ""
        with pytest.raises((TimeoutError, ConnectionError)) as error:
            peers.connect_to_peers(HERE, 0.2, group)
        return str(error.value)

    assert among(2, partial(run, leaver=1))[0] == "ranks [1] did not connect within 0.2 s"
    assert among(2, partial(run, leaver=0))[1].startswith(f"rank 0 is not reached at {HERE}:")


def test_a_group_that_only_reaches_gpus_is_refused():
    with pytest.raises(MissingPart, match="works on CPUs"):
        CollectiveTransport(HERE, SECONDS, SimpleNamespace(name=lambda: "nccl"))


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_whole_however_the_kernel_cuts_them(seed):
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    draw = random.Random(seed)
    frames = [
        Frame(draw.randrange(9), 0, draw.randrange(9), number, memoryview(draw.randbytes(size)))
        for number, size in enumerate(draw.choices((0, 1, 20, 21, 500, 70_000), k=30))
    ]
    left: list[int] = []
    with near, far:
        sender, receiver = Stream(near, _room), Stream(far, _room)
        for frame in frames:
            sender.put(frame, frame.step)
        arrived: list[Frame] = []
        while len(arrived) < len(frames):
            left += sender.send()
            arrived += receiver.receive()
        assert [tuple(map(bytes_of, one)) for one in arrived] == [
            tuple(map(bytes_of, one)) for one in frames
        ]
        assert left == list(range(len(frames)))
        near.close()
        with pytest.raises(EOFError):
            receiver.receive()


def _room(size: int) -> memoryview:
    return memoryview(np.empty(size, np.uint8))


def bytes_of(value: int | memoryview) -> int | bytes:
    return value if isinstance(value, int) else bytes(value)
