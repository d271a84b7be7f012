"""A workload's seconds as they are measured here: hooks on a module that really computes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ddlnb.errors import (
    InputError,
    MissingPart,
    ModelError,
    require,
    require_whole,
)
from ddlnb.files import PROFILES, cores, processor, require_writable, write_atomically
from ddlnb.hardware.catalogue import require_named_for
from ddlnb.units import MS, counted
from ddlnb.workloads.memory import require_memory_for_training
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import Task, require_finite
from ddlnb.workloads.tracing import between_arrivals, between_entries, move, trace
from ddlnb.workloads.workload import Workload


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with this number of threads for a while; None changes nothing.

    One thread is faster on small tensors, and its sums always have the same order. Raises
    InputError for more threads than cores: they slow each other down, and 100,000 end the process.
    """
    require_threads(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_threads(count: int | None) -> None:
    """Raise InputError unless this machine has a core for each thread; None is torch's default."""
    if count is not None:
        require_whole(threads=count)
        require(
            count <= cores(),
            f"threads {count} exceed the {cores()} cores that this process may use; "
            f"give at most {cores()}",
        )


Stamp = Any  # seconds on the CPU, a torch.Event on an accelerator


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration: per layer forwards, per gradient backwards, in arrival order."""

    forward_seconds: Mapping[str, float]
    backward_seconds: Mapping[str, float]


def profile(
    task: str | Task,
    local_batch: int | None = None,
    *,
    iterations: int = 10,
    warmup: int = 3,
    threads: int | None = None,
    device: str = "cpu",
) -> Workload:
    """Return the traced workload with seconds measured here, each the median over the iterations.

    ``task`` is a Task or the name of one. ``threads`` is the number of CPU threads, by default what
    torch is set to. Neither the drawing of batches nor the optimizer's step is included. Raises
    UnknownName for an unknown task, ModelError for a model that cannot be trained, and InputError
    for counts that make no sense, an unknown device or a batch that does not fit into memory, and
    MissingPart for a device that is not here.

    >>> import ddlnb
    >>> workload = ddlnb.profile("small-conv", 4, iterations=2, warmup=1)  # doctest: +SKIP
    >>> len(workload.gradients), workload.compute_seconds > 0  # doctest: +SKIP
    (28, True)
    """
    require_whole(iterations=iterations)
    require_whole(0, warmup=warmup)
    require_threads(threads)
    require_device(device)
    task = get_task(task)
    local_batch = task.local_batch if local_batch is None else local_batch
    require_whole(local_batch=local_batch)
    if device == "cpu":
        require_memory_for_training(task, local_batch)
    workload = trace(task, local_batch)
    with torch_threads(threads):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = task.build().to(device)
        measured = measure(task, module, workload, warmup + iterations, device)[warmup:]
        source = f"measured on {_where(device)}, torch {torch.__version__.split('+')[0]}, "
        hardware = hardware_of(device)
    return with_medians(workload, measured, source + counted(iterations, "iteration"), hardware)


def require_device(device: str) -> None:
    """Raise InputError for a word that is no device, and MissingPart for one that is not here.

    >>> require_device("tpu")
    Traceback (most recent call last):
    ddlnb.errors.InputError: torch has no device 'tpu'; give cpu, or cuda for a GPU
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InputError(f"torch has no device {device!r}; give cpu, or cuda for a GPU") from None
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind not in ("cpu", here and here.type):
        raise MissingPart(
            f"device {device!r} needs a GPU, and torch sees none of that kind; use 'cpu', or give "
            f"a forecast the rate of one (--throughput)"
        )


def measure(
    task: Task, module: nn.Module, workload: Workload, iterations: int, device: str = "cpu"
) -> list[Iteration]:
    """Seconds of each of some iterations of a module that is already there, say on one rank.

    A layer lasts from its forward pre-hook to the next layer's; the first one starts with the
    forward pass and the last one ends with the loss. A gradient lasts from the gradient before it,
    the first one from the start of the backward pass. The module's gradients are overwritten; its
    values and hooks stay as they are. Raises ModelError for a loss that is not finite.
    """
    entered: list[tuple[str, Stamp]] = []
    arrived: list[tuple[str, Stamp]] = []

    def enter(name: str, *_: object) -> None:
        entered.append((name, _stamp(device)))

    def arrive(name: str, _: torch.Tensor) -> None:
        arrived.append((name, _stamp(device)))

    parameters = dict(module.named_parameters())
    hooks = [
        module.get_submodule(layer.name).register_forward_pre_hook(
            partial(enter, layer.name), prepend=True
        )
        for layer in workload.layers
    ]
    hooks += [
        parameters[gradient.name].register_post_accumulate_grad_hook(partial(arrive, gradient.name))
        for gradient in workload.gradients
    ]
    measured = []
    try:
        for index in range(iterations):
            batch = move(task.batch(workload.local_batch, index), device)
            module.zero_grad(set_to_none=True)
            entered.clear()
            arrived.clear()
            _wait_for(device)
            start = _stamp(device)
            loss = task.loss(module, batch)
            middle = _stamp(device)
            loss.backward()
            _wait_for(device)
            require_finite([loss.item()], task.name)
            entries = [(name, _seconds(start, stamp)) for name, stamp in entered]
            arrivals = [(name, _seconds(start, stamp)) for name, stamp in arrived]
            turn = _seconds(start, middle)
            measured.append(
                Iteration(between_entries(entries, 0.0, turn), between_arrivals(arrivals, turn))
            )
    finally:
        for hook in hooks:
            hook.remove()
    return measured


def with_medians(
    workload: Workload, measured: Iterable[Iteration], source: str, hardware: str = ""
) -> Workload:
    """Return the workload with each duration the median of the measured ones, and this source.

    Gradients take the order in which they arrived; ModelError unless that is always the same one.
    """
    measured = list(measured)
    arrived = list(measured[0].backward_seconds)
    expected = {gradient.name: gradient for gradient in workload.gradients}
    for iteration in measured:
        if list(iteration.backward_seconds) != arrived or set(arrived) != set(expected):
            raise ModelError(
                f"gradients of model {workload.model!r} arrive in another order or number from one "
                f"iteration to the next; take out control flow that depends on data or chance"
            )
    forward = {
        layer.name: statistics.median(one.forward_seconds.get(layer.name, 0.0) for one in measured)
        for layer in workload.layers
    }
    backward = {
        name: statistics.median(one.backward_seconds[name] for one in measured) for name in arrived
    }
    in_order = replace(workload, gradients=tuple(expected[name] for name in arrived))
    return in_order.with_seconds(forward, backward, source, hardware)


def require_profile_place(name: str, hardware: str, folder: Path = PROFILES) -> None:
    """Raise InputError if no profile of that name, of this hardware, can be written there."""
    require(Path(name).name == name, f"profile name {name!r} must be a plain file name")
    require_named_for(name, hardware)
    require_writable(folder)


def write_profile(workload: Workload, name: str, folder: Path = PROFILES) -> Path:
    """Write the file that ``read_profile(name, folder)`` reads, and return its path."""
    require_profile_place(name, workload.hardware, folder)
    return write_atomically(folder / f"{name}.json", workload.to_json() + "\n")


def _stamp(device: str) -> Stamp:
    """Now, on the device's own clock: an accelerator is still computing when a hook runs."""
    if device == "cpu":
        return perf_counter()
    event = torch.Event(device=device, enable_timing=True)
    event.record()
    return event


def _seconds(start: Stamp, stamp: Stamp) -> float:
    seconds: float = (
        start.elapsed_time(stamp) * MS if isinstance(start, torch.Event) else stamp - start
    )
    return seconds


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def hardware_of(device: str) -> str:
    """Return the hardware of seconds measured now: a GPU's name, or a CPU's threads.

    >>> with torch_threads(1):
    ...     hardware_of("cpu")
    'cpu-1thread'
    """
    if device != "cpu":
        return str(torch.get_device_module(device).get_device_name(device))
    threads = torch.get_num_threads()
    return f"cpu-{threads}thread{'s' if threads > 1 else ''}"


def _where(device: str) -> str:
    """Return the processor's name, with the thread count if it is the CPU."""
    if device != "cpu":
        return hardware_of(device)
    return f"{processor()}, {counted(torch.get_num_threads(), 'thread')}"
