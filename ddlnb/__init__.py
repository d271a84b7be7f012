"""ddlnb: the executable edition of the survey of communication in distributed deep learning.

One path runs through the package, one way only::

    workload + cluster + method -> plan -> executor -> timeline -> tidy row -> figure

Importing it is quick and loads neither torch nor pandas; each name below is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "calibration.calibrate": ("calibrate",),
    "calibration.testbed": ("fig4_cells_to_forecast", "write_forecast"),
    "cli.doctor": ("examine",),
    "cli.execute": ("run_notebook",),
    "cli.notebooks": ("catalogue",),
    "cli.reproduce": ("reproduce",),
    "clusters.cluster": ("Cluster",),
    "clusters.effects": ("Effects",),
    "clusters.file": ("get_cluster",),
    "compression.catalogue": ("register_compressor",),
    "engines.bench": ("Bench",),
    "engines.horovod.timeline": ("read_horovod_timeline",),
    "engines.measure": ("measure", "measure_scaling", "record_timelines", "speedups"),
    "engines.replica": ("Replica",),
    "engines.settings": ("MeasurementSettings",),
    "launch.rank": ("RankContext",),
    "launch.ranks": ("Ranks",),
    "plans.alpha_beta": ("AlphaBeta", "fit_alpha_beta"),
    "plans.bucketing": ("Bucketing",),
    "plans.methods": ("METHODS", "Method", "get_method", "register_method"),
    "plans.plan": ("Message", "Piece", "Plan"),
    "results.checks": ("check", "check_table"),
    "results.claims": ("CLAIMS", "evaluate_claims"),
    "results.display": ("throughput_table",),
    "results.published": ("fig4_cells", "quotes"),
    "results.rows": ("read_rows",),
    "results.table": ("read_table",),
    "results.timeline": ("Span", "Timeline"),
    "simulator.forecast": ("forecast", "forecast_cells"),
    "simulator.simulate": ("Cell", "simulate", "steady_seconds"),
    "studies.sec2_intensity": ("audit",),
    "training.cost.estimate": ("iteration_cost",),
    "training.cost.time_to_target": ("time_to_target",),
    "training.method": ("TrainingMethod", "training_method"),
    "training.runs.compare": ("compare",),
    "training.runs.train": ("train",),
    "training.synchronisation.catalogue": ("register_synchronisation",),
    "training.tasks.catalogue": ("LEARNING_TASKS",),
    "workloads.intensity": ("c2c", "intensity"),
    "workloads.profiling": ("profile", "write_profile"),
    "workloads.replay": ("replayed",),
    "workloads.tasks": ("TASKS", "Task", "get_task", "task"),
    "workloads.tracing": ("trace",),
    "workloads.workload": ("Gradient", "Layer", "Workload", "read_profile"),
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
