"""The events of a Kineto trace that we use, with seconds for times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ddlnb.errors import require
from ddlnb.units import US, counted, show_seconds

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
KEPT = (*GPU, *HOST_CALLS, "cuda_sync", "cpu_op", "user_annotation", "python_function")
MODULE = "nn.Module: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
EVALUATE = "autograd::engine::evaluate_function: "
COLLECTIVES = ("nccl:", "gloo:", "mpi:", "ucc:")  # what c10d calls its collectives on the host


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time on a thread of the host, or on a stream of the GPU."""

    name: str
    category: str
    thread: tuple[str, str]
    start: float
    seconds: float
    args: dict[str, Any]

    @property
    def stop(self) -> float:
        """When it ended, in seconds."""
        return self.start + self.seconds

    @property
    def correlation(self) -> int | None:
        """The number that a launch and what it launched have in common."""
        found = self.args.get("correlation")
        return int(found) if found is not None else None

    @property
    def is_communication(self) -> bool:
        """Whether this is a kernel of NCCL (RCCL), or a collective of a library on the host."""
        if self.category == "kernel":
            return "nccl" in self.name.lower() or "Collective name" in self.args
        return self.name.startswith(COLLECTIVES)


@dataclass(frozen=True)
class Recording:
    """A trace of one rank: its events in order of start, from 0, and its flows.

    ``flows`` are pairs of instants on the host: when an operation of the forward pass ran, and when
    the backward pass came to it. ``rank`` is that of the process group, 0 if there was none, and
    ``ranks`` how many it had.
    """

    name: str
    events: tuple[Event, ...]
    flows: tuple[tuple[float, float], ...]
    rank: int
    device: str
    ranks: int = 1

    @cached_property
    def gpu(self) -> tuple[Event, ...]:
        """Kernels, copies and fills, in order of start; empty for a trace without GPU."""
        return tuple(event for event in self.events if event.category in GPU)

    @cached_property
    def calls(self) -> tuple[Event, ...]:
        """Calls of the GPU's runtime on the host, in order of start."""
        return tuple(event for event in self.events if event.category in HOST_CALLS)

    @cached_property
    def launch_of(self) -> dict[int, Event]:
        """The call that launched what has this correlation number."""
        return {e.correlation: e for e in self.calls if e.correlation is not None}

    @cached_property
    def extent(self) -> tuple[float, float]:
        """When the first operation or call began, and when the last one ended."""
        timed = [e for e in self.events if e.category in (*GPU, *HOST_CALLS, "cpu_op")]
        return min(event.start for event in timed), max(event.stop for event in timed)

    @property
    def seconds(self) -> float:
        """From the start of the first operation to the end of the last one."""
        start, stop = self.extent
        return stop - start

    @cached_property
    def iterations(self) -> tuple[tuple[float, float], ...]:
        """Start and stop of every iteration on the host.

        Taken from ``profiler.step()``, else from steps of the optimizer, else all is one iteration.
        """
        notes = [event for event in self.events if event.category == "user_annotation"]
        steps = [event for event in notes if event.name.startswith("ProfilerStep#")]
        if steps:
            return tuple((step.start, step.stop) for step in steps)
        ends = [event.stop for event in notes if event.name.startswith("Optimizer.step#")]
        edges = [0.0, *ends]
        return tuple(zip(edges, [*ends[:-1], math.inf], strict=False)) or ((0.0, math.inf),)

    def __repr__(self) -> str:
        count = len(self.iterations)
        where = (
            f"{counted(len(self.gpu), 'operation')} on {self.device}" if self.gpu else "CPU only"
        )
        return (
            f"{type(self).__name__}({self.name!r}, {counted(len(self.events), 'event')}, "
            f"{where}, "
            f"{counted(count, 'iteration')}, {show_seconds(self.seconds)})"
        )


def recording(events: Iterable[dict[str, Any]], header: dict[str, Any], name: str) -> Recording:
    """Return the trace of these events as torch.profiler exports them. Raises InputError."""
    kept: list[Event] = []
    forward: dict[int, list[float]] = defaultdict(list)
    backward: dict[int, float] = {}
    for event in events:
        category, phase = event.get("cat"), event.get("ph")
        if category == "fwdbwd":
            _flow(event, forward, backward)
        elif phase == "X" and category in KEPT and _is_used(event):
            kept.append(_event(event, name))
    require(
        any(event.category in (*GPU, "cpu_op") for event in kept),
        f"{name!r} holds no operation; export it after the profiler's block has ended",
    )
    zero = min(event.start for event in kept)
    flows = [
        (start * US - zero, backward[number] * US - zero)
        for number, starts in forward.items()
        if number in backward
        for start in starts
    ]
    properties = header.get("deviceProperties") or [{}]
    group = header.get("distributedInfo") or {}
    return Recording(
        name,
        tuple(sorted((_moved(event, zero) for event in kept), key=lambda e: (e.start, -e.seconds))),
        tuple(sorted(flows)),
        int(group.get("rank", 0)),
        str(properties[0].get("name", "a GPU")),
        int(group.get("world_size", 1)),
    )


def _is_used(event: dict[str, Any]) -> bool:
    return event["cat"] != "python_function" or str(event.get("name")).startswith(MODULE)


def _event(event: dict[str, Any], name: str) -> Event:
    try:
        start, seconds = float(event["ts"]) * US, float(event.get("dur", 0)) * US
    except (KeyError, TypeError, ValueError):
        start, seconds = math.nan, math.nan
    label = str(event.get("name", ""))
    require(
        math.isfinite(start) and 0 <= seconds < math.inf,
        f"{name!r}: event {label!r} has ts {event.get('ts')!r} and dur {event.get('dur')!r}, which "
        f"must be numbers of microseconds",
    )
    args = event.get("args")
    thread = (str(event.get("pid", "")), str(event.get("tid", "")))
    return Event(
        label, event["cat"], thread, start, seconds, args if isinstance(args, dict) else {}
    )


def _moved(event: Event, zero: float) -> Event:
    return Event(
        event.name, event.category, event.thread, event.start - zero, event.seconds, event.args
    )


def _flow(
    event: dict[str, Any], forward: dict[int, list[float]], backward: dict[int, float]
) -> None:
    number, at = event.get("id"), event.get("ts")
    if not isinstance(number, int) or not isinstance(at, int | float):
        return
    if event.get("ph") == "s":
        forward[number].append(float(at))
    elif event.get("ph") == "f":
        backward[number] = float(at)
