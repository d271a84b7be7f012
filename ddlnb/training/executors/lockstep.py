"""All workers in this process, on a virtual clock: deterministic, for convergence and for time.

A discrete-event executor. Workers run as generators; a gradient takes the clock's seconds, a
collective begins when its last worker is there, messages share links and wait in
mailboxes, parameter servers apply their rule in the order in which pushes arrive. Ties are broken
by the order of events, so that a run is repeated to the bit.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddlnb.errors import DdlnbError
from ddlnb.plans.requests import AllGather, AllReduce, Flow, Messages, PushPull, answer_together
from ddlnb.plans.server_rules import Rule
from ddlnb.training.executors.clock import Clock, Links
from ddlnb.training.loop import Gradient, StepDone
from ddlnb.training.worker import Worker
from ddlnb.workloads.profiling import torch_threads

if TYPE_CHECKING:
    import pandas as pd


OnStep = Callable[[int, int, float], None]  # rank, iterations it has done, seconds


@dataclass(frozen=True)
class Note:
    """What one worker did from when to when; ``kind`` is the name of a request's type."""

    rank: int
    kind: str
    start: float
    end: float


@dataclass
class _Letter:
    """A message between two workers. Letters of the same two are taken in the order of sending."""

    payload: Tensor
    is_there: bool = False


