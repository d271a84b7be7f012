"""A small regression that workers train together, for tests of synchronisation."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingJob, TrainingMethod, training_method
from ddlnb.training.worker import Worker

ROWS, FEATURES = 8, 6
WORKERS = 4  # of a job
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)


def draw(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def square_error(module: nn.Module, batch: tuple) -> torch.Tensor:
    return (module(batch[0]) - batch[1]).square().mean()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def breaks_on_rank_2(rank: int, step: int) -> tuple:
    inputs, wanted = draw(rank, step)
    return inputs, wanted * float("nan") if (rank, step) == (2, 1) else wanted


def broken_batches() -> list:
    return [partial(breaks_on_rank_2, rank) for rank in range(WORKERS)]


def finite_error(module: nn.Module, batch: tuple) -> torch.Tensor:
    loss = square_error(module, batch)
    if not loss.isfinite():
        raise FloatingPointError("this loss is not finite")
    return loss


def make_workers(method: str, count: int = 4, optimizer: Callable = SGD) -> list[Worker]:
    chosen = training_method(method)
    return [
        Worker(
            rank,
            count,
            model(),
            square_error,
            partial(draw, rank),
            optimizer,
            chosen.compression,
            architecture=chosen.architecture,
        )
        for rank in range(count)
    ]


def batches(workers: int) -> list:
    return [partial(draw, rank) for rank in range(workers)]


def staggered(rank: int, step: int) -> float:
    return 0.003 * ((rank + step) % WORKERS)


def straggler(rank: int, step: int) -> float:
    return 0.1 if rank == 1 else 0.0


def parameters_of(worker: Worker, done: int, seconds: float) -> torch.Tensor:
    return worker.parameters.clone()


def job_of(method: str | TrainingMethod, workers: int = WORKERS, **changes) -> TrainingJob:
    """Five steps of a method on real ranks, whose parameters are seen after each."""
    options = {
        "build": model,
        "loss": square_error,
        "batches": partial(batches, workers),
        "make_optimizer": MOMENTUM,
        "workers": workers,
        "steps": 5,
        "delay": staggered,
        "observe": parameters_of,
    }
    return TrainingJob(training_method(method), **{**options, **changes})


class Trained:
    """The workers of a method after so many steps, and the executor and rule that took them."""

    def __init__(
        self,
        method: str,
        steps: int = 12,
        count: int = 4,
        optimizer: Callable = SGD,
        clock: Clock | None = None,
        rule: object = None,
    ):
        chosen = training_method(method)
        self.workers = make_workers(method, count, optimizer)
        self.rule = rule or chosen.rule(count, self.workers[0].pieces)
        self.run = Lockstep(
            self.workers,
            chosen.synchronisation.loop,
            steps,
            rule=self.rule,
            clock=clock,
            recording=True,
        )
        self.seconds = self.run.run()

    @property
    def parameters(self) -> torch.Tensor:
        return torch.stack([worker.parameters for worker in self.workers])

    @property
    def waits(self) -> float:
        activities = self.run.activities
        return sum(one.seconds for one in activities if one.kind == "wait")
