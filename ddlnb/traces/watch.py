"""Exposed communication of DistributedDataParallel while it trains, by hooks and no profiler.

From when the last gradient of a backward pass has arrived until DDP ends the pass, a rank computes
nothing: it waits for its buckets, and for ranks that come late. On the host both instants are read
from its clock; on a GPU they are events of the stream on which DDP waits, read after the block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ddlnb.errors import require
from ddlnb.questions import Answer, Table
from ddlnb.units import counted, show_seconds

if TYPE_CHECKING:
    import pandas as pd
    import torch


class _Instant:
    """An instant of the host, with the methods of torch.cuda.Event."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def elapsed_time(self, later: _Instant) -> float:
        return 1e3 * (later.at - self.at)


class Watched(Answer):
    """What `watch` saw on a rank: ``rows`` has ``seconds`` and ``exposed_seconds`` per iteration.

    An iteration lasts from the end of a backward pass to that of the next one. Passes that send
    nothing (``no_sync``) belong to the iteration of the next one that does.
    """

    def __init__(self, model: torch.nn.parallel.DistributedDataParallel):
        import torch

        self._model = model
        on_gpu = next(model.parameters()).is_cuda
        self._make: Any = partial(torch.cuda.Event, enable_timing=True) if on_gpu else _Instant
        self._later = torch.autograd.Variable._execution_engine.queue_callback
        self._last: Any = None
        self._passes: list[tuple[Any, Any]] = []

    def _arrived(self, _: torch.Tensor) -> None:
        if not self._model.require_backward_grad_sync:
            return
        if self._last is None:
            self._last = self._make()
            # What is queued in what is queued runs after DDP has waited for its buckets.
            self._later(lambda: self._later(self._ended))
        self._last.record()

    def _ended(self) -> None:
        end = self._make()
        end.record()
        self._passes.append((self._last, end))
        self._last = None

    def _forget(self, *_: Any) -> None:
        self._last = None  # of a pass that an error has ended

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row per iteration but the first. Raises InputError before there are two."""
        import pandas as pd

        require(
            len(self._passes) > 1,
            f"{counted(len(self._passes), 'backward pass', 'backward passes')} of the watched "
            f"model sent gradients, and an iteration lasts from one to the next; train longer",
        )
        ends = [end for _, end in self._passes]
        ends[-1].synchronize()
        return pd.DataFrame(
            {
                "seconds": [a.elapsed_time(b) / 1e3 for a, b in pairwise(ends)],
                "exposed_seconds": [a.elapsed_time(b) / 1e3 for a, b in self._passes[1:]],
            }
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """Medians, and what one iteration in twenty exceeds."""
        shown = [
            {"of an iteration": name, **{what: show_seconds(value) for what, value in row.items()}}
            for name, row in self.rows.quantile([0.5, 0.95]).set_axis(["median", "95 %"]).iterrows()
        ]
        return (Table(f"Watched: {counted(len(self.rows), 'iteration')} of this rank", shown),)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is exposed, and of what it consists."""
        seconds, exposed = self.rows.median()
        return (
            f"Of an iteration of {show_seconds(seconds)} communication is exposed for "
            f"{show_seconds(exposed)} ({exposed / seconds:.0%}, medians), waiting for ranks that "
            f"come late among it; `ddlnb trace` of all ranks tells them apart.",
        )


@contextmanager
def watch(model: torch.nn.Module) -> Iterator[Watched]:
    """Measure the exposed communication of a model in DistributedDataParallel in the block.

    What it yields has rows and sentences once the block has trained for two iterations, on every
    rank those of the rank. Hooks of parameters and of the backward pass are all that is added
    (`python -m benchmarks.train_with_it --rival watched` prints what they cost), and torch's own
    reducer sends. Raises InputError for other models: FSDP's waits are on streams of its own, where
    torch.profiler sees them.

    >>> import ddlnb
    >>> import torch
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> with ddlnb.watch(model) as seen:
    ...     for _ in range(3):
    ...         model(torch.ones(2, 4)).sum().backward()
    >>> len(seen.rows)
    2
    >>> dist.destroy_process_group()
    """
    from torch.nn.parallel import DistributedDataParallel

    require(
        isinstance(model, DistributedDataParallel),
        f"a {type(model).__name__} cannot be watched, as DistributedDataParallel alone can; record "
        f"it, FSDP for one, by torch.profiler on all ranks and read that with `ddlnb trace FOLDER`",
    )
    assert isinstance(model, DistributedDataParallel)
    seen = Watched(model)
    trained = (one for one in model.parameters() if one.requires_grad)
    hooks = [one.register_post_accumulate_grad_hook(seen._arrived) for one in trained]
    hooks.append(model.register_forward_pre_hook(seen._forget))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
