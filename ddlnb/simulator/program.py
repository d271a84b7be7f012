"""A plan on a cluster, as numbers: what one worker computes, and the path of every message.

`ddlnb.simulator.events` plays a program; it knows no methods, plans or clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ddlnb.clusters.cluster import Cluster
from ddlnb.errors import require
from ddlnb.plans.plan import Gate, Order, Plan
from ddlnb.simulator.path import Stage, path_of
from ddlnb.simulator.tasks import Identity, Indices, Numbers, Task, Tasks, tasks_of
from ddlnb.simulator.workers import Workers, workers_of
from ddlnb.workloads.workload import Workload


@dataclass(frozen=True)
class Program:
    """Tasks of one iteration, the stages of its messages, and the rules of the queue.

    ``messages`` are the names of what the network carries, a message or a half of one each;
    ``task_seconds`` and ``message_bytes`` hold a number for every task and message. ``released``
    is the stage whose end gives credit back. ``drains`` when no message is under way at the end of
    an iteration, so that all iterations are alike.

    ``workers`` are those who play it: a class of them takes its factor of ``task_seconds``,
    ``fixed_seconds`` besides, and its delay before the first task of an iteration.

    On a cluster with columns of effects, seconds and shares have a row for each of its rows.
    """

    tasks: Tasks
    task_seconds: Numbers
    stages: tuple[Stage, ...]
    resources: tuple[str, ...]
    messages: tuple[str, ...]
    message_bytes: Indices
    priority: Indices
    by_priority: bool
    credit_bytes: float
    released: int
    drains: bool
    compute_share: float | Numbers
    workers: Workers
    fixed_seconds: Numbers | float = 0.0

    @property
    def step_seconds(self) -> tuple[Numbers, Numbers]:
        """Seconds of every step of the tasks that a class multiplies by its factor, and fixed."""
        starts = self.tasks.step_starts
        fixed = np.broadcast_to(self.fixed_seconds, self.task_seconds.shape)
        by_step = np.add.reduceat(self.task_seconds, starts, axis=-1)
        return by_step, np.add.reduceat(fixed, starts, axis=-1)

    def class_seconds(self, number: int, iteration: int) -> Numbers:
        """Return the seconds of every task of a class of workers in an iteration."""
        workers = self.workers
        column = min(iteration, workers.factor.shape[1] - 1)
        seconds: Numbers = self.task_seconds * workers.factor[number, column] + self.fixed_seconds
        seconds[0] += workers.delay[number, column]
        return seconds

    @property
    def compute_seconds(self) -> float:
        """Seconds of computation in one iteration."""
        return float(self.task_seconds.sum())


def delayed(program: Program) -> Program:
    """Return the program with a task before all others, where workers are delayed at random.

    It takes no time but the delay.
    """
    if not program.workers.delay.any():
        return program

    def after_none(values: Numbers) -> Numbers:
        return np.insert(values, 0, 0.0, axis=-1)

    tasks = replace(
        program.tasks,
        listed=(Task("delay", "at random"), *program.tasks.listed),
        own_seconds=after_none(program.tasks.own_seconds),
        readied=after_none(program.tasks.readied),
        updated_tensors=after_none(program.tasks.updated_tensors),
        updated_bytes=after_none(program.tasks.updated_bytes),
    )
    return replace(
        program,
        tasks=tasks,
        task_seconds=after_none(program.task_seconds),
        fixed_seconds=after_none(
            np.broadcast_to(program.fixed_seconds, program.task_seconds.shape)
        ),
    )


def lower(workload: Workload, cluster: Cluster, plan: Plan, *, keep: bool = True) -> Program:
    """Return the program of a plan for this workload on this cluster.

    With ``keep`` what no cluster changes is kept for the next time. Whoever lowers many plans once
    each does not want that.
    Raises InputError when the cluster lacks what the plan needs, the plan is of other gradients, or
    it compresses messages: what that takes is not a matter of the cluster alone.
    """
    require(
        not plan.compressed_by,
        f"plan {plan.method!r} compresses messages by {' and '.join(plan.compressed_by)}, and the "
        f"simulator of lossless methods does not know what that takes; ask ddlnb.iteration_cost, "
        f"which takes a plan, or `ddlnb forecast lossy --plan`",
    )
    return lower_as_dense(workload, cluster, plan, keep=keep)


def lower_as_dense(
    workload: Workload, cluster: Cluster, plan: Plan, *, keep: bool = True
) -> Program:
    """Return the program of a plan as if it compressed nothing; else as `lower`."""
    require(
        plan.gradients == workload.gradients,
        f"plan {plan.method!r} was not made for workload {workload.model!r}",
    )
    pair = Identity((workload, plan))
    tasks = tasks_of(pair) if keep else tasks_of.__wrapped__(pair)
    path = path_of(plan, cluster, tasks)
    return Program(
        tasks=tasks,
        task_seconds=tasks.seconds(cluster.effects, cluster.workers),
        stages=tuple(path.stages),
        resources=tuple(path.resources),
        messages=plan.leg_names,
        message_bytes=tasks.message_bytes,
        priority=tasks.priority,
        by_priority=plan.order is Order.PRIORITY,
        credit_bytes=math.inf if plan.credit_bytes is None else float(plan.credit_bytes),
        released=path.released,
        drains=plan.gate is Gate.ALL_LAYERS,
        compute_share=cluster.effects.compute_share,
        workers=workers_of(cluster),
    )
