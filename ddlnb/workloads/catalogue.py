"""The tasks that are known by name, and those that users name: by function, file or architecture.

The names of ours are the survey's three models, two small ones to train here, and those of other
papers. `get_task` takes all of them; building waits until somebody needs the module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ddlnb.errors import ModelError, UnknownName
from ddlnb.workloads.hugging_face import (
    is_architecture,
    is_of_transformers,
    task_of_architecture,
    task_of_file,
    task_of_module,
)
from ddlnb.workloads.models import CLASSIC_TASKS, PUBLISHED_TASKS, SMALL_TASKS, SURVEY_TASKS
from ddlnb.workloads.task import Task
from ddlnb.workloads.user_code import is_user_code, object_of

_ALL = (*SURVEY_TASKS, *SMALL_TASKS, *PUBLISHED_TASKS, *CLASSIC_TASKS)
TASKS = {entry.name: entry for entry in _ALL}
YOURS = "my.py:task, a Hugging Face config.json or architecture (see docs/own_model.md)"


def get_task(model: str | Task) -> Task:
    """Return the task that a text names, or the task itself.

    A text is one of TASKS, ``my.py:task`` or ``package.module:task`` (a Task, or a function that
    returns one), a Hugging Face ``config.json`` or its folder, or the name of an architecture of
    transformers. Raises UnknownName for other texts, ModelError for what cannot be trained.

    >>> get_task("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    >>> get_task("BertForMaskedLM")
    Task(name='BertForMaskedLM', local_batch=1, unit='sequences')
    """
    if isinstance(model, str):
        return _named(model)
    return _given(model, "unknown model")


def _named(model: str) -> Task:
    if model in TASKS:
        return TASKS[model]
    if is_user_code(model):
        return _given(object_of(model), f"model {model!r} gives")
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        return task_of_file(path / "config.json")
    if path.suffix == ".json":
        return task_of_file(path)
    if is_architecture(model):
        return task_of_architecture(model)
    raise UnknownName("model", model, [*TASKS, YOURS])


def _given(model: Any, said: str) -> Task:
    """Return a task or a model of transformers as a task; all others lack data."""
    if isinstance(model, Task):
        return model
    if is_of_transformers(model):
        return task_of_module(model)
    if isinstance(model, nn.Module):
        raise ModelError(
            f"model {type(model).__name__} comes without data; wrap it with "
            f"ddlnb.task(module, batch=..., loss=...)"
        )
    raise ModelError(
        f"{said} {model!r}: it is neither a task nor the name of one; make one with "
        f"ddlnb.task(module, batch=..., loss=...), or name one of `ddlnb models`"
    )
