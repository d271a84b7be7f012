"""Replay a job in lockstep, in the order of pushes that a real parameter server recorded.

What a worker gets from an asynchronous server depends on who pushed before it. A real run records
the order (`RecordingRule`); repeating it (`InOrder`) makes the run comparable, step by step.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ddlnb.plans.server_rules import Rule
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.distributed import RecordingRule
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import Arrival, TrainingJob, TrainingRun, WorkerReport


class InOrder:
    """Applies the pushes to the rule ``inner`` in the recorded order, and at its times.

    It serves one key, and workers that wait for the answer to a push before the next one. Pushes
    that come early are kept. As on a server, waiting pulls are tried after every push that is
    applied, not when the executor asks: by then there may have been more pushes.
    """

    def __init__(self, inner: Rule, arrivals: Sequence[Arrival]):
        self.inner = inner
        self._coming = deque(arrivals)
        self._early: dict[int, tuple[int, int, Tensor]] = {}
        self._waiting: list[tuple[int, int, int]] = []
        self._answers: dict[int, Tensor] = {}

    def push(self, worker: int, key: int, clock: int, value: Tensor, now: float = 0.0) -> None:
        """Keep the push, and apply those that are next in the order."""
        self._early[worker] = (key, clock, value)
        while self._coming and self._coming[0].worker in self._early:
            arrival = self._coming.popleft()
            its_key, its_clock, its_value = self._early.pop(arrival.worker)
            self.inner.push(arrival.worker, its_key, its_clock, its_value, arrival.seconds)
            self._waiting.append((arrival.worker, its_key, its_clock))
            self._try_pulls()

    def pull(self, worker: int, key: int, clock: int) -> Tensor | None:
        """Return what the inner rule answered when it first did."""
        return self._answers.pop(worker, None)

    def _try_pulls(self) -> None:
        still_waiting = []
        for pull in self._waiting:
            answer = self.inner.pull(*pull)
            if answer is None:
                still_waiting.append(pull)
            else:
                self._answers[pull[0]] = answer
        self._waiting = still_waiting


def run_in_lockstep(
    job: TrainingJob, clock: Clock | None = None, arrivals: Sequence[Arrival] | None = None
) -> TrainingRun:
    """Run the job with all workers in this process, on the clock's seconds, without its delays.

    With the ``arrivals`` of another run of the same job, the server applies pushes in their order.
    Raises DdlnbError if they are of another job, since workers then wait for ever.
    """
    workers = [job.worker(rank) for rank in range(job.workers)]
    losses: list[list[float]] = [[] for _ in workers]
    observed: list[list[Any]] = [[] for _ in workers]
    seconds = [0.0] * job.workers

    def on_step(rank: int, done: int, now: float) -> None:
        losses[rank].append(workers[rank].last_loss)
        seconds[rank] = now
        if job.observe is not None:
            observed[rank].append(job.observe(workers[rank], done, now))

    rule = job.rule()
    recording = None
    if rule is not None:
        recording = RecordingRule(rule)
        rule = recording if arrivals is None else InOrder(recording, arrivals)
    lockstep = Lockstep(
        workers,
        job.method.synchronisation.loop,
        job.steps,
        rule=rule,
        clock=clock,
        on_step=on_step,
    )
    lockstep.run()
    return TrainingRun(
        tuple(
            WorkerReport(
                worker.rank,
                worker.parameters,
                tuple(losses[worker.rank]),
                lockstep.bytes_sent[worker.rank],
                lockstep.bytes_received[worker.rank],
                seconds[worker.rank],
                tuple(observed[worker.rank]),
            )
            for worker in workers
        ),
        tuple(recording.arrivals) if recording else (),
    )
