"""A pipeline of layers: every worker has some consecutive layers, one after another computes."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlnb.engines.process_group import process_group
from ddlnb.launch.rank import RankContext
from ddlnb.studies.sec1_parallelism.perceptron import BATCHES, SEED
from ddlnb.studies.sec1_parallelism.share import Share, Trainee
from ddlnb.workloads.tasks import Task


def stages_of(model: nn.Sequential, count: int) -> list[nn.Sequential]:
    """Cut the model into the given number of stages, each beginning at a linear layer.

    >>> from ddlnb.studies.sec1_parallelism.perceptron import mlp
    >>> [len(stage) for stage in stages_of(mlp(), 2)]
    [5, 3]
    """
    starts = [index for index, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    cuts = [starts[len(starts) * stage // count] for stage in range(1, count)]
    layers = list(model.named_children())
    return [
        nn.Sequential(OrderedDict(layers[start:stop]))
        for start, stop in pairwise([0, *cuts, len(model)])
    ]


def entering_width(stage: nn.Sequential) -> int:
    """Return how many activations per sample enter the stage."""
    return next(layer.in_features for layer in stage if isinstance(layer, nn.Linear))


def train_stage(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train this rank's layers; activations come from below, gradients from above."""
    torch.manual_seed(SEED)
    stage = stages_of(task.build(), context.count)[context.rank]  # type: ignore[arg-type]
    trainee = Trainee(stage, batch)
    first, last = context.rank == 0, context.rank == context.count - 1
    losses, sent = [], 0
    with process_group(context, context.store(), context.count):
        for step in range(steps):
            images, labels = task.batch(batch, step % BATCHES)
            entering = images if first else _received(context.rank - 1, stage, batch)
            if last:
                loss = trainee.watched(partial(task.loss, stage, (entering, labels)))
                losses.append(loss.item())
                loss.backward()
            else:
                leaving = trainee.watched(partial(stage, entering))
                sent += _send(leaving.detach(), context.rank + 1)
                gradient = torch.empty_like(leaving)
                dist.recv(gradient, context.rank + 1)
                leaving.backward(gradient)
            if not first:
                assert entering.grad is not None
                sent += _send(entering.grad, context.rank - 1)
            trainee.update()
    neighbours = (not first) + (not last)
    return trainee.share(losses=tuple(losses), bytes_sent=sent, exchanges=steps * neighbours)


def _received(rank: int, stage: nn.Sequential, batch: int) -> Tensor:
    activations = torch.empty(batch, entering_width(stage))
    dist.recv(activations, rank)
    return activations.requires_grad_()


def _send(tensor: Tensor, rank: int) -> int:
    dist.send(tensor.contiguous(), rank)
    return tensor.numel() * tensor.element_size()
