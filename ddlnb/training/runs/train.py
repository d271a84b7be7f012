"""Train one method on one task: a tidy curve of what was learnt, sent and waited for.

Every row names the code that made it: saved runs count only if the same code would make them.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ddlnb
from ddlnb.errors import require
from ddlnb.files import versions
from ddlnb.training.method import TrainingMethod
from ddlnb.training.runs.curve import Observing, curve_in_lockstep, curve_of_ranks
from ddlnb.training.settings import LOCKSTEP, TrainingSettings, training_settings
from ddlnb.training.tasks.task import LearningTask
from ddlnb.workloads.profiling import torch_threads

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
        with torch_threads(1):  # small tensors are faster so, and sums have the same order
            rows = curve_in_lockstep(settings)
    else:
        rows = _on_ranks(settings, ranks)
    columns = settings.columns() | {"made_by": made_by()}
    return pd.DataFrame([columns | row for row in rows])


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
    with torch_threads(1):
        return curve_of_ranks(settings.task, job, report)


@cache
def made_by() -> str:
    """Return versions and the hash of the sources that define training.

    Changes of sources during the process are not seen.
    """
    return f"{versions()}; sources {source_hash(PACKAGE)}"


def source_hash(package: Path) -> str:
    """Return the hash of names and contents of the files of ALGORITHMS below this folder."""
    digest = hashlib.sha256()
    for part in ALGORITHMS:
        source = package / part
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
