"""Collectives without processes: ranks are threads here, with a process group each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddlnb.engines.transports import threads
from ddlnb.engines.transports.collective import CollectiveExecutor
from ddlnb.engines.transports.mesh import MeshAllReduce
from ddlnb.engines.transports.threads import ThreadTransport
from ddlnb.networks.collectives.catalogue import algorithms_for, get_collective
from ddlnb.plans.requests import AllReduce
from ddlnb.units import KIB

WORKERS = 4


def among(count: int, run: Callable[[dist.ProcessGroup], Any]) -> list[Any]:
    """Return what every rank makes of its group."""
    store = dist.HashStore()

    def rank(number: int) -> Any:
        return run(dist.ProcessGroupGloo(store, number, count, timedelta(seconds=60)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def own(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("name", algorithms_for("all-reduce"))
def test_an_all_reduce_leaves_the_same_bits_everywhere(name):
    made = get_collective(name, WORKERS, per_node=2)
    if made.servers:
        made = get_collective("parameter-servers(2, true)", WORKERS)

    def run(group: dist.ProcessGroup) -> list[torch.Tensor]:
        found = []
        for elements in (3, 1001):
            for block_bytes in (float("inf"), 500):
                tensor = own(group.rank(), elements)
                CollectiveExecutor(made, group, block_bytes)(tensor)
                found.append(tensor)
        return found

    for tensors in zip(*among(WORKERS, run), strict=True):
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
        expected = sum(own(rank, len(tensors[0])) for rank in range(WORKERS))
        torch.testing.assert_close(tensors[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        partial(CollectiveExecutor, get_collective("halving-doubling", 2)),
        partial(MeshAllReduce, 64 * KIB),
    ],
)
def test_messages_in_several_threads_meet_themselves(make, monkeypatch):
    """More messages than there are channels, of all sizes, and the callbacks of each."""
    elements = [1, 5000, 30_000, 7, 100_000, 2, 3, 20_000]
    groups: dict[int, list[dist.ProcessGroup]] = {}
    monkeypatch.setattr(threads.dist, "new_group", lambda: groups[current.rank].pop())
    current = threading.local()
    stores = [dist.HashStore() for _ in range(threads.CHANNELS)]

    def run(rank: int) -> tuple[list[float], float, list[str]]:
        current.rank = rank
        groups[rank] = [
            dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60)) for store in stores
        ][::-1]
        transport = ThreadTransport(make, timeout_seconds=60)
        events: list[str] = []
        handles = [
            transport.start(
                number,
                AllReduce(torch.full((length,), rank + 1.0)),
                partial(events.append, "released"),
                partial(events.append, "answered"),
            )
            for number, length in enumerate(elements)
        ]
        means = [float(handle.wait().mean()) for handle in handles]
        transport.close()
        return means, transport.bytes_sent, events

    with ThreadPoolExecutor(2) as pool:
        for means, sent, events in pool.map(run, range(2)):
            assert means == [3.0] * len(elements)
            assert sent == pytest.approx(4 * sum(elements), rel=1e-3)  # 2 (n - 1) / n of it
            assert sorted(events) == ["answered"] * len(elements) + ["released"] * len(elements)


def test_an_error_on_the_way_is_raised_where_the_answer_is_awaited(monkeypatch):
    monkeypatch.setattr(threads.dist, "new_group", lambda: None)

    class Broken:
        def __init__(self, group):
            pass

        def __call__(self, tensor):
            raise ConnectionError("cable cut")

        def bytes_sent(self, tensor):
            return 0.0

    transport = ThreadTransport(Broken, timeout_seconds=5)
    handle = transport.start(0, AllReduce(torch.zeros(3)))
    with pytest.raises(ConnectionError, match="cable cut"):
        handle.wait()
    transport.close()
