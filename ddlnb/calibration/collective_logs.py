"""Read logs of benchmarks of collectives into the table of measured collectives.

Known are logs of nccl-tests, whatever a launcher has written before each line, tables of the OSU
micro-benchmarks, what our own micro-benchmark keeps (`ddlnb cluster fit here`), and what jobs log
(`ddlnb.calibration.job_logs`). A log of nccl-tests may hold several tables: the header of a table
names its columns, so that logs with and without a root, a reduction or a check are read alike, and
the list of devices before it says which ranks took part, or that groups of them did the same at
once, each as a collective of its own. OSU does not say how many ranks there were, and its size is
what one rank sends to one rank, or what it contributes; ours is that of the whole buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import pandas as pd

from ddlnb.calibration.collective_tables import (
    COLLECTIVES,
    COLUMNS,
    COUNTS,
    MEASURED,
    SECONDS,
    bus_factors,
    with_seconds,
)
from ddlnb.calibration.job_logs import (
    BY_DEEPSPEED,
    NO_PICKLE,
    PICKLE,
    Calls,
    add_calls,
    json_apart,
    logged_rows,
)
from ddlnb.errors import InputError, ResultsError, UnknownName, require
from ddlnb.hardware.catalogue import gpu_in
from ddlnb.progress import Show, bar
from ddlnb.reading import json_of, read_bytes, reading
from ddlnb.units import GB

_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s)?.*\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)"
)
_HEADER = re.compile(r"#\s+(size\s+count\s+.*\btime\b.*)")
_STARTED = re.compile(r"\b(\w+)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"NCCL version[: ]+(\d+(?:\.\d+)+)")
_OF_TIME = ("time", "algbw", "busbw")
_NAMES = {"all_to_all": "alltoall"}
_TITLE = re.compile(r"#\s*OSU (?:MPI|NCCL|xCCL)\S*\s+(.*?)\s+Latency Test", re.IGNORECASE)
# A row of nccl-tests begins with size, count and type, whatever stands before it; or it is cut.
_ROW = re.compile(
    r"(?:^|[\s:>\]])\d+\s+\d+\s+(?:u?int\d+|half|float|double|bf\w+|fp?8\w+)\b|^[\s\d]*\d\s*$"
)
_LINE = re.compile(
    r"^(?:\S*[:>\]]\s*)?(\d+)\s+(\d+(?:\.\d+)?)(?:\s+\d+(?:\.\d+)?)*(?:\s+(Pass|Fail|-))?\s*$"
)
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
_KEYS = {"workers", "message_bytes", "seconds", "while_computing"}  # of our own micro-benchmark


@dataclass(frozen=True)
class Facts:
    """What a log does not say, or says otherwise; what is None is taken from the log.

    ``gpus_of_a_node`` is of logs that name ranks and not their nodes, by default 8.
    """

    collective: str | None = None
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    network: str | None = None
    library: str | None = None
    settings: str | None = None
    block: str | None = None
    source: str | None = None
    source_url: str | None = None
    gpus_of_a_node: int | None = None

    def __post_init__(self) -> None:
        if self.collective is not None and self.collective not in COLLECTIVES:
            raise UnknownName("collective", self.collective, COLLECTIVES)
        for name, count in (("nodes", self.nodes), ("gpus_per_node", self.gpus_per_node)):
            require(count is None or count >= 1, f"{name} {count} must be at least 1")

    @property
    def ranks(self) -> int | None:
        """Return the number of ranks, where both of its factors are given."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        return self.nodes * self.gpus_per_node


def read_collective_logs(
    paths: str | Path | Sequence[str | Path], facts: Facts | None = None
) -> pd.DataFrame:
    """Return the collectives in logs as a table with the columns of the published one.

    Known are logs of nccl-tests with or without a launcher's prefixes, of the OSU micro-benchmarks
    and DeepSpeed's comms logger (these need ``facts.nodes`` and ``facts.gpus_per_node``), the
    ``all_reduces.json`` of `ddlnb cluster fit here`, and JSON of torch's flight recorder and NCCL's
    Inspector, a file or the folder of all ranks. Missing rates are computed. Raises ResultsError
    for a file that has none of these, and InputError for one that does not say what ran on how
    many ranks.

    >>> import ddlnb
    >>> from ddlnb.files import DATA
    >>> kept = DATA / "measured" / "2026-11-21_two-cores_loopback" / "all_reduces.json"
    >>> rows = ddlnb.results.read_collective_logs(kept)
    >>> rows["collective"].unique().tolist(), sorted(set(rows["ranks"]))
    (['all_reduce'], [2, 4])
    """
    facts = facts or Facts()
    listed = [paths] if isinstance(paths, str | Path) else paths
    return measured([read_log(Path(one), facts.gpus_of_a_node) for one in listed], facts)


