"""Train the perceptron by one worker and in three ways of sharing, and compare them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ddlnb.engines.imports import TRAINING
from ddlnb.engines.job import Job, Report
from ddlnb.engines.worker import run_job
from ddlnb.errors import require, require_whole
from ddlnb.launch.rank import RankContext
from ddlnb.launch.ranks import Ranks
from ddlnb.plans.methods import METHODS
from ddlnb.studies.sec1_parallelism import neurons
from ddlnb.studies.sec1_parallelism.formulas import traffic
from ddlnb.studies.sec1_parallelism.perceptron import BATCHES, SEED, WIDTHS, mlp_task
from ddlnb.studies.sec1_parallelism.pipeline import train_stage
from ddlnb.studies.sec1_parallelism.share import Share, Trainee
from ddlnb.workloads.tasks import Task
from ddlnb.workloads.tracing import trace

if TYPE_CHECKING:
    import pandas as pd


def compare_parallelism(*, workers: int = 2, batch: int = 64, steps: int = 8) -> pd.DataFrame:
    """Return a row each for one worker, model parallelism, a pipeline and data parallelism.

    Model parallelism splits the neurons of each layer, a pipeline the layers, data parallelism the
    batch. ``difference`` is the largest difference of a parameter from the one worker's after
    ``steps`` steps. Of the busiest worker are ``samples``, ``parameters``, ``state_bytes``,
    ``activation_bytes`` (see `Share`) and ``exchanges``, the times per step that it waits for
    others. ``bytes_sent`` is what all workers together send in a step, ``formula_bytes`` what
    `traffic` says. ``imbalance`` is the most that a worker computes over the mean;
    ``speedup_bound`` how many times faster than one worker the step can be, if sending took no
    time: workers that split neurons wait at every layer for the one with most of them, the stages
    of the pipeline for each other.

    Raises InputError for a batch that the workers cannot share, and for more workers than the
    model has linear layers.
    """
    require_whole(workers=workers, batch=batch, steps=steps)
    require(2 <= workers < len(WIDTHS), f"workers {workers} must be 2 to {len(WIDTHS) - 1}")
    require(batch % workers == 0, f"batch {batch} must divide evenly among {workers} workers")
    task = mlp_task()
    with Ranks(workers, imports=(__name__, *TRAINING)) as ranks:
        [alone] = ranks.run(_train_whole, task, batch, steps, count=1)
        split = ranks.run(neurons.train_neurons, task, batch, steps)
        stages = ranks.run(train_stage, task, batch, steps)
        reports = ranks.run(run_job, data_parallel_job(workers, batch, steps))
        [part] = ranks.run(_train_whole, task, batch // workers, 1, count=1)
    shares = [_of_report(report, part) for report in reports]
    runs = {
        "one worker": _row([alone], alone.parameters, alone, _total(alone)),
        "model parallelism": _row(split, neurons.joined(split), alone, _slowest_layers(split)),
        "pipeline of layers": _row(stages, _all_layers(stages), alone, sum(map(_total, stages))),
        "data parallelism": _row(shares, shares[0].parameters, alone, _total(part)),
    }
    return _table(runs, workers, batch)


def data_parallel_job(workers: int, batch: int, steps: int) -> Job:
    """Return the job of data parallelism: one all-reduce of all gradients per step (BSP-A2A)."""
    task = mlp_task(workers)
    return Job(
        task=task,
        engine="torch",
        workers=workers,
        local_batch=batch // workers,
        iterations=steps,
        plan=METHODS["BSP-A2A"].plan(trace(task, batch // workers)),
        seed=SEED,
        batches=BATCHES,
        keep_parameters=True,
    )


def _train_whole(context: RankContext, task: Task, batch: int, steps: int) -> Share:
    """Train the whole model on whole batches, alone."""
    torch.manual_seed(SEED)
    model = task.build()
    trainee, losses = Trainee(model, batch), []
    for step in range(steps):
        samples = task.batch(batch, step % BATCHES)
        loss = trainee.watched(partial(task.loss, model, samples))
        loss.backward()
        losses.append(loss.item())
        trainee.update()
    return trainee.share(losses=tuple(losses))


def _of_report(report: Report, part: Share) -> Share:
    """Return the share of a data-parallel worker, who holds what one worker of its batch holds."""
    assert report.parameters is not None
    return Share(
        parameters=report.parameters,
        state_bytes=part.state_bytes,
        activation_bytes=part.activation_bytes,
        work=part.work,
        losses=report.losses,
        bytes_sent=round(report.bytes_sent),
        exchanges=len(report.losses),  # one message per step
    )


def _row(
    shares: list[Share], parameters: dict[str, Tensor], alone: Share, longest: int
) -> dict[str, float]:
    """Return the columns of a run; ``longest`` is the work that cannot be done side by side."""
    work = [_total(share) for share in shares]
    known = [share.losses for share in shares if share.losses]
    losses = [sum(step) / len(known) for step in zip(*known, strict=True)]
    steps = len(losses)
    return {
        "workers": len(shares),
        "parameters": max(share.parameter_count for share in shares),
        "state_bytes": max(share.state_bytes for share in shares),
        "activation_bytes": max(share.activation_bytes for share in shares),
        "bytes_sent": sum(share.bytes_sent for share in shares) / steps,
        "exchanges": max(share.exchanges for share in shares) // steps,
        "imbalance": max(work) * len(work) / sum(work),
        "speedup_bound": _total(alone) / longest,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "difference": _difference(parameters, alone.parameters),
    }


def _total(share: Share) -> int:
    return sum(share.work.values())


def _slowest_layers(shares: list[Share]) -> int:
    """Return the work of workers that wait for each other at every layer."""
    return sum(max(share.work[layer] for share in shares) for layer in shares[0].work)


def _all_layers(stages: list[Share]) -> dict[str, Tensor]:
    return {name: value for stage in stages for name, value in stage.parameters.items()}


def _difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    require(left.keys() == right.keys(), "the two models have different parameters")
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def _table(runs: dict[str, dict[str, float]], workers: int, batch: int) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame.from_dict(runs, orient="index").rename_axis("parallelism")
    table.insert(1, "samples", [batch, batch, batch, batch // workers])
    after = table.columns.get_loc("bytes_sent") + 1
    table.insert(after, "formula_bytes", pd.Series(traffic(workers, batch)))
    counts = table.columns[: after + 2]  # all but ratios and losses
    return table.astype(dict.fromkeys(counts, int))
