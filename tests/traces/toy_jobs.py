"""Jobs whose answers are known: a plain simulation of a pipeline, which writes a trace.

It shares no code with the package. Every worker runs its program one operation after the other; a
message or a collective ends a fixed time after the last of its ends has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

Place = tuple[int, int]  # data-parallel rank, stage
FORWARD, BACKWARD = 1.0, 2.0
TRANSFER, SYNC, OPTIMIZER = 0.01, 0.3, 0.05


def usual(kind: str, place: Place, batch: int, step: int) -> float:
    """Return the seconds of a computation of the usual job."""
    return FORWARD if kind == "forward-compute" else BACKWARD


@dataclass
class ToyJob:
    """A job of ``steps`` iterations of 1F1B, or of all forwards first if it has chunks."""

    data: int = 2
    stages: int = 3
    batches: int = 5
    chunks: int = 1
    steps: int = 2
    blocking: bool = True  # whether a worker waits for its sends
    seconds: Callable[[str, Place, int, int], float] = usual
    transfer: Callable[[str, Place, int], float] = lambda kind, place, step: TRANSFER
    pause: Callable[[Place, int], float] = lambda place, step: 0.0  # before gradients
    barrier: bool = False  # of all workers, before gradients, that nothing records

    def rows(self) -> pd.DataFrame:
        """Return the trace, with the columns of published ones."""
        return pd.DataFrame([row for step in range(self.steps) for row in self._play(step)])

    def seconds_of(self, step: int = 0) -> float:
        """Return how long an iteration takes."""
        return max(row["start_ts"] + row["duration"] for row in self._play(step))

    def _play(self, step: int) -> list[dict[str, object]]:
        places = [(d, s) for d in range(self.data) for s in range(self.stages)]
        programs = {place: self._batched(list(self._program(place))) for place in places}
        at = dict.fromkeys(places, 0)
        clock = dict.fromkeys(places, 0.0)
        posted: dict[tuple[object, ...], dict[Place, float]] = {}
        late: list[tuple[tuple[object, ...], Place, str, int, float]] = []
        rows: list[dict[str, object]] = []

        def write(place: Place, kind: str, start: float, end: float, number: int, chunk=0, mb=-1):
            rows.append(
                {
                    "dp_rank": place[0],
                    "stage": place[1],
                    "rank": place[0] + self.data * place[1],
                    "step": step,
                    "optype": kind,
                    "start_ts": start,
                    "duration": end - start,
                    "seq_id": number,
                    "mc": chunk,
                    "mb_id": mb,
                }
            )

        moved = True
        while moved:
            moved = False
            for place in places:
                while at[place] < len(programs[place]):
                    what = programs[place][at[place]]
                    start = clock[place]
                    if what[0] == "compute":
                        _, kind, number, chunk, mb = what
                        end = start + self.seconds(kind, place, mb, step)
                        write(place, kind, start, end, number, chunk, mb)
                    elif what[0] == "pause":
                        end = start + self.pause(place, step)
                    else:
                        _, entries, waits = what
                        for key, _, _, _ in entries:
                            posted.setdefault(key, {})[place] = start
                        late += [(k, place, kind, n, start) for k, kind, n, _ in entries]
                        ends = [
                            max(posted[key].values()) + self.transfer(kind, place, step) * length
                            for key, kind, _, length in entries
                            if len(posted[key]) == self._members(key)
                        ]
                        if waits and len(ends) < len(entries):
                            late = late[: -len(entries)]
                            break
                        end = max(ends) if waits else start
                    clock[place] = end
                    at[place] += 1
                    moved = True
        assert all(at[place] == len(programs[place]) for place in places), "the toy job is stuck"
        for key, place, kind, number, start in late:
            if kind == "barrier":
                continue
            length = SYNC / TRANSFER if "sync" in kind else 1.0
            if kind == "params-sync":
                length = 1.0
            end = max(posted[key].values()) + self.transfer(kind, place, step) * length
            write(place, kind, start, end, number)
        return rows

    def _members(self, key: tuple[object, ...]) -> int:
        return {"sync": self.data, "barrier": self.data * self.stages}.get(str(key[0]), 2)

    def _program(self, place: Place) -> Iterator[tuple]:
        data, stage = place
        yield ("all", [(("sync", "params", stage), "params-sync", 0, 1.0)], True)
        numbers: dict[str, int] = {}

        def number(kind: str) -> int:
            numbers[kind] = numbers.get(kind, -1) + 1
            return numbers[kind]

        def run(way: str, batch: int, chunk: int) -> Iterator[tuple]:
            position = chunk * self.stages + stage
            last = self.chunks * self.stages - 1
            before, after = (0, last) if way == "forward" else (last, 0)
            step = 1 if way == "forward" else -1
            if position != before:
                key = (way, data, position - step, batch)
                yield ("all", [(key, f"{way}-recv", number(f"{way}-recv"), 1.0)], True)
            kind = f"{way}-compute"
            yield ("compute", kind, batch, chunk, batch)
            if position != after:
                key = (way, data, position, batch)
                sent = (key, f"{way}-send", number(f"{way}-send"), 1.0)
                yield ("all", [sent], self.blocking)

        for way, batch, chunk in self._order(stage):
            yield from run(way, batch, chunk)
        yield ("pause",)
        if self.barrier:
            yield ("all", [(("barrier",), "barrier", 0, 0.0)], True)
        yield ("all", [(("sync", "grads", stage), "grads-sync", 0, SYNC / TRANSFER)], True)
        yield ("compute", "optimizer", 0, 0, -1)

    def _batched(self, program: list[tuple]) -> list[tuple]:
        """Return the program with sends joined to receives of the other way, as in Megatron-LM."""
        joined: list[tuple] = []
        for what in program:
            before = joined[-1] if joined else ("none",)
            if self.blocking and before[0] == what[0] == "all":
                ways = [entries[0][1].split("-") for entries in (before[1], what[1])]
                if ways in (
                    [["forward", "send"], ["backward", "recv"]],
                    [["backward", "send"], ["forward", "recv"]],
                ):
                    joined[-1] = ("all", before[1] + what[1], True)
                    continue
            joined.append(what)
        return joined

    def _order(self, stage: int) -> Iterator[tuple[str, int, int]]:
        if self.chunks > 1:
            every = range(self.batches)
            yield from (("forward", b, c) for c in range(self.chunks) for b in every)
            yield from (("backward", b, c) for c in reversed(range(self.chunks)) for b in every)
            return
        ahead = min(self.batches, self.stages - stage)
        yield from (("forward", b, 0) for b in range(ahead))
        for b in range(self.batches):
            yield ("backward", b, 0)
            if b + ahead < self.batches:
                yield ("forward", b + ahead, 0)
