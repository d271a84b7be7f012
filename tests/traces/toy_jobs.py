"""Jobs whose answers are known: a plain simulation of a pipeline, which writes a trace.

It shares no code with the package. Every worker runs its program one operation after the other; a
message or a collective ends a fixed time after the last of its ends has begun.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, product

import pandas as pd

Place = tuple[int, int]  # data-parallel rank, stage
Key = tuple[object, ...]  # of a message or a collective
Exchange = tuple[Key, str, int, float]  # with its kind, its number, and how many transfers it takes
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
        places = list(product(range(self.data), range(self.stages)))
        programs = {place: self._batched(self._program(place)) for place in places}
        clock = dict.fromkeys(places, 0.0)
        posted: dict[Key, dict[Place, float]] = defaultdict(dict)
        exchanged: list[tuple[Place, float, Exchange]] = []
        rows: list[dict[str, object]] = []

        def write(place: Place, kind: str, start: float, end: float, number: int, chunk=0, mb=-1):
            data, stage = place
            at = {"dp_rank": data, "stage": stage, "rank": data + self.data * stage, "step": step}
            times = {"optype": kind, "start_ts": start, "duration": end - start}
            rows.append(at | times | {"seq_id": number, "mc": chunk, "mb_id": mb})

        def end(place: Place, exchange: Exchange) -> float:
            key, kind, _, length = exchange
            return max(posted[key].values()) + self.transfer(kind, place, step) * length

        def goes_on(place: Place) -> bool:
            """Do what comes next on a worker; return False if it has to wait for others."""
            (what, *given), start = programs[place][0], clock[place]
            if what == "compute":
                kind, number, chunk, mb = given
                clock[place] += self.seconds(kind, place, mb, step)
                write(place, kind, start, clock[place], number, chunk, mb)
            elif what == "pause":
                clock[place] += self.pause(place, step)
            else:
                entries, waits = given
                for key, *_ in entries:
                    posted[key][place] = start
                if waits:
                    if any(len(posted[key]) < self._members(key) for key, *_ in entries):
                        return False
                    clock[place] = max(end(place, one) for one in entries)
                exchanged.extend((place, start, one) for one in entries)
            del programs[place][0]
            return True

        while busy := [place for place in places if programs[place]]:
            assert any([goes_on(place) for place in busy]), "the toy job is stuck"
        for place, start, one in exchanged:
            if one[1] != "barrier":
                write(place, one[1], start, end(place, one), one[2])
        return rows

    def _members(self, key: Key) -> int:
        return {"sync": self.data, "barrier": self.data * self.stages}.get(str(key[0]), 2)

    def _program(self, place: Place) -> Iterator[tuple]:
        data, stage = place
        last = self.chunks * self.stages - 1
        numbers: dict[str, Iterator[int]] = defaultdict(count)

        def exchange(key: Key, kind: str, length: float = 1.0, waits: bool = True) -> tuple:
            return "all", [(key, kind, next(numbers[kind]), length)], waits

        yield exchange(("sync", "params", stage), "params-sync")
        for way, batch, chunk in self._order(stage):
            position = chunk * self.stages + stage
            begin, stop, step = (0, last, 1) if way == "forward" else (last, 0, -1)
            if position != begin:
                yield exchange((way, data, position - step, batch), f"{way}-recv")
            yield "compute", f"{way}-compute", batch, chunk, batch
            if position != stop:
                key = (way, data, position, batch)
                yield exchange(key, f"{way}-send", waits=self.blocking)
        yield ("pause",)
        if self.barrier:
            yield exchange(("barrier",), "barrier", 0.0)
        yield exchange(("sync", "grads", stage), "grads-sync", SYNC / TRANSFER)
        yield "compute", "optimizer", 0, 0, -1

    def _batched(self, program: Iterator[tuple]) -> list[tuple]:
        """Return the program with sends joined to receives of the other way, as in Megatron-LM."""
        joined: list[tuple] = []
        pairs = (("forward-send", "backward-recv"), ("backward-send", "forward-recv"))
        for what in program:
            both = (joined[-1], what) if joined and self.blocking else ()
            kinds = tuple(one[1][0][1] for one in both if one[0] == "all")
            if kinds in pairs:
                joined[-1] = ("all", joined[-1][1] + what[1], True)
            else:
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