class Lockstep:
    """Runs the loops of some workers, ``steps`` iterations each.

    ``rule`` is the one of the parameter server. One is simulated, for key 0, and it takes and gives
    at full speed whatever other workers do. ``on_step`` is called after every iteration of every
    worker, ``notes`` lists what they did if ``noting``.
    Raises DdlnbError if workers wait for one another for ever.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        loop: Callable[[Worker], Flow],
        steps: int,
        *,
        rule: Rule | None = None,
        clock: Clock | None = None,
        on_step: OnStep | None = None,
        noting: bool = False,
    ):
        self.notes: list[Note] = []
        self.bytes_sent = [0.0] * len(workers)
        self.bytes_received = [0.0] * len(workers)
        self._workers, self._steps, self._rule = workers, steps, rule
        self._clock, self._on_step, self._noting = clock or Clock(), on_step, noting
        self._flows = [loop(worker) for worker in workers]
        self._done = [0] * len(workers)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = 0
        self._gathered: dict[int, Any] = {}  # of the collective that is forming, by rank
        self._links = Links(self._at)
        self._mail: dict[tuple[int, int], deque[_Letter]] = defaultdict(deque)
        self._awaiting: dict[int, Messages] = {}
        self._pulls: list[int] = []
        self._pushes = [0] * len(workers)
        self._since: dict[int, tuple[str, float]] = {}

    def run(self) -> float:
        """The virtual seconds until the last worker was done. Torch has one thread meanwhile."""
        with torch_threads(1):
            now = self._play()
        stuck = [rank for rank, done in enumerate(self._done) if done < self._steps]
        if stuck:
            waits = {rank: self._since.get(rank, ("nothing", 0.0))[0] for rank in stuck}
            raise DdlnbError(f"workers wait for one another for ever, by rank: {waits}")
        return now

    def _play(self) -> float:
        for rank in range(len(self._workers)):
            self._at(0.0, partial(self._resume, rank, None))
        now = 0.0
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return now

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, self._serial, event))
        self._serial += 1

    def _resume(self, rank: int, answer: Any, now: float) -> None:
        if self._noting and rank in self._since:
            kind, start = self._since.pop(rank)
            self.notes.append(Note(rank, kind, start, now))
        while True:
            request = self._flows[rank].send(answer)
            if not isinstance(request, StepDone):
                break
            answer = None
            self._done[rank] += 1
            if self._on_step is not None:
                self._on_step(rank, self._done[rank], now)
            if self._done[rank] == self._steps:
                self._flows[rank].close()
                return
        self._since[rank] = (type(request).__name__, now)
        self._ask(rank, request, now)

    def _ask(self, rank: int, request: Any, now: float) -> None:
        if isinstance(request, Gradient):
            worker = self._workers[rank]
            seconds = self._clock.compute(rank, worker.step, len(self._workers))
            self._at(now + seconds, partial(self._resume, rank, worker.gradient()))
        elif isinstance(request, AllReduce | AllGather):
            self._join(rank, request, now)
        elif isinstance(request, Messages):
            self._send(rank, request, now)
        elif isinstance(request, PushPull):
            self._push(rank, request.tensor, now)
        else:
            raise DdlnbError(f"worker {rank} asked for {request!r}, which no executor knows")

    def _seconds(self, kind: type, bytes_: int) -> float:
        return self._clock.communicate(kind, bytes_, len(self._workers))

    def _join(self, rank: int, request: Any, now: float) -> None:
        self._gathered[rank] = request
        if len({type(one) for one in self._gathered.values()}) > 1:
            raise DdlnbError(f"workers disagree on their next request: {self._gathered}")
        workers = len(self._workers)
        if len(self._gathered) < workers:
            return
        requests = [self._gathered.pop(one) for one in range(workers)]
        answers = answer_together(requests)
        tensor = request.tensor if isinstance(request, AllReduce) else request.payload
        ready = now + self._seconds(type(request), _size(tensor))
        factor = 2 * (workers - 1) / workers if isinstance(request, AllReduce) else workers - 1
        for one, answer in enumerate(answers):
            self.bytes_sent[one] += factor * _size(tensor)
            self.bytes_received[one] += factor * _size(tensor)
            self._at(ready, partial(self._resume, one, answer))

    def _send(self, rank: int, request: Messages, now: float) -> None:
        self._awaiting[rank] = request
        ready = now
        for receiver, payload in request.outgoing.items():
            letter = _Letter(payload)
            self._mail[rank, receiver].append(letter)
            arrives, size = partial(self._arrive, receiver, letter), _size(payload)
            if not size:  # both ends know that there is nothing to send
                arrives(now)
                continue
            self.bytes_sent[rank] += size
            link = self._clock.link(rank, receiver)
            ready += link.latency
            if ready > now:
                self._at(ready, partial(self._links.carry, link, size, arrives))
            else:
                self._links.carry(link, size, arrives, now)
        self._deliver(rank, now)

    def _arrive(self, receiver: int, letter: _Letter, now: float) -> None:
        letter.is_there = True
        self._deliver(receiver, now)

    def _deliver(self, rank: int, now: float) -> None:
        request = self._awaiting.get(rank)
        boxes = {} if request is None else {one: self._mail[one, rank] for one in request.incoming}
        if request is None or not all(box and box[0].is_there for box in boxes.values()):
            return
        del self._awaiting[rank]
        answer = {sender: box.popleft().payload for sender, box in boxes.items()}
        self.bytes_received[rank] += sum(map(_size, answer.values()))
        self._at(now, partial(self._resume, rank, answer))

    def _push(self, rank: int, tensor: Tensor, now: float) -> None:
        if self._rule is None:
            raise DdlnbError(f"worker {rank} pushes, and there is no parameter server; give a rule")
        self.bytes_sent[rank] += _size(tensor)
        arrives = partial(self._serve, rank, tensor)  # not written to before the answer
        self._at(now + self._seconds(PushPull, _size(tensor)), arrives)

    def _serve(self, rank: int, tensor: Tensor, now: float) -> None:
        assert self._rule is not None
        self._rule.push(rank, 0, self._pushes[rank], tensor, now)
        self._pulls.append(rank)
        waiting, self._pulls = self._pulls, []
        for one in waiting:
            answer = self._rule.pull(one, 0, self._pushes[one])
            if answer is None:
                self._pulls.append(one)
            else:
                self._pushes[one] += 1
                self.bytes_received[one] += _size(answer)
                back = now + self._seconds(PushPull, _size(answer))
                self._at(back, partial(self._resume, one, answer.clone()))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# What workers did when, as a tidy table: computing, or waiting for messages and for others.
COMPUTE, WAIT = "compute", "wait"


def activity(notes: Sequence[Note], method: str) -> pd.DataFrame:
    """One row per gradient and per wait of a worker, of the notes of a lockstep execution.

    Columns: method, rank, ``kind`` (compute or wait), ``iteration`` of that worker from 0,
    start_seconds, stop_seconds. A wait is a request under way, its messages' own time included;
    one that takes no time has no row.
    """
    import pandas as pd

    taken: Counter[int] = Counter()
    rows = []
    for note in sorted(notes, key=lambda note: (note.start, note.end)):
        computes = note.kind == Gradient.__name__
        if computes or note.end > note.start:
            kind = COMPUTE if computes else WAIT
            iteration = taken[note.rank] - (not computes)
            rows.append((method, note.rank, kind, iteration, note.start, note.end))
        taken[note.rank] += computes
    columns = ["method", "rank", "kind", "iteration", "start_seconds", "stop_seconds"]
    return pd.DataFrame(rows, columns=columns)
