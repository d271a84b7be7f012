"""Exposed communication of DDP and FSDP while they train, by hooks and no profiler.

A rank that computes nothing waits for messages, and for ranks that come late. In
DistributedDataParallel that is from when the last gradient of a backward pass has arrived until
DDP ends the pass; in a model of `fully_shard`, while parameters are gathered, gradients scattered
and the pass ended, with the copies in and out of what is sent. On the host the instants are read
from its clock; on a GPU they are events of the stream that computes, read when they have passed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require
from ddlnb.questions import Answer, Table
from ddlnb.units import counted, show_seconds

if TYPE_CHECKING:
    import pandas as pd
    import torch


def _event() -> Any:
    """Return now on the stream of a GPU; on a host it is a float."""
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(start: Any, stop: Any) -> float:
    """Return the seconds from an instant to a later one."""
    return float(stop - start if isinstance(stop, float) else start.elapsed_time(stop) / 1e3)


class Watched(Answer):
    """What `watch` saw on a rank: ``rows`` has ``seconds`` and ``exposed_seconds`` per iteration.

    An iteration lasts from the end of a backward pass to that of the next one. Passes that send
    no gradients (``no_sync``) belong to the iteration of the next one that does.
    """

    def __init__(self, on_gpu: bool, rank: int, ranks: int):
        self.rank, self.ranks = rank, ranks
        self._now: Callable[[], Any] = _event if on_gpu else time.perf_counter
        self._waits: list[tuple[Any, Any]] = []
        self._open: deque[tuple[list[tuple[Any, Any]], Any]] = deque()
        self._before: Any = None
        self._found: list[tuple[float, float]] = []

    def _end(self) -> None:
        """End an iteration, and read those whose instants have passed."""
        self._open.append((self._waits, self._now()))
        self._waits = []
        while self._open:
            end = self._open[0][1]
            if not (isinstance(end, float) or end.query()):
                break
            self._read()

    def _read(self) -> None:
        waits, end = self._open.popleft()
        if not isinstance(end, float):
            end.synchronize()
        if self._before is not None:
            exposed = sum(_between(start, stop) for start, stop in waits)
            self._found.append((_between(self._before, end), exposed))
        self._before = end

    @property
    def rows(self) -> pd.DataFrame:
        """A row per iteration but the first. Raises InputError before there are two."""
        import pandas as pd

        while self._open:
            self._read()
        require(
            bool(self._found),
            f"{counted(int(self._before is not None), 'backward pass', 'backward passes')} of the "
            f"watched model sent gradients, and an iteration lasts from one to the next; train "
            f"longer",
        )
        return pd.DataFrame(self._found, columns=["seconds", "exposed_seconds"])

    @property
    def tables(self) -> tuple[Table, ...]:
        """Medians, and what one iteration in twenty exceeds."""
        shown = [
            {"of an iteration": name, **{what: show_seconds(value) for what, value in row.items()}}
            for name, row in self.rows.quantile([0.5, 0.95]).set_axis(["median", "95 %"]).iterrows()
        ]
        seen = counted(len(self.rows), "iteration")
        return (Table(f"Watched: {seen} of rank {self.rank}", shown),)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is exposed, and of what it consists."""
        seconds, exposed = self.rows.median()
        if self.ranks == 1:
            return (
                f"One rank sends nothing: torch's own hooks take {show_seconds(exposed)} of an "
                f"iteration of {show_seconds(seconds)} (medians).",
            )
        return (
            f"Of an iteration of {show_seconds(seconds)} on rank {self.rank} communication is "
            f"exposed for {show_seconds(exposed)} ({exposed / seconds:.0%}, medians), waiting for "
            f"ranks that come late among it; `ddlnb trace` of all ranks tells them apart.",
        )


