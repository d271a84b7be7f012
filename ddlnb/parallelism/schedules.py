"""Pipeline schedules as data: for every stage, its passes in order.

``F`` is the forward pass of a micro batch through a chunk of layers, ``B`` its backward pass. The
zero-bubble schedule splits the backward pass: there ``B`` gives the gradients of the inputs and
``W`` those of the weights, which nobody waits for.

When the passes of a pipeline schedule start and end, and how long stages stand idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ddlnb.errors import InputError, UnknownName, require, require_whole
from ddlnb.parallelism.layout import SCHEDULES


class Pass(NamedTuple):
    """One pass of one micro batch through one chunk of a stage."""

    kind: str  # F, B or W
    micro_batch: int
    chunk: int = 0


Schedule = tuple[tuple[Pass, ...], ...]


@lru_cache(maxsize=1024)
def schedule(name: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return the passes of every stage.

    gpipe (arXiv 1811.06965): all forward passes, then all backward passes. 1f1b (PipeDream-Flush,
    2104.04473): one forward, one backward, once the pipeline is full. interleaved (2104.04473,
    section 2.2): the same with ``chunks`` per stage. zero-bubble (ZB-H1 of 2401.10241): no more
    memory than 1f1b, and gradients of weights where a stage would have to wait.

    Raises InputError for numbers that do not fit, UnknownName for another schedule.

    >>> for passes in schedule("1f1b", 2, 3):
    ...     print(" ".join(f"{kind}{batch}" for kind, batch, _ in passes))
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    require_whole(stages=stages, micro_batches=micro_batches, chunks=chunks)
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    if name == "interleaved":
        require(
            micro_batches % stages == 0,
            f"micro_batches {micro_batches} must be a multiple of the {stages} stages",
        )
        return tuple(_interleaved(s, stages, micro_batches, chunks) for s in range(stages))
    require(chunks == 1, f"schedule {name!r} has 1 chunk per stage, not {chunks}")
    if name == "zero-bubble":
        return tuple(_zero_bubble(s, stages, micro_batches) for s in range(stages))
    ahead = (lambda stage: micro_batches) if name == "gpipe" else (lambda stage: stages - stage)
    return tuple(_one_by_one(ahead(stage), micro_batches) for stage in range(stages))


def _one_by_one(ahead: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return forward passes until so many are ahead, then a backward pass before each of them."""
    ahead = min(ahead, micro_batches)
    order = [Pass("F", number) for number in range(ahead)]
    for number in range(micro_batches):
        order.append(Pass("B", number))
        if number + ahead < micro_batches:
            order.append(Pass("F", number + ahead))
    return tuple(order)


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[Pass, ...]:
    total = micro_batches * chunks

    def forward(step: int) -> Pass:
        group, within = divmod(step, stages * chunks)
        chunk, batch = divmod(within, stages)
        return Pass("F", group * stages + batch, chunk)

    def backward(step: int) -> Pass:
        _, batch, chunk = forward(step)
        return Pass("B", batch, chunks - 1 - chunk)

    # One more than the warm-up of Megatron: the forward pass that precedes the first backward one.
    ahead = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)
    order = [forward(step) for step in range(ahead)]
    for step in range(total):
        order.append(backward(step))
        if step + ahead < total:
            order.append(forward(step + ahead))
    return tuple(order)


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return 1f1b with W behind B: at once on the first stage, one B later on each that follows.

    Later stages have fewer forward passes ahead, and so keep what W needs for longer.
    """
    order: list[Pass] = []
    behind = 0
    for one in _one_by_one(stages - stage, micro_batches):
        order.append(one)
        if one.kind == "B" and one.micro_batch >= stage:
            order.append(Pass("W", behind))
            behind += 1
    return (*order, *(Pass("W", number) for number in range(behind, micro_batches)))


def in_flight(name: str, stages: int, micro_batches: int, chunks: int, stage: int) -> int:
    """Return how many chunks of micro batches a stage keeps activations of at its peak.

    In closed form, but for zero-bubble: gpipe keeps all, 1f1b as many as stages follow and itself,
    interleaved twice as many, and the other chunks of ``stages`` micro batches.

    >>> [in_flight("1f1b", 4, 8, 1, stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    total = micro_batches * chunks
    if name == "gpipe":
        return total
    if name == "1f1b":
        return min(total, stages - stage)
    if name == "interleaved":
        return min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)
    return most_in_flight(schedule(name, stages, micro_batches, chunks)[stage])


def chunks_in_flight(
    name: str, stages: int, micro_batches: int, chunks: int, stage: int
) -> tuple[int, ...]:
    """Return the same by chunk: how many micro batches each of them keeps before the first B.

    >>> chunks_in_flight("interleaved", 2, 4, 2, 0), chunks_in_flight("interleaved", 2, 4, 2, 1)
    ((3, 2), (2, 1))
    """
    flying = in_flight(name, stages, micro_batches, chunks, stage)
    if chunks == 1:
        return (flying,)
    rounds, rest = divmod(flying, stages * chunks)
    return tuple(
        rounds * stages + min(stages, max(0, rest - chunk * stages)) for chunk in range(chunks)
    )


def most_in_flight(passes: tuple[Pass, ...]) -> int:
    """Return the peak of forward passes whose last backward pass has not ended, by counting."""
    last = "W" if any(one.kind == "W" for one in passes) else "B"
    now = peak = 0
    for one in passes:
        now += (one.kind == "F") - (one.kind == last)
        peak = max(peak, now)
    return peak


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
