"""All workers in this process, on a virtual clock: deterministic, for convergence and for time.

A discrete-event executor. Workers run as generators; a gradient takes the clock's seconds, a
collective begins when its last worker has joined, messages share links and wait in mailboxes, and
the parameter server applies its rule in the order in which pushes arrive. Ties are broken by the
order of events, so that a run repeats to the bit. What workers did when can be recorded: compute,
or wait for messages and for others.
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
from ddlnb.results.timeline import Span, Timeline
from ddlnb.training.executors.clock import HELD_PULL, PULL, PUSH, Clock, Event, Links, ServerLinks
from ddlnb.training.worker import NextGradient, StepDone, Worker, begun
from ddlnb.workloads.profiling import torch_threads

if TYPE_CHECKING:
    import pandas as pd


COMPUTE, WAIT = "compute", "wait"


def activity_table(spans: Sequence[Span], method: str) -> pd.DataFrame:
    """Return one row per gradient and per wait of a worker, as `Timeline.to_frame` does.

    ``kind`` is compute or wait, ``iteration`` that of the worker from 0. A wait is a request under
    way, its messages' own time included; one that takes no time has no row.
    """
    kept = [one for one in spans if one.kind == COMPUTE or one.seconds > 0]
    kept.sort(key=lambda one: (one.start_seconds, one.stop_seconds))
    return Timeline(method, "simulated", tuple(kept)).to_frame()


OnStep = Callable[[int, int, float], None]  # rank, iterations it has done, seconds


@dataclass
class _Message:
    """A message in a mailbox. Messages of one pair of workers are taken in the order of sending."""

    payload: Tensor
    arrived: bool = False


class Lockstep:
    """Runs the loops of some workers, ``steps`` iterations each.

    ``rule`` is that of the parameter server. One is simulated, for key 0; pushes and answers queue
    for the links that the clock names. ``on_step`` is called after every iteration of every worker.
    With ``recording``, ``activities`` lists what the workers did: spans that are named
    after the type of a request.
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
        recording: bool = False,
    ):
        self.activities: list[Span] = []
        self._computed: Counter[int] = Counter()
        self.bytes_sent = [0.0] * len(workers)
        self.bytes_received = [0.0] * len(workers)
        self._workers, self._steps, self._rule = workers, steps, rule
        self._clock, self._on_step, self._recording = clock or Clock(), on_step, recording
        self._flows = [begun(loop, worker) for worker in workers]
        self._done = [0] * len(workers)
        self._events: list[tuple[float, int, Event]] = []
        self._serial = 0
        self._joined: dict[int, Any] = {}  # requests of the collective that is forming, by rank
        self._links = Links(self._at)
        self._server_links = ServerLinks()
        self._mailboxes: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._awaiting: dict[int, Messages] = {}
        self._pulls: list[int] = []
        self._pushes = [0] * len(workers)
        self._asked: dict[int, tuple[str, float]] = {}  # the open request of a rank, and when

    def run(self) -> float:
        """Return the virtual seconds until the last worker was done. Torch has one thread.

        Raises DdlnbError if workers wait for one another for ever.
        """
        for rank in range(len(self._workers)):
            self._at(0.0, partial(self._resume, rank, None))
        now = 0.0
        with torch_threads(1):
            while self._events:
                now, _, event = heapq.heappop(self._events)
                event(now)
        stuck = [rank for rank, done in enumerate(self._done) if done < self._steps]
        if stuck:
            waits = {rank: self._asked.get(rank, ("nothing", 0.0))[0] for rank in stuck}
            raise DdlnbError(f"workers wait for one another for ever, by rank: {waits}")
        return now

    def _at(self, time: float, event: Event) -> None:
        heapq.heappush(self._events, (time, self._serial, event))
        self._serial += 1

    def _resume(self, rank: int, answer: Any, now: float) -> None:
        if self._recording and rank in self._asked:
            request_type, start = self._asked.pop(rank)
            kind = COMPUTE if request_type == NextGradient.__name__ else WAIT
            iteration = self._computed[rank] - (kind == WAIT)
            self.activities.append(Span(rank, kind, request_type, start, now, iteration))
            self._computed[rank] += kind == COMPUTE
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
        self._asked[rank] = (type(request).__name__, now)
        self._ask(rank, request, now)

    def _ask(self, rank: int, request: Any, now: float) -> None:
        if isinstance(request, NextGradient):
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

    def _join(self, rank: int, request: Any, now: float) -> None:
        self._joined[rank] = request
        if len({type(one) for one in self._joined.values()}) > 1:
            raise DdlnbError(f"workers disagree on their next request: {self._joined}")
        workers = len(self._workers)
        if len(self._joined) < workers:
            return
        requests = [self._joined.pop(one) for one in range(workers)]
        answers = answer_together(requests)
        size = (request.tensor if isinstance(request, AllReduce) else request.payload).nbytes
        ready = now + self._clock.communicate(type(request), size, workers)
        factor = 2 * (workers - 1) / workers if isinstance(request, AllReduce) else workers - 1
        for one, answer in enumerate(answers):
            self.bytes_sent[one] += factor * size
            self.bytes_received[one] += factor * size
            self._at(ready, partial(self._resume, one, answer))

    def _send(self, rank: int, request: Messages, now: float) -> None:
        self._awaiting[rank] = request
        ready = now
        for receiver, payload in request.outgoing.items():
            message = _Message(payload)
            self._mailboxes[rank, receiver].append(message)
            arrives = partial(self._arrive, receiver, message)
            if not payload.nbytes:  # both ends know that there is nothing to send
                arrives(now)
                continue
            self.bytes_sent[rank] += payload.nbytes
            link = self._clock.link(rank, receiver)
            ready += link.latency
            if ready > now:
                self._at(ready, partial(self._links.carry, link, payload.nbytes, arrives))
            else:
                self._links.carry(link, payload.nbytes, arrives, now)
        self._deliver(rank, now)

    def _arrive(self, receiver: int, message: _Message, now: float) -> None:
        message.arrived = True
        self._deliver(receiver, now)

    def _deliver(self, rank: int, now: float) -> None:
        request = self._awaiting.get(rank)
        if request is None:
            return
        boxes = {sender: self._mailboxes[sender, rank] for sender in request.incoming}
        if not all(box and box[0].arrived for box in boxes.values()):
            return
        del self._awaiting[rank]
        answer = {sender: box.popleft().payload for sender, box in boxes.items()}
        self.bytes_received[rank] += sum(payload.nbytes for payload in answer.values())
        self._at(now, partial(self._resume, rank, answer))

    def _push(self, rank: int, tensor: Tensor, now: float) -> None:
        if self._rule is None:
            raise DdlnbError(f"worker {rank} pushes, and there is no parameter server; give a rule")
        self.bytes_sent[rank] += tensor.nbytes
        arrives = partial(self._serve, rank, tensor)  # not written to before the answer
        self._at(self._arrival(rank, PUSH, tensor, now), arrives)

    def _arrival(self, rank: int, way: str, tensor: Tensor, now: float) -> float:
        trip = self._clock.trip_of(rank, way, tensor.nbytes, len(self._workers))
        return self._server_links.arrival(trip, now)

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
                self.bytes_received[one] += answer.nbytes
                back = self._arrival(one, PULL if one == rank else HELD_PULL, answer, now)
                self._at(back, partial(self._resume, one, answer.clone()))
