"""The structure of a task: its layers, gradients and work, found by running it once.

The run happens on the meta device, which computes shapes and no values: seconds and no memory for
any size of model. A model that the meta device cannot run is run on fake tensors, which say that
they are on the CPU, and one that asks for values on the CPU itself. Two orders matter and both are
observed, not guessed: layers stand as the forward pass enters them, gradients as the backward pass
produces them.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ddlnb.errors import DdlnbError, ModelError, require, require_whole
from ddlnb.workloads.counters import FLOPS, RecurrentCalls, TrafficCounter
from ddlnb.workloads.memory import require_memory_for_batch, require_memory_for_values
from ddlnb.workloads.models import TASKS
from ddlnb.workloads.resolve import get_task
from ddlnb.workloads.task import (
    Batch,
    Task,
    build_on_meta,
    require_batch,
    require_samples,
    require_scalar,
    require_trainable,
)
from ddlnb.workloads.workload import Gradient, Layer, Work, Workload

LIMIT, USUAL = "DDLNB_TRACE_SECONDS", 120  # seconds that a module may run when it is traced
Counted = TypeVar("Counted", float, Work)  # what a clock or a counter shows


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
    that needs values and is too large to have them here, for batches of another number of samples,
    and for one that runs longer than DDLNB_TRACE_SECONDS (120).

    >>> import ddlnb
    >>> workload = ddlnb.trace("small-conv", local_batch=64)
    >>> workload
    Workload('small-conv', batch=64, 28 gradients, 3.82 MB, 0 us)
    >>> workload.layers[0].name, workload.gradients[0].name
    ('conv1', 'classes.bias')
    """
    task = get_task(task)
    require_whole(local_batch=local_batch)
    if task is TASKS.get(task.name):
        return _of_built_in(task.name, local_batch)
    return _traced(task, local_batch)


@lru_cache(maxsize=64)  # built-in models do not change, and a large one takes seconds
def _of_built_in(name: str, local_batch: int) -> Workload:
    return _traced(TASKS[name], local_batch)


def _traced(task: Task, local_batch: int) -> Workload:
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
            with _in_time(task.name):
                watch = run(task, drawn)
        except DdlnbError:
            raise
        except Exception as error:  # whatever a user's code says to a tensor without values
            reasons.append(error)
            continue
        told = f", as the meta device failed with {_in_a_line(reasons[0])}" if reasons else ""
        return _workload(task, local_batch, watch, f"traced on {place}{told}")
    raise ModelError(
        f"model {task.name!r} does not run on a batch of {local_batch:,}: "
        f"{_in_a_line(reasons[-1])}; make its batch fit the module, in shapes and types"
    ) from reasons[-1]


@contextmanager
def _in_time(name: str) -> Iterator[None]:
    """Raise ModelError for what the block runs too long; only a main thread can be stopped so."""
    said = os.environ.get(LIMIT, str(USUAL))
    require(
        said.isdecimal() and int(said) > 0, f"{LIMIT} {said!r} must be a whole number of seconds"
    )

    def end(*_: object) -> None:
        raise ModelError(
            f"model {name!r} ran for {said} s when it was traced, and had not ended; look for a "
            f"loop without an end, or allow more ({LIMIT}=600)"
        )

    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(int(said))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _on_meta(task: Task, drawn: Batch) -> Watch:
    return _run(task, build_on_meta(task), drawn, "meta")


def _on_fake_tensors(task: Task, drawn: Batch) -> Watch:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # a failure is no news: the next place is tried
    try:
        with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True):
            return _run(task, task.build(), drawn, "cpu")
    finally:
        logger.setLevel(level)


def _on_cpu(reasons: Sequence[Exception], task: Task, drawn: Batch) -> Watch:
    """Run a model with values. Raises ModelError if this machine has no room for them."""
    require_memory_for_values(task, _in_a_line(reasons[0]))
    with torch.random.fork_rng(devices=[]):
        return _run(task, task.build(), drawn, "cpu")


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def between_entries(
    marks: Sequence[tuple[str, Counted]], start: Counted, end: Counted
) -> dict[str, Counted]:
    """How much passed from each mark to the next; the first starts at start, the last ends at end.

    >>> between_entries([("a", 1.0), ("b", 3.0), ("a", 4.0)], 0.0, 5.0)
    {'a': 4.0, 'b': 1.0}
    """
    edges: list[Counted] = [start] + [at for _, at in marks[1:]] + [end]
    spent: dict[str, Counted] = {}
    for (name, _), (begin, until) in zip(marks, pairwise(edges), strict=True):
        passed = until - begin
        spent[name] = spent[name] + passed if name in spent else passed
    return spent


