"""Identify the code that made a run: kept runs count only if the same code would make them.

Train one method on one task: a tidy curve of what was learnt, sent and waited for.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ddlnb
from ddlnb.errors import InputError, require
from ddlnb.training.executors.lockstep import Lockstep
from ddlnb.training.method import TrainingMethod
from ddlnb.training.runs.curve import (
    Averaging,
    LockstepCurve,
    Observing,
    StoppingLoss,
    curve_of_ranks,
)
from ddlnb.training.settings import LOCKSTEP, TrainingSettings, training_settings
from ddlnb.training.tasks.task import LearningTask

if TYPE_CHECKING:
    import pandas as pd

    from ddlnb.launch.ranks import Ranks
    from ddlnb.training.runs.curve import Row


PACKAGE = Path(ddlnb.__file__).parent
ALGORITHMS = (
    *("training", "compression"),
    *("registry.py", "seeding.py", "plans/requests.py", "plans/server_rules.py"),
    *("workloads/task.py", "workloads/models.py"),
)


@cache
def made_by() -> str:
    """Return versions and the hash of the sources that define training: ``ddlnb 0.1.0, torch ...``.

    Changes of sources during the process are not seen.
    """
    versions = [f"{name} {_version(name)}" for name in ("ddlnb", "torch", "numpy")]
    return ", ".join([*versions, f"sources {source_hash(PACKAGE)}"])


def source_hash(package: Path) -> str:
    """Return the hash of names and contents of the files of ALGORITHMS below this folder."""
    digest = hashlib.sha256()
    for part in ALGORITHMS:
        source = package / part
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def fingerprint(thing: object) -> str:
    """Return a hash of a picklable thing and of the sources of all functions and classes in it.

    Raises InputError for what cannot be pickled.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{thing!r} cannot travel to other processes ({error}); make it of functions of a "
            f"module and functools.partial"
        ) from error
    digest = hashlib.sha256(stream.getvalue())
    for _, source in sorted(pickler.sources.items()):
        digest.update(source)
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """A pickler that collects the source of everything that is pickled as a name only."""

    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self.sources: dict[str, bytes] = {}

    def reducer_override(self, thing: Any) -> Any:
        if inspect.isfunction(thing) or inspect.isclass(thing):
            name = f"{thing.__module__}.{thing.__qualname__}"
            self.sources[name] = _source(thing)
        return NotImplemented


def _source(thing: Any) -> bytes:
    """Return the whole file, since a function calls others; in a notebook, its own lines."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if file and file.endswith(".py"):
        return Path(file).read_bytes()
    try:
        return inspect.getsource(thing).encode()
    except (OSError, TypeError):  # built in: the versions identify it
        return b""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def train(
    task: str | LearningTask,
    method: str | TrainingMethod,
    *,
    ranks: Ranks | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Return the curve of one run: one row per evaluation, the first before training.

    ``settings`` are those of `ddlnb.training.settings.TrainingSettings`, such as ``workers``,
    ``steps``, ``lr``, ``optimizer``, ``split``, ``seed`` and ``clock``. In lockstep the same
    arguments give the same bits.

    A step is one gradient of every worker; where workers do not wait for one another, a row is
    written when they have computed as many on average. The model that is evaluated is the mean of
    the workers'. Beside the settings and the code that it was ``made_by``, a row holds

    - ``train_loss``, the mean over all batches since the row before (NaN in the first);
    - ``test_loss`` and ``test_accuracy``;
    - ``consensus_distance``, the mean squared distance of the workers' parameters from their mean;
    - ``bytes_sent`` and ``bytes_received`` so far, counted, by a worker on average;
    - ``seconds`` of the virtual clock, NaN without one;
    - ``averaging_bytes_sent``, ``averaging_bytes_received`` and ``averaging_seconds``, the price of
      forming that mean model, 0 where all workers have it (`ddlnb.training.runs.curve`);
    - ``diverged``, true in the last row of a run that ended early because its loss, or what it had
      to send, was huge or no number.

    With executor "distributed" the workers are processes, of ``ranks`` or new ones, and seconds are
    real. A row then holds the workers as each was at that step of its own, and bytes are known in
    the last row only (NaN before). A run that diverges goes on there, and what follows is left out.
    "byteps" is the same with BytePS's parameter servers, for methods on PS that wait for everybody
    or for nobody (`ddlnb.training.executors.byteps`).

    Raises UnknownName, InputError and MissingPart, and RankError if a rank fails.

    >>> curve = train("quadratic", "local(8)", workers=4, steps=16)
    >>> bool(curve["test_loss"].iloc[-1] < curve["test_loss"].iloc[0])
    True
    """
    return run(training_settings(task, method, **settings), ranks)


def run(settings: TrainingSettings, ranks: Ranks | None = None) -> pd.DataFrame:
    """Return the curve of the run with these settings, as `train` does."""
    import pandas as pd

    if settings.executor == LOCKSTEP:
        require(ranks is None, "lockstep has no ranks; leave them out or take distributed")
        rows = _in_lockstep(settings)
    else:
        rows = _on_ranks(settings, ranks)
    columns = settings.columns() | {"made_by": made_by()}
    return pd.DataFrame([columns | row for row in rows])


def _in_lockstep(settings: TrainingSettings) -> list[Row]:
    task, clock = settings.task, settings.clock
    with _one_thread():
        job = settings.job()
        batches = job.batches()
        job = replace(job, loss=StoppingLoss.of(task, job), batches=lambda: batches)
        workers = [job.worker(rank) for rank in range(job.workers)]
        size = workers[0].parameters.numel()
        averaging = Averaging.of(job.method, job.workers, size, clock)
        curve = LockstepCurve(task, job, workers, settings.every, clock is not None, averaging)
        executor = Lockstep(
            workers,
            job.method.synchronisation.loop,
            job.steps,
            rule=job.rule(),
            clock=clock,
            on_step=curve.on_step,
        )
        return curve.of(executor)


def _on_ranks(settings: TrainingSettings, ranks: Ranks | None) -> list[Row]:
    from ddlnb.engines.settings import TRAINING
    from ddlnb.launch.ranks import Ranks
    from ddlnb.training.executors.distributed import train_on_ranks

    job = settings.job()
    observed = replace(job, observe=Observing(job.steps, settings.every), goes_on=True)
    imports = (train_on_ranks.__module__, *TRAINING)
    own = Ranks(job.ranks, imports=imports) if ranks is None else nullcontext(ranks)
    with own as started:
        report = train_on_ranks(started, observed, executor=settings.executor)
    with _one_thread():
        return curve_of_ranks(settings.task, job, report)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give torch one thread: small tensors are faster so, and sums always have the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
