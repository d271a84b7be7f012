"""Model parallelism and data parallelism on real ranks (survey, section 1, Fig. 1).

Both train a multi-layer perceptron on the batches that one worker also trains it on, and end with
that worker's parameters up to rounding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlnb.engines.job import Job, Report
from ddlnb.engines.optimizers import OPTIMIZERS
from ddlnb.engines.process_group import process_group
from ddlnb.engines.worker import run_job
from ddlnb.errors import require, require_whole
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import METHODS
from ddlnb.workloads.catalogue import get_task
from ddlnb.workloads.tasks import Batch, Task
from ddlnb.workloads.tracing import trace

if TYPE_CHECKING:
    import pandas as pd

WIDTHS = (256, 96, 64, 48, 10)
SEED = 0
BATCHES = 8  # Distinct batches; later steps start over with the first.


def compare_parallelism(*, workers: int = 2, batch: int = 64, steps: int = 8) -> pd.DataFrame:
    """Return one row each for one worker, model parallelism and data parallelism.

    ``difference`` is the largest difference of a parameter from the one worker's after ``steps``
    steps; ``parameters`` and ``samples`` are those that the busiest worker handles, and
    ``bytes_sent`` what all workers together send in a step. Raises InputError for a batch that
    the workers cannot share, and for more workers than the model has linear layers.
    """
    require_whole(workers=workers, batch=batch, steps=steps)
    require(2 <= workers < len(WIDTHS), f"workers {workers} must be 2 to {len(WIDTHS) - 1}")
    require(batch % workers == 0, f"batch {batch} must divide evenly among {workers} workers")
    with Ranks(workers) as ranks:
        [alone] = ranks.run(run_job, _job(1, batch, steps), count=1)
        shares = ranks.run(run_job, _job(workers, batch, steps), count=workers)
        stages = ranks.run(_train_stage, _mlp_task(1), batch, steps, count=workers)
    return _table(alone, shares, stages, batch, steps)


def mlp(widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    """Return a multi-layer perceptron for the 256 pixels of a handwritten digit."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _mlp_task(parts: int) -> Task:
    """Return the task of training the perceptron, with batches that the workers share."""
    digits = get_task("small-conv")
    return replace(digits, name="mlp", build=mlp, batch=partial(_part, parts))


def _part(parts: int, local_batch: int, seed: int) -> Batch:
    """Return part ``seed % parts`` of the joined batch number ``seed // parts``."""
    joined = get_task("small-conv").batch(local_batch * parts, seed // parts)
    first = seed % parts * local_batch
    return tuple(tensor[first : first + local_batch] for tensor in joined)


def _job(workers: int, batch: int, steps: int) -> Job:
    task = _mlp_task(workers)
    plan = METHODS["BSP-A2A"].plan(trace(task, batch // workers)) if workers > 1 else None
    return Job(
        task=task,
        engine="torch" if plan else "single",
        workers=workers,
        local_batch=batch // workers,
        iterations=steps,
        plan=plan,
        seed=SEED,
        batches=BATCHES,
        keep_parameters=True,
    )


def stages_of(model: nn.Sequential, count: int) -> list[nn.Sequential]:
    """Cut the model into the given number of stages, each beginning at a linear layer.

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


def _train_stage(context: RankContext, task: Task, batch: int, steps: int) -> dict:
    """Train this rank's layers; activations come from below, gradients from above."""
    torch.manual_seed(SEED)
    stage = stages_of(task.build(), context.count)[context.rank]  # type: ignore[arg-type]
    optimizer = OPTIMIZERS["sgd"](stage.parameters())
    first, last = context.rank == 0, context.rank == context.count - 1
    losses, sent = [], 0
    with process_group(context, context.store(), context.count):
        for step in range(steps):
            images, labels = task.batch(batch, step % BATCHES)
            entering = images if first else _received(context.rank - 1, _width(stage), batch)
            if last:
                loss = task.loss(stage, (entering, labels))
                losses.append(loss.item())
                loss.backward()
            else:
                leaving = stage(entering)
                sent += _send(leaving.detach(), context.rank + 1)
                gradient = torch.empty_like(leaving)
                dist.recv(gradient, context.rank + 1)
                leaving.backward(gradient)
            if not first:
                assert entering.grad is not None
                sent += _send(entering.grad, context.rank - 1)
            optimizer.step()
            optimizer.zero_grad()
    parameters = {name: value.detach() for name, value in stage.named_parameters()}
    return {"losses": losses, "sent": sent, "parameters": parameters}


def _width(stage: nn.Sequential) -> int:
    return next(layer.in_features for layer in stage if isinstance(layer, nn.Linear))


def _received(rank: int, width: int, batch: int) -> Tensor:
    activations = torch.empty(batch, width)
    dist.recv(activations, rank)
    return activations.requires_grad_()


def _send(tensor: Tensor, rank: int) -> int:
    dist.send(tensor.contiguous(), rank)
    return tensor.numel() * tensor.element_size()


def _table(
    alone: Report, shares: list[Report], stages: list[dict], batch: int, steps: int
) -> pd.DataFrame:
    import pandas as pd

    assert alone.parameters is not None
    assert shares[0].parameters is not None
    joined = {name: value for stage in stages for name, value in stage["parameters"].items()}
    workers, whole = len(shares), _count(alone.parameters)
    largest = max(_count(stage["parameters"]) for stage in stages)
    activations = round(sum(stage["sent"] for stage in stages) / steps)
    gradients = round(sum(report.bytes_sent for report in shares) / steps)
    losses = [sum(step) / workers for step in zip(*(r.losses for r in shares), strict=True)]
    columns = ["parallelism", "workers", "samples", "parameters", "bytes_sent"]
    rows = [
        ("one worker", 1, batch, whole, 0, alone.losses, alone.parameters),
        ("model parallelism", workers, batch, largest, activations, stages[-1]["losses"],
         joined),
        ("data parallelism", workers, batch // workers, whole, gradients, losses,
         shares[0].parameters),
    ]  # fmt: skip
    return pd.DataFrame(
        [
            {
                **dict(zip(columns, facts, strict=True)),
                "first_loss": losses[0],
                "last_loss": losses[-1],
                "difference": _difference(parameters, alone.parameters),
            }
            for *facts, losses, parameters in rows
        ]
    ).set_index("parallelism")


def _count(parameters: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in parameters.values())


def _difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    require(left.keys() == right.keys(), "the two models have different parameters")
    return max(float((left[name] - right[name]).abs().max()) for name in left)
