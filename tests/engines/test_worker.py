"""What a worker reports of a run: the steady state of overlapping iterations, exact bytes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlnb.engines import worker
from ddlnb.engines.job import Job
from ddlnb.workloads.resolve import get_task

FORWARD, BACKWARD, MESSAGE, BYTES = 3.0, 4.0, 9.0, 100.0


class Overlapping:
    """Sends one message after each backward pass; the next backward pass waits for it."""

    def __init__(self, clock: SimpleNamespace):
        self.clock, self.arrives = clock, 0.0
        self.waited_seconds = self.bytes_sent = 0.0

    def step(self, loss: Any) -> torch.Tensor:
        self.clock.now += FORWARD
        self.synchronize()
        self.clock.now += BACKWARD
        self.arrives = self.clock.now + MESSAGE
        self.bytes_sent += BYTES
        return torch.tensor(0.0)

    def synchronize(self) -> None:
        late = max(0.0, self.arrives - self.clock.now)
        self.clock.now += late
        self.waited_seconds += late

    def close(self) -> None: ...


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(now=0.0)
    trainer = Overlapping(clock)
    engine = SimpleNamespace(starter=lambda: lambda *_: (trainer, len))
    monkeypatch.setattr(worker, "get_engine", lambda name: engine)
    monkeypatch.setattr(worker, "dist", SimpleNamespace(barrier=lambda: None))
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    context = SimpleNamespace(rank=0)

    def run(iterations: int, warmup: int) -> worker.Report:
        job = Job(get_task("small-conv"), "torch", 1, 1, iterations, warmup)
        return worker._train(context, job, store=None)

    return run


@pytest.mark.parametrize("iterations", [1, 2, 7])
@pytest.mark.parametrize("warmup", [1, 4])
def test_an_iteration_lasts_as_long_in_a_short_run_as_in_a_long_one(reported, iterations, warmup):
    report = reported(iterations, warmup)
    # The message is longer than the forward pass that it overlaps.
    assert report.seconds == pytest.approx(iterations * (BACKWARD + MESSAGE))
    assert report.waited_seconds == pytest.approx(iterations * (MESSAGE - FORWARD))
    assert report.bytes_sent == iterations * BYTES


def test_without_a_warm_up_the_last_message_counts(reported):
    report = reported(2, 0)
    assert report.seconds == pytest.approx(FORWARD + 2 * (BACKWARD + MESSAGE))
    assert report.bytes_sent == 2 * BYTES
