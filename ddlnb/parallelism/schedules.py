"""Pipeline schedules: one entry each, which is played, counted, forecast and executed.

An entry gives for every stage its passes in order: ``F`` is the forward pass of a micro batch
through a chunk of layers, ``B`` its backward pass. Where a schedule splits the backward pass, ``B``
gives the gradients of the inputs and ``W`` those of the weights, which nobody waits for. `play`
says when passes start and end, and how long stages stand idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ddlnb.errors import look_up, require, require_whole
from ddlnb.registry import CACHES


class Pass(NamedTuple):
    """One pass of one micro batch through one chunk of a stage."""

    kind: str  # F, B or W
    micro_batch: int
    chunk: int = 0


Schedule = tuple[tuple[Pass, ...], ...]
Key = tuple[str, int, int]  # kind, micro batch, part


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule: how far a stage runs ahead, and what becomes of its backward passes.

    - ahead: how many forward passes a stage starts before its first backward pass, if there are as
      many; then one backward pass comes before each further one. Of stage, stages, micro batches
      and chunks, numbers or arrays of them.
    - chunked: stages hold several chunks of layers (vpp), and start micro batches in groups of as
      many as there are stages.
    - weights_behind: of a stage, how many backward passes the gradients of weights lie behind those
      of inputs; None for backward passes that are whole.
    - vee: stages hold two chunks, the second ones in reverse order, so that the first stage has
      the first and the last part of the model. Of stage, stages and micro batches: how often which
      passes follow each other, as in (3, "F1 B1 W1"); W is that of the oldest B which has none.
    - words: a pattern by which tables of runs name it, otherwise its name.
    - torch: the class of torch.distributed.pipelining that executes it; without one, ranks run
      the passes in the order of `schedule`.
    """

    name: str
    ahead: Callable[[Any, Any, Any, Any], Any]
    chunked: bool = False
    weights_behind: Callable[[int], int] | None = None
    vee: Callable[[int, int, int], Sequence[tuple[int, str]]] | None = None
    words: str = ""
    torch: str = ""

    def __post_init__(self) -> None:
        require(
            not (self.chunked and self.splits),
            f"schedule {self.name!r} has chunks and splits backward passes; only one can be played",
        )

    @property
    def splits(self) -> bool:
        """Whether gradients of weights are passes of their own."""
        return self.vee is not None or self.weights_behind is not None

    @property
    def chunks(self) -> int:
        """Chunks of a stage where nothing else is said."""
        return 2 if self.vee else 1

    def part(self, stage: int, chunk: int, stages: int) -> int:
        """Return which part of the model a chunk of a stage is."""
        return 2 * stages - 1 - stage if self.vee and chunk else stage + chunk * stages

    def home(self, part: int, stages: int) -> tuple[int, int]:
        """Return the chunk and the stage that a part of the model is."""
        chunk, stage = divmod(part, stages)
        return chunk, stages - 1 - stage if self.vee and chunk else stage

    def passes(self, stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[Pass, ...]:
        """Return the passes of one stage in order."""
        if self.vee is not None:  # of as many micro batches as fill it, some may be left out
            numbered = _numbered(self.vee(stage, stages, max(2 * stages - 1, micro_batches)))
            return tuple(one for one in numbered if one.micro_batch < micro_batches)

        def forward(step: int) -> Pass:
            group, within = divmod(step, stages * chunks)
            chunk, batch = divmod(within, stages)
            return Pass("F", group * stages + batch, chunk)

        total = micro_batches * chunks
        ahead = min(total, self.ahead(stage, stages, micro_batches, chunks))
        order, weights = [forward(step) for step in range(ahead)], 0
        for step in range(total):
            _, batch, chunk = forward(step)
            order.append(Pass("B", batch, chunks - 1 - chunk))
            if self.weights_behind is not None and batch >= self.weights_behind(stage):
                order.append(Pass("W", weights))
                weights += 1
            if step + ahead < total:
                order.append(forward(step + ahead))
        last = range(weights, micro_batches) if self.splits else ()
        return (*order, *(Pass("W", number) for number in last))


def _numbered(steps: Sequence[tuple[int, str]]) -> Iterator[Pass]:
    """Yield passes that are said by kind and chunk, each of the next micro batch."""
    begun: Counter[str] = Counter()
    waiting: list[Pass] = []  # backward passes without gradients of weights
    for word in (word for times, words in steps for word in words.split() * times):
        if word.startswith("W"):
            of = next(one for one in waiting if word in ("W", f"W{one.chunk}"))
            waiting.remove(of)
            yield of._replace(kind="W")
        else:
            yield (one := Pass(word[0], begun[word], int(word[1])))
            begun[word] += 1
            waiting += [one] if one.kind == "B" else []


def _zb_v(stage: int, stages: int, batches: int) -> Sequence[tuple[int, str]]:
    behind = stages - stage
    return (
        (2 * behind - 1, "F0"), (stage, "F1 F0"), (behind, "F1 B1 W1"),
        (batches - stages, "F0 B0 W0 F1 B1 W1"),
        (stage, "B0 B1"), (behind, "B0 W0"), (stage, "W1"), (stage, "W0"),
    )  # fmt: skip


def _dualpipe_v(stage: int, stages: int, batches: int) -> Sequence[tuple[int, str]]:
    behind, (half, odd) = stages - stage - 1, divmod(stage + 1, 2)
    return (
        (2 * behind, "F0"), (stage + 1, "F0 F1"), (behind, "B1 W1 F1"),
        (batches - stages - behind, "F0 B1 W1 F1 B0 W0"), (behind, "B1 W1 F1 B0 W0"),
        (half, "B1 W1 B0 W0"), (odd, "B1 W1 B0"), (half, "B1 B0"), (behind, "W B0"),
        (stage + 1, "W"),
    )  # fmt: skip


SCHEDULES = {
    one.name: one
    for one in (
        # arXiv 1811.06965: all forward passes, then all backward passes.
        PipelineSchedule(
            "gpipe", lambda stage, stages, batches, chunks: batches, torch="ScheduleGPipe"
        ),
        # PipeDream-Flush (2104.04473): one forward, one backward, once the pipeline is full.
        PipelineSchedule(
            "1f1b", lambda stage, stages, batches, chunks: stages - stage, torch="Schedule1F1B"
        ),
        # 2104.04473, section 2.2: the same with chunks. One more than the warm-up of Megatron: the
        # forward pass that precedes the first backward one.
        PipelineSchedule(
            "interleaved",
            lambda stage, stages, batches, chunks: (
                2 * (stages - stage - 1) + (chunks - 1) * stages + 1
            ),
            chunked=True,
            words=r"interleav|1f1b-i",
            torch="ScheduleInterleaved1F1B",
        ),
        # ZB-H1 of 2401.10241: no more memory than 1f1b, where torch's keeps more. Later stages have
        # fewer forward passes ahead, and so keep what gradients of weights need for longer.
        PipelineSchedule(
            "zero-bubble",
            lambda stage, stages, batches, chunks: stages - stage,
            weights_behind=lambda stage: stage,
            words=r"zero.?bubble|\bzb\b|\bzb-?[hv12]",
        ),
        # ZB-V of 2401.10241, section 6: as much memory as 1f1b, and no bubble where passes take
        # equally long; in the order in which torch has it, and so the next one.
        PipelineSchedule(
            "zb-v", lambda stage, stages, batches, chunks: 2 * stages, vee=_zb_v, words="^zb-v$"
        ),
        # DualPipe (DeepSeek-V3, 2412.19437, section 3.2.1) cut in half, so that no stage holds two
        # copies of parameters (github.com/deepseek-ai/DualPipe); what it overlaps is not played.
        PipelineSchedule(
            "dualpipe-v",
            lambda stage, stages, batches, chunks: 2 * stages + 1,
            vee=_dualpipe_v,
            words="dualpipe",
        ),
    )
}


SHIPPED = dict(SCHEDULES)
INTERLEAVED = "interleaved"
INTERLEAVES = "1f1b"  # the schedule of which chunks make the interleaved one
PLAYED = 8  # micro batches per stage, up to which idle time is counted by playing


def get_schedule(name: str) -> PipelineSchedule:
    """Return the schedule of this name. Raises UnknownName."""
    return look_up("schedule", name, SCHEDULES)


def schedule(name: str, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """Return the passes of every stage.

    Raises InputError for numbers that do not fit, UnknownName for another schedule.

    >>> for passes in schedule("1f1b", 2, 3):
    ...     print(" ".join(f"{kind}{batch}" for kind, batch, _ in passes))
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    require_whole(stages=stages, micro_batches=micro_batches, chunks=chunks)
    kind = get_schedule(name)
    require(
        micro_batches % stages == 0 or not kind.chunked,
        f"micro_batches {micro_batches} must be a multiple of the {stages} stages",
    )
    require(
        chunks == kind.chunks or kind.chunked,
        f"schedule {name!r} has {kind.chunks} chunks per stage, not {chunks}",
    )
    return _ordered(kind, stages, micro_batches, chunks)


@lru_cache(maxsize=1024)
def _ordered(kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> Schedule:
    return tuple(kind.passes(stage, stages, micro_batches, chunks) for stage in range(stages))


def in_flight(name: str, stages: int, micro_batches: int, chunks: int, stage: int) -> int:
    """Return how many chunks of micro batches a stage keeps activations of at its peak.

    As many as it runs ahead; where gradients of weights come later, by counting.

    >>> [in_flight("1f1b", 4, 8, 1, stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    kind = get_schedule(name)
    if kind.splits:
        return most_in_flight(schedule(name, stages, micro_batches, chunks)[stage])
    return int(min(micro_batches * chunks, kind.ahead(stage, stages, micro_batches, chunks)))


def most_in_flight(passes: tuple[Pass, ...]) -> int:
    """Return the peak of forward passes whose last backward pass has not ended, by counting."""
    last = "W" if any(one.kind == "W" for one in passes) else "B"
    now = peak = 0
    for one in passes:
        now += (one.kind == "F") - (one.kind == last)
        peak = max(peak, now)
    return peak


def most_kept(passes: tuple[Pass, ...], kept: Sequence[float], early: Sequence[float]) -> float:
    """Return the peak of what a stage keeps, by counting.

    A micro batch keeps ``kept`` of every chunk, of which ``early`` goes with the gradients of
    inputs (all, where backward passes are whole), the rest with those of weights.
    """
    gone = {"B": early, "W": [whole - one for whole, one in zip(kept, early, strict=True)]}
    now = peak = 0.0
    for one in passes:
        now += kept[one.chunk] if one.kind == "F" else -gone[one.kind][one.chunk]
        peak = max(peak, now)
    return peak


@dataclass(frozen=True)
class PipelineTimes:
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
    name: str = "interleaved",
) -> PipelineTimes:
    """Return when each pass runs: in the stage's order, once what it needs has arrived.

    ``seconds`` of F, B and W are those of one micro batch through one whole stage, of all stages or
    of each; a chunk takes 1/chunks of them, and ``name`` says which parts chunks are. Without ``W``
    in the schedule B stands for both. What comes from another stage arrives ``send_seconds`` after
    it ended. Raises what `in_order` raises.

    >>> played = play(schedule("1f1b", 4, 8), {"F": 1.0, "B": 2.0})
    >>> played.seconds, played.bubble == 3 / 11
    (33.0, True)
    """
    stages = len(passes)
    ended: dict[Key, float] = {}
    times: list[list[tuple[Pass, float, float]]] = [[] for _ in passes]
    by_stage = [seconds] * stages if isinstance(seconds, Mapping) else list(seconds)
    require(len(by_stage) == stages, f"{stages} stages have {len(by_stage)} seconds; give one each")
    for kind in sorted({one.kind for stage in passes for one in stage}):
        known = all(kind in own for own in by_stage)
        require(known, f"seconds of {kind!r} are missing; give those of F, B and W")
    kind_of = get_schedule(name)
    for stage, one in in_order(passes, chunks, name):
        part = kind_of.part(stage, one.chunk, stages)
        needed = _needed(one, part, stages * chunks)
        arrivals = (
            ended[key] + send_seconds * (kind_of.home(key[2], stages)[1] != stage) for key in needed
        )
        start = max(times[stage][-1][2] if times[stage] else 0.0, *arrivals, 0.0)
        stop = start + by_stage[stage][one.kind] / chunks
        times[stage].append((one, start, stop))
        ended[one.kind, one.micro_batch, part] = stop
    return PipelineTimes(tuple(map(tuple, times)))


@lru_cache(maxsize=4096)
def idle_passes(
    kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int, later: int = 0
) -> float:
    """Return how long equal stages stand idle, in forward passes, of which backward ones take two.

    With ``later`` 1 half of a backward pass is for gradients of weights, where a schedule splits
    them off; with 0 nothing is. Played for up to `PLAYED` micro batches per stage; beyond, as much
    more as the last ones add.

    >>> idle_passes(SCHEDULES["1f1b"], 4, 8, 1), idle_passes(SCHEDULES["interleaved"], 4, 8, 2)
    (9.0, 4.5)
    """
    most = PLAYED * stages
    if micro_batches > most:
        half, whole = (idle_passes(kind, stages, n, chunks, later) for n in (most // 2, most))
        return whole + (whole - half) * (micro_batches - most) / (most - most // 2)
    seconds = {"F": 1.0, "B": 2.0 - later * kind.splits, "W": 1.0 * later}
    passes = _ordered(kind, stages, micro_batches, chunks)
    return play(passes, seconds, chunks=chunks, name=kind.name).seconds - 3 * micro_batches


CACHES.extend(kept.cache_clear for kept in (_ordered, idle_passes))


def idle_shares(
    kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int
) -> tuple[float, float]:
    """Return how long equal stages are idle, of their time with 1F1B.

    Where nothing of a backward pass can wait, and where half of it is for gradients of weights. A V
    schedule is made for the latter, and taken for it.

    >>> idle_shares(SCHEDULES["zero-bubble"], 4, 8, 1)
    (1.0, 0.3333333333333333)
    """
    if kind.chunked:  # starts micro batches in groups
        micro_batches += -micro_batches % stages
    chunks = chunks if kind.chunked else kind.chunks
    usual = idle_passes(SCHEDULES[INTERLEAVES], stages, stages, 1)
    whole, split = (idle_passes(kind, stages, micro_batches, chunks, w) / usual for w in (0, 1))
    return split if kind.vee else whole, split


def in_order(
    passes: Schedule, chunks: int = 1, name: str = "interleaved"
) -> Iterator[tuple[int, Pass]]:
    """Yield every pass with its stage, each behind all that it needs.

    A forward pass needs the one of the part before, a backward pass that of the part behind and its
    forward pass. Raises InputError if the order can never be carried out.
    """
    stages, done, position = len(passes), set[Key](), [0] * len(passes)
    while sum(position) < sum(map(len, passes)):
        before = sum(position)
        for stage, order in enumerate(passes):
            for one in order[position[stage] :]:
                part = get_schedule(name).part(stage, one.chunk, stages)
                if not done.issuperset(_needed(one, part, stages * chunks)):
                    break
                yield stage, one
                done.add((one.kind, one.micro_batch, part))
                position[stage] += 1
        waiting = [order[at] for order, at in zip(passes, position, strict=True) if at < len(order)]
        require(
            sum(position) > before,
            f"schedule {name!r} never ends: its stages wait at {waiting}",
        )


def _needed(one: Pass, part: int, parts: int) -> list[Key]:
    """Return the passes that one through a part waits for, by kind, micro batch and part."""
    _, batch, _ = one
    if one.kind == "W":
        return [("B", batch, part)]
    if one.kind == "F":
        return [("F", batch, part - 1)] if part else []
    return [("F", batch, part), *([("B", batch, part + 1)] if part < parts - 1 else [])]
