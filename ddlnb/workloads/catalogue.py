"""The tasks that are known by name: the survey's three models and two small ones."""

from __future__ import annotations

from torch import nn

from ddlnb.errors import ModelError, UnknownName
from ddlnb.workloads.small_models import SMALL_TASKS
from ddlnb.workloads.survey_models import SURVEY_TASKS
from ddlnb.workloads.tasks import Task

TASKS = {entry.name: entry for entry in (*SURVEY_TASKS, *SMALL_TASKS)}


def get_task(task: str | Task) -> Task:
    """Return the task of that name, or the task itself. Raises UnknownName.

    >>> get_task("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, nn.Module):
        raise ModelError(
            f"model {type(task).__name__} comes without data; wrap it with "
            f"ddlnb.task(module, batch=..., loss=...)"
        )
    if task not in TASKS:
        raise UnknownName("model", task, TASKS)
    return TASKS[task]
