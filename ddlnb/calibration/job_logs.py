"""Collectives that a job logged while it trained, as rows of measured collectives.

Known are the JSON of torch's flight recorder (2.5 to 2.13, FlightRecorderDetail.hpp: `dump_json`),
the lines of NCCL's Inspector (2.28, its profiler plug-in), and what DeepSpeed's comms logger prints
(0.10 to 0.19, utils/comms_logging.py). A job's ranks wait for one another: of a call that several
ranks logged the shortest time counts, as that of the one that came last; of calls the median.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from statistics import median
from typing import Any, NamedTuple

from ddlnb.calibration.collective_tables import COLLECTIVES, bus_factor
from ddlnb.errors import ResultsError
from ddlnb.traces.kineto.libraries import collective_of, element_bytes
from ddlnb.units import GB, US

PICKLE = b"\x80"
NO_PICKLE = (
    "is a pickle, as the flight recorder writes them, which is never read here because it can run "
    "any program; write what torch._C._distributed_c10d._dump_nccl_trace_json() returns instead"
)
USUAL_GPUS = 8  # of a node, where nothing is said
BY_DEEPSPEED = re.compile(r"^Comm\. Op .*Message Size|comm op: \w+", re.MULTILINE)
_UNITS = ("B", "KB", "MB", "GB", "TB")
_SIZE = rf"([\d.]+) ?({'|'.join(_UNITS)})"
_OPERATION = re.compile(r"^([a-z_]+)(?: \| .*)?\s*$")
_ROW = re.compile(rf"^\s+{_SIZE}\s+\d+\s+[\d.]+\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s*$")
_SPOKEN = re.compile(rf"comm op: (\w+).*? \| time \(ms\): ([\d.]+) \| msg size: {_SIZE}")


class Call(NamedTuple):
    """What is alike of calls whose median is taken."""

    collective: str
    ranks: int
    nodes: int
    size_bytes: int


Calls = dict[Call, dict[object, float]]  # the least seconds that a rank logged of each call


def json_apart(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON objects that a text begins with, until one is cut, and the text after them.

    >>> json_apart('{"a": 1} {"b": 2} NCCL INFO')
    ([{'a': 1}, {'b': 2}], ' NCCL INFO')
    """
    decoder, at, found = json.JSONDecoder(), 0, []
    while (start := re.compile(r"\s*(?=\{)").match(text, at)) is not None:
        try:
            one, at = decoder.raw_decode(text, start.end())
        except json.JSONDecodeError:
            break
        found.append(one)
    return found, text[at:]


def add_calls(calls: Calls, found: Sequence[dict[str, Any]], gpus_per_node: int | None) -> None:
    """Add what a rank's JSON tells of calls.

    Raises ResultsError for a flight recorder without durations.
    """
    for call, key, seconds in (*_recorded(found, gpus_per_node or USUAL_GPUS), *_inspected(found)):
        if call.collective in COLLECTIVES and call.ranks > 1 and call.size_bytes > 0 < seconds:
            times = calls.setdefault(call, {})
            times[key] = min(seconds, times.get(key, seconds))


def logged_rows(calls: Calls, text: str, ranks: int) -> Iterator[dict[str, object]]:
    """Yield a row for each kind of call, and of DeepSpeed's tables in a text.

    ``ranks`` are those of DeepSpeed's job, which says none.
    """
    for call, times in calls.items():
        yield _row(call, median(times.values()), "NCCL")
    for name, (size, seconds) in _printed(text) if ranks > 1 else ():
        collective = collective_of(name)
        if collective in COLLECTIVES and size > 0 < seconds:
            whole = size * (ranks if collective == "all_gather" else 1)  # it has a rank's part
            yield _row(Call(collective, ranks, 0, whole), seconds, "NCCL by DeepSpeed")


def _row(call: Call, seconds: float, library: str) -> dict[str, object]:
    each = call.ranks / call.nodes if call.nodes else None
    return {
        "collective": call.collective,
        "nodes": call.nodes or None,
        "gpus_per_node": int(each) if each and each.is_integer() else each,
        "ranks": call.ranks,
        "library": library,
        "size_bytes": call.size_bytes,
        "time_us_out_of_place": seconds / US,
        "of_a_group": bool(call.nodes),
    }


def _recorded(
    dumps: Sequence[dict[str, Any]], gpus_per_node: int
) -> Iterator[tuple[Call, object, float]]:
    """Yield the calls of flight recorders, a dump of each rank."""
    entries = [one for dump in dumps for one in dump.get("entries", ()) if not one.get("is_p2p")]
    groups = {
        name: [int(rank) for rank in re.findall(r"\d+", str(group["ranks"]))]
        for dump in dumps
        if "entries" in dump
        for name, group in dump["pg_config"].items()
    }
    if entries and not any("duration_ms" in one for one in entries):
        raise ResultsError(
            "no call of the flight recorder has a duration; record with TORCH_NCCL_ENABLE_TIMING=1"
        )
    for one in entries:
        name = one["process_group"][0]
        members = groups.get(name) or max(groups.values(), key=len)
        size = max(_bytes(one, way) for way in ("input", "output"))
        nodes = len({rank // gpus_per_node for rank in members})
        call = Call(collective_of(one["profiling_name"]), len(members), nodes, size)
        yield call, (name, one["collective_seq_id"]), one.get("duration_ms", 0) / 1e3


def _bytes(entry: dict[str, Any], way: str) -> int:
    pairs = zip(entry[f"{way}_sizes"], entry[f"{way}_dtypes"], strict=False)
    return sum(prod(sizes) * element_bytes(kind) for sizes, kind in pairs)


def _inspected(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[Call, object, float]]:
    """Yield the calls of NCCL's Inspector; of a part of a buffer its rate says that it is one."""
    for line in lines:
        if "coll_perf" not in line:
            continue
        head, one = line["header"], line["coll_perf"]
        collective, ranks = collective_of(one["coll"]), int(head["n_ranks"])
        seconds, size = one["coll_exec_time_us"] * US, int(one["coll_msg_size_bytes"])
        if collective in COLLECTIVES and size and ranks > 1:
            whole = one["coll_busbw_gbs"] * GB * seconds / bus_factor(collective, ranks)
            size *= ranks if whole > size * (1 + ranks) / 2 else 1
        call = Call(collective, ranks, int(head["nnodes"]), size)
        yield call, (head["id"], one["coll_sn"]), seconds


def _printed(text: str) -> Iterator[tuple[str, tuple[int, float]]]:
    """Yield names, bytes and seconds of DeepSpeed's tables, else of its lines for single calls.

    Its table of stragglers, where there is one, has the time without waiting.
    """
    found: dict[tuple[str, int], float] = {}
    spoken: dict[tuple[str, int], list[float]] = defaultdict(list)
    name, column = "", 0
    for line in text.splitlines():
        if "Comm. Op" in line:
            name, column = "", 3 if "Avg Latency(ms)" in line else 4
        elif column and (said := _OPERATION.match(line)):
            name = said[1]
        elif name and (said := _ROW.match(line)):
            found[name, _size(said[1], said[2])] = float(said[column]) / 1e3
        elif said := _SPOKEN.search(line):
            spoken[said[1], _size(said[3], said[4])].append(float(said[2]) / 1e3)
    for (operation, size), seconds in (
        found or {key: median(times) for key, times in spoken.items()}
    ).items():
        yield operation, (size, seconds)


def _size(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** _UNITS.index(unit))
