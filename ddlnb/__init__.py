"""ddlnb: the executable edition of the survey of communication in distributed deep learning.

One path runs through the package, one way only::

    workload + cluster + method -> plan -> executor -> timeline -> tidy row -> figure

Importing it is quick and loads neither torch nor pandas; each name below is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "bench": ("Bench",),
    "calibrating": ("calibrate",),
    "claims": ("CLAIMS", "evaluate_claims"),
    "clusters": ("Cluster", "get_cluster"),
    "collectives": ("AlphaBeta", "fit_alpha_beta"),
    "doctor": ("examine",),
    "engines.replica": ("Replica",),
    "effects": ("Effects",),
    "fig4": ("fig4_cells_to_forecast", "write_forecast"),
    "forecasting": ("forecast", "forecast_cells"),
    "model_intensity": ("audit", "c2c", "intensity"),
    "measurement": ("measure", "record_timelines", "speedups"),
    "methods": ("METHODS", "Method", "get_method"),
    "models": ("TASKS", "Task", "get_task", "task"),
    "horovod_timeline": ("read_horovod_timeline",),
    "plan": ("Message", "Piece", "Plan"),
    "profiling": ("profile", "write_profile"),
    "published": ("fig4_cells", "quotes"),
    "place": ("Place",),
    "ranks": ("Ranks",),
    "reproduction": ("reproduce", "run_notebook"),
    "replay": ("replayed",),
    "results": ("read_rows",),
    "scaling": ("measure_scaling",),
    "simulator": ("Cell", "simulate", "steady_seconds"),
    "table_checks": ("check", "check_table"),
    "throughput_table": ("read_table",),
    "timeline": ("Span", "Timeline"),
    "tracing": ("trace",),
    "training.method": ("TrainingMethod", "training_method"),
    "training.study": ("study",),
    "training.tasks": ("LEARNING_TASKS",),
    "training.train": ("train",),
    "workload": ("Gradient", "Layer", "Workload", "read_profile"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ddlnb' has no attribute {name!r}")
    value = getattr(import_module(f"ddlnb.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