@contextmanager
def watch(model: torch.nn.Module) -> Iterator[Watched]:
    """Measure the exposed communication of a model in DDP or of `fully_shard` in the block.

    What it yields has rows and sentences once the block has trained for two iterations, on every
    rank those of the rank. Hooks are all that is added (`python -m benchmarks.train_with_it
    --rival watched` prints what they cost), and torch itself sends. Raises InputError for others.

    >>> model = DistributedDataParallel(module)  # doctest: +SKIP
    >>> with ddlnb.watch(model) as seen:  # doctest: +SKIP
    ...     for inputs, labels in batches:
    ...         nn.functional.cross_entropy(model(inputs), labels).backward()
    >>> print(seen)  # doctest: +SKIP
    """
    from torch.distributed import get_rank, get_world_size
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    require(
        isinstance(model, DistributedDataParallel | FSDPModule),
        f"a {type(model).__name__} cannot be watched, as DistributedDataParallel and a model of "
        f"fully_shard can; record it by torch.profiler on all ranks and read that with "
        f"`ddlnb trace FOLDER`",
    )
    seen = Watched(next(model.parameters()).is_cuda, get_rank(), get_world_size())
    with ExitStack() as hooks:
        if isinstance(model, DistributedDataParallel):
            _watch_replica(model, seen, hooks)
        else:
            _watch_shards(model, seen, hooks)
        yield seen


def _watch_replica(
    model: torch.nn.parallel.DistributedDataParallel, seen: Watched, hooks: ExitStack
) -> None:
    """Wait from the last gradient of a pass until DDP has its buckets."""
    import torch

    later = torch.autograd.Variable._execution_engine.queue_callback
    last, now = None, seen._now

    def arrived(_: torch.Tensor) -> None:
        nonlocal last
        if not model.require_backward_grad_sync:
            return
        if last is None:
            # What is queued in what is queued runs after DDP has waited for its buckets.
            later(lambda: later(ended))
        last = now()

    def ended() -> None:
        nonlocal last
        seen._waits.append((last, seen._now()))
        seen._end()
        last = None

    def forget(*_: Any) -> None:
        nonlocal last
        last = None  # of a pass that an error has ended

    for one in model.parameters():
        if one.requires_grad:
            hooks.callback(one.register_post_accumulate_grad_hook(arrived).remove)
    hooks.callback(model.register_forward_pre_hook(forget).remove)


def _watch_shards(model: Any, seen: Watched, hooks: ExitStack) -> None:
    """Wait in what torch's FSDP calls to gather, to scatter and to end a pass.

    Raises InputError if this torch calls nothing of these names.
    """
    from torch.distributed.fsdp import FSDPModule

    shards = [one._get_fsdp_state() for one in model.modules() if isinstance(one, FSDPModule)]
    states = list(dict.fromkeys(shards))  # of several modules that are sharded as one
    groups = [
        group
        for state in states
        # One of a state, before there could be more.
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        if group is not None
    ]
    is_waiting, now = False, seen._now

    def wrap(owner: Any, name: str, then: Callable[[], None] = lambda: None) -> None:
        plain: Any = getattr(owner, name, None)
        require(
            plain is not None,
            f"the FSDP of torch has no {name} and cannot be watched; record it by torch.profiler "
            f"on all ranks and read that with `ddlnb trace FOLDER`",
        )

        def waited(*values: Any, **named: Any) -> Any:
            nonlocal is_waiting
            if is_waiting:  # in another of them
                return plain(*values, **named)
            is_waiting, start = True, now()
            try:
                return plain(*values, **named)
            finally:
                seen._waits.append((start, now()))
                is_waiting = False
                then()

        setattr(owner, name, waited)
        hooks.callback(delattr, owner, name)

    def ended() -> None:
        if any(group.reduce_grads for group in groups):
            seen._end()

    for group in groups:
        for name in ("unshard", "wait_for_unshard", "post_backward"):
            wrap(group, name)
    for state in states:
        wrap(state, "_root_post_backward_final_callback", ended)
