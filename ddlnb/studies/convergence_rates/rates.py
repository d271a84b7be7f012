"""How fast gradients vanish: measured against the number of steps T and of workers n.

With a step size of c sqrt(n / T) theory says that the mean of |gradient|^2 over the iterations
falls as 1/sqrt(n T) where noise dominates: as long as others average, compress or gossip, at the
cost of terms that fall faster. Every training method runs by its own definition, in lockstep; a
worker carries many independent runs, one per parameter tensor, which compressors take one by one.
On servers gradients take times drawn from a log-normal law, so that workers without barriers see
updates of varying age; runs draw samples independently, and share the order of the pushes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ddlnb.errors import require, require_whole
from ddlnb.seeding import generator
from ddlnb.studies.convergence_rates.problems import PROBLEMS, Problem, get_problem
from ddlnb.studies.convergence_rates.theory import RATES
from ddlnb.training.executors.clock import Clock
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.executors.stragglers import LogNormal
from ddlnb.training.method import TrainingMethod, training_method
from ddlnb.training.runs.parallel import in_parallel
from ddlnb.training.worker import Worker
from ddlnb.workloads.tasks import Batch

if TYPE_CHECKING:
    import pandas as pd

LOOKS = 250  # at the gradient in a run, at least, or at every step of a shorter one
RATED = tuple(rate.method for rate in RATES)
SPREAD = 0.3  # of the logarithm of a gradient's seconds, for workers without barriers
AT_MEAN, AT_WORKERS = "at_mean", "at_workers"


class Norms(NamedTuple):
    """Means of |gradient of the objective|^2 over the iterations, one number per run.

    ``at_mean`` at the mean of the workers' models, of which theorems speak; ``at_workers`` at
    their own models, averaged over the workers.
    """

    at_mean: Tensor
    at_workers: Tensor


def gradient_norms(
    problem: Problem,
    method: str | TrainingMethod,
    *,
    workers: int,
    steps: int,
    runs: int = 8,
    seed: int = 0,
) -> Norms:
    """Return the means of the given number of runs, with the problem's step size.

    Workers draw one sample per step, each of its own; runs draw independently, too. Without
    barriers a step is as many gradients as there are workers. Raises InputError for too few steps.
    """
    require_whole(workers=workers, steps=steps, runs=runs)
    require_whole(0, seed=seed)
    method = training_method(method)
    sgd = partial(torch.optim.SGD, lr=problem.rate(workers, steps))
    team = [
        _Runs(
            rank,
            workers,
            _models(runs, problem.dimensions),
            _no_loss,
            partial(_drawn, seed * 100_003 + rank, runs, problem.samples),
            sgd,
            method.compression,
            architecture=method.architecture,
            seed=seed,
            sampled=problem.sampled,
        )
        for rank in range(workers)
    ]
    watch = _Watch(problem, team, runs, steps)
    watch.look(0)
    Lockstep(
        team,
        method.synchronisation.loop,
        steps,
        rule=method.rule(workers, team[0].pieces),
        clock=Clock(LogNormal(SPREAD, seed)) if method.architecture == "PS" else None,
        on_step=watch,
    ).run()
    return watch.norms()


def rate_study(
    methods: Sequence[str | TrainingMethod] = RATED,
    *,
    problems: Sequence[str] = tuple(PROBLEMS),
    steps: Sequence[int] = (500, 1000, 2000, 4000),
    workers: Sequence[int] = (2, 4, 8),
    runs: int = 8,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Return a row per problem, method, number of workers or steps, and run.

    ``steps`` vary at the middle number of workers, and ``workers`` at the largest number of steps.
    Columns: problem, method, workers, steps, run, learning_rate, bound (BSP's), at_mean,
    at_workers. ``jobs`` as for `ddlnb.compare`. Raises UnknownName and InputError.
    """
    import pandas as pd

    for what, values in {"steps": steps, "workers": workers}.items():
        distinct = sorted(set(values))
        require(len(distinct) > 1, f"{what} {list(values)} make no slope; give two numbers or more")
    middle, most = sorted(set(workers))[len(set(workers)) // 2], max(steps)
    grid = {(middle, count) for count in steps} | {(count, most) for count in workers}
    cells = [
        (name, str(training_method(method)), count, taken, runs, seed)
        for name in problems
        for method in methods
        for count, taken in sorted(grid)
    ]
    longest_first = sorted(cells, key=lambda cell: -cell[2] * cell[3])
    rows = in_parallel(_cell, longest_first, jobs, progress, "cells")
    found = dict(zip(longest_first, rows, strict=True))
    return pd.DataFrame([row for cell in cells for row in found[cell]]).assign(source="simulated")


def _cell(
    name: str, method: str, workers: int, steps: int, runs: int, seed: int
) -> list[dict[str, object]]:
    problem = get_problem(name)
    norms = gradient_norms(problem, method, workers=workers, steps=steps, runs=runs, seed=seed)
    common = {
        "problem": name,
        "method": method,
        "workers": workers,
        "steps": steps,
        "learning_rate": problem.rate(workers, steps),
        "bound": problem.bound(workers, steps),
    }
    pairs = zip(norms.at_mean.tolist(), norms.at_workers.tolist(), strict=True)
    return [
        common | {"run": run, AT_MEAN: mean, AT_WORKERS: own}
        for run, (mean, own) in enumerate(pairs)
    ]


@dataclass
class _Runs(Worker):
    """A worker with a model per run, and gradients in closed form; it needs no losses."""

    sampled: Callable[[Tensor, Tensor], Tensor] = lambda points, chosen: points

    def gradient(self) -> Tensor:
        (chosen,) = self.batch(self.step)
        points = self.parameters.view(len(self.shapes), -1)
        self.flat_gradient.copy_(self.sampled(points, chosen).view(-1))
        self.step += 1
        return self.flat_gradient

    def apply(self, gradient: Tensor) -> None:
        """Step by plain SGD, in all runs at once: torch's optimizer takes the models one by one."""
        self.parameters.add_(gradient, alpha=-self.learning_rate)


class _Watch:
    """Looks at the models while they are trained, at evenly spaced steps."""

    def __init__(self, problem: Problem, team: Sequence[Worker], runs: int, steps: int):
        self._problem, self._team, self._runs = problem, team, runs
        self._steps, self._stride = steps, max(1, steps // LOOKS)
        self._calls = 0
        self._means: list[Tensor] = []
        self._own: list[Tensor] = []

    def __call__(self, rank: int, done: int, seconds: float) -> None:
        self._calls += 1
        step, others = divmod(self._calls, len(self._team))
        if not others:
            self.look(step)

    def look(self, step: int) -> None:
        # In the middle of every stride, or the steep beginning would count too much.
        if step >= self._steps or step % self._stride != self._stride // 2:
            return
        models = torch.stack([worker.parameters.view(self._runs, -1) for worker in self._team])
        self._means.append(self._squares(models.double().mean(0).float()))
        own = self._squares(models.flatten(0, 1)).view(len(self._team), self._runs)
        self._own.append(own.mean(0))

    def norms(self) -> Norms:
        return Norms(torch.stack(self._means).mean(0), torch.stack(self._own).mean(0))

    def _squares(self, points: Tensor) -> Tensor:
        return self._problem.mean(points).double().square().sum(1)


def _models(runs: int, dimensions: int) -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.zeros(dimensions)) for _ in range(runs)])


def _drawn(seed: int, runs: int, samples: int, step: int) -> Batch:
    return (torch.randint(samples, (runs,), generator=generator(seed, step)),)


def _no_loss(module: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("these workers have gradients and no loss")
