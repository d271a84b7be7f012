"""The lockstep executor: deterministic, and equal to one worker on the joined batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ddlnb.errors import DdlnbError
from ddlnb.plans.requests import Messages
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import training_method
from ddlnb.training.worker import NextGradient, Worker
from tests.toy_training import MOMENTUM, Trained, draw, make_workers, model, square_error

ALL = partial(torch.optim.SGD, lr=1.0)


def train(method: str) -> list[Worker]:
    return Trained(method, 10, optimizer=MOMENTUM).workers


@pytest.mark.item("A05", how="measured")
def test_bsp_equals_one_worker_on_the_joined_batch():
    together = train("bsp")
    alone = model()
    optimizer = MOMENTUM(alone.parameters())
    for step in range(10):
        optimizer.zero_grad()
        losses = [square_error(alone, draw(rank, step)) for rank in range(4)]
        (sum(losses) / 4).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in alone.parameters()])
    for worker in together:
        torch.testing.assert_close(worker.parameters, expected)
        assert torch.equal(worker.parameters, together[0].parameters)


@pytest.mark.parametrize("method", ["bsp + top-k(1.0)", "bsp + top-k(1.0) + feedback"])
def test_keeping_everything_is_bsp(method):
    for lossy, lossless in zip(train(method), train("bsp"), strict=True):
        assert torch.equal(lossy.parameters, lossless.parameters)


def test_what_was_sent_and_the_residual_are_the_gradients():
    workers = make_workers(
        "bsp + top-k(0.2) + feedback", optimizer=partial(torch.optim.SGD, lr=1.0)
    )
    before = workers[0].parameters.clone()
    gradients = []
    for worker in workers:
        inner = worker.gradient
        worker.gradient = lambda inner=inner: gradients.append(inner().clone()) or gradients[-1]
    Lockstep(workers, training_method("bsp").synchronisation.loop, 7).run()
    residuals = sum(
        torch.cat([memory["residual"].flatten() for memory in worker.memories.values()])
        for worker in workers
    )
    sent = (before - workers[0].parameters) * len(workers)
    torch.testing.assert_close(sent + residuals, sum(gradients), rtol=1e-4, atol=1e-5)


def test_workers_that_wait_for_one_another_are_named():
    def waits(worker):
        yield NextGradient()
        yield Messages({}, {1 - worker.rank: 4})

    with pytest.raises(DdlnbError, match=r"for ever.*0: 'Messages'"):
        Lockstep(make_workers("bsp", 2), waits, 1).run()
