"""A three-layer workload whose times can be added in the head, and small models."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from ddlnb.plans.alpha_beta import AlphaBeta
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task, task
from ddlnb.workloads.workload import Gradient, Layer, Workload

# Forward a, b, c: 1 s each. Backward c: 1 s, b: 2 s, a: 3 s; 100, 20 and 10 elements.
TOY = Workload(
    "toy",
    1,
    tuple(Layer(name, 1.0) for name in "abc"),
    (
        Gradient("c.weight", "c", 100, 4, 1.0),
        Gradient("b.weight", "b", 20, 4, 2.0),
        Gradient("a.weight", "a", 10, 4, 3.0),
    ),
    "by hand",
)
COST = AlphaBeta(0.75, 0.01)


def _normal_batch(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(count, 3, generator=generator, dtype=torch.float64)


def _squares(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    inputs, targets = batch
    dtype = next(module.parameters()).dtype
    return ((module(inputs.to(dtype)) - targets.to(dtype)) ** 2).mean()


def mlp(widths: list[int], dtype: torch.dtype = torch.float64) -> Task:
    """A task for a perceptron of these hidden widths, 5 inputs and 3 outputs."""
    sizes = [5, *widths, 3]
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, dtype=dtype), nn.Tanh()]
    return task(nn.Sequential(*layers[:-1]), batch=_normal_batch, loss=_squares, name="mlp")


@dataclass(frozen=True)
class InDouble:
    """Builds another task's module in float64, where 1e-5 leaves no room for luck."""

    task: Task

    def __call__(self) -> nn.Module:
        return self.task.build().double()


def in_double(name: str) -> Task:
    """The task of that name with a module in float64."""
    task = get_task(name)
    return Task(task.name, InDouble(task), task.batch, task.loss, 4, task.unit, task.about)


def train_alone(chosen: Task, make_optimizer, workers: int, local_batch: int, steps: int) -> dict:
    """The parameters after training one copy on the joined batches of all workers."""
    torch.manual_seed(0)
    module = chosen.build()
    module.train()
    optimizer = make_optimizer(module.parameters())
    for step in range(steps):
        parts = [chosen.batch(local_batch, step * workers + rank) for rank in range(workers)]
        batch = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
        optimizer.zero_grad()
        chosen.loss(module, batch).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in module.named_parameters()}
