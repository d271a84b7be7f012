"""Tables in the logs of nccl-tests, whatever a launcher has written before each line.

A log may hold several tables. The header of a table names its columns, so that logs with and
without a root, a reduction or a check are read alike; the list of devices before it says which
ranks took part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddlnb.results.collective_rows import COLLECTIVES

_DEVICE = re.compile(r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)")
_HEADER = re.compile(r"#\s+(size\s+count\s+.*\btime\b.*)")
_STARTED = re.compile(r"\b(\w+)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"NCCL version[: ]+(\d+(?:\.\d+)+)")
_OF_TIME = ("time", "algbw", "busbw")
_NAMES = {"all_to_all": "alltoall"}


@dataclass
class _Heard:
    """What a log has said so far."""

    collective: str = ""
    release: str = "NCCL"
    hosts: dict[int, str] = field(default_factory=dict)
    gpu: str = ""
    columns: tuple[str, ...] = ()

    @property
    def per_host(self) -> float | None:
        """Return the ranks of each host, a fraction where hosts are unlike; None if unknown."""
        hosts = len(set(self.hosts.values()))
        if not hosts:
            return None
        return len(self.hosts) // hosts if len(self.hosts) % hosts == 0 else len(self.hosts) / hosts

    def device(self, rank: int, host: str, gpu: str) -> None:
        if rank in self.hosts:  # a new list
            self.hosts = {}
        self.hosts[rank], self.gpu, self.columns = host, gpu.strip(), ()


def is_nccl_tests(text: str) -> bool:
    """Return whether a log has a table of nccl-tests."""
    return _HEADER.search(text) is not None


def tables(text: str) -> Iterator[dict[str, object]]:
    """Yield a row for every line of every table of a log, with what the log says about it."""
    heard = _Heard()
    for line in text.splitlines():
        if found := _DEVICE.search(line):
            heard.device(int(found[1]), found[2], found[3])
        elif found := _HEADER.search(line):
            heard.columns = tuple(found[1].split())
        elif heard.columns and (values := _values(line, heard.columns)):
            yield _row(values, heard)
        elif found := _LIBRARY.search(line):
            heard.release = f"NCCL {found[1]}"
        elif found := _STARTED.search(line):
            heard.collective = _NAMES.get(found[1], found[1])


def _values(line: str, columns: Sequence[str]) -> list[str]:
    """Return the values of a line of the table; none if it is no such line.

    They are the last words of the line: what stands before them is a launcher's.
    """
    words = re.sub(r"^\S*[:>\]](?=\d)", "", line).split()[-len(columns) :]
    if len(words) < len(columns) or "#" in line or not (words[0] + words[1]).isdigit():
        return []
    times = [word for word, column in zip(words, columns, strict=True) if column in _OF_TIME]
    return words if all(re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", word) for word in times) else []


def _row(values: list[str], heard: _Heard) -> dict[str, object]:
    cells = list(zip(heard.columns, values, strict=True))
    named = dict(reversed(cells))  # the first of each name: out of place
    found = {name: [float(value) for column, value in cells if column == name] for name in _OF_TIME}
    wrong = [v for column, v in cells if column in ("#wrong", "error") and v not in ("N/A", "0")]
    wrong = [value for value in wrong if float(value) > 0.01]  # old versions print a deviation
    inside = len(found["time"]) > 1
    hosts = set(heard.hosts.values())
    return {
        "collective": heard.collective if heard.collective in COLLECTIVES else "",
        "gpu": heard.gpu,
        "nodes": len(hosts) or None,
        "gpus_per_node": heard.per_host,
        "ranks": len(heard.hosts) or None,
        "library": heard.release,
        "size_bytes": int(named["size"]),
        "dtype": named.get("type", ""),
        "time_us_out_of_place": found["time"][0],
        "algbw_GBps": found["algbw"][0],
        "busbw_GBps": found["busbw"][0],
        "time_us_in_place": found["time"][1] if inside else None,
        "busbw_in_place_GBps": found["busbw"][1] if inside else None,
        "notes": f"wrong results: {', '.join(wrong)}" if wrong else "",
    }