class Log(NamedTuple):
    """A log, or a folder of those of all ranks: its text, and the calls that its JSON tells of."""

    path: Path
    text: str
    calls: Calls


def read_log(path: Path, gpus_per_node: int | None = None, progress: Show = None) -> Log:
    """Return a log of which some ranks are on a node, 8 if that is not told. Raises ResultsError.

    What is JSON is gone after its file, so that logs of many ranks fit into memory.
    """
    if not path.exists():
        raise ResultsError(f"there is no log {path}")
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    texts: list[str] = []
    calls: Calls = {}
    for one in bar(files, "reading", unit="file", progress=progress and len(files) > 1):
        content = read_bytes(one)
        require(not content.startswith(PICKLE), f"{one} {NO_PICKLE}")
        with reading(one, error=ResultsError):
            found, text = json_apart(content.decode(errors="replace"))
            add_calls(calls, found, gpus_per_node)
        texts.append(text)
    return Log(path, "\n".join(texts), calls)


def measured(logs: Sequence[Log], facts: Facts) -> pd.DataFrame:
    """Return the collectives in logs. Raises as `read_collective_logs`."""
    rows = [row for log in logs for row in _rows_in(log, facts)]
    with reading("the logs", error=ResultsError):
        return _with_rates(pd.DataFrame(rows).reindex(columns=list(COLUMNS)))


def _rows_in(log: Log, facts: Facts) -> list[dict[str, object]]:
    path, text, calls = log
    if (_TITLE.search(text) or BY_DEEPSPEED.search(text)) and facts.ranks is None:
        raise InputError(
            f"{path} is of the OSU micro-benchmarks or of DeepSpeed's comms logger, which do not "
            "print the number of ranks; give it with --nodes and --gpus-per-node"
        )
    # A log has tables of one of these.
    with reading(path, error=ResultsError):
        try:
            ranks = facts.ranks or 0
            found = [*_probe_rows(text), *_nccl_rows(text), *_osu_rows(text, ranks)]
            found += logged_rows(calls, text, ranks)
        except ResultsError as error:
            raise ResultsError(f"{path}: {error}") from error
        rows = [_complete(row, facts, path) for row in found]
    if not rows:
        raise ResultsError(
            f"{path} has no table of nccl-tests, of a collective of the OSU micro-benchmarks or of "
            "`ddlnb cluster fit here`, and no log of a job; give the whole output of one of them"
        )
    return rows


def _complete(row: dict[str, object], facts: Facts, path: Path) -> dict[str, object]:
    """Return the row with the facts in place of what the log says. Raises InputError."""
    is_group = bool(row.pop("of_a_group", False))  # whose ranks are not all of the job's
    given = {
        name: value
        for name, value in asdict(facts).items()
        if value is not None and not (is_group and name in COUNTS)
    }
    logged, said = (gpu_in(str(one or "")) for one in (row.get("gpu"), facts.gpu))
    if logged and said and logged.family != said.family:
        raise InputError(
            f"{path} was written on {row['gpu']}, and not on {said.name}; name that GPU (--gpu)"
        )
    if is_group and facts.settings and row.get("settings"):
        given["settings"] = f"{row['settings']}; {facts.settings}"
    row = {"source": path.name, "block": path.stem, **row, **given}
    if facts.ranks is not None and not is_group:
        row["ranks"] = facts.ranks
    nodes, each, ranks = (row.get(name) for name in ("nodes", "gpus_per_node", "ranks"))
    if not (nodes and each and ranks):
        raise InputError(
            f"{path} does not say how many ranks took part; give --nodes and --gpus-per-node"
        )
    whole = float(cast(float, each)).is_integer()
    if not whole or float(cast(float, nodes)) * float(cast(float, each)) != ranks:
        what = f"are not {nodes} nodes times {each} GPUs" if whole else f"do not fill {nodes} nodes"
        raise InputError(
            f"{path}: {ranks} ranks {what}; give both, --nodes and --gpus-per-node, or take apart "
            "what ran on unlike nodes"
        )
    if not row.get("collective"):
        raise InputError(
            f"{path} does not name its collective; give --collective with one of "
            f"{', '.join(COLLECTIVES)}"
        )
    return row


