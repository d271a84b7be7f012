"""The learning tasks by name, and those that are made from a user's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddlnb.errors import InputError, UnknownName, require
from ddlnb.training.tasks.convex import LOGISTIC, QUADRATIC
from ddlnb.training.tasks.digits import DIGITS
from ddlnb.training.tasks.files import cifar10, wikitext
from ddlnb.training.tasks.task import LearningTask
from ddlnb.training.tasks.text import TEXT

LEARNING_TASKS = {task.name: task for task in (DIGITS, TEXT, QUADRATIC, LOGISTIC)}
FROM_FILES: dict[str, Callable[[str | Path], LearningTask]] = {
    "cifar10": cifar10,
    "wikitext": wikitext,
}


def get_learning_task(task: str | LearningTask, data: str | Path | None = None) -> LearningTask:
    """Return the task of that name, or the task itself; ``data`` is the folder of its files.

    Raises UnknownName and InputError.

    >>> get_learning_task("digits")
    LearningTask(name='digits', local_batch=16, learning_rate=0.2, replacement=False)
    """
    if isinstance(task, LearningTask):
        return task
    if task in FROM_FILES:
        if data is None:
            raise InputError(
                f"task {task!r} is made from files of yours; give their folder as data (--data)"
            )
        return FROM_FILES[task](str(data))
    if task not in LEARNING_TASKS:
        raise UnknownName("learning task", task, [*LEARNING_TASKS, *FROM_FILES])
    require(data is None, f"task {task!r} has data of its own; leave out data {str(data)!r}")
    return LEARNING_TASKS[task]
