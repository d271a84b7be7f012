"""What a user may call a model, in one place: a task, a workload, or the text that names one."""

from __future__ import annotations

import json
from pathlib import Path

from ddlnb.errors import InputError
from ddlnb.files import PROFILES
from ddlnb.workloads.catalogue import get_task
from ddlnb.workloads.task import Task
from ddlnb.workloads.workload import Workload, read_profile


def resolve(model: str | Task | Workload, *, sequence: int | None = None) -> Task | Workload:
    """Return what a model is: a task to trace, or a workload that has its seconds.

    Workloads are kept profiles, by the name of one in data/profiles or the path of its .json file;
    every other text names a task (`get_task`). ``sequence`` is the tokens of a sample, by default
    the task's own. Raises UnknownName, ModelError or InputError, each with the way out.

    >>> resolve("small-conv")
    Task(name='small-conv', local_batch=64, unit='images')
    >>> resolve("resnet50_b64_rtx2080ti")
    Workload('resnet50', batch=64, 161 gradients, 102 MB, 252 ms)
    """
    found = _profile(model) if isinstance(model, str) else model
    if isinstance(found, Workload):
        if sequence is not None:
            raise InputError(
                f"the profile of {found.model!r} has its samples already; leave out the sequence"
            )
        return found
    task = get_task(model)  # type: ignore[arg-type]
    return task if sequence is None else task.with_sequence(sequence)


def _profile(model: str) -> Workload | None:
    """Return the profile of this name or file, or None if it is something else."""
    if (PROFILES / f"{model}.json").is_file() and Path(model).name == model:
        return read_profile(model)
    path = Path(model)
    if path.suffix != ".json":
        return None
    if not path.is_file():
        raise InputError(
            f"file {model!r} does not exist; give a profile, a Hugging Face config.json, or a name "
            f"of `ddlnb models`"
        )
    text = path.read_text()
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"file {model!r} is no JSON: {error}") from error
    is_profile = isinstance(fields, dict) and "gradients" in fields
    return Workload.from_json(text, repr(model)) if is_profile else None
