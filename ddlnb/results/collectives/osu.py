"""Tables that the collective tests of the OSU micro-benchmarks print.

They do not say how many ranks took part. Their size is what one rank sends to one rank, or what it
contributes; ours is that of the whole buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TITLE = re.compile(r"#\s*OSU (?:MPI|NCCL|xCCL)\S*\s+(.*?)\s+Latency Test", re.IGNORECASE)
_LINE = re.compile(r"^(?:\S*[:>\]]\s*)?(\d+)\s+(\d+(?:\.\d+)?)(?:\s+\d+(?:\.\d+)?)*\s*$")
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all-to-all personalized exchange": "alltoall",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_OF_ONE_RANK = {"all_gather", "alltoall", "gather", "scatter"}


def is_osu(text: str) -> bool:
    """Return whether a log has a table of an OSU latency test."""
    return _TITLE.search(text) is not None


def tables(text: str, ranks: int) -> Iterator[dict[str, object]]:
    """Yield a row for every line of every table of a log, of a run with this many ranks.

    Tables of what is no collective between all ranks are left out.
    """
    collective = ""
    for line in text.splitlines():
        if found := _TITLE.search(line):
            collective = _COLLECTIVES.get(found[1].casefold(), "")
        elif collective and (found := _LINE.match(line)):
            whole = ranks if collective in _OF_ONE_RANK else 1
            yield {
                "collective": collective,
                "ranks": ranks,
                "library": "MPI",
                "size_bytes": int(found[1]) * whole,
                "time_us_out_of_place": float(found[2]),
            }
