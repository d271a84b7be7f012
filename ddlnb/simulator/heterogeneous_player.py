"""Who starts messages in one order: a worker, a node, or the cluster as a whole.

One worker of a team as the plain player plays it: where it is, and what it did.

Plays unlike workers event by event: the plain, slow and obvious simulator.

As in `ddlnb.simulator.player`, but every lane computes for itself, and every copy of a stage serves
for itself: it asks for its resource when all whom it is for have come. A copy that takes parts
serves the part of each as it comes; one that comes while the message is served joins it, so that
those who come together are served as one. `fast_player` does the same with arrays; tests hold the
two equal, and both equal to the player of one worker where all are alike.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ddlnb.results.timeline import Span
from ddlnb.simulator.events import are_steady, seconds_of
from ddlnb.simulator.fast_player import Seconds
from ddlnb.simulator.path import Stage
from ddlnb.simulator.program import Program
from ddlnb.simulator.tasks import Task
from ddlnb.simulator.workers import MOST_ITERATIONS, UnlikeProgram


class Sender:
    """The messages that some workers have ready, and those that are under way."""

    def __init__(self, program: Program, number: int, lanes: tuple[int, ...]):
        self.number, self.lanes = number, lanes
        self._program = program
        self._ready = [0] * len(program.messages)  # lanes that have the message ready
        self._next = self._flying = 0
        self._flying_bytes = 0.0
        self._waiting: list[tuple[int, int]] = []

    def make_ready(self, message: int) -> None:
        """One more of the workers has this message ready."""
        self._ready[message] += 1
        if self._program.by_priority and self._ready[message] == len(self.lanes):
            heapq.heappush(self._waiting, (int(self._program.priority[message]), message))

    def next_message(self) -> int | None:
        """Return the message that starts now, if one may, and count it as flying."""
        message = self._startable()
        if message is None:
            return None
        self._ready[message] = 0
        if self._program.by_priority:
            heapq.heappop(self._waiting)
        else:
            self._next = (self._next + 1) % len(self._ready)
        self._flying_bytes += self._program.message_bytes[message]
        self._flying += 1
        return message

    def release(self, message: int) -> None:
        """Give back the credit of a message."""
        self._flying_bytes -= self._program.message_bytes[message]
        self._flying -= 1

    def _startable(self) -> int | None:
        program, message = self._program, None
        if not program.by_priority:
            message = self._next if self._ready[self._next] == len(self.lanes) else None
        elif self._waiting:
            message = self._waiting[0][1]
        if message is None or not self._flying:
            return message
        fits = self._flying_bytes + program.message_bytes[message] <= program.credit_bytes
        return message if fits else None


class PlayedLane:
    """A worker's position in its steps, the messages that it has, and what it did."""

    def __init__(self, program: UnlikeProgram, number: int):
        self.program, self.number = program, number
        self.rank = program.team.lanes[number].rank
        self._tasks = program.program.tasks.listed
        self._steps = program.program.tasks.steps
        messages = len(program.program.messages)
        self.step = self.iteration = 0
        self.computing = False
        self.left = self.since = self.began = self.waiting_since = 0.0
        self.version = 0
        self.speed = 1.0
        self.exposed = 0.0
        self.ends: list[tuple[float, float]] = []
        self.spans: list[Span] = []
        self.is_done = [True] * messages
        self.iteration_of = [0] * messages
        self.taken_at = [0.0] * messages
        self._step_seconds = program.step_seconds(number, 0)

    @property
    def awaits(self) -> Task:
        """The first task of the next step, the only one that may wait."""
        return self._tasks[self._steps[self.step][0]]

    @property
    def can_go_on(self) -> bool:
        """Whether all messages have come that the next step waits for."""
        return all(self.is_done[message] for message in self.awaits.waits_for)

    def begin_step(self, now: float) -> None:
        """Begin the next step, which nothing keeps from beginning."""
        if self.step == 0:
            self._step_seconds = self.program.step_seconds(self.number, self.iteration)
        self.began = self.since = now
        self.left = float(self._step_seconds[self.step])

    def catch_up(self, now: float) -> None:
        """Take off what was computed since the last change of speed."""
        self.left = max(0.0, self.left - (now - self.since) * self.speed)
        self.since = now

    def end_step(self, now: float) -> tuple[int, ...]:
        """End a step, and return the messages that it made ready."""
        step = self._steps[self.step]
        self._record_step(step, now)
        readies = self._tasks[step[-1]].readies
        for message in readies:
            self.is_done[message] = False
            self.iteration_of[message] = self.iteration
        self.step += 1
        if self.step == len(self._steps):
            self.ends.append((now, self.exposed))
            self.step = 0
            self.iteration += 1
        return readies

    def end_waiting(self, now: float) -> None:
        """Record the seconds since the worker began to wait."""
        self.exposed += now - self.waiting_since
        name, since = self.awaits.name, self.waiting_since
        self.spans.append(Span(self.rank, "wait", name, since, now, self.iteration))

    def _record_step(self, step: range, now: float) -> None:
        """Spans of the tasks of a step that ends now; contention is shared out among them."""
        own_seconds = self.program.task_seconds(self.number, self.iteration)
        seconds = [float(own_seconds[task]) for task in step]
        slowed = (now - self.began) / total if (total := sum(seconds)) else 1.0
        start = self.began
        for number, own in zip(step, seconds, strict=True):
            task = self._tasks[number]
            stop = now if number == step[-1] else min(now, start + own * slowed)
            if own:
                span = Span(self.rank, task.kind, task.name, start, stop, self.iteration)
                self.spans.append(span)
            start = stop

    def arrived(self, message: int, now: float) -> None:
        """Record that the average of a message is here."""
        program = self.program.program
        self.is_done[message] = True
        self.spans.append(
            Span(
                rank=self.rank,
                kind="message",
                name=program.messages[message],
                start_seconds=self.taken_at[message],
                stop_seconds=now,
                iteration=self.iteration_of[message],
                bytes=int(program.message_bytes[message]),
            )
        )


