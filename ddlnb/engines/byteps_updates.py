"""Do BytePS's asynchronous servers lose, repeat or tear updates? The tensors of that stress.

Worker w adds B^w to every element of a tensor, round after round, with B above the number of
rounds. The digits of an answer to base B then count how many updates of each worker it holds, exact
in float64. An answer is right if it is whole, the same number in every element of a partition (each
of which BytePS sums on its own); if it holds all of this worker's updates; and of each other one
no fewer than the answer before, and no more than there are.
"""

from __future__ import annotations

import torch

from ddlnb.engines.byteps import runtime

EXACT = 2**53  # integers of float64


class CountingTensor:
    """One tensor of one worker, pushed again and again."""

    def __init__(
        self,
        world: runtime.World,
        name: str,
        elements: int,
        rank: int,
        workers: int,
        rounds: int,
        partition_bytes: int,
    ):
        self._base = rounds + 1
        assert self._base**workers <= EXACT, f"{rounds} rounds of {workers} workers are too many"
        self._world, self._name, self._rank, self._workers = world, name, rank, workers
        self._push_pull = world.ops.c_lib.byteps_torch_push_pull_async_torch_DoubleTensor
        world.ops.c_lib.byteps_torch_declare_tensor(name)
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
        self._world.wait(self._handle, self._name)
        self._world.ops.c_lib.byteps_torch_wait_and_clear(self._handle)
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
