"""Making Horovod write its own timeline while an engine runs (`ddlnb.traces.horovod` reads it)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddlnb.launch.rank import RankContext

if TYPE_CHECKING:
    from ddlnb.launch.ranks import Ranks


@contextmanager
def recording(ranks: Ranks, path: str | Path) -> Iterator[Path]:
    """Make runs on engine ``horovod`` within the block write Horovod's timeline to this path.

    The file is on the machine of rank 0 and holds the last run. Writing it keeps a core busy.
    """
    path = Path(path).resolve()
    ranks.run(_set_timeline, str(path))
    try:
        yield path
    finally:
        ranks.run(_set_timeline, None)


def _set_timeline(context: RankContext, path: str | None) -> None:
    if path is None:
        os.environ.pop("HOROVOD_TIMELINE", None)
    else:
        os.environ["HOROVOD_TIMELINE"] = path
