"""Plays a program event by event with objects: the plain, slow and obvious simulator.

Every class of workers computes for itself, and every instance of a stage serves for itself: it asks
for its resource when all whom it is for have come. An instance that takes parts serves the part of
each as it comes; one that comes while the message is served joins it. `ddlnb.simulator.events` does
the same with arrays, and tests hold the two equal to the last digit.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ddlnb.results.timeline import Span
from ddlnb.simulator.events import MOST_ITERATIONS, MOST_OF_SEVERAL, STEADY, Seconds
from ddlnb.simulator.path import Stage
from ddlnb.simulator.program import Program, delayed
from ddlnb.simulator.tasks import Task
from ddlnb.simulator.workers import wiring_of


@dataclass
class Played:
    """What came out: seconds of an iteration, the period of every one, and spans by class."""

    seconds: Seconds
    periods: list[float]
    spans: list[Span] = field(repr=False)


def play_plain(program: Program, iterations: int | None = None) -> Played:
    """Return the program played until iterations are steady, or for this many iterations."""
    return Player(delayed(program)).play(iterations)


@dataclass
class Service:
    """One message in one instance of a stage; in one that takes parts, those that have come."""

    message: int
    instance: int
    latency_left: float = 0.0
    work_left: float = 0.0
    since: float = 0.0
    version: int = 0
    is_queued: bool = False
    own_part_done: bool = False
    upstream: int = 0  # that has not ended
    joined: list[int] = field(default_factory=list)  # the edges that have come
    parts_done: int = 0


class Sender:
    """The messages that some classes have ready, and those that are under way."""

    def __init__(self, program: Program, number: int, classes: range):
        self.number, self.classes = number, classes
        self._program = program
        self._ready = [0] * len(program.messages)  # classes that have the message ready
        self._next = self._flying = 0
        self._flying_bytes = 0.0
        self._waiting: list[tuple[int, int]] = []

    def make_ready(self, message: int) -> None:
        """One more of the classes has this message ready."""
        self._ready[message] += 1
        if self._program.by_priority and self._ready[message] == len(self.classes):
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
            message = self._next if self._ready[self._next] == len(self.classes) else None
        elif self._waiting:
            message = self._waiting[0][1]
        if message is None or not self._flying:
            return message
        fits = self._flying_bytes + program.message_bytes[message] <= program.credit_bytes
        return message if fits else None


class Worker:
    """The position of a class in its steps, the messages that it has, and what it did."""

    def __init__(self, program: Program, number: int):
        self.program, self.number = program, number
        self.rank = program.workers.classes[number].rank
        self._steps = program.tasks.steps
        messages = len(program.messages)
        self.step = self.iteration = self.version = 0
        self.computing = False
        self.left = self.since = self.began = self.waiting_since = self.exposed = 0.0
        self.speed = 1.0
        self.ends = [(0.0, 0.0)]
        self.spans: list[Span] = []
        self.is_done = [True] * messages
        self.iteration_of = [0] * messages
        self.taken_at = [0.0] * messages

    @property
    def awaits(self) -> Task:
        """The first task of the next step, the only one that may wait."""
        return self.program.tasks.listed[self._steps[self.step][0]]

    @property
    def can_go_on(self) -> bool:
        """Whether all messages have come that the next step waits for."""
        return all(self.is_done[message] for message in self.awaits.waits_for)

    def begin_step(self, now: float) -> None:
        """Begin the next step, which nothing keeps from beginning."""
        self.began = self.since = now
        workers = self.program.workers
        column = min(self.iteration, workers.factor.shape[1] - 1)
        slowed, fixed = self.program.step_seconds
        self.left = slowed[self.step] * workers.factor[self.number, column] + fixed[self.step]
        self.left += workers.delay[self.number, column] if self.step == 0 else 0.0

    def catch_up(self, now: float) -> None:
        """Take off what was computed since the last change of speed."""
        self.left = max(0.0, self.left - (now - self.since) * self.speed)
        self.since = now

    def end_step(self, now: float) -> tuple[int, ...]:
        """End a step, and return the messages that it made ready."""
        step = self._steps[self.step]
        self._record_step(step, now)
        readies = self.program.tasks.listed[step[-1]].readies
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
        own_seconds = self.program.class_seconds(self.number, self.iteration)
        seconds = [float(own_seconds[task]) for task in step]
        slowed = (now - self.began) / total if (total := sum(seconds)) else 1.0
        start = self.began
        for number, own in zip(step, seconds, strict=True):
            task = self.program.tasks.listed[number]
            stop = now if number == step[-1] else min(now, start + own * slowed)
            if own:
                span = Span(self.rank, task.kind, task.name, start, stop, self.iteration)
                self.spans.append(span)
            start = stop

    def arrived(self, message: int, now: float) -> None:
        """Record that the average of a message is here."""
        self.is_done[message] = True
        self.spans.append(
            Span(
                rank=self.rank,
                kind="message",
                name=self.program.messages[message],
                start_seconds=self.taken_at[message],
                stop_seconds=now,
                iteration=self.iteration_of[message],
                bytes=int(self.program.message_bytes[message]),
            )
        )


class Player:
    """A program being played."""

    def __init__(self, program: Program):
        self.program, self.stages = program, program.stages
        shapes, workers = tuple(stage.shape for stage in program.stages), program.workers
        wiring = wiring_of(shapes, program.released, workers.classes, workers.nodes)
        self.stage_of, self.to = wiring.stage.tolist(), wiring.to.tolist()
        self.weight, self.link = wiring.weight.tolist(), wiring.link.tolist()
        self.unit, self.needed = wiring.unit.tolist(), wiring.needed.tolist()
        instances = range(len(self.stage_of))
        self.members = [range(wiring.low[i], wiring.high[i]) for i in instances]
        self.out = [range(wiring.out[i], wiring.out[i + 1]) for i in instances]
        self.into = [[edge for edge, to in enumerate(self.to) if to == i] for i in instances]
        self.senders_of = [
            range(*ends) for ends in zip(wiring.sender_low, wiring.sender_high, strict=True)
        ]
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self.workers = [Worker(program, number) for number in range(len(workers.classes))]
        self.senders = [
            Sender(program, number, self.members[number]) for number in range(len(self.needed))
        ]
        messages = range(len(program.messages))
        self._services = [[Service(message, i) for i in instances] for message in messages]
        self._queues: dict[tuple[int, int], deque[Service]] = {}
        self._serving: dict[tuple[int, int], Service | None] = {
            (resource, unit): None
            for resource in range(len(program.resources))
            for unit in range(wiring.units)
        }
        self._busy = [0] * len(self.workers)  # instances at work, by class
        self._computing = [0] * len(instances)  # classes that compute, by instance
        self._through = [[0] * len(messages) for _ in self.senders]

    def play(self, iterations: int | None) -> Played:
        """Play until iterations are steady, or for this many."""
        wanted = iterations or self.program.workers.iterations
        for worker in self.workers:
            self._begin_step(worker)
        while not self._is_over(wanted):
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._follow_network()
        return self._played(wanted)

    def _is_over(self, wanted: int | None) -> bool:
        done = min(worker.iteration for worker in self.workers)
        if wanted is not None:
            return done >= wanted
        most = MOST_ITERATIONS if len(self.workers) == 1 else MOST_OF_SEVERAL
        return done > 0 and (self._is_steady(done) or done >= most)

    def _is_steady(self, done: int) -> bool:
        if self.program.drains and len(self.workers) == 1:
            return True
        if done < 3:
            return False
        ends = [[end for end, _ in worker.ends[done - 2 : done + 1]] for worker in self.workers]
        periods = np.diff(np.array(ends), axis=1)
        return bool(np.ptp(periods) <= STEADY * periods.max())

    def _played(self, wanted: int | None) -> Played:
        done = min(worker.iteration for worker in self.workers)
        is_steady = wanted is None and self._is_steady(done)
        is_last = is_steady or (wanted is None and len(self.workers) == 1)
        since = done - 1 if is_last else min(1, done - 1)
        last = [
            max(worker.ends[number][0] for worker in self.workers) for number in range(done + 1)
        ]
        waited = 0.0
        for worker, share in zip(self.workers, self.program.workers.shares, strict=True):
            waited += (worker.ends[done][1] - worker.ends[since][1]) * float(share)
        mean = (last[done] - last[since]) / (done - since), waited / (done - since)
        spans = [span for worker in self.workers for span in worker.spans]
        return Played(Seconds(*mean, is_steady), np.diff(last).tolist(), spans)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (when, self._serial, action))

    # Computation.

    def _begin_step(self, worker: Worker) -> None:
        """Begin the next step of a class, or wait for its messages."""
        if not worker.can_go_on:
            worker.waiting_since = self.now
            return
        worker.begin_step(self.now)
        self._set_computing(worker, True)
        self._schedule_step(worker)

    def _schedule_step(self, worker: Worker) -> None:
        worker.version += 1
        worker.speed = self._speed(worker)
        ends = self.now + worker.left / worker.speed
        self._at(ends, partial(self._end_step, worker, worker.version))

    def _speed(self, worker: Worker) -> float:
        return self.program.compute_share if self._busy[worker.number] else 1.0

    def _end_step(self, worker: Worker, version: int) -> None:
        if version != worker.version:
            return
        sender = next(one for one in self.senders if worker.number in one.classes)
        for message in worker.end_step(self.now):
            sender.make_ready(message)
        self._start_what_may(sender)
        if not worker.can_go_on:
            self._set_computing(worker, False)
        self._begin_step(worker)

    def _set_computing(self, worker: Worker, computing: bool) -> None:
        """Say whether a class computes; the instances that it slows down change their rate."""
        if computing == worker.computing:
            return
        worker.computing = computing
        own = [i for i, members in enumerate(self.members) if worker.number in members]
        changed = [i for i in own if self._computing[i] == (0 if computing else 1)]
        serving = [one for one in self._serving.values() if one and one.instance in changed]
        serving = [service for service in serving if not service.own_part_done]
        for service in serving:
            self._catch_up(service)
        for i in own:
            self._computing[i] += 1 if computing else -1
        for service in serving:
            self._schedule(service)

    def _follow_network(self) -> None:
        """Give steps another end where the network has become busy or idle."""
        for worker in self.workers:
            if worker.computing and self._speed(worker) != worker.speed:
                worker.catch_up(self.now)
                self._schedule_step(worker)

    # Messages.

    def _start_what_may(self, sender: Sender) -> None:
        while (message := sender.next_message()) is not None:
            self._come(sender.number, message)

    def _come(self, edge: int, message: int) -> None:
        """Let a message come over an edge; the last one to come asks, or every part for itself."""
        instance = self.to[edge]
        stage, service = self._stage(instance), self._services[message][instance]
        if not stage.parts:
            if stage.streams and not service.joined:
                service.upstream = len(self.into[instance])
            service.joined.append(edge)
            if len(service.joined) < len(self.into[instance]):
                return
        if stage.streams:
            self._at(self.now + stage.delay, partial(self._arrive, edge, service))
        else:
            self._arrive(edge, service)

    def _arrive(self, edge: int, service: Service) -> None:
        stage, resource = self._stage(service.instance), self._resource(service)
        work = float(stage.work[service.message]) * self.link[service.instance]
        if stage.parts:
            service.joined.append(edge)
            service.upstream += 1
            work *= self.weight[edge]
            if service.is_queued:
                service.work_left += work
                return
            if self._serving[resource] is service:
                self._join(service, work)
                return
        service.latency_left, service.work_left = float(stage.latency[service.message]), work
        service.own_part_done = False
        if self._serving[resource] is None:
            self._serve(service)
        else:
            service.is_queued = True
            self._queues.setdefault(resource, deque()).append(service)

    def _join(self, service: Service, work: float) -> None:
        """Serve another part with those that are being served."""
        if service.own_part_done:
            service.own_part_done = False
            service.since = self.now
            self._count_busy(service, 1)
        else:
            self._catch_up(service)
        service.work_left += work
        self._schedule(service)

    def _serve(self, service: Service) -> None:
        self._serving[self._resource(service)] = service
        service.is_queued = False
        service.since = self.now
        if self.stage_of[service.instance] == 0:
            for worker in self.members[service.instance]:
                self.workers[worker].taken_at[service.message] = self.now
        self._count_busy(service, 1)
        self._schedule(service)
        if self._streams_on(service):
            for edge in self.out[service.instance]:
                self._come(edge, service.message)

    def _count_busy(self, service: Service, change: int) -> None:
        for worker in self.members[service.instance]:
            self._busy[worker] += change

    def _schedule(self, service: Service) -> None:
        service.version += 1
        latency_rate, rate = self._rates(service)
        left = service.latency_left / latency_rate + service.work_left / rate
        self._at(self.now + left, partial(self._own_part_ends, service, service.version))

    def _rates(self, service: Service) -> tuple[float, float]:
        """At which latency and work go on now."""
        stage = self._stage(service.instance)
        if not self._computing[service.instance]:
            return 1.0, 1.0
        return stage.latency_share, float(stage.shares[service.message])

    def _catch_up(self, service: Service) -> None:
        """Take off what was done since the last change of rate."""
        latency_rate, rate = self._rates(service)
        elapsed = self.now - service.since
        service.since = self.now
        on_latency = min(elapsed, service.latency_left / latency_rate)
        service.latency_left = max(0.0, service.latency_left - on_latency * latency_rate)
        service.work_left = max(0.0, service.work_left - (elapsed - on_latency) * rate)

    def _own_part_ends(self, service: Service, version: int) -> None:
        if version != service.version:
            return
        service.own_part_done = True
        service.latency_left = service.work_left = 0.0
        self._count_busy(service, -1)
        if not service.upstream:
            self._leave(service)

    def _upstream_ends(self, edge: int, message: int) -> None:
        service = self._services[message][self.to[edge]]
        service.upstream -= 1
        served = self._serving[self._resource(service)] is service
        if served and service.own_part_done and not service.upstream:
            self._leave(service)

    def _leave(self, service: Service) -> None:
        """Give the resource to the next in the queue, and go on if all parts are through."""
        instance, message, resource = service.instance, service.message, self._resource(service)
        self._serving[resource] = None
        if self._queues.get(resource):
            self._serve(self._queues[resource].popleft())
        came, service.joined = sorted(service.joined), []
        service.parts_done += len(came)
        if service.parts_done == len(self.into[instance]):
            service.parts_done = 0
            self._go_on(service)
        if self.stage_of[instance] == self.program.released:
            self._release(message, came)
        if self._streams_on(service):
            delay = self.stages[self.stage_of[instance] + 1].delay
            for edge in self.out[instance]:
                self._at(self.now + delay, partial(self._upstream_ends, edge, message))
        if not self.out[instance]:
            self._end_waiting(service)

    def _go_on(self, service: Service) -> None:
        if not self.out[service.instance]:
            for worker in self.members[service.instance]:
                self.workers[worker].arrived(service.message, self.now)
        elif not self._streams_on(service):
            for edge in self.out[service.instance]:
                self._come(edge, service.message)

    def _release(self, message: int, came: list[int]) -> None:
        """Give credit back to the senders whose messages are through everywhere."""
        senders = []
        for sender in [sender for edge in came for sender in self.senders_of[edge]]:
            self._through[sender][message] += 1
            if self._through[sender][message] == self.needed[sender]:
                self._through[sender][message] = 0
                senders.append(self.senders[sender])
        for one in senders:
            one.release(message)
        for one in senders:
            self._start_what_may(one)

    def _end_waiting(self, service: Service) -> None:
        for number in self.members[service.instance]:
            worker, message = self.workers[number], service.message
            if not worker.computing and message in worker.awaits.waits_for and worker.can_go_on:
                worker.end_waiting(self.now)
                self._begin_step(worker)

    def _stage(self, instance: int) -> Stage:
        return self.stages[self.stage_of[instance]]

    def _resource(self, service: Service) -> tuple[int, int]:
        number = int(self._stage(service.instance).resource[service.message])
        return number, self.unit[service.instance]

    def _streams_on(self, service: Service) -> bool:
        following = self.stage_of[service.instance] + 1
        return following < len(self.stages) and self.stages[following].streams
