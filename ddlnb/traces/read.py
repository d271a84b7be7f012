"""Reading a trace, whichever tool wrote it: tables of jobs, and events in Chrome's format.

Timelines that Horovod and BytePS recorded have messages only. Horovod writes when worker 0 began to
negotiate a tensor and what it then did with it. With BYTEPS_TRACE_ON=1, BYTEPS_TRACE_START_STEP,
BYTEPS_TRACE_END_STEP and BYTEPS_TRACE_DIR a worker of BytePS writes ``DIR/LOCAL_RANK/comm.json``
(the folder must exist): for every tensor and step how long it was under way ("total"), and how long
each stage of each partition took. With MXNet it also writes ``dag.gml``, what each tensor's
communication waits for.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ddlnb.errors import InputError, require
from ddlnb.progress import Show, bar
from ddlnb.reading import pieces_of, read_text, reading
from ddlnb.results.timeline import Span, Timeline
from ddlnb.traces.chrome import KNOWN, WAY_OUT, Events, TraceEvent, described, said
from ddlnb.traces.jobs.profiled import ProfiledJob, profiled_job
from ddlnb.traces.jobs.table import JobTrace, read_job
from ddlnb.traces.kineto.events import FLOW, KEPT, recording
from ddlnb.traces.kineto.rank import RankTrace, rank_trace
from ddlnb.traces.kineto.trace import KinetoTrace, kineto_trace
from ddlnb.units import US

if TYPE_CHECKING:
    import networkx as nx


# Of a file at most, while it is read: short events without arguments, of one rank or of several.
MEMORY_PER_BYTE, OF_SEVERAL = 6, 4
_KERNEL, OVERLAP = re.compile(rb'"cat"\s*:\s*"kernel"'), 64
KINETO, HOROVOD, BYTEPS, OURS = "torch.profiler", "Horovod", "BytePS", "ddlnb"


@contextmanager
def _opened(
    path: Path, progress: Show = False, memory_per_byte: int = MEMORY_PER_BYTE
) -> Iterator[tuple[str, Iterable[TraceEvent], dict[str, Any]]]:
    """Yield the tool that wrote a trace, its events, and what else its file says of itself.

    Raises InputError for a file whose events would not fit into the free memory.
    """
    most = psutil.virtual_memory().available // memory_per_byte
    with closing(_counted(pieces_of(path, most, WAY_OUT), path, progress)) as pieces:
        events, seen, tool = Events(pieces, path.name), [], ""
        for event in events:
            event.args = event.args.copy()  # what is a part of a piece keeps all of it
            seen.append(event)
            if tool := tool_of([event], events.head):
                break
        yield tool or tool_of((), events.head), chain(seen, events), events.head


def _counted(pieces: Iterable[bytes], path: Path, progress: Show) -> Generator[bytes]:
    """Yield the pieces, and show how many bytes were read if that takes more than a moment."""
    is_packed = path.suffix in (".gz", ".zst")
    size = None if is_packed or not path.exists() else path.stat().st_size
    words = {"unit": "B", "unit_scale": True, "delay": 2}
    with bar(total=size, desc=f"reading {path.name}", progress=progress, **words) as shown:
        for piece in pieces:
            yield piece
            shown.update(len(piece))


def tool_of(events: Iterable[TraceEvent], header: dict[str, Any]) -> str:
    """Return the tool that wrote these events, empty for one that is not known."""
    if "schemaVersion" in header or "baseTimeNanoseconds" in header:
        return KINETO
    for event in events:
        if event.cat in ("cpu_op", "kernel", "cuda_runtime"):
            return KINETO
        if event.cat in ("user_annotation", "python_function"):  # whatever a user calls it
            continue
        if str(event.name).startswith(("NEGOTIATE_", "ALLREDUCE")):
            return HOROVOD
        if str(event.pid).startswith("Comm."):
            return BYTEPS
        if event.cat in ("forward", "backward", "message"):
            return OURS
    return ""


def horovod_timeline(events: Iterable[TraceEvent], name: str, method: str) -> Timeline:
    """Return the all-reduces of these events as messages, each from negotiation to end.

    Iteration n holds the n-th message of every tensor. A message whose end a truncated file lacks
    is left out. Raises InputError if none is an all-reduce.
    """
    spans = tuple(_horovod_messages(events))
    require(bool(spans), f"{name!r} holds no all-reduce; name a file that Horovod wrote")
    return Timeline(method, "measured", spans)


def _horovod_messages(events: Iterable[TraceEvent]) -> Iterator[Span]:
    """Yield each all-reduce that has ended. In Horovod's trace a tensor is a process."""
    names: dict[int, str] = {}
    rounds: Counter[int] = Counter()
    opened: dict[int, list[tuple[str, float]]] = defaultdict(list)
    negotiated: dict[int, float] = {}
    for event in events:
        kind, process = event.ph, event.pid or 0
        if kind == "M" and event.name == "process_name":
            names[process] = _tensor_of(said(event.args).get("name", ""))
        elif kind == "B":
            opened[process].append((event.name, event.ts / 1e6))
        elif kind == "E" and opened[process]:
            name, start = opened[process].pop()
            if name == "NEGOTIATE_ALLREDUCE":
                negotiated[process] = start
            elif name == "ALLREDUCE" and process in negotiated:
                tensor, start = names.get(process, str(process)), negotiated.pop(process)
                stop, iteration = event.ts / 1e6, rounds[process]
                yield Span(0, "message", tensor, start, stop, iteration, _bytes(event))
                rounds[process] += 1


