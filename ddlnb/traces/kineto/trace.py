"""A trace of torch.profiler, and what can be had from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import cached_property
from typing import Any

from ddlnb.results.timeline import Timeline
from ddlnb.traces.kineto.events import Recording, recording
from ddlnb.traces.kineto.gpu_time import GpuTime, gpu_times
from ddlnb.traces.kineto.graph import OperationGraph, operation_graph
from ddlnb.traces.kineto.timeline import timeline_of
from ddlnb.traces.kineto.workload import workload_of
from ddlnb.workloads.workload import Workload


class KinetoTrace(Recording):
    """A trace of one rank by torch.profiler."""

    def workload(self, model: Workload | None = None, local_batch: int | None = None) -> Workload:
        """Return layers, gradients and their seconds; see ``kineto.workload.workload_of``."""
        return workload_of(self, model, local_batch)

    def timeline(self, workload: Workload | None = None) -> Timeline:
        """Return passes, updates and messages as spans, to be drawn beside a simulation."""
        return timeline_of(self, workload)

    @cached_property
    def gpu_times(self) -> tuple[GpuTime, ...]:
        """What the GPU did in each pass of each iteration; see ``kineto.gpu_time.gpu_times``."""
        return gpu_times(self)

    @cached_property
    def operations(self) -> OperationGraph:
        """Every operation with what it waits for, proven to have no circle."""
        return operation_graph(self)


def kineto_trace(
    events: Iterable[dict[str, Any]], header: dict[str, Any], name: str
) -> KinetoTrace:
    """Return the trace of these events as torch.profiler exports them. Raises InputError."""
    found = recording(events, header, name)
    return KinetoTrace(**{field.name: getattr(found, field.name) for field in fields(found)})