def between_arrivals(marks: Sequence[tuple[str, Counted]], start: Counted) -> dict[str, Counted]:
    """Return how much passed before each mark since the one before it, or since start.

    >>> between_arrivals([("b", 1.5), ("a", 2.0)], 1.0)
    {'b': 0.5, 'a': 0.5}
    """
    edges: list[Counted] = [start] + [at for _, at in marks]
    return {name: at - before for (name, at), before in zip(marks, edges, strict=False)}


class Watch(TorchFunctionMode):
    """Notes what one forward and backward pass over a module shows, with the work when it did.

    That is: when layers are entered and gradients arrive, and which module is running when a torch
    function first gets each parameter. ``forward`` is the work of the forward pass once it is over.
    """

    def __init__(self, module: nn.Module, count: Callable[[], Work]):
        super().__init__()
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = trained
        self.count = count
        self.layer_of: dict[str, str] = {}
        self.outside: set[str] = set()
        self.entered: list[tuple[str, Work]] = []
        self.arrived: list[tuple[str, Work]] = []
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._running: list[str] = []
        self.forward: Work | None = None
        self._hooks: list[Any] = []
        for name, submodule in module.named_modules():
            enter = partial(self._enter, name)
            self._hooks.append(submodule.register_forward_pre_hook(enter, prepend=True))
            self._hooks.append(submodule.register_forward_hook(self._leave, always_call=True))
        for name, parameter in trained.items():
            arrive = partial(self._arrive, name)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(arrive))

    def close(self) -> None:
        """Watch no longer: a parameter with a hook that leads back to it is never collected."""
        for hook in self._hooks:
            hook.remove()

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
        for value in tree_leaves(arguments):
            name = self._names.get(id(value))
            if name is None or name in self.layer_of:
                continue
            if self._running:
                self.layer_of[name] = self._running[-1]
            else:
                self.outside.add(name)

    def _enter(self, name: str, module: nn.Module, args: object) -> None:
        self._running.append(name)
        if self.forward is None:  # the backward pass may run parts of the forward pass again
            self.entered.append((name, self.count()))

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        self._running.pop()

    def _arrive(self, name: str, parameter: Tensor) -> None:
        self.arrived.append((name, self.count()))


def _run(task: Task, module: nn.Module, drawn: Batch, device: str) -> Watch:
    """Return what one forward and backward pass over one batch shows. Raises ModelError."""
    require_trainable(module, task.name)
    batch = move(drawn, device)
    module.zero_grad(set_to_none=True)
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with counter as flops, TrafficCounter() as traffic:
        watch = Watch(module, lambda: traffic.work + Work(float(flops.get_total_flops())))
        with closing(watch):
            with torch.device(device), RecurrentCalls(), watch:
                loss = task.loss(module, batch)
            watch.forward = watch.count()
            require_scalar(loss, task.name)
            loss.backward()
        total = watch.count()
    _require_complete(watch, task.name)
    # What backward computes after the last gradient (nothing, usually) belongs to that gradient.
    watch.arrived[-1] = (watch.arrived[-1][0], total)
    return watch


def move(batch: Batch, device: str) -> Batch:
    """Return the batch on the device."""
    return tuple(tensor.to(device) for tensor in batch)


def _require_complete(watch: Watch, name: str) -> None:
    """Raise ModelError unless each parameter got exactly one gradient and has a layer."""
    times = Counter(parameter for parameter, _ in watch.arrived)
    unused = [parameter for parameter in watch.parameters if not times[parameter]]
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
        for parameter in watch.parameters
        if parameter in watch.outside or parameter not in watch.layer_of
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


def _workload(task: Task, local_batch: int, watch: Watch, source: str) -> Workload:
    assert watch.forward is not None
    owners = set(watch.layer_of.values())
    entries = [mark for mark in watch.entered if mark[0] in owners]
    forward = between_entries(entries, Work(), watch.forward)
    backward: defaultdict[str, Work] = defaultdict(Work)
    for name, work in between_arrivals(watch.arrived, watch.forward).items():
        backward[watch.layer_of[name]] += work
    layers = tuple(Layer.of(name, work, backward[name]) for name, work in forward.items())
    trained = {name: watch.parameters[name] for name, _ in watch.arrived}
    gradients = tuple(
        Gradient(
            name,
            watch.layer_of[name],
            elements=parameter.numel(),
            bytes_per_element=parameter.element_size(),
            shape=tuple(parameter.shape),
        )
        for name, parameter in trained.items()
    )
    return Workload(task.name, local_batch, layers, gradients, source)