def _bytes(event: TraceEvent) -> int:
    import numpy as np

    about = said(event.args)
    elements = math.prod(int(number) for number in re.findall(r"\d+", about.get("shape", "[0]")))
    return elements * int(np.dtype(about.get("dtype", "uint8")).itemsize)


TOTAL = "total"  # the thread of events that last as long as a tensor is under way


def byteps_timeline(events: Iterable[TraceEvent], name: str, method: str = "byteps") -> Timeline:
    """Return the messages of a comm.json, from when BytePS took a tensor to when it had the sum.

    Iteration n holds the n-th message of every tensor. Bytes are known where the engine names
    elements ("w[0:512]", of four bytes), and 0 elsewhere. Raises InputError if there is no message.
    """
    spans = tuple(_byteps_messages(events, name))
    require(bool(spans), f"{name!r} holds no message; name a comm.json that BytePS wrote")
    return Timeline(method, "measured", spans)


def read_byteps_graph(path: str | Path) -> nx.DiGraph:
    """Return the graph of a dag.gml: nodes are operations, edges lead to what waits for them.

    Raises InputError for a file that is no such graph, or one whose operations wait in a circle.
    """
    import networkx as nx

    lines = read_text(path).splitlines()
    with reading(f"graph {str(path)!r}"):
        graph = nx.DiGraph(nx.parse_gml(lines))
    if not nx.is_directed_acyclic_graph(graph):
        circle = " -> ".join(str(before) for before, _ in nx.find_cycle(graph)[:4])
        raise InputError(f"operations of {str(path)!r} wait for one another in a circle: {circle}")
    return graph


def _byteps_messages(events: Iterable[TraceEvent], name: str) -> Iterator[Span]:
    rounds: Counter[str] = Counter()
    whole = []
    for event in events:
        if event.tid == TOTAL:
            require(
                event.pid is not None
                and all(isinstance(time, int | float) for time in (event.ts, event.dur)),
                f"{name!r} has a message without pid, ts or dur: {event}",
            )
            whole.append((float(event.ts), event.dur, _tensor_of(str(event.pid))))
    whole.sort(key=lambda message: message[0])
    for at, lasted, tensor in whole:
        start = (at - whole[0][0]) * US
        stop = start + lasted * US
        elements = sum(int(b) - int(a) for a, b in re.findall(r"\[(\d+):(\d+)\]", tensor))
        yield Span(0, "message", tensor, start, stop, rounds[tensor], 4 * elements)
        rounds[tensor] += 1


def _tensor_of(name: str) -> str:
    """Return the name of a tensor without what an engine and ours put before it.

    >>> _tensor_of("Comm.byteps.27 conv1.bias[0:24]"), _tensor_of("Comm.byteps.gradient_0")
    ('conv1.bias[0:24]', 'gradient_0')
    >>> _tensor_of("allreduce.0 w[0:6]")
    'w[0:6]'
    """
    return re.sub(r"^(allreduce\.|Comm\.(byteps\.)?(byteps_push_pull\.)?)?(\d+ )?", "", name)