@dataclass
class Played:
    """The seconds of an iteration, as `seconds_of` finds them, and the spans of every lane."""

    seconds: Seconds
    spans: list[Span] = field(repr=False)


def play_unlike(program: UnlikeProgram, iterations: int | None = None) -> Played:
    """Return the program played until iterations are steady, or for this many iterations."""
    return _Player(program).play(iterations)


@dataclass
class _Passage:
    """One message in one copy of a stage; in one that takes parts, those that have come by now."""

    message: int
    copy: int
    latency_left: float = 0.0
    work_left: float = 0.0
    since: float = 0.0
    version: int = 0
    is_queued: bool = False
    own_part_done: bool = False
    upstream: int = 0  # that has not ended
    joined: list[int] = field(default_factory=list)  # the edges that have come
    parts_done: int = 0


class _Player:
    def __init__(self, program: UnlikeProgram):
        self.program = program
        self.copies, self.stages = program.copies, program.program.stages
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self.lanes = [PlayedLane(program, lane) for lane in range(len(program.team.lanes))]
        self.senders = [
            Sender(program.program, number, lanes)
            for number, lanes in enumerate(self.copies.senders)
        ]
        copies, messages = range(len(self.copies.stage)), range(len(program.program.messages))
        self._passages = [[_Passage(message, copy) for copy in copies] for message in messages]
        self._queues: list[deque[_Passage]] = [deque() for _ in range(self.copies.resources)]
        self._serving: list[_Passage | None] = [None] * self.copies.resources
        self._busy = [0] * len(self.lanes)  # copies at work, by lane
        self._computing = [0] * len(copies)  # lanes that compute, by copy
        self._released: dict[tuple[int, tuple[int, ...]], int] = {}

    def play(self, iterations: int | None) -> Played:
        program = self.program
        for lane in self.lanes:
            self._begin_step(lane)
        while not self._is_over(iterations):
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._follow_network()
        ends = [lane.ends for lane in self.lanes]
        seconds = seconds_of(ends, program.team.counts, self._is_steady())
        return Played(seconds, [span for lane in self.lanes for span in lane.spans])

    def _is_over(self, iterations: int | None) -> bool:
        done = min(len(lane.ends) for lane in self.lanes)
        wanted = iterations or self.program.team.iterations
        if wanted is not None:
            return done >= wanted
        return done > 0 and (self._is_steady() or done >= MOST_ITERATIONS)

    def _is_steady(self) -> bool:
        if self.program.team.iterations:
            return False
        done = min(len(lane.ends) for lane in self.lanes)
        return are_steady([[end for end, _ in lane.ends[:done]] for lane in self.lanes])

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    # Computation.

    def _begin_step(self, lane: PlayedLane) -> None:
        """Begin the next step of a lane, or wait for its messages."""
        if not lane.can_go_on:
            lane.waiting_since = self.now
            return
        lane.begin_step(self.now)
        self._set_computing(lane, True)
        self._schedule_step(lane)

    def _schedule_step(self, lane: PlayedLane) -> None:
        lane.version += 1
        lane.speed = self._speed(lane)
        ends = self.now + lane.left / lane.speed
        self._at(ends, partial(self._end_step, lane, lane.version))

    def _speed(self, lane: PlayedLane) -> float:
        return self.program.program.compute_share if self._busy[lane.number] else 1.0

    def _end_step(self, lane: PlayedLane, version: int) -> None:
        if version != lane.version:
            return
        sender = next(one for one in self.senders if lane.number in one.lanes)
        for message in lane.end_step(self.now):
            sender.make_ready(message)
        self._start_what_may(sender)
        if not lane.can_go_on:
            self._set_computing(lane, False)
        self._begin_step(lane)

    def _set_computing(self, lane: PlayedLane, computing: bool) -> None:
        """Say whether a lane computes; the copies that it slows down change their rate."""
        if computing == lane.computing:
            return
        lane.computing = computing
        changed = []
        for copy, lanes in enumerate(self.copies.lanes):
            if lane.number in lanes and self._computing[copy] == (0 if computing else 1):
                changed.append(copy)
        serving = [one for one in self._serving if one is not None and one.copy in changed]
        serving = [passage for passage in serving if not passage.own_part_done]
        for passage in serving:
            self._catch_up(passage)
        for copy, lanes in enumerate(self.copies.lanes):
            if lane.number in lanes:
                self._computing[copy] += 1 if computing else -1
        for passage in serving:
            self._schedule(passage)

    def _follow_network(self) -> None:
        """Give steps another end where the network has become busy or idle."""
        for lane in self.lanes:
            if lane.computing and self._speed(lane) != lane.speed:
                lane.catch_up(self.now)
                self._schedule_step(lane)

    # Messages.

    def _start_what_may(self, sender: Sender) -> None:
        while (message := sender.next_message()) is not None:
            self._come(sender.number, message)

    def _come(self, edge: int, message: int) -> None:
        """Let a message come over an edge; the last one to come asks, or every part for itself."""
        copy = self.copies.to[edge]
        stage, passage = self._stage(copy), self._passages[message][copy]
        if not stage.parts:
            if stage.streams and not passage.joined:
                passage.upstream = len(self.copies.into[copy])
            passage.joined.append(edge)
            if len(passage.joined) < len(self.copies.into[copy]):
                return
        if stage.delay or stage.streams:
            self._at(self.now + stage.delay, partial(self._arrive, edge, passage))
        else:
            self._arrive(edge, passage)

    def _arrive(self, edge: int, passage: _Passage) -> None:
        copy, message = passage.copy, passage.message
        stage, resource = self._stage(copy), int(self.copies.resource[copy][message])
        if stage.parts:
            passage.joined.append(edge)
            passage.upstream += stage.streams
            work = float(self.copies.work[copy][message]) * self.copies.weight[edge]
            if passage.is_queued:
                passage.work_left += work
                return
            if self._serving[resource] is passage:
                self._join(passage, work)
                return
        else:
            work = float(self.copies.work[copy][message])
        passage.latency_left, passage.work_left = float(self.copies.latency[copy][message]), work
        passage.own_part_done = False
        if self._serving[resource] is None:
            self._serve(passage)
        else:
            passage.is_queued = True
            self._queues[resource].append(passage)

    def _join(self, passage: _Passage, work: float) -> None:
        """Serve another part with those that are being served."""
        if passage.own_part_done:
            passage.own_part_done = False
            passage.since = self.now
            self._count_busy(passage.copy, 1)
        else:
            self._catch_up(passage)
        passage.work_left += work
        self._schedule(passage)

    def _serve(self, passage: _Passage) -> None:
        copy, message = passage.copy, passage.message
        self._serving[self.copies.resource[copy][message]] = passage
        passage.is_queued = False
        passage.since = self.now
        if self.copies.stage[copy] == 0:
            for lane in self.copies.lanes[copy]:
                self.lanes[lane].taken_at[message] = self.now
        self._count_busy(copy, 1)
        self._schedule(passage)
        if self._streams_on(copy):
            for edge in self.copies.out[copy]:
                self._come(edge, message)

    def _count_busy(self, copy: int, change: int) -> None:
        for lane in self.copies.lanes[copy]:
            self._busy[lane] += change

    def _schedule(self, passage: _Passage) -> None:
        passage.version += 1
        latency_rate, rate = self._rates(passage)
        left = passage.latency_left / latency_rate + passage.work_left / rate
        self._at(self.now + left, partial(self._own_part_ends, passage, passage.version))

    def _rates(self, passage: _Passage) -> tuple[float, float]:
        """At which latency and work go on now."""
        stage = self._stage(passage.copy)
        if not self._computing[passage.copy]:
            return 1.0, 1.0
        return stage.latency_share, float(stage.shares[passage.message])

    def _catch_up(self, passage: _Passage) -> None:
        """Take off what was done since the last change of rate."""
        latency_rate, rate = self._rates(passage)
        elapsed = self.now - passage.since
        passage.since = self.now
        on_latency = min(elapsed, passage.latency_left / latency_rate)
        passage.latency_left = max(0.0, passage.latency_left - on_latency * latency_rate)
        passage.work_left = max(0.0, passage.work_left - (elapsed - on_latency) * rate)

    def _own_part_ends(self, passage: _Passage, version: int) -> None:
        if version != passage.version:
            return
        passage.own_part_done = True
        passage.latency_left = passage.work_left = 0.0
        self._count_busy(passage.copy, -1)
        if not passage.upstream:
            self._leave(passage)

    def _upstream_ends(self, edge: int, message: int) -> None:
        passage = self._passages[message][self.copies.to[edge]]
        passage.upstream -= 1
        served = self._serving[self.copies.resource[passage.copy][message]] is passage
        if served and passage.own_part_done and not passage.upstream:
            self._leave(passage)

    def _leave(self, passage: _Passage) -> None:
        """Give the resource to the next in the queue, and go on if all parts are through."""
        copy, message = passage.copy, passage.message
        resource = int(self.copies.resource[copy][message])
        self._serving[resource] = None
        if self._queues[resource]:
            self._serve(self._queues[resource].popleft())
        came, passage.joined = sorted(passage.joined), []
        passage.parts_done += len(came)
        if passage.parts_done == len(self.copies.into[copy]):
            passage.parts_done = 0
            self._go_on(copy, message)
        if self.copies.stage[copy] == self.program.program.released:
            self._release(copy, message, came)
        if self._streams_on(copy):
            delay = self.stages[self.copies.stage[copy] + 1].delay
            for edge in self.copies.out[copy]:
                self._at(self.now + delay, partial(self._upstream_ends, edge, message))
        if not self.copies.out[copy]:
            self._end_waiting(copy, message)

    def _go_on(self, copy: int, message: int) -> None:
        if not self.copies.out[copy]:
            for lane in self.copies.lanes[copy]:
                self.lanes[lane].arrived(message, self.now)
        elif not self._streams_on(copy):
            for edge in self.copies.out[copy]:
                self._come(edge, message)

    def _release(self, copy: int, message: int, came: list[int]) -> None:
        """Give credit back to the senders of a copy, or of parts that are through everywhere."""
        stage = self.copies.stage[copy]
        if not self.stages[stage].parts:
            lanes = set(self.copies.lanes[copy])
        else:
            lanes = set()
            everywhere = self.copies.first[stage + 1] - self.copies.first[stage]
            for members in (self.copies.of[edge] for edge in came):
                through = self._released.get((message, members), 0) + 1
                self._released[message, members] = through % everywhere
                lanes |= set(members) if through == everywhere else set()
        senders = [sender for sender in self.senders if lanes & set(sender.lanes)]
        for sender in senders:
            sender.release(message)
        for sender in senders:
            self._start_what_may(sender)

    def _end_waiting(self, copy: int, message: int) -> None:
        for number in self.copies.lanes[copy]:
            lane = self.lanes[number]
            if not lane.computing and message in lane.awaits.waits_for and lane.can_go_on:
                lane.end_waiting(self.now)
                self._begin_step(lane)

    def _stage(self, copy: int) -> Stage:
        return self.stages[self.copies.stage[copy]]

    def _streams_on(self, copy: int) -> bool:
        following = self.copies.stage[copy] + 1
        return following < len(self.stages) and self.stages[following].streams
