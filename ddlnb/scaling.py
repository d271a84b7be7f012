"""The same measurement with several numbers of workers, on processes that are started once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.engines.bench import contenders, ranks_needed
from ddlnb.engines.measure import Methods, measure, speedups
from ddlnb.errors import require, require_whole
from ddlnb.launch.ranks import Ranks
from ddlnb.workloads.tasks import Task

if TYPE_CHECKING:
    import pandas as pd


def measure_scaling(
    model: str | Task,
    methods: Methods = "all",
    *,
    workers: Sequence[int] = (2, 4),
    servers: int = 1,
    local_batch: int | None = None,
    iterations: int = 20,
    warmup: int = 5,
    repetitions: int = 3,
    out: str | Path | None = None,
    launcher: str = "local",
    progress: bool = False,
) -> pd.DataFrame:
    """The tidy table of these methods and baselines for every number of workers, with ``speedup``.

    The one-worker baseline is measured once, together with the first number of workers. With
    ``out`` every finished run is on disk at once, and a second call runs only what is missing.
    Raises what `ddlnb.measure` raises.
    """
    require(bool(workers), "workers is empty; give at least one number of workers")
    require_whole(servers=servers, **{f"workers[{i}]": count for i, count in enumerate(workers)})
    needed = ranks_needed(contenders(methods), max(workers), servers)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ranks(needed, launcher=launcher, timeout_seconds=300) as ranks,
    ):
        rows = [
            measure(
                model,
                methods,
                workers=count,
                servers=servers,
                local_batch=local_batch,
                iterations=iterations,
                warmup=warmup,
                repetitions=repetitions,
                out=out or Path(folder, "rows.csv"),
                launcher=launcher,
                ranks=ranks,
                progress=progress,
            )
            for count in workers
        ]
    import pandas as pd

    joined = pd.concat(rows, ignore_index=True)
    repeated = joined.duplicated(["method", "gpus", "engine", "settings"])
    return speedups(joined[~repeated].reset_index(drop=True))
