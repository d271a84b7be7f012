"""When the passes of a pipeline schedule start and end, and how long stages stand idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddlnb.errors import InputError, require
from ddlnb.parallelism.schedules import Pass, Schedule


@dataclass(frozen=True)
class Played:
    """One iteration of a pipeline: passes of every stage with start and stop, in seconds."""

    stages: tuple[tuple[tuple[Pass, float, float], ...], ...]

    @property
    def seconds(self) -> float:
        """Seconds from the first start to the last stop."""
        return max(stop for stage in self.stages for _, _, stop in stage)

    def busy_seconds(self, stage: int) -> float:
        """Seconds in which a stage computes."""
        return sum(stop - start for _, start, stop in self.stages[stage])

    @property
    def bubble(self) -> float:
        """The share of the iteration in which stages are idle, averaged over them.

        For 1f1b and gpipe with equal stages (p - 1)/(m + p - 1).
        """
        busy = sum(self.busy_seconds(stage) for stage in range(len(self.stages)))
        return 1 - busy / (self.seconds * len(self.stages))

    @property
    def overhead(self) -> float:
        """Idle seconds by seconds of computation: (p - 1)/m for 1f1b, (p - 1)/(v m) interleaved."""
        return self.bubble / (1 - self.bubble)


def play(
    passes: Schedule,
    seconds: Mapping[str, float] | Sequence[Mapping[str, float]],
    send_seconds: float = 0.0,
    chunks: int = 1,
) -> Played:
    """Return when each pass runs: in the stage's order, once what it needs has arrived.

    ``seconds`` of F, B and W are those of one micro batch through one whole stage, of all stages or
    of each; a chunk takes 1/chunks of them. Without ``W`` in the schedule B stands for both. A
    forward pass needs the one of the part before, a backward pass that of the part behind; each
    arrives ``send_seconds`` after it ended.

    Raises InputError if the order can never be carried out.

    >>> from ddlnb.parallelism.schedules import schedule
    >>> played = play(schedule("1f1b", 4, 8), {"F": 1.0, "B": 2.0})
    >>> played.seconds, played.bubble == 3 / 11
    (33.0, True)
    """
    stages = len(passes)
    parts = stages * chunks
    ended: dict[tuple[str, int, int], float] = {}
    times: list[list[tuple[Pass, float, float]]] = [[] for _ in range(stages)]
    by_stage = [seconds] * stages if isinstance(seconds, Mapping) else list(seconds)
    require(len(by_stage) == stages, f"{stages} stages have {len(by_stage)} seconds; give one each")
    for kind in sorted({one.kind for stage in passes for one in stage}):
        known = all(kind in own for own in by_stage)
        require(known, f"seconds of {kind!r} are missing; give those of F, B and W")
    position, left = [0] * stages, sum(map(len, passes))
    while left:
        moved = False
        for stage, order in enumerate(passes):
            while position[stage] < len(order):
                one = order[position[stage]]
                ready = _ready(one, stage, stages, parts, ended, send_seconds)
                if ready is None:
                    break
                free = times[stage][-1][2] if times[stage] else 0.0
                start = max(free, ready)
                stop = start + by_stage[stage][one.kind] / chunks
                times[stage].append((one, start, stop))
                part = stage + one.chunk * stages
                ended[one.kind, one.micro_batch, part] = stop
                position[stage] += 1
                left -= 1
                moved = True
        if not moved:
            waiting = [order[at] for order, at in zip(passes, position, strict=True)
                       if at < len(order)]  # fmt: skip
            raise InputError(f"this schedule never ends: its stages wait at {waiting}")
    return Played(tuple(map(tuple, times)))


def _ready(
    one: Pass,
    stage: int,
    stages: int,
    parts: int,
    ended: Mapping[tuple[str, int, int], float],
    send_seconds: float,
) -> float | None:
    """Return when a pass has all it needs, None if that is not known yet."""
    part = stage + one.chunk * stages
    if one.kind == "W":
        return ended.get(("B", one.micro_batch, part))
    behind = ended.get(("F", one.micro_batch, part)) if one.kind == "B" else 0.0
    near = part - 1 if one.kind == "F" else part + 1
    if behind is None or not 0 <= near < parts:
        return behind
    arrived = ended.get((one.kind, one.micro_batch, near))
    sent = send_seconds if stages > 1 else 0.0
    return None if arrived is None else max(behind, arrived + sent)