def read_ranks(paths: Sequence[str | Path], progress: Show = None) -> ProfiledJob:
    """Return the job that torch.profiler recorded on several ranks: a file each, or folders.

    A file that cannot be read is left out, and the job's ``left_out`` says why. A rank is that of
    the file, else a number in its name. Raises InputError where no file can be read, and for two
    files of one rank.
    """
    files = [one for path in map(Path, paths) for one in _files_in(path)]
    ranks, left_out = [], []
    for path in bar(files, "reading", unit="rank", progress=progress):
        try:
            ranks.append(read_rank(path))
        except InputError as error:
            left_out.append(str(error))
    where = ", ".join(map(str, paths))
    require(
        bool(ranks),
        left_out[0] if left_out else f"{where} holds no trace (.json, .json.gz, .json.zst)",
    )
    return profiled_job(ranks, Path(paths[0]).name, tuple(left_out))


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(one for one in path.iterdir() if re.search(r"\.json(\.\w+)?$", one.name))


def read_rank(path: Path) -> RankTrace:
    """Return what a rank computed and sent, from its trace by torch.profiler. Raises InputError."""
    with reading(f"trace {str(path)!r}", WAY_OUT):
        return _rank(path)


def _rank(path: Path) -> RankTrace:
    on_gpu = _has_kernels(path)
    unread = {"python_function", FLOW, *(("cpu_op", "cuda_sync") if on_gpu else ())}
    in_name = re.search(r"rank\D?(\d+)", path.name) or re.search(r"(\d+)", path.name)
    with _opened(path, memory_per_byte=OF_SEVERAL) as (tool, events, head):
        require(
            tool == KINETO,
            f"{path.name!r} is no trace of torch.profiler, of which several are read together",
        )
        if in_name:
            head.setdefault("distributedInfo", {"rank": in_name[1]})
        return rank_trace(recording(events, head, _name(path), set(KEPT) - unread))


def _has_kernels(path: Path) -> bool:
    """Return whether a file has kernels, beside which operations of the host are not read."""
    before = b""
    for piece in pieces_of(path, psutil.virtual_memory().available // OF_SEVERAL, WAY_OUT):
        if _KERNEL.search(before + piece):
            return True
        before = piece[-OVERLAP:]
    return False


def _name(path: Path) -> str:
    return re.sub(r"(\.json)?(\.gz|\.zst)?$", "", path.name)


def read_trace(
    path: str | Path | Sequence[str | Path], progress: Show = None
) -> JobTrace | ProfiledJob | KinetoTrace | Timeline | nx.DiGraph:
    """Return what a trace file holds, as the tool that wrote it deserves.

    - A table of all operations of a job (.csv): a ``JobTrace``, which ``ddlnb.traces.what_if``
      replays.
    - A trace of one rank by torch.profiler (.json): a ``KinetoTrace``. Its ``workload(model)``
      returns layers and gradients, ``timeline()`` spans, ``operations`` what waits for what.
    - A folder, or several files, of torch.profiler's traces of ranks: a ``ProfiledJob``.
    - A timeline of Horovod, or a comm.json of BytePS: a ``Timeline`` of messages.
    - A dag.gml of BytePS: the networkx graph of its operations, without circles.

    Times are seconds; files may be compressed (.gz, .zst). Raises InputError for a file that cannot
    be read, is too large for the memory that is free, or that none of these tools wrote.

    >>> import ddlnb
    >>> job = ddlnb.read_trace("data/published/traces/bytedance-trace-ST.csv.gz")
    >>> str(job).split(", ")[1:3]
    ['6,784 operations', '32 iterations']
    """
    if not isinstance(path, str | Path) or Path(path).is_dir():
        return read_ranks([path] if isinstance(path, str | Path) else path, progress)
    path = Path(path)
    if re.search(r"\.csv(\.gz|\.zst)?$", path.name):
        return read_job(path)
    if path.suffix == ".gml":
        return read_byteps_graph(path)
    with (
        reading(f"trace {str(path)!r}", WAY_OUT),
        _opened(path, progress) as (tool, events, head),
    ):
        if tool == KINETO:
            return kineto_trace(events, head, _name(path))
        if tool == HOROVOD:
            return horovod_timeline(events, path.name, HOROVOD)
        if tool == BYTEPS:
            return byteps_timeline(events, path.name, BYTEPS)
        require(
            tool != OURS, f"{path.name!r} was written by ddlnb itself; open it at ui.perfetto.dev"
        )
        found = list(events)
    require(bool(found), f"{path.name!r} has no event; give {KNOWN}")
    raise InputError(f"{path.name!r} has {described(found)}, of no tool known here; give {KNOWN}")
