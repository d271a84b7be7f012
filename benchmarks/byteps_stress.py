"""Does BytePS sum correctly, with our patches, when everything is late?

    python -m benchmarks.byteps_stress --rounds 500 --workers 2 4 --servers 1 3 --load 2

Workers push tensors from one element to several partitions, all at once, with values that differ
by worker, round and tensor and whose sums are exact. They stall at random, and start a tensor's
next round as soon as they have its sum, so some are a round ahead of others. Every element of
every sum is compared. The command ends with status 1 if one is wrong.

With ``--asynchronous`` the servers answer at once with the sum of all pushes so far, which
`CountingTensor` checks.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ddlnb.engines.byteps import runtime
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.units import MIB

EXACT = 2**53  # up to here float64 holds every integer


class CountingTensor:
    """One tensor of one worker, pushed round after round to asynchronous servers.

    Worker w adds B^w to every element, with B above the number of rounds. The digits of an answer
    to base B then count how many updates of each worker it holds, exact in float64. An answer is
    right if it is whole, the same number in every element of a partition (each of which BytePS
    sums on its own); if it holds all of this worker's updates; and of each other worker no fewer
    than the answer before.
    """

    def __init__(
        self,
        membership: runtime.Membership,
        name: str,
        elements: int,
        rank: int,
        workers: int,
        rounds: int,
        partition_bytes: int,
    ):
        self._base = rounds + 1
        assert self._base**workers <= EXACT, f"{rounds} rounds of {workers} workers are too many"
        self._membership, self._name, self._rank, self._workers = membership, name, rank, workers
        self._push_pull = membership.ops.c_lib.byteps_torch_push_pull_async_torch_DoubleTensor
        membership.ops.c_lib.byteps_torch_declare_tensor(name)
        self._tensor = torch.empty(elements, dtype=torch.float64)
        self._parts = self._tensor.split(partition_bytes // 8)
        self._seen = [[0] * workers for _ in self._parts]
        self._handle = 0

    def push(self, step: int, priority: int) -> None:
        """Push this worker's update of a round, and pull the sum of all into its place."""
        self._start(float(self._base**self._rank), priority)

    def is_right(self, step: int) -> bool:
        """Wait for the answer of a round; whether it is one that it may be."""
        right = True
        for seen, counts in zip(self._seen, self._wait(), strict=True):
            right &= counts is not None
            if counts is not None:
                right &= counts[self._rank] == step + 1
                right &= all(before <= now for before, now in zip(seen, counts, strict=True))
                seen[:] = counts
        return right

    def holds_all(self) -> bool:
        """Whether the server holds every update of every worker once; all must have pushed them."""
        self._start(0.0, 0)
        return all(counts == [self._base - 1] * self._workers for counts in self._wait())

    def _start(self, update: float, priority: int) -> None:
        self._tensor.fill_(update)
        self._handle = self._push_pull(self._tensor, self._tensor, 0, self._name, 0, priority)

    def _wait(self) -> list[list[int] | None]:
        """The updates of each worker in each partition of the answer; None if it is torn."""
        self._membership.wait(self._handle, self._name)
        self._membership.ops.c_lib.byteps_torch_wait_and_clear(self._handle)
        return [self._digits(part) for part in self._parts]

    def _digits(self, part: torch.Tensor) -> list[int] | None:
        if not torch.equal(part, part[:1].expand_as(part)):
            return None
        number = int(part[0].item())
        counts = []
        for _ in range(self._workers):
            number, count = divmod(number, self._base)
            counts.append(count)
        return counts if number == 0 else None


ELEMENTS = (1, 2, 3, 1000, 65_537, 300_000, 1_200_001)  # the last: 9.2 MiB, ten partitions
PARTITION_BYTES = MIB
STALLS = 0.05  # the share of waits before which a worker stalls
STALL_SECONDS = 0.01  # at most


@dataclass(frozen=True)
class Count:
    """What one worker saw: its sums, how many of them were wrong, and the seconds they took."""

    sums: int
    wrong: int
    seconds: float


