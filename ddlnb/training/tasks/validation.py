"""A task with some of its training samples held out, for choosing learning rates.

Choosing rates on the samples on which methods are then compared would favour the method with the
most luck there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from ddlnb.errors import require
from ddlnb.training.tasks.task import Evaluation, LearningTask, Samples
from ddlnb.workloads.tasks import Batch

SHARE = 0.2  # of the training samples is held out
SEED = 0  # of the choice of samples, the same for all runs
AT_ONCE = 512  # samples that are evaluated together, to limit memory


def validation_task(task: LearningTask) -> LearningTask:
    """Return the task, trained on four fifths of its training samples, evaluated on the others.

    An evaluation is the mean of the task's own loss, without accuracy; the task's test data are not
    used. Raises InputError if there are too few samples, when they are first needed.
    """
    return replace(
        task,
        samples=partial(_kept, task.samples),
        evaluate=partial(_evaluate, task.samples, task.loss),
    )


@lru_cache(maxsize=2)
def _parts(samples: Callable[[], Samples]) -> tuple[Samples, Samples]:
    """Return the samples that are kept for training, and those that are held out."""
    tensors, labels = samples()
    held_out = round(SHARE * len(labels))
    require(held_out > 0, f"{len(labels)} training samples are too few to hold some out for tuning")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    kept, held = (
        Samples(tuple(tensor[chosen] for tensor in tensors), labels[chosen])
        for chosen in (order[held_out:], order[:held_out])
    )
    return kept, held


def _kept(samples: Callable[[], Samples]) -> Samples:
    return _parts(samples)[0]


def _evaluate(
    samples: Callable[[], Samples],
    loss: Callable[[nn.Module, Batch], Tensor],
    module: nn.Module,
) -> Evaluation:
    held = _parts(samples)[1]
    total = 0.0
    with torch.no_grad():
        for batch in zip(*(tensor.split(AT_ONCE) for tensor in held.tensors), strict=True):
            total += len(batch[0]) * loss(module, batch).item()
    return Evaluation(total / len(held.labels))
