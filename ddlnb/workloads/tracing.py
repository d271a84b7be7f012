"""Which module reads which parameter, and when layers are entered and gradients arrive.

The structure of a task: its layers, gradients and work, found by running it once.

The run happens on the meta device, which computes shapes and no values: seconds and no memory for
any size of model. A model that the meta device cannot run is run on fake tensors, which say that
they are on the CPU, and one that asks for values on the CPU itself. Two orders matter and both are
observed, not guessed: layers stand as the forward pass enters them, gradients as the backward pass
produces them.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ddlnb.errors import DdlnbError, ModelError, require_whole
from ddlnb.workloads.catalogue import get_task
from ddlnb.workloads.counters import FLOPS, TrafficCounter
from ddlnb.workloads.memory import require_memory_for_batch, require_memory_for_values
from ddlnb.workloads.recurrence import RecurrentCalls
from ddlnb.workloads.task import (
    Batch,
    Task,
    build_on_meta,
    require_batch,
    require_samples,
    require_scalar,
    require_trainable,
)
from ddlnb.workloads.workload import COUNTED, Gradient, Layer, Workload


@dataclass(frozen=True)
class Count:
    """Work since the start of the run.

    FLOPs, bytes of operations without and with FLOPs, and how many operations there were; FLOPs of
    convolutions that `takes_winograd`, and kernels inside operations.
    """

    flops: float
    bytes: float
    matrix_bytes: float
    operations: float
    winograd_flops: float
    kernels: float


class Watch(TorchFunctionMode):
    """Notes which module is running when a torch function first gets each parameter."""

    def __init__(self, module: nn.Module, count: Callable[[], Count]):
        super().__init__()
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = trained
        self.count = count
        self.layer_of: dict[str, str] = {}
        self.outside: set[str] = set()
        self.entered: list[tuple[str, Count]] = []
        self.arrived: list[tuple[str, Count]] = []
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._running: list[str] = []
        for name, submodule in module.named_modules():
            submodule.register_forward_pre_hook(partial(self._enter, name), prepend=True)
            submodule.register_forward_hook(self._leave, always_call=True)
        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(partial(self._arrive, name))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Asking for .shape or .dtype returns no tensor and reads no value; .T and .data do.
        if func.__name__ != "__get__" or isinstance(result, Tensor):
            self._note_reads((args, kwargs))
        return result

    def _note_reads(self, arguments: object) -> None:
        for value in _tensors(arguments):
            name = self._names.get(id(value))
            if name is None or name in self.layer_of:
                continue
            if self._running:
                self.layer_of[name] = self._running[-1]
            else:
                self.outside.add(name)

    def _enter(self, name: str, module: nn.Module, args: object) -> None:
        self._running.append(name)
        self.entered.append((name, self.count()))

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        self._running.pop()

    def _arrive(self, name: str, parameter: Tensor) -> None:
        self.arrived.append((name, self.count()))


def _tensors(value: object) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)


Mark = tuple[str, float]  # a name, and the clock or counter when it came up


def trace(task: str | Task, local_batch: int = 1) -> Workload:
    """Return the task's layers, gradients and work at a batch size, with zero seconds.

    Work is FLOPs (FMA = 2), bytes of memory that operations go through, and how many there are.

    A gradient's layer is the innermost module that was running when the forward pass first read
    its parameter, by its name in ``named_modules``; the name is empty for the outermost module.
    That module is the one to hold back until the update has arrived, and every such module is a
    Layer. Work between entering one layer and the next belongs to the first, work between one
    gradient and the next to the second one's layer, so both add up to the counters' totals.

    A model that the meta device cannot run is traced on fake tensors, and one whose control flow
    depends on values on the CPU with one real batch; ``source`` says so. Recurrent layers hand over
    their own few gradients in an order that depends on the device; ``profile`` has the measured
    one. Raises UnknownName for an unknown task, ModelError for a model without trainable
    parameters, with unused ones, with sparse gradients, or with ones that no module reads, for one
    that needs values and is too large to have them here, and for batches of another number of
    samples.

    >>> import ddlnb
    >>> workload = ddlnb.trace("small-conv", local_batch=64)
    >>> workload
    Workload('small-conv', batch=64, 28 gradients, 3.82 MB, 0 us)
    >>> workload.layers[0].name, workload.gradients[0].name
    ('conv1', 'classes.bias')
    """
    task = get_task(task)
    require_whole(local_batch=local_batch)
    require_batch(task)
    require_memory_for_batch(task, local_batch)
    drawn = task.batch(local_batch, 0)
    require_samples(task, local_batch, drawn)
    reasons: list[Exception] = []
    for place, run in (
        ("the meta device", _on_meta),
        ("fake tensors", _on_fake_tensors),
        ("the CPU with one batch", partial(_on_cpu, reasons)),
    ):
        try:
            record = run(task, drawn)
        except DdlnbError:
            raise
        except Exception as error:  # whatever a user's code says to a tensor without values
            reasons.append(error)
            continue
        told = f", as the meta device failed with {_in_a_line(reasons[0])}" if reasons else ""
        return _workload(task, local_batch, record, f"traced on {place}{told}")
    raise ModelError(
        f"model {task.name!r} does not run on a batch of {local_batch:,}: "
        f"{_in_a_line(reasons[-1])}; make its batch fit the module, in shapes and types"
    ) from reasons[-1]


def _on_meta(task: Task, drawn: Batch) -> _Record:
    return _run(task, build_on_meta(task), drawn, "meta")


def _on_fake_tensors(task: Task, drawn: Batch) -> _Record:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a failure is no news: the next place is tried
    try:
        with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True):
            return _run(task, task.build(), drawn, "cpu")
    finally:
        logger.setLevel(level)


def _on_cpu(reasons: Sequence[Exception], task: Task, drawn: Batch) -> _Record:
    """Run a model with values. Raises ModelError if this machine has no room for them."""
    require_memory_for_values(task, _in_a_line(reasons[0]))
    with torch.random.fork_rng(devices=[]):
        return _run(task, task.build(), drawn, "cpu")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def between_entries(marks: Sequence[Mark], start: float, end: float) -> dict[str, float]:
    """How much passed from each mark to the next; the first starts at start, the last ends at end.

    >>> between_entries([("a", 1.0), ("b", 3.0), ("a", 4.0)], 0.0, 5.0)
    {'a': 4.0, 'b': 1.0}
    """
    edges = [start, *(at for _, at in marks[1:]), end]
    spent: defaultdict[str, float] = defaultdict(float)
    for (name, _), (begin, until) in zip(marks, pairwise(edges), strict=True):
        spent[name] += until - begin
    return dict(spent)


def between_arrivals(marks: Sequence[Mark], start: float) -> dict[str, float]:
    """Return how much passed before each mark since the one before it, or since start.

    >>> between_arrivals([("b", 1.5), ("a", 2.0)], 1.0)
    {'b': 0.5, 'a': 0.5}
    """
    edges = [start, *(at for _, at in marks)]
    return {name: at - before for (name, at), before in zip(marks, edges, strict=False)}


@dataclass(frozen=True)
class _Record:
    """What one forward and backward pass showed, with the counts when it did."""

    parameters: dict[str, nn.Parameter]
    layer_of: dict[str, str]
    outside: set[str]
    entered: tuple[tuple[str, Count], ...]
    arrived: tuple[tuple[str, Count], ...]
    forward: Count
    total: Count


def _run(task: Task, module: nn.Module, drawn: Batch, device: str) -> _Record:
    """Return what one forward and backward pass over one batch shows. Raises ModelError."""
    require_trainable(module, task.name)
    batch = move(drawn, device)
    module.zero_grad(set_to_none=True)
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with counter as flops, TrafficCounter() as traffic:

        def count() -> Count:
            return Count(
                float(flops.get_total_flops()),
                float(traffic.bytes),
                float(traffic.matrix_bytes),
                float(traffic.operations),
                float(traffic.winograd_flops),
                float(traffic.kernels),
            )

        watch = Watch(module, count)
        with torch.device(device), RecurrentCalls(), watch:
            loss = task.loss(module, batch)
        entered, forward = tuple(watch.entered), count()
        require_scalar(loss, task.name)
        loss.backward()
        total = count()
    record = _Record(
        watch.parameters,
        watch.layer_of,
        watch.outside,
        entered,
        tuple(watch.arrived),
        forward,
        total,
    )
    _require_complete(record, task.name)
    return record


def move(batch: Batch, device: str) -> Batch:
    """Return the batch on the device."""
    return tuple(tensor.to(device) for tensor in batch)


def _require_complete(record: _Record, name: str) -> None:
    """Raise ModelError unless each parameter got exactly one gradient and has a layer."""
    times = Counter(parameter for parameter, _ in record.arrived)
    unused = [parameter for parameter in record.parameters if not times[parameter]]
    if unused:
        raise ModelError(
            f"model {name!r} has unused parameters, no gradient arrives for {_listed(unused)}; "
            f"set requires_grad=False on them or remove them"
        )
    repeated = [parameter for parameter, count in times.items() if count > 1]
    if repeated:
        raise ModelError(
            f"model {name!r} produces several gradients in one backward pass for "
            f"{_listed(repeated)}; one is exchanged, so use checkpoint(use_reentrant=False)"
        )
    unseen = [
        parameter
        for parameter in record.parameters
        if parameter in record.outside or parameter not in record.layer_of
    ]
    if unseen:
        raise ModelError(
            f"model {name!r} reads {_listed(unseen)} before or outside of every module's forward, "
            f"so no module can wait for the update; call modules in the loss and read them there"
        )


def _listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _workload(task: Task, local_batch: int, record: _Record, source: str) -> Workload:
    work: dict[str, dict[str, float]] = {}
    for what in COUNTED:
        forward, backward = _by_layer(record, attrgetter(what))
        for name, value in forward.items():
            work.setdefault(name, {})
            work[name] |= {f"forward_{what}": value, f"backward_{what}": backward[name]}
    layers = tuple(Layer(name, **counted) for name, counted in work.items())
    gradients = tuple(
        Gradient(
            name,
            record.layer_of[name],
            elements=record.parameters[name].numel(),
            bytes_per_element=record.parameters[name].element_size(),
            shape=tuple(record.parameters[name].shape),
        )
        for name, _ in record.arrived
    )
    return Workload(task.name, local_batch, layers, gradients, source)


def _by_layer(
    record: _Record, of: Callable[[Count], float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what is counted of every layer's forward pass, and of its backward pass."""
    owners = set(record.layer_of.values())
    entries = [(name, of(count)) for name, count in record.entered if name in owners]
    forward = between_entries(entries, 0.0, of(record.forward))
    # What backward computes after the last gradient (nothing, usually) belongs to that gradient.
    arrivals = [(name, of(count)) for name, count in record.arrived]
    arrivals[-1] = (arrivals[-1][0], of(record.total))
    backward: defaultdict[str, float] = defaultdict(float)
    for name, value in between_arrivals(arrivals, of(record.forward)).items():
        backward[record.layer_of[name]] += value
    return forward, backward
