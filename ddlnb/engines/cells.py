"""The cells of a measurement: the columns that say what runs, and which runs are still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddlnb.engines.contenders import Contender
from ddlnb.engines.optimizers import optimizer_name
from ddlnb.engines.settings import MeasurementSettings
from ddlnb.provenance import machine
from ddlnb.results.rows import ResultsFile
from ddlnb.workloads.tasks import Task
from ddlnb.workloads.tracing import trace
from ddlnb.workloads.workload import Workload


def cells_of(
    task: Task, chosen: Sequence[Contender], settings: MeasurementSettings
) -> list[dict[str, object]]:
    """Return the columns of each contender's cell. Raises ModelError for what cannot be trained."""
    local_batch = settings.batch_of(task)
    workload = task.recorded or trace(task, local_batch)
    common = _common_columns(task, workload, local_batch, settings)
    return [{**common, **_own_columns(one, task, settings)} for one in chosen]


def missing_runs(
    cells: Sequence[Mapping[str, object]], repetitions: int, results: ResultsFile
) -> list[tuple[int, int]]:
    """Return what is not among the results, as repetition and number of the cell, in order.

    Every repetition begins with another cell.
    """
    return [
        (repetition, index)
        for repetition in range(repetitions)
        for index in _rotated(len(cells), repetition)
        if not results.has(cells[index], repetition)
    ]


def _common_columns(
    task: Task, workload: Workload, local_batch: int, settings: MeasurementSettings
) -> dict[str, object]:
    """Return the columns that all cells of a measurement share."""
    return {
        "model": task.name,
        "structure": workload.structure,
        "local_batch": local_batch,
        "network": settings.site.network_name,
        "source": settings.site.source,
        "optimizer": optimizer_name(settings.optimizer),
        "iterations": settings.iterations,
        "warmup": settings.warmup,
        "machine": machine() if settings.device == "cpu" else f"{machine()}, {settings.device}",
    }


def _own_columns(
    contender: Contender, task: Task, settings: MeasurementSettings
) -> dict[str, object]:
    """Return the columns of a cell that depend on what runs."""
    return {
        "method": contender.name,
        "gpus": 1 if contender.engine == "single" else settings.workers,
        "engine": contender.engine,
        "servers": settings.server_count if contender.uses_servers else 0,
        "settings": contender.settings_text(settings, replayed=task.recorded is not None),
    }


def _rotated(count: int, by: int) -> list[int]:
    return [(index + by) % count for index in range(count)]