def _with_rates(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the rates that its times imply, where the log printed none."""
    texts = [column.name for column in MEASURED.columns if column.kind.is_text]
    table = table.assign(
        **{name: table[name].astype(object).fillna("").astype(str) for name in texts}
    )
    checked = with_seconds(MEASURED.checked(table))
    rate = checked["size_bytes"] / checked[SECONDS] / GB
    return checked.assign(
        algbw_GBps=checked["algbw_GBps"].fillna(rate.round(4)),
        busbw_GBps=checked["busbw_GBps"].fillna((rate * bus_factors(checked)).round(4)),
    ).drop(columns=SECONDS)


@dataclass
class _Heard:
    """What a log has said so far."""

    collective: str = ""
    release: str = "NCCL"
    places: dict[int, tuple[str, str]] = field(default_factory=dict)  # of ranks: group and host
    gpu: str = ""
    columns: tuple[str, ...] = ()

    @property
    def took_part(self) -> dict[str, object]:
        """What took part in one collective: ranks, nodes, the ranks of each, groups at once.

        The ranks of a node are a fraction where hosts are unlike. Raises ResultsError for groups
        that are not alike.
        """
        groups: dict[str, list[str]] = {}
        for group, host in self.places.values():
            groups.setdefault(group, []).append(host)
        sizes = {(len(hosts), len(set(hosts))) for hosts in groups.values()}
        if not sizes:
            return {}
        if len(sizes) > 1:
            raise ResultsError("its groups of ranks are not alike; give a log of equal groups")
        ((ranks, hosts),) = sizes
        return {
            "ranks": ranks,
            "nodes": hosts,
            "gpus_per_node": ranks // hosts if ranks % hosts == 0 else ranks / hosts,
            **({"settings": f"{len(groups)} groups at once"} if len(groups) > 1 else {}),
            "of_a_group": len(groups) > 1,
        }

    def device(self, rank: int, group: str, host: str, gpu: str) -> None:
        if rank in self.places:  # a new list
            self.places = {}
        self.places[rank], self.gpu, self.columns = (group, host), gpu.strip(), ()


def _nccl_rows(text: str) -> Iterator[dict[str, object]]:
    """Yield a row for every line of every table of a log, with what the log says about it."""
    heard = _Heard()
    for line in text.splitlines():
        if found := _DEVICE.search(line):
            heard.device(int(found[1]), *found.group(2, 3, 4))
        elif found := _HEADER.search(line):
            heard.columns = tuple(found[1].split())
        elif heard.columns and (values := _values(line, heard.columns)):
            if int(values[0]):  # nothing was sent where the buffer has no byte for every rank
                yield _row(values, heard)
        elif heard.columns and _ROW.search(line):
            raise _unreadable(line)
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
    read = all(re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", word) for word in times)
    is_timed = read and (words[0] == "0" or float(words[columns.index("time")]) > 0)
    return words if is_timed else []


def _unreadable(line: str) -> ResultsError:
    return ResultsError(
        f"the row {' '.join(line.split())!r} has no time that is a number above 0 in every place; "
        f"remove it if the run broke off there, or run the benchmark again"
    )


def _row(values: list[str], heard: _Heard) -> dict[str, object]:
    cells = list(zip(heard.columns, values, strict=True))
    named = dict(reversed(cells))  # the first of each name: out of place
    found = {name: [float(value) for column, value in cells if column == name] for name in _OF_TIME}
    wrong = [v for column, v in cells if column in ("#wrong", "error") and v not in ("N/A", "0")]
    wrong = [value for value in wrong if float(value) > 0.01]  # old versions print a deviation
    inside = len(found["time"]) > 1
    return {
        "collective": heard.collective if heard.collective in COLLECTIVES else "",
        "gpu": heard.gpu,
        **heard.took_part,
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


def _osu_rows(text: str, ranks: int) -> Iterator[dict[str, object]]:
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
                "notes": "wrong results" if found[3] == "Fail" else "",
            }
        elif collective and re.match(r"\s*\d+\s+\S", line):
            raise _unreadable(line)


def _probe_rows(text: str) -> Iterator[dict[str, object]]:
    """Yield a row for every all-reduce that we timed; the workers are ranks of one node."""
    try:
        listed = json_of(text, "the log")
    except InputError:
        return
    if not isinstance(listed, list) or not all(set(one) == _KEYS for one in listed):
        return
    for one in listed:
        yield {
            "collective": "all_reduce",
            "nodes": 1,
            "gpus_per_node": one["workers"],
            "ranks": one["workers"],
            "library": "gloo",
            "settings": "while computing" if one["while_computing"] else "",
            "size_bytes": one["message_bytes"],
            "dtype": "float",
            "time_us_out_of_place": one["seconds"] * 1e6,
        }