def stress(
    context: RankContext,
    workers: int,
    servers: int,
    rounds: int,
    credit_partitions: int = 0,
    asynchronous: bool = False,
) -> Count | None:
    """Return what this rank saw in the given number of rounds; None from a server."""
    store = context.store()
    if context.rank >= workers:
        runtime.serve(context, store, workers, servers, asynchronous)
        return None
    membership = runtime.Membership(
        context, store, workers, servers, PARTITION_BYTES, credit_partitions, asynchronous
    )
    tensors: list[Any] = [
        CountingTensor(
            membership, f"tensor {number}", size, context.rank, workers, rounds, PARTITION_BYTES
        )
        if asynchronous
        else SummedTensor(membership, number, context.rank, workers)
        for number, size in enumerate(ELEMENTS)
    ]
    chance = random.Random(context.rank)
    start = time.perf_counter()
    wrong = 0
    for step in range(rounds + 1):
        for tensor in chance.sample(tensors, len(tensors)):
            if chance.random() < STALLS:
                time.sleep(chance.random() * STALL_SECONDS)
            if step > 0:
                wrong += not tensor.is_right(step - 1)
            if step < rounds:
                tensor.push(step, priority=chance.randrange(8))
    seconds = time.perf_counter() - start
    sums = rounds * len(tensors)
    if asynchronous:
        _await_all(store, workers)
        wrong += sum(not tensor.holds_all() for tensor in tensors)
        sums += len(tensors)
    membership.leave()
    return Count(sums, wrong, seconds)


def _await_all(store: Any, workers: int) -> None:
    """Return when all workers have come here."""
    if store.add("here", 1) == workers:
        store.set("all here", "")
    store.wait(["all here"])


class SummedTensor:
    """One tensor of one worker, pushed round after round to synchronous servers."""

    def __init__(self, membership: runtime.Membership, number: int, rank: int, workers: int):
        self._membership, self._number, self._rank, self._workers = (
            membership,
            number,
            rank,
            workers,
        )
        self._dtype = (torch.float32, torch.float64)[number % 2 == 0]
        kind = "Double" if self._dtype is torch.float64 else "Float"
        lib = membership.ops.c_lib
        self._push_pull = getattr(lib, f"byteps_torch_push_pull_async_torch_{kind}Tensor")
        self._name = f"tensor {number}"
        lib.byteps_torch_declare_tensor(self._name)
        self._base = torch.arange(ELEMENTS[number]).remainder(1009).to(self._dtype)
        self._share = torch.empty_like(self._base)
        self._handle = 0

    def push(self, step: int, priority: int) -> None:
        """Push this worker's share of a round, and pull the sum into its place."""
        torch.mul(self._base, self._rank + 1, out=self._share).add_(self._offset(step, self._rank))
        self._handle = self._push_pull(self._share, self._share, 0, self._name, 0, priority)

    def is_right(self, step: int) -> bool:
        """Wait for the sum of a round; whether it is what it should be."""
        self._membership.wait(self._handle, self._name)
        self._membership.ops.c_lib.byteps_torch_wait_and_clear(self._handle)
        offsets = sum(self._offset(step, rank) for rank in range(self._workers))
        expected = self._base * (self._workers * (self._workers + 1) // 2) + offsets
        return torch.equal(self._share, expected)

    def _offset(self, step: int, rank: int) -> int:
        return (step * 31 + rank * 17 + self._number * 7) % 997


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep the given number of processes computing for the time of the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 if every sum was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--credit", type=int, default=0, help="in partitions of a MiB; 0: none")
    parser.add_argument("--asynchronous", action="store_true", help="answers at once")
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one combination")
    given = parser.parse_args(arguments)
    # Run as a command this module is __main__, which ranks cannot import.
    work = import_module("benchmarks.byteps_stress").stress
    wrong = 0
    with Ranks(max(given.workers) + max(given.servers)) as ranks, load(given.load):
        for workers in given.workers:
            for servers in given.servers:
                settings: list[Any] = [workers, servers, given.rounds]
                settings += [given.credit, given.asynchronous]
                counts = ranks.run(
                    work, *settings, count=workers + servers, timeout_seconds=given.timeout
                )
                seen = [count for count in counts if count is not None]
                wrong += sum(count.wrong for count in seen)
                print(
                    f"{workers} workers, {servers} servers: {given.rounds} rounds, "
                    f"{sum(count.sums for count in seen)} sums, "
                    f"{sum(count.wrong for count in seen)} wrong, {seen[0].seconds:.1f} s",
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
