"""ddlnb: the executable edition of the survey of communication in distributed deep learning.

One path runs through the package, one way only::

    workload + cluster + method -> plan -> executor -> timeline -> tidy row -> figure

The executor is the simulator here; `measure` and `record_timelines` take the same path with real
processes.

>>> import ddlnb
>>> workload = ddlnb.read_profile("small-conv_b64_cpu-1thread")
>>> cluster = ddlnb.get_cluster("two-cores-4-workers")
>>> plan = ddlnb.get_method("WFBP-A2A").plan(workload)
>>> len(workload.gradients), len(plan.messages)
(28, 28)
>>> timeline = ddlnb.simulate(workload, cluster, "WFBP-A2A")
>>> timeline.exposed_communication_seconds < timeline.iteration_seconds
True
>>> rows = ddlnb.forecast(workload, cluster, ["WFBP-A2A", "MG-WFBP"], draws=0)
>>> rows.loc[rows["throughput_samples_per_s"].idxmax(), "method"]
'MG-WFBP'
>>> figure = ddlnb.figures.timelines({"WFBP-A2A": timeline})

Importing it is quick and loads neither torch nor pandas; each name below is loaded on first use.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any
from warnings import warn

from ddlnb.registry import supply

_HOME = {
    "advice.advise": ("advise",),
    "advice.balance": ("balance",),
    "advice.layouts": ("advise_layouts",),
    "advice.question": ("Prices",),
    "advice.scaling": ("scaling",),
    "calibration.calibrate": ("calibrate",),
    "calibration.collectives": ("collectives",),
    "clusters.cluster": ("Cluster",),
    "clusters.file": ("get_cluster",),
    "clusters.named": ("cluster_of",),
    "compression.catalogue": ("register_compressor",),
    "engines.distributed_model": ("DistributedModel",),
    "engines.measure": (
        "measure",
        "measure_scaling",
    ),
    "errors": ("DdlnbError",),
    "launch.ranks": ("Ranks",),
    "networks.collectives.catalogue": ("register_collective",),
    "parallelism.forecast.layouts": ("scale",),
    "parallelism.goodput.simulate": ("goodput",),
    "plans.methods": (
        "METHODS",
        "Method",
        "get_method",
        "register_method",
    ),
    "plans.plan_file": (
        "read_plan",
        "write_plan",
    ),
    "registry": ("several",),
    "results.rows": (
        "read_rows",
        "speedups",
        "throughput_table",
    ),
    "search.search": ("search_plan",),
    "simulator.forecast": ("forecast",),
    "simulator.simulate": ("simulate",),
    "survey.runner": ("reproduce",),
    "traces.read": ("read_trace",),
    "traces.watch": ("watch",),
    "training.cost.estimate": ("iteration_cost",),
    "training.cost.time_to_target": ("time_to_target",),
    "training.method": (
        "register_synchronisation",
        "training_method",
    ),
    "training.runs.compare": ("compare",),
    "training.runs.train": ("train",),
    "workloads.profiling": ("profile",),
    "workloads.roofline": ("estimate",),
    "workloads.task": (
        "Task",
        "task",
    ),
    "workloads.tracing": ("trace",),
    "workloads.workload": (
        "Workload",
        "read_profile",
    ),
}
# Names that were public here before 0.2.0, and the room in which they are now.
_MOVED = {
    "engines": (
        "MeasurementSettings",
        "record_timelines",
    ),
    "hardware": (
        "Gpu",
        "Interconnect",
        "Machine",
        "get_gpu",
        "get_interconnect",
        "get_machine",
    ),
    "parallelism": (
        "Job",
        "Layout",
        "get_shape",
        "play_iteration",
    ),
    "plans": (
        "AlphaBeta",
        "Plan",
        "SURVEYED",
    ),
    "results": (
        "check",
        "read_collective_logs",
        "read_collectives",
    ),
    "search": ("Space",),
    "survey": (
        "CLAIMS",
        "catalogue",
        "evaluate_claims",
        "quotes",
    ),
    "traces": ("what_if",),
    "training": (
        "Compressed",
        "TrainingSettings",
    ),
    "workloads": (
        "from_throughput",
        "replayed",
    ),
}
# What the core asks extensions for, by what it calls it, and the only place that names them.
_SUPPLIED = {
    "answer by layouts": ("advice.layouts", "answered"),
    "calibration of the survey's testbed": ("survey.testbed", "calibrate_testbed"),
    "collective": ("networks.collectives.catalogue", "get_collective"),
    "compressed messages": ("compression.messages", "MessageCompressing"),
    "ddlnb.results check": ("survey.checks", "check"),
    "ddlnb.results read_collective_logs": ("calibration.collective_logs", "read_collective_logs"),
    "ddlnb.results read_collectives": ("calibration.collective_tables", "read_collectives"),
    "emulated network": ("emulation.network", "EmulatedNetwork"),
    "emulated topology": ("networks.fabric", "emulated_of"),
    "engine byteps": ("foreign_engines.catalogue", "BYTEPS"),
    "engine horovod": ("foreign_engines.catalogue", "HOROVOD"),
    "method searched": ("search.search", "SEARCHED_METHOD"),
    "network as a graph": ("networks.fabric", "Fabric"),
    "re-planning": ("replanning.replanner", "replanning_of"),
    "remark as run": ("survey.remarks", "as_run"),
    "searched plan": ("replanning.replanner", "searched_plan"),
    "servers byteps": ("foreign_engines.byteps.servers", "SERVERS"),
    "transport along a collective": ("collective_transport.transport", "along"),
    "transport in halves": ("collective_transport.transport", "halves"),
    "transport over a mesh": ("collective_transport.transport", "MeshTransport"),
    "transport per message": ("collective_transport.transport", "per_message"),
    "verification of links": ("emulation.verify_links", "verify"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_RENAMED = {"studies": "survey", "unlike": "balance"}  # since 0.2.0; old names keep working
_ROOM_OF = {name: room for room, names in _MOVED.items() for name in names}
_NAMESPACES = ("figures", "survey")  # packages that are public as a whole

__all__ = sorted([*_MODULE_OF, *_NAMESPACES])


def _load(module: str, name: str) -> Any:
    return getattr(import_module(f"ddlnb.{module}"), name)


for _part, _home in _SUPPLIED.items():
    supply(_part, partial(_load, *_home))


def __getattr__(name: str) -> Any:
    name = _RENAMED.get(name, name)
    if name in _NAMESPACES or name in _MOVED:
        return import_module(f"ddlnb.{name}")
    if name in _ROOM_OF:
        room = _ROOM_OF[name]
        warn(f"ddlnb.{name} is now ddlnb.{room}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"ddlnb.{room}"), name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ddlnb' has no attribute {name!r}")
    value = _load(_MODULE_OF[name], name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magics of `ddlnb.cli.notebook`: ``%load_ext ddlnb``."""
    _load("cli.notebook", "load")(shell)


def __dir__() -> list[str]:
    return __all__
