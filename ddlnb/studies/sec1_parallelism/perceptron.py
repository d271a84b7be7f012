"""The multi-layer perceptron that every way of sharing trains, and the batches it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from torch import nn

from ddlnb.workloads.catalogue import get_task
from ddlnb.workloads.tasks import Batch, Task

WIDTHS = (256, 96, 64, 48, 10)  # neurons of the input and of every linear layer
SEED = 0
BATCHES = 8  # Distinct batches; later steps start over with the first.


def mlp(widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    """Return a multi-layer perceptron for the 256 pixels of a handwritten digit."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp_task(parts: int = 1) -> Task:
    """Return the task of training the perceptron, with batches that the workers share."""
    digits = get_task("small-conv")
    return replace(digits, name="mlp", build=mlp, batch=partial(_part, parts))


def _part(parts: int, local_batch: int, seed: int) -> Batch:
    """Return part ``seed % parts`` of the joined batch number ``seed // parts``."""
    joined = get_task("small-conv").batch(local_batch * parts, seed // parts)
    first = seed % parts * local_batch
    return tuple(tensor[first : first + local_batch] for tensor in joined)
