"""Does BytePS sum correctly, with our patches, when everything is late?

    python -m benchmarks.byteps_stress --rounds 500 --workers 2 4 --servers 1 3 --load 2

Workers push tensors from one element to several partitions, all at once, with values that differ
by worker, round and tensor and whose sums are exact. They stall at random, and start a tensor's
next round as soon as they have its sum, so some are a round ahead of others. Every element of
every sum is compared. The command ends with status 1 if one is wrong.

With ``--asynchronous`` the servers answer at once with the sum of all pushes so far, which
`CountingTensor` checks.
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import torch

from benchmarks.command import command
from ddlnb.foreign_engines.byteps import runtime
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.units import MIB

EXACT = 2**53  # up to here float64 holds every integer


ELEMENTS = (1, 2, 3, 1000, 65_537, 300_000, 1_200_001)  # the last: 9.2 MiB, ten partitions
PARTITION_BYTES = MIB
STALLS = 0.05  # the share of waits before which a worker stalls
STALL_SECONDS = 0.01  # at most


class Context(NamedTuple):
    """A worker among its like, and the rounds that all of them push."""

    membership: runtime.Membership
    rank: int
    workers: int
    rounds: int


class Pushed:
    """A named tensor of one worker, which BytePS replaces by the sum that it pulls."""

    def __init__(self, context: Context, number: int, dtype: torch.dtype):
        self._context, self._name = context, f"tensor {number}"
        self._library = context.membership.ops.c_lib
        kind = "Double" if dtype is torch.float64 else "Float"
        self._push_pull = getattr(self._library, f"byteps_torch_push_pull_async_torch_{kind}Tensor")
        self._library.byteps_torch_declare_tensor(self._name)
        self._tensor = torch.empty(ELEMENTS[number], dtype=dtype)
        self._handle = 0

    def _start(self, priority: int) -> None:
        self._handle = self._push_pull(self._tensor, self._tensor, 0, self._name, 0, priority)

    def _finish(self) -> torch.Tensor:
        self._context.membership.wait(self._handle, self._name)
        self._library.byteps_torch_wait_and_clear(self._handle)
        return self._tensor


class CountingTensor(Pushed):
    """One tensor of one worker, pushed round after round to asynchronous servers.

    Worker w adds B^w to every element, with B above the number of rounds. The digits of an answer
    to base B then count how many updates of each worker it holds, exact in float64. An answer is
    right if it is whole, the same number in every element of a partition (each of which BytePS
    sums on its own); if it holds all of this worker's updates; and of each other worker no fewer
    than the answer before.
    """

    def __init__(self, context: Context, number: int):
        super().__init__(context, number, torch.float64)
        rounds, workers = context.rounds, context.workers
        self._base = rounds + 1
        assert self._base**workers <= EXACT, f"{rounds} rounds of {workers} workers are too many"
        self._parts = self._tensor.split(PARTITION_BYTES // 8)
        self._seen = [[0] * workers for _ in self._parts]

    def push(self, step: int, priority: int) -> None:
        """Push this worker's update of a round, and pull the sum of all into its place."""
        self._tensor.fill_(float(self._base**self._context.rank))
        self._start(priority)

    def is_right(self, step: int) -> bool:
        """Wait for the answer of a round; whether it is one that it may be."""
        right = True
        for seen, counts in zip(self._seen, self._counts(), strict=True):
            right &= counts is not None
            if counts is not None:
                right &= counts[self._context.rank] == step + 1
                right &= all(before <= now for before, now in zip(seen, counts, strict=True))
                seen[:] = counts
        return right

    def holds_all(self) -> bool:
        """Whether the server holds every update of every worker once; all must have pushed them."""
        self._tensor.fill_(0.0)
        self._start(0)
        every = [self._context.rounds] * self._context.workers
        return all(counts == every for counts in self._counts())

    def _counts(self) -> list[list[int] | None]:
        """The updates of each worker in each partition of the answer; None if it is torn."""
        self._finish()
        return [self._digits(part) for part in self._parts]

    def _digits(self, part: torch.Tensor) -> list[int] | None:
        if not torch.equal(part, part[:1].expand_as(part)):
            return None
        number, counts = int(part[0].item()), []
        for _ in range(self._context.workers):
            number, count = divmod(number, self._base)
            counts.append(count)
        return counts if number == 0 else None


class SummedTensor(Pushed):
    """One tensor of one worker, pushed round after round to synchronous servers."""

    def __init__(self, context: Context, number: int):
        super().__init__(context, number, (torch.float32, torch.float64)[number % 2 == 0])
        self._number = number
        self._values = torch.arange(ELEMENTS[number]).remainder(1009).to(self._tensor.dtype)

    def push(self, step: int, priority: int) -> None:
        """Push this worker's share of a round, and pull the sum into its place."""
        rank = self._context.rank
        torch.mul(self._values, rank + 1, out=self._tensor).add_(self._offset(step, rank))
        self._start(priority)

    def is_right(self, step: int) -> bool:
        """Wait for the sum of a round; whether it is what it should be."""
        workers = self._context.workers
        offsets = sum(self._offset(step, rank) for rank in range(workers))
        expected = self._values * (workers * (workers + 1) // 2) + offsets
        return torch.equal(self._finish(), expected)

    def _offset(self, step: int, rank: int) -> int:
        return (step * 31 + rank * 17 + self._number * 7) % 997


class Count(NamedTuple):
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
    worker = Context(membership, context.rank, workers, rounds)
    kind: Any = CountingTensor if asynchronous else SummedTensor
    tensors = [kind(worker, number) for number in range(len(ELEMENTS))]
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


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep the given number of processes computing for the time of the block."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main(
    *,
    rounds: int = 200,
    workers: Sequence[int] = (2, 4),
    servers: Sequence[int] = (1, 2),
    credit: int = 0,
    asynchronous: bool = False,
    load: int = 0,
    timeout: float = 600.0,
) -> int:
    """Print a line per combination, and return 1 if a sum was wrong, or 0.

    Without --credit, in partitions of a MiB, there is none. --load processes compute meanwhile. A
    combination may take --timeout seconds.
    """
    # Run as a command this module is __main__, which ranks cannot import.
    work = import_module("benchmarks.byteps_stress").stress
    wrong = 0
    with Ranks(max(workers) + max(servers)) as ranks, busy(load):
        for many, serving in product(workers, servers):
            settings = (many, serving, rounds, credit, asynchronous)
            counts = ranks.run(work, *settings, count=many + serving, timeout_seconds=timeout)
            seen = [count for count in counts if count is not None]
            wrong += sum(count.wrong for count in seen)
            print(
                f"{many} workers, {serving} servers: {rounds} rounds, "
                f"{sum(count.sums for count in seen)} sums, "
                f"{sum(count.wrong for count in seen)} wrong, {seen[0].seconds:.1f} s",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(command(main))
